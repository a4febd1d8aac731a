"""Claims: statements of the papers, and the numbers that they measure on cells."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Self, get_args

import numpy as np
from pydantic import Field, model_validator

from fedapp.analysis.curves import rounds_to_target
from fedapp.studies.papers.noise import CONFIDENCE, SEEDS, Interval, Numbers, Signs, contrast
from fedapp.studies.papers.results import CellResult, RunResult
from fedapp.studies.papers.schema import Base, Part

Measure = Literal[
    "value",
    "difference",
    "spread",
    "gain",
    "order",
    "ratio",
    "ratio-gain",
    "factor",
    "similarity",
    "consistency",
]
CELLS: Mapping[Measure, int] = {
    "value": 1,
    "difference": 2,
    "ratio": 2,
    "similarity": 2,
    "consistency": 2,
    "gain": 4,
    "ratio-gain": 4,
}
"""The number of cells of a measure; an order has two or more, the others also rows or columns."""
OfRun = Literal[
    "final",
    "best",
    "fluctuation",
    "least_loss",
    "least_loss_round",
    "updates",
    "needed",
    "training_loss",
    "beyond_plateau",
    "loss_spread",
]
"""A number of a run: an attribute of ``RunResult``."""
OfCurve = Literal["accuracy", "train_loss", "rounds_to_level"]
"""A number that is computed from a run's curve."""
Quantity = Literal[OfRun, OfCurve, "rate"]
"""The number that a claim is about."""


class Claim(Part):
    """A statement of a text, checked on cells of other experiments, named ``experiment: cell``.

    ``measure``, of the cells' numbers a, b, c, d: ``value`` a; ``difference`` a - b; ``spread`` max -
    min; ``gain`` (a - b) - (c - d); ``order`` the minimum of a - b, b - c, ... (not negative if they
    fall); ``ratio`` a / b (of rounds: the speed-up of the second); ``ratio-gain`` (a / b) / (c / d);
    ``factor`` max / min; ``similarity`` by how much updates are more similar in the first cell than
    in the second, in the layer where that is least; ``consistency`` the share of the rounds in
    which it is greater, in the layer where that is least. A spread and a factor may name a row or a
    column, for all of its cells.

    ``of`` is a number of ``RunResult``, or of a searched cell the chosen ``rate``. ``accuracy`` and
    ``train_loss`` are means over the paper's rounds ``window``, both ends included, or the last round's
    values; ``rounds_to_level`` are the rounds to 90 % of the best accuracy that all cells reach. A claim
    holds if the interval that its number is known to be in is within the bounds ``low`` and ``high``,
    fails if it is outside, and is open otherwise. Claims about the ends of curves, ``to-the-end``, need
    runs as long as at full scale.
    """

    text: str = Field(alias="says")
    where: str
    measure: Measure
    of: Quantity = "final"
    cells: tuple[str, ...]
    window: tuple[int, int] | None = None
    to_the_end: bool = False
    published: float | None = None
    low: float | None = None
    high: float | None = None

    @property
    def takes_any(self) -> bool:
        """Whether the measure takes any number of cells, and so rows and columns."""
        return self.measure in ("spread", "factor")

    @property
    def least(self) -> float:
        """The least number that the measure can have."""
        least = {"spread": 0.0, "factor": 1.0, "consistency": 0.0}
        return 0.0 if self.is_share else least.get(self.measure, -math.inf)

    @property
    def most(self) -> float:
        """The greatest number that the measure can have."""
        return 1.0 if self.is_share or self.measure == "consistency" else math.inf

    @property
    def is_share(self) -> bool:
        """Whether the number is an accuracy by itself."""
        return self.measure == "value" and self.is_of_accuracy

    @property
    def is_of_accuracy(self) -> bool:
        """Whether the number is an accuracy, whose minimum noise is known."""
        of_updates = self.measure in ("similarity", "consistency")
        return not of_updates and self.of in ("final", "best", "accuracy")

    @property
    def is_of_curve_end(self) -> bool:
        """Whether the number is of the end of a run, or of the best that it came to."""
        return self.of in ("final", "best", "least_loss", "training_loss")

    @property
    def needs_curves(self) -> bool:
        """Whether the number is computed from the runs' curves."""
        return self.of in get_args(OfCurve)

    @model_validator(mode="after")
    def _can_be_judged(self) -> Self:
        expected, given = CELLS.get(self.measure), len(self.cells)
        fewest = expected or (1 if self.takes_any else 2)
        if given < fewest or (expected and given > expected):
            raise ValueError(
                f"cells = {list(self.cells)}: measure = {self.measure!r} takes "
                f"{expected or f'{fewest} or more'}, not {given}"
            )
        if self.low is None and self.high is None:
            raise ValueError(f"low, high: the claim {self.text!r} has no bound. Set one of them")
        return self

    @model_validator(mode="after")
    def _has_a_window(self) -> Self:
        if self.window and self.of not in ("accuracy", "train_loss"):
            raise ValueError(
                f"window = {list(self.window)}: of = {self.of!r} has none, accuracy and train_loss have"
            )
        if self.window and not 0 <= self.window[0] <= self.window[1]:
            raise ValueError(f"window = {list(self.window)}: it ends before it begins")
        return self


