"""Verdicts on claims, at each scale and of each variant of their cells."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedapp.config.settings import Scalar
from fedapp.studies.papers.cells import EXPERIMENT_SEPARATOR, cells_of, repeats_of, without_records
from fedapp.studies.papers.claims import RATIOS, Claim, Claims, Measured, measure
from fedapp.studies.papers.labels import RunLabels
from fedapp.studies.papers.noise import SEEDS, Interval
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
OF_FAMILY = ("model", "dataset", "fraction-train")
"""Settings on which the noise over seeds depends, with those of the partition."""
JUDGED: tuple[Verdict, ...] = ("holds", "fails", "open", "undecidable")
OPEN: tuple[Verdict, ...] = ("open", "one seed", "one search")


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
    """Return the cells with three seeds of the same families, else of the same tables or figures.

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
        for other in alike or same:
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
    cells = judged_cells(experiment, results, variant)
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


def judged_cells(experiment: Claims, results: Results, variant: str = "") -> dict[str, CellResult]:
    """Return the cells that the claims are about, or those of a variant."""
    chosen = {name for own in _names(experiment, variant) for name in own}
    return {name: cell for name, cell in results.cells.items() if name in chosen}


def claim_variants(experiment: Claims) -> list[str]:
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


def largest_judged(checks: Checks) -> list[Checked]:
    """Return each claim as checked at the largest scale that judged it, else that measured it."""
    return [
        max(own, key=lambda each: (each.verdict in JUDGED, each.measured is not None))
        for own in zip(*checks.values(), strict=True)
    ]
