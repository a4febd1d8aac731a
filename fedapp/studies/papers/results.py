"""What an item gave at one scale, as small JSON: all that its page and figure are made from."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from fedapp.analysis.curves import (
    band,
    beyond_plateau,
    envelope,
    fluctuation,
    least,
    monotone,
    relative_spread,
)
from fedapp.config.run_config import Scalar
from fedapp.errors import ConfigError
from fedapp.files import write_atomically
from fedapp.studies.papers.schema import ScaleName
from fedapp.studies.sweep.record import RunRecord
from fedapp.studies.sweep.search import Candidate, Cell, SearchResult

POINTS = 150
"""Points of a curve that are kept."""
DIGITS = 5


class Kept(BaseModel):
    """Base of all that is kept."""

    model_config = ConfigDict(extra="forbid")


class Curve(Kept):
    """A run's curve, thinned; None where a number was nan."""

    rounds: list[int]
    gradients: list[int]
    accuracy: list[float | None]
    loss: list[float | None]
    train_loss: list[float | None]
    training_set_loss: list[float | None] = []


class Envelope(Kept):
    """The best of all candidates so far, at each round, thinned; a loss's is the least."""

    rounds: list[int]
    values: list[float]


class RunResult(Kept):
    """One run in numbers; ``needed`` are its rounds to the target, by interpolation.

    ``fluctuation`` is by how much the test accuracy changes from one evaluated round to the next, the
    mean over the last half of the run. ``training_loss`` is the global model's on the training set, in
    the last round; ``beyond_plateau`` is that over what it was when the test accuracy first came within
    0.1 points of its best. Both are None where it was not measured, or training diverged.
    """

    run: str
    seed: int
    rounds: int
    needed: float | None
    final: float
    best: float
    fluctuation: float = 0.0
    least_loss: float | None
    least_loss_round: int | None
    training_loss: float | None = None
    beyond_plateau: float | None = None
    updates: float
    bytes_down: int
    bytes_up: int
    seconds: float
    problem: str
    curve: Curve | None = None
    agreement: list[dict[str, Any]] = []

    @property
    def client_losses(self) -> list[list[float]]:
        """The clients' training losses in each recorded round; those that are not finite left out."""
        said = [row.get("client_train_loss", {}) for row in self.agreement]
        return [[loss for loss in losses.values() if loss is not None] for losses in said]

    @property
    def loss_spread(self) -> float | None:
        """How far the clients' losses lie apart, relative to their mean; None if not recorded."""
        return relative_spread(self.client_losses)


class Tried(Kept):
    """A candidate of a tuned cell: what it needed, or came to, as mean over its seeds."""

    settings: dict[str, Scalar]
    needed: float | None
    best: float
    final: float
    rounds: int
    problem: str


class CellResult(Kept):
    """A cell: its best candidate's runs, one a seed, and all that was tried; empty if not run.

    ``every`` is how many rounds lie between two evaluations. ``envelopes`` are, of a tuned cell whose
    curves are kept, the best test accuracy and the least loss on the training set of any candidate, at
    each round: the mean of the seeds that candidates are judged by.
    """

    target: float = 0.0
    participants: int = 0
    every: int = 1
    chosen: dict[str, Scalar] = {}
    inside: bool = True
    tried: list[Tried] = []
    runs: list[RunResult] = []
    envelopes: dict[str, Envelope] = {}

    @property
    def needed(self) -> float | None:
        """Mean rounds to the target over the seeds, or None if a run did not reach it."""
        values = [run.needed for run in self.runs if run.needed is not None]
        return sum(values) / len(values) if values and len(values) == len(self.runs) else None

    @property
    def rate(self) -> float | None:
        """The learning rate found, where one was looked for."""
        value = self.chosen.get("learning-rate")
        return float(value) if value is not None else None

    def mean(self, key: str) -> float:
        """Return the mean of a number of the runs over the seeds."""
        return (
            float(np.mean([getattr(run, key) for run in self.runs])) if self.runs else float("nan")
        )

    def spread(self, key: str) -> tuple[float, float]:
        """Return least and greatest of a number of the runs."""
        values = [getattr(run, key) for run in self.runs]
        return (min(values), max(values)) if values else (float("nan"), float("nan"))


