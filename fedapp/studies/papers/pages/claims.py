"""A text's statements, checked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np

from fedapp.studies.papers.cells import cells_of
from fedapp.studies.papers.claims import RATIOS, Claim, Claims, Measured, Quantity, measure
from fedapp.studies.papers.labels import AsRun
from fedapp.studies.papers.pages.markdown import number, percent, rounds, table
from fedapp.studies.papers.results import CellResult, Results
from fedapp.studies.papers.schema import ScaleName

Verdict = Literal[
    "holds",
    "fails",
    "inconclusive",
    "one seed",
    "one rate",
    "cut short",
    "full scale only",
    "smoke: no evidence",
    "no number",
    "not run",
]
NOT_JUDGED: Mapping[Verdict, str] = {
    "one seed": "of numbers other than accuracies only the seeds' range is known as noise, and "
    "one seed has none",
    "one rate": "the best rate of each of the two is what is compared, and one rate alone was tried",
    "cut short": "it is said of where curves end, and these have fewer rounds than at full scale",
    "full scale only": "an accuracy by itself is that of the paper's data and network",
    "smoke: no evidence": "other data, another network and a few rounds say nothing of the claim",
}
"""Why a number is shown and not judged."""
JUDGED: tuple[Verdict, ...] = ("holds", "fails", "inconclusive")
NO_NUMBER = (
    "*no number*: the cells were run, and one of them has no such number: its target was not reached "
    "in the rounds that it may take, its training diverged, or it was not recorded."
)


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
    pace: float = 1.0,
    names: Sequence[str] | None = None,
    lacks: Verdict | None = None,
) -> Checked:
    """Measure a claim on its cells, or on those called ``names``, and judge it, with evidence.

    ``noise`` is the least uncertainty; where the cells have several seeds, half of their widest range
    counts if it is more. Numbers of which it says nothing have only the seeds' range: of one seed
    they are shown, not judged. So is one cell's value at a smaller scale than the paper's, since it
    is that of the data and network, and everything at the smoke scale, and what ``lacks`` says is not
    there to judge it by. ``pace`` as in ``Scale``.
    """
    own = [cells.get(name, CellResult()) for name in names or claim.cells]
    if not all(cell.runs for cell in own):
        return Checked(claim, None, 0.0, "not run")
    found = measure(claim, own, pace)
    if found is None:
        return Checked(claim, None, 0.0, "no number")
    doubt = _doubt(claim, found, noise)
    judged = _verdict(claim, found.value, doubt, scale)
    verdict = lacks if lacks and judged in JUDGED else judged
    return Checked(claim, found.value, doubt or 0.0, verdict)


def _verdict(claim: Claim, measured: float, doubt: float | None, scale: ScaleName) -> Verdict:
    if scale == "smoke":
        return "smoke: no evidence"
    if claim.measure == "value" and scale != "full":
        return "full scale only"
    return "one seed" if doubt is None else _judge(claim, measured, doubt)


def _doubt(claim: Claim, found: Measured, noise: Noise) -> float | None:
    """Return how uncertain the measured number is; None where nothing says so."""
    share = noise.shares.get(claim.of)
    if not claim.is_of_accuracy and share is None and found.seeds < 2:
        return None
    least = noise.accuracy if claim.is_of_accuracy else 0.0
    doubts = [
        max(least, half_range, abs(value) * (share or 0.0))
        for value, half_range in zip(found.numbers, found.half_ranges, strict=True)
    ]
    if claim.measure not in RATIOS:
        return max(doubts)
    shares = (doubt / abs(value) for doubt, value in zip(doubts, found.numbers, strict=True))
    return found.value * max(shares)


def _judge(claim: Claim, measured: float, doubt: float) -> Verdict:
    low = -np.inf if claim.low is None else claim.low
    high = np.inf if claim.high is None else claim.high
    if claim.measure != "value":
        nearest = min(abs(measured - bound) for bound in (low, high) if np.isfinite(bound))
        if nearest <= doubt:
            return "inconclusive"
    return "holds" if low <= measured <= high else "fails"


def check_all(item: Claims, results: Results) -> list[Checked]:
    """Measure and judge all claims of an item."""
    scale = item.at(results.scale)
    noise = Noise(scale.noise or item.noise, item.relative_noise)
    as_run = AsRun.of(item, results)
    return [
        check(
            *(claim, results.cells, noise, results.scale, scale.pace, cells_of(claim)),
            _lacking(claim, results.cells, as_run),
        )
        for claim in item.claims
    ]


def _lacking(claim: Claim, cells: Mapping[str, CellResult], as_run: AsRun) -> Verdict | None:
    """Return what a claim's cells lack at this scale to be judged by, if anything."""
    names = cells_of(claim)
    ran = [(name, run) for name in names for run in cells.get(name, CellResult()).runs]
    if claim.to_the_end and any(
        run.rounds < as_run.planned(name) and not run.problem for name, run in ran
    ):
        return "cut short"
    if claim.is_of_accuracy and claim.measure != "value" and any(map(as_run.is_untuned, names)):
        return "one rate"
    return None


def claims_section(item: Claims, results: Results) -> str:
    """Return the table of claims, how many of them hold, and why others are not judged."""
    checked = check_all(item, results)
    head = ("claim", "section", "published", "measured", "±", "holds if", "verdict")
    found = Counter(each.verdict for each in checked)
    verdicts: tuple[Verdict, ...] = get_args(Verdict)
    counts = [f"{found[verdict]} {verdict}" for verdict in verdicts if found[verdict]]
    why = [f"*{verdict}*: {NOT_JUDGED[verdict]}" for verdict in NOT_JUDGED if found[verdict]]
    as_run = AsRun.of(item, results)
    parts = [table(head, [_row(each, as_run) for each in checked]), f"{', '.join(counts)}."]
    parts += [f"Shown, not judged: {'; '.join(why)}."] if why else []
    parts += [NO_NUMBER] if found["no number"] else []
    scale = item.at(results.scale)
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


def _said(claim: Claim, as_run: AsRun) -> str:
    """Return what a claim says, with the values that ran; of two cells that are compared, theirs."""
    says = as_run.said(claim.says, *cells_of(claim))
    compared = claim.cells[:2] if claim.measure in ("difference", "gain") else ()
    values = [value for name in compared if (value := as_run.values(name))]
    return f"{says}: {' against '.join(values)}" if len(values) > 1 and says == claim.says else says


def _row(checked: Checked, as_run: AsRun) -> list[str]:
    claim = checked.claim
    bounds = [
        f"{sign} {_value(claim, bound)}"
        for sign, bound in (("≥", claim.low), ("≤", claim.high))
        if bound is not None
    ]
    return [
        _said(claim, as_run),
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
    if not claim.is_of_accuracy and claim.of != "fluctuation":
        return rounds(value) if claim.of == "needed" else number(value)
    if claim.measure in ("difference", "gain", "order"):
        return f"{100 * value:+.2f}"
    return percent(value)
