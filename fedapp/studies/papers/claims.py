"""Claims: what their TOML says, and what they measure on cells."""

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
"""How many cells a claim's measure takes; an order two or more, the others also a row or a column."""
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
"""A number read off a run's curve."""
Quantity = Literal[OfRun, OfCurve, "rate"]
"""What a claim is of."""


class Claim(Part):
    """A statement of a text, checked on cells of other items, named ``item: cell``.

    ``measure``: the value of the one cell, the first's less the second's (``difference``), the
    greatest less the least of all (``spread``), the first two's difference less that of the other two
    (``gain``), the least of each cell's less the next one's (``order``: not below 0 where they fall),
    the first's over the second's (``ratio``; of rounds: the speed-up of the second), the first two's
    ratio over that of the other two (``ratio-gain``), the greatest over the least of all (``factor``),
    or by how much the first's updates agree more than the second's, in the layer where that is least
    (``agreement``). A spread and a factor may name a row or a column, for all of its cells.

    ``of``: which number of a cell, as in ``RunResult``; of a tuned cell also the ``rate`` that was
    found; ``accuracy`` and ``train_loss`` are means over the paper's rounds ``window``, both ends
    included, or of the last round without one; ``rounds_to_level`` are the rounds to nine tenths of the
    best accuracy that all its cells reach. It holds within the bounds ``low`` and ``high``, is
    inconclusive as near to a bound as the noise, and fails beyond. What is said of where curves end,
    ``to-the-end``, is judged of runs as long as at full scale alone.
    """

    says: str
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
        """Whether the measure takes any number of cells, and so a whole row or column."""
        return self.measure in ("spread", "factor")

    @property
    def is_of_accuracy(self) -> bool:
        """Whether its number is an accuracy, whose least noise is known."""
        return self.measure != "agreement" and self.of in ("final", "best", "accuracy")

    @property
    def needs_curves(self) -> bool:
        """Whether its number is read off the runs' curves."""
        return self.of in get_args(OfCurve)

    @model_validator(mode="after")
    def _can_be_judged(self) -> Self:
        wanted, there = CELLS.get(self.measure), len(self.cells)
        fewest = wanted or (1 if self.takes_any else 2)
        if there < fewest or (wanted and there > wanted):
            raise ValueError(
                f"cells = {list(self.cells)}: measure = {self.measure!r} takes "
                f"{wanted or f'{fewest} or more'}, not {there}"
            )
        if self.low is None and self.high is None:
            raise ValueError(f"low, high: the claim {self.says!r} has no bound. Set one of them")
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
    """A checked table of statements; its runs are those of the cells that it names.

    ``noise`` is what a difference of accuracies must exceed to count, where the seeds' spread is not
    greater; ``relative-noise`` the same of other numbers, as a share of the number. Numbers of which
    it says nothing have only the seeds' spread, and with one seed are not judged.
    """

    kind: Literal["claims"]
    noise: float
    relative_noise: dict[Quantity, Annotated[float, Field(gt=0, lt=1)]] = Field(
        default_factory=dict
    )
    claims: tuple[Claim, ...]


LEVEL = 0.9
"""The share of the accuracy that all cells reach, to which ``rounds_to_level`` counts."""


RATIOS = ("ratio", "ratio-gain", "factor")
"""Measures whose noise is that of a factor."""


@dataclass(frozen=True)
class Measured:
    """A claim's number, and what its noise is made of.

    ``numbers`` are those of the cells, means over their seeds, ``half_ranges`` half of the range of
    each over its seeds, and ``seeds`` the fewest that a cell has.
    """

    value: float
    numbers: tuple[float, ...]
    half_ranges: tuple[float, ...]
    seeds: int


def measure(claim: Claim, cells: Sequence[CellResult], pace: float = 1.0) -> Measured | None:
    """Return what a claim measures on cells that were run; None if a run does not have the number.

    ``pace`` is how many of the paper's rounds one of the cells' is worth.
    """
    seeds = min(len(cell.runs) for cell in cells)
    if claim.measure == "agreement":
        gain, ranges = _agreement(cells[0], cells[1]), tuple(map(_layers_range, cells))
        return None if gain is None else Measured(gain, (0.0,) * len(ranges), ranges, seeds)
    level = LEVEL * min(run.best for cell in cells for run in cell.runs)
    found = [_numbers(claim, cell, level, pace) for cell in cells]
    known = [[value for value in own if value is not None] for own in found]
    means = tuple(float(np.mean(own)) for own in known if own)
    if known != found or (claim.measure in RATIOS and not all(means)):
        return None
    half_ranges = tuple((max(own) - min(own)) / 2 for own in known)
    return Measured(_combined(claim, means), means, half_ranges, seeds)


def _combined(claim: Claim, values: Sequence[float]) -> float:
    """Return the claim's number from one of each cell."""
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
    """Return the number of each of the cell's runs; of a rate, what the seeds it is judged by found."""
    if claim.of == "rate":
        return [cell.rate]
    return [_number(claim, run, level, pace) for run in cell.runs]


def _number(claim: Claim, run: RunResult, level: float, pace: float) -> float | None:
    """Return a run's number that the claim is of; None where the run does not have it."""
    if not claim.needs_curves:
        value: float | None = getattr(run, claim.of)
        return value
    if run.curve is None:
        return None
    if claim.of == "rounds_to_level":
        return _rounds_to(level, run.curve)
    values = run.curve.accuracy if claim.of == "accuracy" else run.curve.train_loss
    low, high = claim.window or (run.curve.rounds[-1] * pace,) * 2
    kept = [
        value
        for round_, value in zip(run.curve.rounds, values, strict=True)
        if value is not None and low <= round_ * pace <= high
    ]
    return float(np.mean(kept)) if kept else None


def _rounds_to(level: float, curve: Curve) -> float | None:
    accuracy = [float("nan") if value is None else value for value in curve.accuracy]
    return rounds_to_target(curve.rounds, accuracy, level)


def _agreement(first: CellResult, second: CellResult) -> float | None:
    """Return the least, over the layers, of the first's mean similarity less the second's."""
    a, b = similarity(first.runs), similarity(second.runs)
    gains = [a[layer] - b[layer] for layer in a if layer in b]
    return min(gains) if gains else None


def _layers_range(cell: CellResult) -> float:
    """Return half of the seeds' range of the similarity in the layer where it is widest."""
    by_seed = [similarity([run]) for run in cell.runs]
    layers = [[found[layer] for found in by_seed if layer in found] for layer in by_seed[0]]
    return max((max(values) - min(values) for values in layers), default=0.0) / 2


def similarity(runs: Sequence[RunResult]) -> dict[str, float]:
    """Return the cosine similarity by layer, the mean over the recorded rounds of the runs.

    Seo et al. 2024, Figure 13.
    """
    found: dict[str, list[float]] = {}
    for row in (row for run in runs for row in run.agreement):
        for layer, value in row.get("similarity", {}).items():
            if value is not None:
                found.setdefault(layer, []).append(value)
    return {layer: float(np.mean(values)) for layer, values in found.items()}
