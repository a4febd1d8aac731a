"""The verdicts on claims, and their table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np

from fedapp.studies.papers.cells import cells_of
from fedapp.studies.papers.claims import RATIOS, Claim, Claims, Measured, Quantity, measure
from fedapp.studies.papers.labels import RunLabels
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
    "one seed": "the noise of numbers other than accuracies is known from the range over seeds only, "
    "and one seed has none",
    "one rate": "the claim compares the best rates, and only one rate was tried",
    "cut short": "the claim is about the ends of curves, and these have fewer rounds than at full scale",
    "full scale only": "a single accuracy depends on the data and network, which are the paper's at "
    "full scale only",
    "smoke: no evidence": "other data, another network and a few rounds are no evidence",
}
"""Why a number is shown but not judged."""
JUDGED: tuple[Verdict, ...] = ("holds", "fails", "inconclusive")
NO_NUMBER = (
    "*no number*: the cells were run, but one of them has no such number: its target was not reached "
    "in its rounds, its training diverged, or the number was not recorded."
)


@dataclass(frozen=True)
class Checked:
    """A claim with its measured number, its noise, and the verdict."""

    claim: Claim
    measured: float | None
    noise: float
    verdict: Verdict


@dataclass(frozen=True)
class Noise:
    """The minimum uncertainty: of accuracies, and of other numbers relative to the number."""

    accuracy: float
    shares: Mapping[Quantity, float] = field(default_factory=dict)


def check(
    claim: Claim,
    cells: Mapping[str, CellResult],
    noise: Noise,
    scale: ScaleName = "full",
    pace: float = 1.0,
    names: Sequence[str] | None = None,
    missing_evidence: Verdict | None = None,
) -> Checked:
    """Measure a claim on its cells, or on the cells ``names``, and judge it.

    ``noise`` is the minimum uncertainty; half of the maximum range over seeds counts if it is greater.
    Numbers without such a minimum are not judged with one seed. Neither are single values below full
    scale, numbers at smoke scale, and claims with ``missing_evidence``. ``pace`` as in ``Scale``.
    """
    own = [cells.get(name, CellResult()) for name in names or claim.cells]
    if not all(cell.runs for cell in own):
        return Checked(claim, None, 0.0, "not run")
    measured = measure(claim, own, pace)
    if measured is None:
        return Checked(claim, None, 0.0, "no number")
    uncertainty = _uncertainty(claim, measured, noise)
    verdict = _verdict(claim, measured.value, uncertainty, scale)
    verdict_ = missing_evidence if missing_evidence and verdict in JUDGED else verdict
    return Checked(claim, measured.value, uncertainty or 0.0, verdict_)


def _verdict(claim: Claim, measured: float, uncertainty: float | None, scale: ScaleName) -> Verdict:
    if scale == "smoke":
        return "smoke: no evidence"
    if claim.measure == "value" and scale != "full":
        return "full scale only"
    return "one seed" if uncertainty is None else _judge(claim, measured, uncertainty)


def _uncertainty(claim: Claim, measured: Measured, noise: Noise) -> float | None:
    """Return the uncertainty of the measured number; None if it is unknown."""
    share = noise.shares.get(claim.of)
    if not claim.is_of_accuracy and share is None and measured.seeds < 2:
        return None
    least = noise.accuracy if claim.is_of_accuracy else 0.0
    uncertainties = [
        max(least, half_range, abs(value) * (share or 0.0))
        for value, half_range in zip(measured.numbers, measured.half_ranges, strict=True)
    ]
    if claim.measure not in RATIOS:
        return max(uncertainties)
    shares = (
        uncertainty / abs(value)
        for uncertainty, value in zip(uncertainties, measured.numbers, strict=True)
    )
    return measured.value * max(shares)


def _judge(claim: Claim, measured: float, uncertainty: float) -> Verdict:
    low = -np.inf if claim.low is None else claim.low
    high = np.inf if claim.high is None else claim.high
    if claim.measure != "value":
        nearest = min(abs(measured - bound) for bound in (low, high) if np.isfinite(bound))
        if nearest <= uncertainty:
            return "inconclusive"
    return "holds" if low <= measured <= high else "fails"


def check_all(experiment: Claims, results: Results) -> list[Checked]:
    """Measure and judge all claims of an experiment."""
    scale = experiment.at(results.scale)
    noise = Noise(scale.noise or experiment.noise, experiment.relative_noise)
    run_labels = RunLabels.of(experiment, results)
    return [
        check(
            *(claim, results.cells, noise, results.scale, scale.pace, cells_of(claim)),
            _missing_evidence(claim, results.cells, run_labels),
        )
        for claim in experiment.claims
    ]


def _missing_evidence(
    claim: Claim, cells: Mapping[str, CellResult], run_labels: RunLabels
) -> Verdict | None:
    """Return why the cells cannot decide the claim at this scale, or None."""
    names = cells_of(claim)
    ran = [(name, run) for name in names for run in cells.get(name, CellResult()).runs]
    if claim.to_the_end and any(
        run.rounds < run_labels.planned(name) and not run.problem for name, run in ran
    ):
        return "cut short"
    if claim.is_of_accuracy and claim.measure != "value" and any(map(run_labels.is_untuned, names)):
        return "one rate"
    return None


def claims_section(experiment: Claims, results: Results) -> str:
    """Return the table of claims, the counts of verdicts, and why some are not judged."""
    checked = check_all(experiment, results)
    head = ("claim", "section", "published", "measured", "±", "holds if", "verdict")
    counts = Counter(each.verdict for each in checked)
    verdicts: tuple[Verdict, ...] = get_args(Verdict)
    summary = [f"{counts[verdict]} {verdict}" for verdict in verdicts if counts[verdict]]
    why = [f"*{verdict}*: {NOT_JUDGED[verdict]}" for verdict in NOT_JUDGED if counts[verdict]]
    run_labels = RunLabels.of(experiment, results)
    parts = [table(head, [_row(each, run_labels) for each in checked]), f"{', '.join(summary)}."]
    parts += [f"Shown, not judged: {'; '.join(why)}."] if why else []
    parts += [NO_NUMBER] if counts["no number"] else []
    scale = experiment.at(results.scale)
    return "\n\n".join([*parts, *_windows(experiment, scale.pace)])


def _windows(experiment: Claims, pace: float) -> list[str]:
    """Return the claims' windows at this scale, if they differ from the paper's."""
    windows = dict.fromkeys(claim.window for claim in experiment.claims if claim.window)
    if pace == 1 or not windows:
        return []
    texts = [
        f"rounds {low} to {high} of the paper are here {low / pace:g} to {high / pace:g}"
        for low, high in windows
    ]
    return [f"One round counts as {pace:g} of the paper's: {'; '.join(texts)}."]


def _claim_text(claim: Claim, run_labels: RunLabels) -> str:
    """Return the text of a claim with the values that ran."""
    text = run_labels.text(claim.text, *cells_of(claim))
    compared = claim.cells[:2] if claim.measure in ("difference", "gain") else ()
    values = [value for name in compared if (value := run_labels.values(name))]
    return f"{text}: {' against '.join(values)}" if len(values) > 1 and text == claim.text else text


def _row(checked: Checked, run_labels: RunLabels) -> list[str]:
    claim = checked.claim
    bounds = [
        f"{sign} {_value(claim, bound)}"
        for sign, bound in (("≥", claim.low), ("≤", claim.high))
        if bound is not None
    ]
    return [
        _claim_text(claim, run_labels),
        claim.where,
        "" if claim.published is None else _value(claim, claim.published),
        checked.verdict if checked.measured is None else _value(claim, checked.measured),
        _value(claim, checked.noise).lstrip("+") if checked.noise else "",
        " and ".join(bounds),
        f"**{checked.verdict}**",
    ]


def _value(claim: Claim, value: float) -> str:
    """Format a number: accuracies in percent, their differences in points, ratios as factors."""
    if claim.measure in RATIOS:
        return f"{number(value)}×"
    if not claim.is_of_accuracy and claim.of != "fluctuation":
        return rounds(value) if claim.of == "needed" else number(value)
    if claim.measure in ("difference", "gain", "order"):
        return f"{100 * value:+.2f}"
    return percent(value)
