"""The results of an experiment at one scale: the numbers of its page and figure."""

from __future__ import annotations

import datetime
import itertools
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from fedapp.analysis.curves import (
    band,
    beyond_plateau,
    envelope,
    fluctuation,
    least,
    monotone,
    relative_spread,
)
from fedapp.config.federation import participants
from fedapp.config.read import parse_settings, read_config
from fedapp.config.settings import Scalar
from fedapp.studies.papers.schema import ScaleName
from fedapp.studies.sweep.record import RunRecord
from fedapp.studies.sweep.search import Candidate, Cell, SearchResult

COLLAPSED = 0.5
"""The fraction of its best accuracy below which a run that ends there has collapsed."""
POINTS, DIGITS = 150, 5
"""Maximum number of points of an envelope, and significant digits of a number."""


class ResultModel(BaseModel):
    """Base of all results; JSON keys are the aliases of fields that have one."""

    model_config = ConfigDict(extra="forbid", validate_by_name=True, serialize_by_alias=True)


class Curve(ResultModel):
    """A run's curve; None in place of nan."""

    rounds: list[int]
    gradients: list[int]
    accuracy: list[float | None]
    loss: list[float | None]
    train_loss: list[float | None]
    training_set_loss: list[float | None] = []


class Envelope(ResultModel):
    """The best value of all candidates up to each round, thinned; of a loss the minimum."""

    rounds: list[int]
    values: list[float]


class RunResult(ResultModel):
    """The numbers of a run; ``needed`` are the rounds to the target, by interpolation.

    ``fluctuation`` is by how much the changes of the test accuracy between evaluated rounds differ in
    the last half of the run. ``training_loss`` is the global model's loss on the training set in the
    last round, and ``beyond_plateau`` its ratio to the loss when the test accuracy first came within 0.1
    points of its best. Both are None if they were not measured or training diverged. ``curve`` and
    ``agreement`` are those of the run's record, and not stored.
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
        """The clients' finite training losses in each recorded round."""
        by_round = [row.get("client_train_loss", {}) for row in self.agreement]
        return [[loss for loss in losses.values() if loss is not None] for losses in by_round]

    @property
    def loss_spread(self) -> float | None:
        """The spread of the clients' losses relative to their mean; None if not recorded."""
        return relative_spread(self.client_losses)


class CandidateResult(ResultModel):
    """A candidate of a search: means over its seeds; not measured if a run ``failed``."""

    settings: dict[str, Scalar]
    needed: float | None
    best: float
    final: float
    rounds: int
    problem: str
    failed: bool = False


class CellResult(ResultModel):
    """A cell: the best candidate's runs, one a seed, and all candidates; empty if it was not run.

    A run that failed is no measurement: ``failed`` has its problem, by seed, and ``runs`` lacks it.
    ``every`` is the number of rounds between evaluations. ``envelopes`` are the best test accuracy and
    the minimum training-set loss of all candidates up to each round, as means over the search's seeds;
    only searched cells of figures have them.
    """

    target: float = 0.0
    participants: int = 0
    every: int = 1
    chosen: dict[str, Scalar] = {}
    inside: bool = True
    tried: list[CandidateResult] = []
    runs: list[RunResult] = []
    failed: dict[int, str] = {}
    envelopes: dict[str, Envelope] = {}

    @property
    def needed(self) -> float | None:
        """Mean rounds to the target over the seeds, or None if a run did not reach it."""
        values = [run.needed for run in self.runs if run.needed is not None]
        return sum(values) / len(values) if values and len(values) == len(self.runs) else None

    @property
    def problems(self) -> list[str]:
        """The problems of the runs that failed, those that diverged, and candidates that failed."""
        own = [*self.failed.values(), *(run.problem for run in self.runs if run.problem)]
        return [*own, *(each.problem for each in self.tried if each.failed)]

    @property
    def rate(self) -> float | None:
        """The learning rate that the search chose; None without a search."""
        value = self.chosen.get("learning-rate")
        return float(value) if value is not None else None

    @property
    def collapsed(self) -> bool:
        """Whether a run ends at less than half of its best accuracy."""
        return any(run.final < COLLAPSED * run.best for run in self.runs)

    def mean(self, key: str) -> float:
        """Return the mean of an attribute of the runs."""
        values = [getattr(run, key) for run in self.runs]
        return float(np.mean(values)) if values else float("nan")

    @property
    def final_range(self) -> tuple[float, float]:
        """Minimum and maximum of the runs' final accuracies."""
        values = [run.final for run in self.runs]
        return (min(values), max(values)) if values else (float("nan"), float("nan"))


class Results(ResultModel):
    """All cells of an experiment at one scale, further numbers, and how the runs were executed."""

    experiment: str = Field(alias="item")
    scale: ScaleName
    command: str
    cells: dict[str, CellResult]
    numbers: dict[str, Any] = {}
    execution: list[dict[str, Any]] = []
    seconds: float = 0.0
    runs: int = 0
    written: str = ""

    @property
    def overrides(self) -> dict[str, Scalar]:
        """The settings of ``--set`` in the command."""
        words = itertools.pairwise(shlex.split(self.command))
        return parse_settings([word for flag, word in words if flag == "--set"])


def nothing_run(name: str = "") -> Results:
    """Return the results of an experiment of which nothing was run."""
    return Results(experiment=name, scale="full", command="", cells={})


