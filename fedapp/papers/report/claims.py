"""A text's statements, checked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np

from fedapp.papers.cells import cells_of
from fedapp.papers.report.markdown import number, percent, rounds, table
from fedapp.papers.results import CellResult, Results, RunResult
from fedapp.papers.schema import Claim, Claims, Quantity, Scale, ScaleName

Verdict = Literal[
    "holds",
    "fails",
    "inconclusive",
    "one seed",
    "full scale only",
    "smoke: no evidence",
    "no number",
    "not run",
]
NOT_JUDGED: Mapping[Verdict, str] = {
    "one seed": "of numbers other than accuracies only the seeds' range is known as noise, and "
    "one seed has none",
    "full scale only": "an accuracy by itself is that of the paper's data and network",
    "smoke: no evidence": "other data, another network and a few rounds say nothing of the claim",
}
"""Why a number is shown and not judged."""
NO_NUMBER = (
    "*no number*: the cells were run, and one of them has no such number: its target was not reached "
    "in the rounds that it may take, or its training diverged."
)


RATIOS = ("ratio", "ratio-gain", "factor")
"""Measures whose noise is that of a factor."""


@dataclass(frozen=True)
class Checked:
    """A claim with its measured number, its noise, and whether it holds."""

    claim: Claim
    measured: float | None
    noise: float
    verdict: Verdict


@dataclass(frozen=True)
class Noise:
    """The least uncertainty: of an accuracy, and of other numbers as a share of the number."""

    accuracy: float
    shares: Mapping[Quantity, float] = field(default_factory=dict)


def check(
    claim: Claim,
    cells: Mapping[str, CellResult],
    noise: Noise,
    scale: ScaleName = "full",
    names: Sequence[str] | None = None,
) -> Checked:
    """Measure a claim on its cells, or on those called ``names``, and judge it, with evidence.

    ``noise`` is the least uncertainty; where the cells have several seeds, half of their widest range
    counts if it is more. Numbers of which it says nothing have only the seeds' range: of one seed
    they are shown, not judged. So is one cell's value at a smaller scale than the paper's, since it
    is that of the data and network, and everything at the smoke scale.
    """
    own = [cells.get(name, CellResult()) for name in names or claim.cells]
    if not all(cell.runs for cell in own):
        return Checked(claim, None, 0.0, "not run")
    measured = _measure(claim, own)
    if measured is None:
        return Checked(claim, None, 0.0, "no number")
    doubt = _doubt(claim, own, noise, measured)
    return Checked(claim, measured, doubt or 0.0, _verdict(claim, measured, doubt, scale))


def _verdict(claim: Claim, measured: float, doubt: float | None, scale: ScaleName) -> Verdict:
    if scale == "smoke":
        return "smoke: no evidence"
    if claim.measure == "value" and scale != "full":
        return "full scale only"
    return "one seed" if doubt is None else _judge(claim, measured, doubt)


def _doubt(
    claim: Claim, cells: Sequence[CellResult], noise: Noise, measured: float
) -> float | None:
    """Return how uncertain the measured number is; None where nothing says so."""
    is_accuracy = claim.measure != "agreement" and claim.of in ("final", "best")
    share = noise.shares.get(claim.of)
    if not is_accuracy and share is None and any(len(cell.runs) < 2 for cell in cells):
        return None
    least = noise.accuracy if is_accuracy else 0.0
    doubts = [max(least, _half_range(claim, each), _part(claim, each, share)) for each in cells]
    if claim.measure not in RATIOS:
        return max(doubts)
    return measured * max(
        doubt / abs(cell.number(claim.of) or 1.0) for doubt, cell in zip(doubts, cells, strict=True)
    )


def _part(claim: Claim, cell: CellResult, share: float | None) -> float:
    """Return so large a part of a cell's number."""
    return 0.0 if share is None else share * abs(cell.number(claim.of) or 0.0)


