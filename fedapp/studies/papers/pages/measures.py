"""What a claim measures: a number of each run, and one number of all its cells."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedapp.analysis.curves import rounds_to_target
from fedapp.studies.papers.results import CellResult, Curve, RunResult
from fedapp.studies.papers.schema import Claim

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