def speed_up(baseline: CellResult, cell: CellResult) -> float | None:
    """Return the baseline's mean rounds over the cell's, of the seeds that both have.

    None if one of all these runs did not reach its target, or no seed is in both.
    """
    own, other = ({run.seed: run.needed for run in each.runs} for each in (cell, baseline))
    pairs = [(other[seed], own[seed]) for seed in own if seed in other]
    if not pairs or None in (*own.values(), *other.values()):
        return None
    return float(np.sum([first for first, _ in pairs]) / np.sum([second for _, second in pairs]))


def cell_result(cell: Cell | None, outcome: SearchResult | None, *, envelopes: bool) -> CellResult:
    """Return the results of a cell, without the curves in records; empty if it did not run."""
    if cell is None or outcome is None:
        return CellResult()
    config = read_config(dict(cell.settings))
    by_seed = dict(zip(cell.seeds, outcome.runs, strict=True))
    failed = {seed: each.problem for seed, each in by_seed.items() if each.status == "failed"}
    return CellResult(
        target=cell.target,
        participants=participants(config.fraction_train, config.num_clients),
        every=int(cell.settings.get("eval-every", 1)),
        chosen=dict(outcome.chosen.settings) if outcome.chosen else {},
        inside=outcome.inside,
        tried=[_tried(candidate, cell) for candidate in outcome.tried],
        runs=[_run(record, seed, cell) for seed, record in by_seed.items() if seed not in failed],
        failed=failed,
        envelopes=_envelopes(cell, outcome) if envelopes else {},
    )


def _envelopes(cell: Cell, outcome: SearchResult) -> dict[str, Envelope]:
    """Return the envelopes over the candidates; the chosen one is included to its last round."""
    if len(outcome.tried) < 2 or cell.rates is None:
        return {}
    longest = [
        r for r, seed in zip(outcome.runs, cell.seeds, strict=True) if seed in cell.rates.seeds
    ]
    groups = [*(candidate.records for candidate in outcome.tried), longest]
    envelopes = {key: _envelope(groups, key) for key in ("accuracy", "training_set_loss")}
    return {key: each for key, each in envelopes.items() if each.rounds}


def _envelope(groups: Sequence[Sequence[RunRecord]], key: str) -> Envelope:
    """Return the envelope of the groups' means over seeds, each made monotone."""
    sign, curves = (1.0 if key == "accuracy" else -1.0), []
    for records in groups:
        series = [(r.rounds, sign * np.asarray(getattr(r, key), dtype=float)) for r in records]
        rounds, mean, _, _ = band([(x, monotone(y.tolist())) for x, y in series if len(y)])
        curves.append(([int(round_) for round_ in rounds], mean))
    rounds_, best = envelope(curves)
    indices = np.linspace(0, len(best) - 1, min(POINTS, len(best)), dtype=int)
    return Envelope(
        rounds=[rounds_[i] for i in indices],
        values=[float(f"{sign * best[i]:.{DIGITS}g}") for i in indices],
    )


def collect(
    experiment: str,
    scale: ScaleName,
    command: str,
    cells: Mapping[str, CellResult],
    records: Sequence[RunRecord],
    numbers: Mapping[str, Any],
) -> Results:
    """Return the results of an experiment; ``records`` are those of all its runs."""
    # A run may occur several times, cut to what each cell requests; the longest is the whole run.
    longest_last = sorted(records, key=lambda record: record.last_round)
    own = {record.run: record for record in longest_last}.values()
    execution = [record.published.execution for record in own if record.execution]
    return Results(
        experiment=experiment,
        scale=scale,
        command=command,
        cells=dict(cells),
        numbers=dict(numbers),
        execution=[each for i, each in enumerate(execution) if each not in execution[:i]],
        seconds=round(sum(record.seconds for record in own), 1),
        runs=len(own),
        written=datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
    )


def _run(record: RunRecord, seed: int, cell: Cell) -> RunResult:
    lowest, training_loss = least(record.rounds, record.loss), record.training_set_loss
    return RunResult(
        run=record.run,
        seed=seed,
        rounds=record.last_round,
        needed=_round(record.rounds_to(cell.target) if cell.target else None),
        final=record.final_accuracy(cell.window),
        best=record.best_accuracy,
        fluctuation=float(f"{fluctuation(record.accuracy):.4g}"),
        least_loss=lowest[1] if lowest else None,
        least_loss_round=lowest[0] if lowest else None,
        training_loss=_round(training_loss[-1]) if training_loss else None,
        beyond_plateau=_round(beyond_plateau(record.accuracy, training_loss)),
        updates=record.updates,
        bytes_down=record.bytes_down,
        bytes_up=record.bytes_up,
        seconds=record.seconds,
        problem=record.problem,
    )


def _tried(candidate: Candidate, cell: Cell) -> CandidateResult:
    records = candidate.records
    needed = [record.rounds_to(cell.target) if cell.target else None for record in records]
    reached = [value for value in needed if value is not None]
    return CandidateResult(
        settings=dict(candidate.settings),
        needed=_round(sum(reached) / len(reached)) if reached and None not in needed else None,
        best=float(np.mean([record.best_accuracy for record in records])),
        final=float(np.mean([record.final_accuracy(cell.window) for record in records])),
        rounds=max(record.last_round for record in records),
        problem="; ".join(record.problem for record in records if record.problem),
        failed=candidate.failed,
    )


def curve_of(record: RunRecord) -> Curve:
    """Return the curve of all evaluated rounds."""
    return Curve.model_validate({key: getattr(record, key) for key in Curve.model_fields})


def _round(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.{DIGITS}g}")