def _half_range(claim: Claim, cell: CellResult) -> float:
    """Return half of the seeds' range; of a similarity, that of the layer where it is widest."""
    if claim.of == "rate":
        return 0.0  # found by the seeds that rates are judged by
    if claim.measure == "agreement":
        by_seed = [_similarity([run]) for run in cell.runs]
        layers = [[found[layer] for found in by_seed if layer in found] for layer in by_seed[0]]
        return max((max(values) - min(values) for values in layers), default=0.0) / 2
    low, high = cell.spread(claim.of)
    return (high - low) / 2


def _measure(claim: Claim, cells: Sequence[CellResult]) -> float | None:
    if claim.measure == "agreement":
        return _agreement(cells[0], cells[1])
    values = [value for cell in cells if (value := cell.number(claim.of)) is not None]
    if len(values) < len(cells) or (claim.measure in RATIOS and not all(values)):
        return None
    match claim.measure:
        case "difference":
            return values[0] - values[1]
        case "gain":
            return (values[0] - values[1]) - (values[2] - values[3])
        case "spread":
            return max(values) - min(values)
        case "ratio":
            return values[0] / values[1]
        case "ratio-gain":
            return (values[0] / values[1]) / (values[2] / values[3])
        case "factor":
            return max(values) / min(values)
        case _:
            return values[0]


def _agreement(first: CellResult, second: CellResult) -> float | None:
    """Return the least, over the layers, of the first's mean similarity less the second's."""
    a, b = _similarity(first.runs), _similarity(second.runs)
    gains = [a[layer] - b[layer] for layer in a if layer in b]
    return min(gains) if gains else None


def _similarity(runs: Sequence[RunResult]) -> dict[str, float]:
    """Return the cosine similarity by layer, the mean over the recorded rounds of the runs."""
    found: dict[str, list[float]] = {}
    for row in (row for run in runs for row in run.agreement):
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
    """Return the table of claims, how many of them hold, and why others are not judged."""
    noise = (item.scales.get(results.scale) or Scale()).noise or item.noise
    known = Noise(noise, item.relative_noise)
    checked = [
        check(claim, results.cells, known, results.scale, cells_of(claim)) for claim in item.claims
    ]
    head = ("claim", "section", "published", "measured", "±", "holds if", "verdict")
    found = Counter(each.verdict for each in checked)
    verdicts: tuple[Verdict, ...] = get_args(Verdict)
    counts = [f"{found[verdict]} {verdict}" for verdict in verdicts if found[verdict]]
    why = [f"*{verdict}*: {NOT_JUDGED[verdict]}" for verdict in NOT_JUDGED if found[verdict]]
    parts = [table(head, [_row(each) for each in checked]), f"{', '.join(counts)}."]
    parts += [f"Shown, not judged: {'; '.join(why)}."] if why else []
    return "\n\n".join([*parts, *([NO_NUMBER] if found["no number"] else [])])


def _row(checked: Checked) -> list[str]:
    claim = checked.claim
    bounds = [
        f"{sign} {_value(claim, bound)}"
        for sign, bound in (("≥", claim.low), ("≤", claim.high))
        if bound is not None
    ]
    return [
        claim.says,
        claim.where,
        "" if claim.published is None else _value(claim, claim.published),
        checked.verdict if checked.measured is None else _value(claim, checked.measured),
        _value(claim, checked.noise).lstrip("+") if checked.noise else "",
        " and ".join(bounds),
        f"**{checked.verdict}**",
    ]


def _value(claim: Claim, value: float) -> str:
    """Return accuracies in percent, their differences in points, factors as such, all else as it is."""
    if claim.measure in RATIOS:
        return f"{number(value)}×"
    if claim.of not in ("final", "best", "fluctuation") or claim.measure == "agreement":
        return rounds(value) if claim.of == "needed" else number(value)
    if claim.measure in ("difference", "gain"):
        return f"{100 * value:+.2f}"
    return percent(value)