class Claims(Base):
    """A table of claims; its runs are those of the cells that they name.

    ``noise`` is the resolution of accuracies: none is known better, whatever the seeds.
    """

    kind: Literal["claims"]
    noise: float
    claims: tuple[Claim, ...]


LEVEL = 0.9
"""The fraction of the accuracy reached by all cells that ``rounds_to_level`` counts to."""


RATIOS = ("ratio", "ratio-gain", "factor")
"""Measures whose noise is relative."""


@dataclass(frozen=True)
class Measured:
    """A claim's number and its interval; None if its deviation over the seeds is unknown.

    ``noise`` is half of the interval, of several their root mean square and of ratios as a logarithm,
    or 0 if the cells have fewer than three seeds in common: with other deviations it may be less.
    """

    value: float
    interval: Interval | None = None
    noise: float = 0.0


def measure(
    claim: Claim,
    cells: Sequence[CellResult],
    pace: float = 1.0,
    comparable: Sequence[CellResult] = (),
    resolution: float = 0.0,
) -> Measured | None:
    """Measure a claim on cells that were run; None if a run does not have the number.

    ``pace`` is the number of the paper's rounds that one round stands for. ``comparable`` are cells
    whose deviation over seeds counts if these have fewer than three seeds in common.

    An order is known as its least step, a spread as that of the pair which may be the farthest apart. The
    end that speaks against the claim, which one of several steps or pairs can set by chance, is that of
    intervals which all hold with 95 % confidence (Bonferroni).
    """
    numbers_of = _reader(claim, cells, pace)
    values = [numbers_of(cell) for cell in cells]
    common = set.intersection(*map(set, values))
    ratio = claim.measure in RATIOS
    if not common or (ratio and min(min(own.values()) for own in values) <= 0):
        return None
    others = [numbers for cell in comparable if (numbers := numbers_of(cell))]
    contrasts, choose = _contrasts(claim, len(cells)), max if claim.takes_any else min
    least = _resolution(claim, values, resolution)

    def known(confidence: float) -> list[tuple[float, float | None]]:
        each = [contrast(values, signs, others, ratio, confidence) for signs in contrasts]
        return [(value, half if half is None else max(half, least)) for value, half in each]

    each = known(CONFIDENCE)
    all_ = known(1 - (1 - CONFIDENCE) / _comparisons(claim, len(cells)))
    convert = math.exp if ratio else float
    value = convert(choose(value for value, _ in each))
    for_low, for_high = (all_, each) if claim.takes_any else (each, all_)
    low = [value - half for value, half in for_low if half is not None]
    high = [value + half for value, half in for_high if half is not None]
    if len(low) < len(contrasts):
        return Measured(value)
    halves = [half for _, half in each if half is not None]
    noise = math.sqrt(np.mean(np.square(halves))) if len(common) >= SEEDS else 0.0
    ends = max(convert(choose(low)), claim.least), value, min(convert(choose(high)), claim.most)
    return Measured(value, Interval(*ends), noise)


