"""The verdicts on claims, and their table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from fedapp.config.settings import Scalar
from fedapp.runs.formatting import number, percent, rounds, stated_percent
from fedapp.studies.papers.cells import EXPERIMENT_SEPARATOR, cells_of, repeats_of, without_records
from fedapp.studies.papers.claims import RATIOS, Claim, Claims, Measured, measure
from fedapp.studies.papers.labels import RunLabels
from fedapp.studies.papers.noise import SEEDS, Interval
from fedapp.studies.papers.pages.markdown import table
from fedapp.studies.papers.results import CellResult, Results
from fedapp.studies.papers.schema import ScaleName
from fedapp.studies.sweep.search import Cell

Verdict = Literal[
    "holds",
    "fails",
    "open",
    "undecidable",
    "one seed",
    "one search",
    "one rate",
    "cut short",
    "full scale only",
    "smoke: no evidence",
    "no number",
    "not run",
]
NOT_JUDGED: Mapping[Verdict, str] = {
    "one seed": "the claim is open, because its cells have one seed in common and no comparable one (of "
    "the same table or figure, or else of the same network, data and partition) has three that differ, "
    "so that its noise is unknown",
    "one search": "the claim is open, because it compares rates, of which each was selected once",
    "one rate": "the claim compares the best rates, and only one rate was tried",
    "cut short": "the claim is about the ends of curves, and these have fewer rounds than at full scale",
    "full scale only": "a single accuracy depends on the data and network, which are the paper's at "
    "full scale only",
    "smoke: no evidence": "other data, another network and a few rounds are no evidence",
}
"""Why a number is shown but not judged."""
OF_FAMILY = ("model", "dataset", "fraction-train")
"""Settings on which the noise over seeds depends, with those of the partition."""
JUDGED: tuple[Verdict, ...] = ("holds", "fails", "open", "undecidable")
OPEN: tuple[Verdict, ...] = ("open", "one seed", "one search")
DECIDED = (
    "Accuracies are in percent, their differences in points; an interval of accuracies extends at least "
    "{} to either side. [How a claim is judged](../method.md#how-a-claim-is-judged)."
)
UNDECIDABLE = (
    "*undecidable*: the margin that the rule allows is not above the noise of three seeds, so that no "
    "three with this noise could show that it holds."
)
NO_NUMBER = (
    "*no number*: the cells were run, but one of them has no such number: its target was not reached "
    "in its rounds, its training diverged, or the number was not recorded."
)
HEAD = (
    *("claim", "section", "published", "measured", "seeds", "95 % interval", "holds if"),
    "verdict",
)


@dataclass(frozen=True)
class Checked:
    """A claim with its measured number, the interval that it is known to be in, and the verdict.

    ``seeds`` is how many all of its cells have.
    """

    claim: Claim
    measured: float | None
    interval: Interval | None
    verdict: Verdict
    seeds: int = 0

    @property
    def is_open_against(self) -> bool:
        """Whether the claim is open, and its number is outside the bounds."""
        return self.verdict in OPEN and _is_outside(self.claim, self.measured)

    @property
    def fails_as_published(self) -> bool:
        """Whether the claim fails, and so does the number that is published."""
        return self.verdict == "fails" and _is_outside(self.claim, self.claim.published)


def check(
    claim: Claim,
    cells: Mapping[str, CellResult],
    resolution: float,
    scale: ScaleName = "full",
    pace: float = 1.0,
    names: Sequence[str] | None = None,
    missing_evidence: Verdict | None = None,
    ran: Mapping[str, Cell | None] | None = None,
) -> Checked:
    """Measure a claim on its cells, or on the cells ``names``, and judge it.

    Single accuracies below full scale, numbers at smoke scale, and claims with ``missing_evidence`` are
    not judged. ``pace`` as in ``Scale``. ``ran`` has the settings of the cells.
    """
    names = names or claim.cells
    own = [cells.get(name, CellResult()) for name in names]
    if not all(cell.runs for cell in own):
        return Checked(claim, None, None, "not run")
    ran = ran or {}
    if claim.is_of_curve_end:  # runs that stop at a target end where it is
        cells = {name: cell for name, cell in cells.items() if not _has_target(ran.get(name))}
    if claim.of == "least_loss_round":  # runs whose loss still falls end where it would be
        cells = {name: cell for name, cell in cells.items() if not _still_falls(cell)}
    measured = measure(claim, own, pace, _comparable(names, cells, ran), resolution)
    if measured is None:
        return Checked(claim, None, None, "no number")
    verdict = _verdict(claim, measured, scale)
    lacking = missing_evidence if verdict in (*JUDGED, *OPEN) else None
    seeds = set.intersection(*({run.seed for run in cell.runs} for cell in own))
    return Checked(claim, measured.value, measured.interval, lacking or verdict, len(seeds))


def _is_outside(claim: Claim, value: float | None) -> bool:
    """Whether a number is outside the claim's bounds."""
    low, high = _bounds(claim)
    return value is not None and not low <= value <= high


