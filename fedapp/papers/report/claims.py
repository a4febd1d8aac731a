"""A text's statements, checked: Seo et al. 2024."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from fedapp.papers.report.markdown import NOT_RUN, number, percent, table
from fedapp.papers.report.measures import Measured, measure
from fedapp.papers.results import CellResult, Results
from fedapp.papers.schema import Claim, Claims, Scale, ScaleName

Verdict = Literal[
    "holds",
    "fails",
    "inconclusive",
    "one seed",
    "full scale only",
    "smoke: no evidence",
    "not run",
]
NOT_JUDGED: Mapping[Verdict, str] = {
    "one seed": "of numbers other than accuracies only the seeds' range is known as noise, and "
    "one seed has none",
    "full scale only": "an accuracy by itself is that of the paper's data and network",
    "smoke: no evidence": "other data, another network and a few rounds say nothing of the claim",
}
"""Why a number is shown and not judged."""


@dataclass(frozen=True)
class Checked:
    """A claim with its measured number, its noise, and whether it holds."""

    claim: Claim
    measured: float | None
    noise: float
    verdict: Verdict


def check(
    claim: Claim,
    cells: Mapping[str, CellResult],
    noise: float,
    scale: ScaleName = "full",
    pace: float = 1.0,
) -> Checked:
    """Measure a claim on its cells and judge it, where there is evidence.

    ``noise`` is the least uncertainty of an accuracy; where the cells have several seeds, half of
    their widest range counts if it is more. Other numbers have only the seeds' range: of one seed
    they are shown, not judged. So is one cell's value at a smaller scale than the paper's, since it
    is that of the data and network, and everything at the smoke scale. ``pace`` as in ``Scale``.
    """
    found = measure(claim, [cells.get(name, CellResult()) for name in claim.cells], pace)
    if found is None:
        return Checked(claim, None, noise, "not run")
    doubt = _doubt(claim, found, noise)
    verdict = _verdict(claim, found.value, doubt, scale)
    return Checked(claim, found.value, doubt or 0.0, verdict)


def _verdict(claim: Claim, measured: float, doubt: float | None, scale: ScaleName) -> Verdict:
    if scale == "smoke":
        return "smoke: no evidence"
    if claim.measure == "value" and scale != "full":
        return "full scale only"
    return "one seed" if doubt is None else _judge(claim, measured, doubt)


def _doubt(claim: Claim, found: Measured, noise: float) -> float | None:
    """Return how uncertain the measured number is; None where nothing says so."""
    if claim.is_of_accuracy:
        return max(noise, found.half_range)
    return found.half_range if found.seeds > 1 else None


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
    scale = item.scales.get(results.scale) or Scale()
    noise = scale.noise or item.noise
    checked = [
        check(claim, results.cells, noise, results.scale, scale.pace) for claim in item.claims
    ]
    head = ("claim", "section", "published", "measured", "±", "holds if", "verdict")
    found = Counter(each.verdict for each in checked)
    verdicts: tuple[Verdict, ...] = get_args(Verdict)
    counts = [f"{found[verdict]} {verdict}" for verdict in verdicts if found[verdict]]
    why = [f"*{verdict}*: {NOT_JUDGED[verdict]}" for verdict in NOT_JUDGED if found[verdict]]
    parts = [table(head, [_row(each) for each in checked]), f"{', '.join(counts)}."]
    parts += [f"Shown, not judged: {'; '.join(why)}."] if why else []
    return "\n\n".join([*parts, *_windows(item, scale.pace)])


def _windows(item: Claims, pace: float) -> list[str]:
    """Say which rounds the paper's windows are at this scale, if they are others."""
    windows = dict.fromkeys(claim.window for claim in item.claims if claim.window)
    if pace == 1 or not windows:
        return []
    said = [
        f"rounds {low} to {high} of the paper are here {low / pace:g} to {high / pace:g}"
        for low, high in windows
    ]
    return [f"One round counts as {pace:g} of the paper's: {'; '.join(said)}."]


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
    if not claim.is_of_accuracy and claim.of != "fluctuation":
        return number(value)
    if claim.measure in ("difference", "gain", "order"):
        return f"{100 * value:+.2f}"
    return percent(value)