class Results(Kept):
    """All cells of an item at one scale, how they came about, and what else it found."""

    item: str
    scale: ScaleName
    command: str
    cells: dict[str, CellResult]
    numbers: dict[str, Any] = {}
    execution: list[dict[str, Any]] = []
    seconds: float = 0.0
    runs: int = 0
    written: str = ""


def cell_result(cell: Cell | None, outcome: SearchResult | None, *, curves: bool) -> CellResult:
    """Return what is kept of a cell; nothing of one that did not run."""
    if cell is None or outcome is None:
        return CellResult()
    return CellResult(
        target=cell.target,
        participants=_participants(cell),
        every=int(cell.settings.get("eval-every", 1)),
        chosen=dict(outcome.chosen.settings) if outcome.chosen else {},
        inside=outcome.inside,
        tried=[_tried(candidate, cell) for candidate in outcome.tried],
        runs=[
            _run(record, seed, cell, curves=curves)
            for record, seed in zip(outcome.runs, cell.seeds, strict=True)
        ],
        envelopes=_envelopes(cell, outcome) if curves else {},
    )


def _envelopes(cell: Cell, outcome: SearchResult) -> dict[str, Envelope]:
    """Return the envelopes over the candidates, of which the chosen one goes as far as it is drawn."""
    if len(outcome.tried) < 2 or cell.rates is None:
        return {}
    longest = [
        r for r, seed in zip(outcome.runs, cell.seeds, strict=True) if seed in cell.rates.seeds
    ]
    groups = [*(candidate.records for candidate in outcome.tried), longest]
    found = {
        "accuracy": _envelope([[r.accuracy for r in group] for group in groups], groups, 1.0),
        "training_set_loss": _envelope(
            [[r.training_set_loss for r in group] for group in groups], groups, -1.0
        ),
    }
    return {key: each for key, each in found.items() if each.rounds}


def _envelope(
    values: Sequence[Sequence[Sequence[float | None]]],
    groups: Sequence[Sequence[RunRecord]],
    sign: float,
) -> Envelope:
    """Return the envelope of the groups' means over their seeds, each made monotone before."""
    curves = []
    for own, records in zip(values, groups, strict=True):
        monotone_ = [
            (record.rounds, monotone([np.nan if v is None else sign * v for v in series]))
            for record, series in zip(records, own, strict=True)
            if series
        ]
        rounds, mean, _, _ = band(monotone_)
        curves.append(([int(round_) for round_ in rounds], mean))
    rounds_, best = envelope(curves)
    kept = sorted({int(i) for i in np.linspace(0, len(best) - 1, min(POINTS, len(best)))})
    return Envelope(
        rounds=[rounds_[i] for i in kept if best],
        values=[float(f"{sign * best[i]:.{DIGITS}g}") for i in kept if best],
    )


def collect(
    item: str,
    scale: ScaleName,
    command: str,
    cells: Mapping[str, CellResult],
    records: Sequence[RunRecord],
    numbers: Mapping[str, Any],
) -> Results:
    """Return the item's results; ``records`` are those of all its runs."""
    # A run may be there several times, cut to what each cell asks of it: the longest is the run.
    longest_last = sorted(records, key=lambda record: record.last_round)
    own = {record.run: record for record in longest_last}.values()
    return Results(
        item=item,
        scale=scale,
        command=command,
        cells=dict(cells),
        numbers=dict(numbers),
        execution=_distinct(record.published.execution for record in own if record.execution),
        seconds=round(sum(record.seconds for record in own), 1),
        runs=len(own),
        written=datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
    )


def _participants(cell: Cell) -> int:
    from fedapp.config.run_config import participants, read_config

    config = read_config({**cell.settings})
    return participants(config.fraction_train, config.num_clients)