def _comparisons(claim: Claim, cells: int) -> int:
    """Return of how many differences the claim's number is the greatest or least, by either sign once."""
    contrasts = len(_contrasts(claim, cells))
    return max(contrasts // 2, 1) if claim.takes_any else contrasts


def _resolution(claim: Claim, values: Sequence[Numbers], of_accuracies: float) -> float:
    """Return the resolution of a claim's number, of a ratio as a logarithm; only accuracies have one."""
    if not claim.is_of_accuracy:
        return 0.0
    if claim.measure not in RATIOS:
        return of_accuracies
    return math.log1p(of_accuracies / min(float(np.mean(list(own.values()))) for own in values))


def _contrasts(claim: Claim, cells: int) -> list[Signs]:
    """Return the sums and differences of cells, by their places, that a claim is about."""
    match claim.measure:
        case "value" | "consistency":
            return [{0: 1}]
        case "gain" | "ratio-gain":
            return [{0: 1, 1: -1, 2: -1, 3: 1}]
        case "order":
            return [{place: 1, place + 1: -1} for place in range(cells - 1)]
        case "spread" | "factor":
            pairs = itertools.permutations(range(cells), 2)
            return [{high: 1, low: -1} for high, low in pairs] or [{0: 0}]
        case _:
            return [{0: 1, 1: -1}]


Reader = Callable[[CellResult], Numbers]
"""Returns a cell's numbers; none if one of its runs does not have the number."""


def _reader(claim: Claim, cells: Sequence[CellResult], pace: float) -> Reader:
    """Return what reads the claim's numbers of a cell."""
    if claim.measure == "similarity":
        layer = _least_similar(cells[0], cells[1])
        return lambda cell: _similarities(cell, layer)
    if claim.measure == "consistency":
        by_seed = shares_of_rounds(cells[0], cells[1])
        shares = {seed: min(by_layer.values()) for seed, by_layer in by_seed.items()}
        return lambda cell: shares if any(cell is own for own in cells) else {}
    if claim.of == "rate":  # selected once, whatever the seeds
        return lambda cell: {} if cell.rate is None else {0: cell.rate}
    level = LEVEL * min(run.best for cell in cells for run in cell.runs)

    def numbers(cell: CellResult) -> Numbers:
        values = {run.seed: _number(claim, run, level, pace) for run in cell.runs}
        known = {seed: value for seed, value in values.items() if value is not None}
        return known if len(known) == len(values) else {}

    return numbers


def _number(claim: Claim, run: RunResult, level: float, pace: float) -> float | None:
    """Return the run's number that the claim is about; None if the run does not have it."""
    if not claim.needs_curves:
        value: float | None = getattr(run, claim.of)
        return value
    if run.curve is None:
        return None
    if claim.of == "rounds_to_level":
        return rounds_to_target(run.curve.rounds, run.curve.accuracy, level)
    values = run.curve.accuracy if claim.of == "accuracy" else run.curve.train_loss
    if not run.curve.rounds:
        return None
    low, high = claim.window or (run.curve.rounds[-1] * pace,) * 2
    in_window = [
        value
        for round_, value in zip(run.curve.rounds, values, strict=True)
        if value is not None and low <= round_ * pace <= high
    ]
    return float(np.mean(in_window)) if in_window else None


def _least_similar(first: CellResult, second: CellResult) -> str | None:
    """Return the layer where the difference in mean similarity is least."""
    a, b = similarity(first.runs), similarity(second.runs)
    gains = {layer: a[layer] - b[layer] for layer in a if layer in b}
    return min(gains, key=gains.__getitem__) if gains else None


def _similarities(cell: CellResult, layer: str | None) -> Numbers:
    """Return the mean similarity of a layer's updates in each run that recorded it."""
    by_seed = {run.seed: similarity([run]) for run in cell.runs}
    return {seed: by[layer] for seed, by in by_seed.items() if layer in by}


def shares_of_rounds(first: CellResult, second: CellResult) -> dict[int, dict[str, float]]:
    """Return the share of rounds in which updates agree more in the first cell, by seed and layer."""
    others = {run.seed: _similarity_by_round(run) for run in second.runs}
    shares = dict[int, dict[str, float]]()
    for run in first.runs:
        own, other = _similarity_by_round(run), others.get(run.seed, {})
        greater = dict[str, list[bool]]()
        for layer, round_ in own.keys() & other.keys():
            more = own[layer, round_] > other[layer, round_]
            greater.setdefault(layer, []).append(more)
        if greater:
            shares[run.seed] = {layer: float(np.mean(each)) for layer, each in greater.items()}
    return shares


def _similarity_by_round(run: RunResult) -> dict[tuple[str, int], float]:
    """Return the similarity of updates by layer and round."""
    return {
        (layer, row["round"]): value
        for row in run.agreement
        for layer, value in row.get("similarity", {}).items()
        if value is not None
    }


def similarity(runs: Sequence[RunResult]) -> dict[str, float]:
    """Return the mean cosine similarity of updates over the recorded rounds, by layer.

    Seo et al. 2024, Figure 13.
    """
    by_layer: dict[str, list[float]] = {}
    for run in runs:
        for (layer, _), value in _similarity_by_round(run).items():
            by_layer.setdefault(layer, []).append(value)
    return {layer: float(np.mean(values)) for layer, values in by_layer.items()}