def _bounds(claim: Claim) -> tuple[float, float]:
    low = -np.inf if claim.low is None else claim.low
    return low, np.inf if claim.high is None else claim.high


def _has_target(cell: Cell | None) -> bool:
    return cell is not None and cell.measure == "rounds" and cell.target > 0


def _still_falls(cell: CellResult) -> bool:
    """Whether a run has its least test loss in the last twentieth of its rounds."""
    return any((run.least_loss_round or 0) > 0.95 * run.rounds for run in cell.runs)


def _comparable(
    names: Sequence[str], cells: Mapping[str, CellResult], ran: Mapping[str, Cell | None]
) -> list[CellResult]:
    """Return the cells with three seeds of the same tables or figures, else of the same families.

    Cells of which a run collapsed are left out. Cells of the same settings are one, whether they record
    their updates or not.
    """
    several = {
        other: cell
        for other, cell in cells.items()
        if len(cell.runs) >= SEEDS and not cell.collapsed
    }
    chosen = dict[str, Mapping[str, Scalar] | str]()
    for name in names:
        experiment, separator, _ = name.partition(EXPERIMENT_SEPARATOR)
        family = _family(ran.get(name))
        same = [
            other for other in several if separator and other.startswith(experiment + separator)
        ]
        alike = [other for other in several if family and _family(ran.get(other)) == family]
        for other in same or alike:
            settings = without_records(own.settings) if (own := ran.get(other)) else other
            if settings not in chosen.values():
                chosen[other] = settings
    return [several[other] for other in chosen]


def _family(cell: Cell | None) -> Hashable:
    """Return a cell's network, data and partition, and how many clients participate."""
    if cell is None:
        return None
    partitioner = str(cell.settings.get("partitioner"))
    keys = [*OF_FAMILY, *(key for key in cell.settings if key.startswith(f"{partitioner}."))]
    return partitioner, *(cell.settings.get(key) for key in keys)


def _verdict(claim: Claim, measured: Measured, scale: ScaleName) -> Verdict:
    if scale == "smoke":
        return "smoke: no evidence"
    if claim.measure == "value" and claim.is_of_accuracy and scale != "full":
        return "full scale only"
    if measured.interval is None:
        return "one search" if claim.of == "rate" else "one seed"
    return judge(claim, measured.interval, measured.noise)


def judge(claim: Claim, interval: Interval, noise: float = 0.0) -> Verdict:
    """Judge a claim by the interval of its number, and by its noise as in ``Measured``."""
    low, high = _bounds(claim)
    if low <= interval.low and interval.high <= high:
        return "holds"
    if interval.high < low or high < interval.low:
        return "fails"
    return "undecidable" if _margin(claim) <= noise else "open"


def _margin(claim: Claim) -> float:
    """Return how far a number may be from the middle of the bounds, or from an end of the measure."""
    low = claim.least if claim.low is None else claim.low
    high = claim.most if claim.high is None else claim.high
    if claim.measure in RATIOS:
        width = float(np.log(high / low)) if low > 0 else float("inf")
    else:
        width = high - low
    return width if None in (claim.low, claim.high) else width / 2


def check_all(experiment: Claims, results: Results, variant: str = "") -> list[Checked]:
    """Measure and judge all claims of an experiment, or all on the cells of a variant.

    A claim without cells of the variant is not run.
    """
    scale = experiment.at(results.scale)
    resolution = scale.noise or experiment.noise
    run_labels = RunLabels.of(experiment, results)
    names = _names(experiment, variant)
    cells = _named(results, names)
    return [
        check(
            *(claim, cells, resolution, results.scale, scale.pace, own),
            _missing_evidence(claim, own, cells, run_labels),
            run_labels.ran,
        )
        if own
        else Checked(claim, None, None, "not run")
        for claim, own in zip(experiment.claims, names, strict=True)
    ]


