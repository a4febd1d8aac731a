"""Claims: statements of the papers, and the numbers that they measure on cells."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, Self, get_args

import numpy as np
from pydantic import Field, model_validator

from fedapp.analysis.curves import rounds_to_target
from fedapp.studies.papers.results import CellResult, Curve, RunResult
from fedapp.studies.papers.schema import Base, Part

Measure = Literal[
    "value", "difference", "spread", "gain", "order", "ratio", "ratio-gain", "factor", "agreement"
]
CELLS: Mapping[Measure, int] = {
    "value": 1,
    "difference": 2,
    "ratio": 2,
    "agreement": 2,
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
    ``factor`` max / min; ``agreement`` by how much the similarity of updates is greater in the first cell
    than in the second, in the layer where that is least. A spread and a factor may name a row or a
    column, for all of its cells.

    ``of`` is a number of ``RunResult``, or of a searched cell the chosen ``rate``. ``accuracy`` and
    ``train_loss`` are means over the paper's rounds ``window``, both ends included, or the last round's
    values; ``rounds_to_level`` are the rounds to 90 % of the best accuracy that all cells reach. A claim
    holds within the bounds ``low`` and ``high``, is inconclusive if a bound is within the noise, and
    fails otherwise. Claims about the ends of curves, ``to-the-end``, need runs as long as at full scale.
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
    def is_of_accuracy(self) -> bool:
        """Whether the number is an accuracy, whose minimum noise is known."""
        return self.measure != "agreement" and self.of in ("final", "best", "accuracy")

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

    ``noise`` is the minimum uncertainty of accuracies, and ``relative-noise`` that of other numbers,
    relative to the number; the spread over seeds counts if it is greater. Numbers without either have
    only the spread over seeds, and with one seed are not judged.
    """

    kind: Literal["claims"]
    noise: float
    relative_noise: dict[Quantity, Annotated[float, Field(gt=0, lt=1)]] = Field(
        default_factory=dict
    )
    claims: tuple[Claim, ...]


LEVEL = 0.9
"""The fraction of the accuracy reached by all cells that ``rounds_to_level`` counts to."""


RATIOS = ("ratio", "ratio-gain", "factor")
"""Measures whose noise is relative."""


@dataclass(frozen=True)
class Measured:
    """A claim's number, and the numbers that its noise is computed from.

    ``numbers`` are the cells' means over seeds, ``half_ranges`` half of their ranges over seeds, and
    ``seeds`` the smallest number of seeds of a cell.
    """

    value: float
    numbers: tuple[float, ...]
    half_ranges: tuple[float, ...]
    seeds: int


def measure(claim: Claim, cells: Sequence[CellResult], pace: float = 1.0) -> Measured | None:
    """Measure a claim on cells that were run; None if a run does not have the number.

    ``pace`` is the number of the paper's rounds that one round stands for.
    """
    seeds = min(len(cell.runs) for cell in cells)
    if claim.measure == "agreement":
        gain, ranges = _similarity_gain(cells[0], cells[1]), tuple(map(_layers_range, cells))
        return None if gain is None else Measured(gain, (0.0,) * len(ranges), ranges, seeds)
    level = LEVEL * min(run.best for cell in cells for run in cell.runs)
    values = [_numbers(claim, cell, level, pace) for cell in cells]
    known = [[value for value in own if value is not None] for own in values]
    means = tuple(float(np.mean(own)) for own in known if own)
    if known != values or (claim.measure in RATIOS and not all(means)):
        return None
    half_ranges = tuple((max(own) - min(own)) / 2 for own in known)
    return Measured(_combined(claim, means), means, half_ranges, seeds)


def _combined(claim: Claim, values: Sequence[float]) -> float:
    """Combine the cells' numbers into the claim's."""
    match claim.measure:
        case "difference":
            return values[0] - values[1]
        case "gain":
            return (values[0] - values[1]) - (values[2] - values[3])
        case "spread":
            return max(values) - min(values)
        case "order":
            return min(before - after for before, after in itertools.pairwise(values))
        case "ratio":
            return values[0] / values[1]
        case "ratio-gain":
            return (values[0] / values[1]) / (values[2] / values[3])
        case "factor":
            return max(values) / min(values)
        case _:
            return values[0]


def _numbers(claim: Claim, cell: CellResult, level: float, pace: float) -> Sequence[float | None]:
    """Return the number of each of the cell's runs; the learning rate is one for all runs."""
    if claim.of == "rate":
        return [cell.rate]
    return [_number(claim, run, level, pace) for run in cell.runs]


def _number(claim: Claim, run: RunResult, level: float, pace: float) -> float | None:
    """Return the run's number that the claim is about; None if the run does not have it."""
    if not claim.needs_curves:
        value: float | None = getattr(run, claim.of)
        return value
    if run.curve is None:
        return None
    if claim.of == "rounds_to_level":
        return _rounds_to(level, run.curve)
    values = run.curve.accuracy if claim.of == "accuracy" else run.curve.train_loss
    low, high = claim.window or (run.curve.rounds[-1] * pace,) * 2
    in_window = [
        value
        for round_, value in zip(run.curve.rounds, values, strict=True)
        if value is not None and low <= round_ * pace <= high
    ]
    return float(np.mean(in_window)) if in_window else None


def _rounds_to(level: float, curve: Curve) -> float | None:
    accuracy = [float("nan") if value is None else value for value in curve.accuracy]
    return rounds_to_target(curve.rounds, accuracy, level)


def _similarity_gain(first: CellResult, second: CellResult) -> float | None:
    """Return the minimum over layers of the difference in mean similarity."""
    a, b = similarity(first.runs), similarity(second.runs)
    gains = [a[layer] - b[layer] for layer in a if layer in b]
    return min(gains) if gains else None


def _layers_range(cell: CellResult) -> float:
    """Return half of the maximum range over seeds of a layer's similarity."""
    by_seed = [similarity([run]) for run in cell.runs]
    layers = [
        [layers_of[layer] for layers_of in by_seed if layer in layers_of] for layer in by_seed[0]
    ]
    return max((max(values) - min(values) for values in layers), default=0.0) / 2


def similarity(runs: Sequence[RunResult]) -> dict[str, float]:
    """Return the mean cosine similarity of updates over the recorded rounds, by layer.

    Seo et al. 2024, Figure 13.
    """
    by_layer: dict[str, list[float]] = {}
    for row in (row for run in runs for row in run.agreement):
        for layer, value in row.get("similarity", {}).items():
            if value is not None:
                by_layer.setdefault(layer, []).append(value)
    return {layer: float(np.mean(values)) for layer, values in by_layer.items()}