def _run(record: RunRecord, seed: int, cell: Cell, *, curves: bool) -> RunResult:
    found, training = least(record.rounds, record.loss), record.training_set_loss
    return RunResult(
        run=record.run,
        seed=seed,
        rounds=record.last_round,
        needed=_round(record.rounds_to(cell.target) if cell.target else None, 5),
        final=record.final_accuracy(cell.window),
        best=record.best_accuracy,
        fluctuation=float(f"{fluctuation(record.accuracy):.4g}"),
        least_loss=found[1] if found else None,
        least_loss_round=found[0] if found else None,
        training_loss=_round(training[-1]) if training else None,
        beyond_plateau=_round(beyond_plateau(record.accuracy, training)),
        updates=record.updates,
        bytes_down=record.bytes_down,
        bytes_up=record.bytes_up,
        seconds=record.seconds,
        problem=record.problem,
        curve=thin(record) if curves else None,
        agreement=thin_rows(record.agreement),
    )


def _tried(candidate: Candidate, cell: Cell) -> Tried:
    records = candidate.records
    needed = [record.rounds_to(cell.target) if cell.target else None for record in records]
    reached = [value for value in needed if value is not None]
    return Tried(
        settings=dict(candidate.settings),
        needed=_round(sum(reached) / len(reached), 5) if reached and None not in needed else None,
        best=float(np.mean([record.best_accuracy for record in records])),
        final=float(np.mean([record.final_accuracy(cell.window) for record in records])),
        rounds=max(record.last_round for record in records),
        problem="; ".join(record.problem for record in records if record.problem),
    )


def thin(record: RunRecord, points: int = POINTS) -> Curve:
    """Return a curve of at most about ``points`` rounds, evenly spaced, with the best and the last."""
    count = len(record.rounds)
    kept = {int(i) for i in np.linspace(0, count - 1, min(points, count))} if count else set()
    scored = [value or 0.0 for value in record.accuracy]
    if scored:
        kept.add(max(range(count), key=scored.__getitem__))
    order = sorted(kept)
    return Curve(
        rounds=[record.rounds[i] for i in order],
        gradients=[record.gradients[i] for i in order],
        accuracy=[_round(record.accuracy[i]) for i in order],
        loss=[_round(record.loss[i]) for i in order],
        train_loss=[_round(record.train_loss[i]) for i in order],
        training_set_loss=[_round(record.training_set_loss[i]) for i in order]
        if record.training_set_loss
        else [],
    )


def thin_rows(rows: Sequence[dict[str, Any]], points: int = POINTS) -> list[dict[str, Any]]:
    """Return at most ``points`` of the rows, evenly spaced, their numbers shortened."""
    places = sorted({int(i) for i in np.linspace(0, len(rows) - 1, min(points, len(rows)))})
    return [
        {key: _shortened(value) for key, value in rows[place].items()} for place in places if rows
    ]


def _shortened(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _shortened(item) for key, item in value.items()}
    return _round(value) if isinstance(value, float) else value


def _round(value: float | None, digits: int = DIGITS) -> float | None:
    return None if value is None else float(f"{value:.{digits}g}")


def _distinct(values: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for value in values:
        if value not in found:
            found.append(value)
    return found


def results_path(folder: Path, item: str, scale: ScaleName) -> Path:
    """Return where an item's results at a scale are kept."""
    return folder / item / f"{scale}.json"


def write_results(folder: Path, results: Results) -> Path:
    """Write the results and return their path."""
    path = results_path(folder, results.item, results.scale)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, (results.model_dump_json(exclude_defaults=True) + "\n").encode())
    return path


def read_results(folder: Path, item: str, scale: ScaleName) -> Results | None:
    """Return an item's results, or None if there are none.

    Raises
    ------
    ConfigError
        The file is damaged, or of another version.
    """
    path = results_path(folder, item, scale)
    if not path.exists():
        return None
    try:
        return Results.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise ConfigError(
            f"{path}: cannot be read ({error.errors()[0]['msg']}). Delete it and make it again with "
            f"`fedapp reproduce {item} --scale {scale}`."
        ) from error