def _names(experiment: Claims, variant: str) -> list[tuple[str, ...]]:
    """Return the names of each claim's cells, or of those of a variant; () if it has none."""
    claims = experiment.claims
    return [repeats_of(own).get(variant, ()) if variant else cells_of(own) for own in claims]


def _named(results: Results, names: Iterable[Sequence[str]]) -> dict[str, CellResult]:
    chosen = {name for own in names for name in own}
    return {name: cell for name, cell in results.cells.items() if name in chosen}


def variants_of(experiment: Claims) -> list[str]:
    """Return the variants of tables' columns on which claims can be judged, too."""
    return list(dict.fromkeys(each for claim in experiment.claims for each in repeats_of(claim)))


def _missing_evidence(
    claim: Claim, names: Sequence[str], cells: Mapping[str, CellResult], run_labels: RunLabels
) -> Verdict | None:
    """Return why the cells cannot decide the claim at this scale, or None."""
    ran = [(name, run) for name in names for run in cells.get(name, CellResult()).runs]
    if claim.to_the_end and any(
        run.rounds < run_labels.planned(name) and not run.problem for name, run in ran
    ):
        return "cut short"
    if claim.measure != "value" and any(map(run_labels.is_untuned, names)):
        return "one rate"
    return None


Checks = Mapping[ScaleName, Sequence[Checked]]
"""The claims of an experiment, in order, as checked at each scale, the largest first."""


def check_scales(experiment: Claims, by_scale: Sequence[Results], variant: str = "") -> Checks:
    """Measure and judge all claims of an experiment, or all on a variant's cells, at each scale."""
    return {results.scale: check_all(experiment, results, variant) for results in by_scale}


def claims_section(experiment: Claims, results: Results, checks: Checks | None = None) -> str:
    """Return the table of claims, the counts of verdicts, and why some are not judged.

    Claims that were not run at this scale are left out if another of ``checks`` measured them. Claims
    that were run on the cells of a variant have a table of their own.
    """
    checks = checks or check_scales(experiment, [results])
    checked = checks[results.scale]
    shown = [
        own
        for own, largest in zip(checked, largest_judged(checks), strict=True)
        if own.verdict != "not run" or largest.measured is None
    ]
    run_labels = RunLabels.of(experiment, results)
    parts = [table(HEAD, [_row(each, run_labels) for each in shown]), _counts(checked)]
    parts += _fewer(experiment, results, "", run_labels)
    by_variant = {each: check_all(experiment, results, each) for each in variants_of(experiment)}
    for variant, own in by_variant.items():
        if section := _variant_section(variant, own, checked, run_labels):
            parts += [*section, *_fewer(experiment, results, variant, run_labels)]
    verdicts = {each.verdict for own in (checked, *by_variant.values()) for each in own}
    why = [f"*{verdict}*: {text}" for verdict, text in NOT_JUDGED.items() if verdict in verdicts]
    parts += [f"Shown, not decided: {'; '.join(why)}."] if why else []
    if not verdicts.isdisjoint((*JUDGED, *OPEN)):
        parts.append(DECIDED.format(_resolution(experiment, results)))
    parts += [UNDECIDABLE] if "undecidable" in verdicts else []
    parts += [NO_NUMBER] if "no number" in verdicts else []
    return "\n\n".join([*parts, *_windows(experiment, experiment.at(results.scale).pace)])


def _counts(checked: Sequence[Checked]) -> str:
    """Return how many claims have each verdict."""
    counts = Counter(each.verdict for each in checked)
    verdicts: tuple[Verdict, ...] = get_args(Verdict)
    lacking = [f"{counts[verdict]} {verdict}" for verdict in OPEN[1:] if counts[verdict]]
    counts["open"] = sum(counts[verdict] for verdict in OPEN)
    summary = [
        f"{counts[verdict]} {verdict}"
        + (f" ({', '.join(lacking)})" if verdict == "open" and lacking else "")
        for verdict in verdicts
        if counts[verdict] and verdict not in OPEN[1:]
    ]
    against = sum(each.is_open_against for each in checked)
    outside = f" Of the open ones {against} have numbers outside the bounds." if against else ""
    return f"{', '.join(summary)}.{outside}"


