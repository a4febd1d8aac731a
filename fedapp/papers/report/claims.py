"""A text's statements, checked: Seo et al. 2024."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from fedapp.papers.report.markdown import NOT_RUN, number, percent, table
from fedapp.papers.results import CellResult, Results
from fedapp.papers.schema import Claim, Claims, Scale, ScaleName

Verdict = Literal["holds", "fails", "inconclusive", "full scale only", "not run"]


@dataclass(frozen=True)
class Checked:
    """A claim with its measured number, its noise, and whether it holds."""

    claim: Claim
    measured: float | None
    noise: float
    verdict: Verdict


def check(
    claim: Claim, cells: Mapping[str, CellResult], noise: float, scale: ScaleName = "full"
) -> Checked:
    """Measure a claim on its cells and judge it.

    ``noise`` is the least uncertainty of an accuracy; where the cells have several seeds, half of
    their widest range counts if it is more. Other numbers have only the seeds' range. One cell's
    value is that of the paper's data and network: of a smaller scale it is shown, not judged.
    """
    own = [cells.get(name, CellResult()) for name in claim.cells]
    if not all(cell.runs for cell in own):
        return Checked(claim, None, noise, "not run")
    measured = _measure(claim, own)
    if measured is None:
        return Checked(claim, None, noise, "not run")
    doubt = _doubt(claim, own, noise)
    if claim.measure == "value" and scale != "full":
        return Checked(claim, measured, doubt, "full scale only")
    return Checked(claim, measured, doubt, _judge(claim, measured, doubt))


def _doubt(claim: Claim, cells: Sequence[CellResult], noise: float) -> float:
    if claim.measure == "agreement":
        return 0.0
    spreads = [cell.spread(claim.of) for cell in cells]
    ranges = [(high - low) / 2 for low, high in spreads if low is not None and high is not None]
    certain = 0.0 if claim.of not in ("final", "best") else noise
    return max([certain, *ranges])


def _measure(claim: Claim, cells: Sequence[CellResult]) -> float | None:
    if claim.measure == "agreement":
        return _agreement(cells[0], cells[1])
    values = [cell.mean(claim.of) for cell in cells]
    if claim.measure == "difference":
        return values[0] - values[1]
    if claim.measure == "gain":
        return (values[0] - values[1]) - (values[2] - values[3])
    return max(values) - min(values) if claim.measure == "spread" else values[0]


def _agreement(first: CellResult, second: CellResult) -> float | None:
    """Return the least, over the layers, of the first's mean similarity less the second's."""
    a, b = _similarity(first), _similarity(second)
    gains = [a[layer] - b[layer] for layer in a if layer in b]
    return min(gains) if gains else None


def _similarity(cell: CellResult) -> dict[str, float]:
    """Return the cosine similarity by layer, the mean over the recorded rounds of all runs."""
    found: dict[str, list[float]] = {}
    for row in (row for run in cell.runs for row in run.agreement):
        for layer, value in row.get("similarity", {}).items():
            if value is not None:
                found.setdefault(layer, []).append(value)
    return {layer: float(np.mean(values)) for layer, values in found.items()}


def _judge(claim: Claim, measured: float, doubt: float) -> Verdict:
    low = -np.inf if claim.low is None else claim.low
    high = np.inf if claim.high is None else claim.high
    if claim.measure != "value":
        nearest = min(abs(measured - bound) for bound in (low, high) if np.isfinite(bound))
        if nearest <= doubt:
            return "inconclusive"
    return "holds" if low <= measured <= high else "fails"


def claims_section(item: Claims, results: Results) -> str:
    """Return the table of claims and how many of them hold."""
    noise = (item.scales.get(results.scale) or Scale()).noise or item.noise
    checked = [check(claim, results.cells, noise, results.scale) for claim in item.claims]
    head = ("claim", "section", "published", "measured", "±", "holds if", "verdict")
    counts = [
        f"{count} {verdict}"
        for verdict in get_args(Verdict)
        if (count := sum(each.verdict == verdict for each in checked))
    ]
    return f"{table(head, [_row(each) for each in checked])}\n\n{', '.join(counts)}."


def _row(checked: Checked) -> list[str]:
    claim = checked.claim
    bounds = [
        f"{sign} {_value(claim, bound)}"
        for sign, bound in (("≥", claim.low), ("≤", claim.high))
        if bound is not None
    ]
    missing = checked.verdict == NOT_RUN
    return [
        claim.says,
        claim.where,
        "" if claim.published is None else _value(claim, claim.published),
        NOT_RUN if checked.measured is None else _value(claim, checked.measured),
        "" if missing or not checked.noise else _value(claim, checked.noise).lstrip("+"),
        " and ".join(bounds),
        f"**{checked.verdict}**",
    ]


def _value(claim: Claim, value: float) -> str:
    """Return accuracies in percent, their differences in points, all else as it is."""
    if claim.of not in ("final", "best", "fluctuation") or claim.measure == "agreement":
        return number(value)
    if claim.measure in ("difference", "gain"):
        return f"{100 * value:+.2f}"
    return percent(value)