def _fewer(experiment: Claims, results: Results, variant: str, run_labels: RunLabels) -> list[str]:
    """List the cells of which seeds are left to run, with the seeds that they have."""
    cells = _named(results, _names(experiment, variant))
    each = ((name, run_labels.seeds(name, cell)) for name, cell in cells.items())
    fewer = ", ".join(f"{name} ({seeds})" for name, seeds in each if " of " in seeds)
    return [f"So far with fewer seeds than planned: {fewer}."] if fewer else []


def _variant_section(
    variant: str, checked: Sequence[Checked], as_read: Sequence[Checked], run_labels: RunLabels
) -> list[str]:
    """Return the claims that were run on the cells of a variant, beside those ``as_read``."""
    pairs = [
        (first, own)
        for first, own in zip(as_read, checked, strict=True)
        if own.verdict != "not run"
    ]
    if not pairs:
        return []
    judged = [pair for pair in pairs if all(each.verdict in JUDGED for each in pair)]
    differing = [(first, own) for first, own in judged if first.verdict != own.verdict]
    head = (*HEAD[:3], "above", *HEAD[3:])
    rows = []
    for pair in pairs:
        *left, verdict = _row(pair[1], run_labels)
        above = _outcome(pair[0], pair in differing)
        rows.append(
            [*left[:3], above, *left[3:], verdict if pair in differing else verdict.strip("*")]
        )
    text = (
        f"The same with {variant}. {len(pairs)} claims were run; {len(judged)} are judged here and "
        f"above, {len(differing)} of them differently (in bold):"
    )
    return [text, table(head, rows), _counts([own for _, own in pairs])]


def largest_judged(checks: Checks) -> list[Checked]:
    """Return each claim as checked at the largest scale that judged it, else that measured it."""
    return [
        max(own, key=lambda each: (each.verdict in JUDGED, each.measured is not None))
        for own in zip(*checks.values(), strict=True)
    ]


def scales_section(checks: Checks) -> str:
    """Return the claims that several scales measured, side by side; "" if there are none."""
    rows, differing, judged = [], 0, 0
    for own in zip(*checks.values(), strict=True):
        measured = [each for each in own if each.measured is not None]
        if len(measured) < 2:
            continue
        verdicts = {each.verdict for each in measured}
        differ = len(verdicts) > 1 and verdicts.issubset(JUDGED)
        judged += verdicts.issubset(JUDGED)
        differing += differ
        claim = own[0].claim
        rows.append([claim.text, _published(claim), *(_outcome(each, differ) for each in own)])
    if not rows:
        return ""
    head = ("claim", "published", *checks)
    text = (
        f"{len(rows)} claims were measured at more than one scale; {judged} are judged at each, "
        f"{differing} of them differently (in bold)."
    )
    return f"{text}\n\n{table(head, rows)}"


def _outcome(checked: Checked, differs: bool) -> str:
    """Format number and verdict, which is bold where the scales' verdicts differ."""
    if checked.measured is None:
        return checked.verdict
    verdict = f"**{checked.verdict}**" if differs else checked.verdict
    return f"{_value(checked.claim, checked.measured)}, {verdict}"


def _resolution(experiment: Claims, results: Results) -> str:
    """Format the resolution of accuracies."""
    points = f"{100 * (experiment.at(results.scale).noise or experiment.noise):g}"
    return f"{points} {'point' if points == '1' else 'points'}"


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
        _published(claim),
        checked.verdict if checked.measured is None else _value(claim, checked.measured),
        str(checked.seeds or ""),
        _interval(checked),
        " and ".join(bounds),
        f"**{checked.verdict}**",
    ]


def _published(claim: Claim) -> str:
    if claim.published is None:
        return ""
    accuracy = claim.measure == "value" and claim.is_of_accuracy
    return stated_percent(claim.published) if accuracy else _value(claim, claim.published)


def _interval(checked: Checked) -> str:
    """Format the interval; "" if it is unknown or a point."""
    ends = checked.interval
    if ends is None or np.isclose(ends.low, ends.high, rtol=1e-9, atol=1e-9):
        return ""
    return f"{_value(checked.claim, ends.low)} to {_value(checked.claim, ends.high)}"


def _value(claim: Claim, value: float) -> str:
    """Format a number: accuracies in percent, their differences in points, ratios as factors."""
    if claim.measure in RATIOS:
        return f"{number(value)}×"
    if not claim.is_of_accuracy and claim.of != "fluctuation":
        return rounds(value) if claim.of == "needed" else number(value)
    if claim.measure == "value":
        return percent(value)
    return f"{100 * value:.2f}" if claim.takes_any else f"{100 * value:+.2f}"
