"""Runs side by side: their curves, and the numbers that are read off these."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from fedapp.analysis.curves import rounds_to_target
from fedapp.config.settings import Scalar
from fedapp.errors import CheckpointError, ConfigError
from fedapp.federation.callback import RoundMetrics
from fedapp.runs.formatting import number, percent
from fedapp.runs.metrics import total, wall_seconds
from fedapp.runs.stored_run import StoredRun, read_run, state_before_start
from fedapp.studies.compare.runs import (
    by_settings,
    differing_settings,
    find_runs,
    names_of,
    run_labels,
)


class Metric(NamedTuple):
    """A number of a round; ``sign`` is 1 if greater is better and -1 if less is."""

    key: str
    title: str
    sign: int

    def show(self, value: float | None) -> str:
        """Format a value; empty without one."""
        return percent(value) if self.key == ACCURACY else number(value, 4)


ACCURACY = "test_accuracy"
METRICS = {
    metric.key: metric
    for metric in (
        Metric(ACCURACY, "test accuracy", 1),
        Metric("test_rmse", "test RMSE", -1),
        Metric("test_loss", "test loss", -1),
    )
}
"""The metrics that are compared; the first that a run has is its own."""


@dataclass(frozen=True)
class MetricCurve:
    """A metric by round; None in place of nan."""

    rounds: list[int]
    values: list[float | None]

    def best(self, metric: Metric) -> tuple[float, int] | None:
        """Return the best value and its first round; None if no value is finite."""
        known = [
            (metric.sign * value, -round_)
            for round_, value in zip(self.rounds, self.values, strict=True)
            if value is not None
        ]
        value, round_ = max(known, default=(0.0, 0))
        return (metric.sign * value, -round_) if known else None


@dataclass(frozen=True)
class ComparedRun:
    """A run's settings that differ from the others', its numbers and its curves.

    ``metric`` is the key of its own metric, "" before the first evaluation; ``final`` and ``best`` are
    of that. ``rounds_to_target`` is None if the run has not reached it, or has no accuracy. Bytes and
    seconds are of all rounds.
    """

    name: str
    path: str
    label: str
    state: str
    settings: dict[str, Scalar | None]
    rounds: int
    planned: int
    metric: str
    final: float | None
    best: float | None
    best_round: int | None
    rounds_to_target: float | None
    bytes_down: int
    bytes_up: int
    seconds: float
    curves: dict[str, MetricCurve]

    @property
    def bytes(self) -> int:
        """Bytes of requests to train and for losses, and of the replies to train that were used."""
        return self.bytes_down + self.bytes_up


@dataclass(frozen=True)
class ComparedRuns:
    """Compared runs; ``left_out`` has the reason by path of those that cannot be read.

    ``target`` is a test accuracy, or None; ``shared`` are the settings in which all runs agree.
    """

    target: float | None
    differing: list[str]
    shared: dict[str, Scalar]
    runs: list[ComparedRun]
    notes: list[str]
    left_out: dict[str, str]

    @property
    def metrics(self) -> list[Metric]:
        """The metrics to draw: a loss only where all runs have the same own metric."""
        own = {run.metric for run in self.runs if run.metric}
        drawn = own | {"test_loss"} if len(own) == 1 else own - {"test_loss"}
        return [metric for key, metric in METRICS.items() if key in drawn]


def compare(paths: Sequence[Path], target: float | None = None) -> ComparedRuns:
    """Compare the runs in ``paths``, each a run's folder or one that holds such; each run once.

    The runs of a single folder are in the order of the settings in which they differ. Without a
    ``target``, it is the runs' own ``target-accuracy`` if all agree.

    Raises
    ------
    CheckpointError
        A folder holds no run, or fewer than two runs can be read.
    ConfigError
        ``target`` is no share.
    """
    _check_target(target)
    folders = list(dict.fromkeys(run.resolve() for path in paths for run in find_runs(path)))
    runs, left_out = _read(folders)
    if len(runs) < 2:
        reasons = "".join(f"\n{problem}" for problem in left_out.values())
        raise CheckpointError(
            f"{', '.join(map(str, paths))}: {'one run' if runs else 'no run'} that can be read, and a "
            "comparison needs two. Give another run, or a folder of runs; `fedapp report RUN` describes "
            f"one.{reasons}"
        )
    differing = differing_settings(runs)
    if len(paths) == 1:
        runs = [runs[i] for i in sorted(range(len(runs)), key=lambda i: by_settings(differing, i))]
        differing = differing_settings(runs)
    names = names_of([run.directory.path for run in runs])
    labels = run_labels(differing, names)
    if target is None:
        target = _common_target(runs)
    compared = [
        _numbers(run, name, label, {key: own[i] for key, own in differing.items()}, target)
        for i, (run, name, label) in enumerate(zip(runs, names, labels, strict=True))
    ]
    shared = {
        key: value
        for key, value in runs[0].settings.items()
        if key not in ("run-dir", "resume") and all(run.settings.get(key) == value for run in runs)
    }
    notes = _notes(compared, runs, target)
    return ComparedRuns(target, list(differing), shared, compared, notes, left_out)


def _check_target(target: float | None) -> None:
    if target is None or 0 < target <= 1:
        return
    share = target if 1 < target <= 100 else 95.0
    raise ConfigError(
        f"--target {target:g}: must be a share of the test examples, above 0 and at most 1; {share:g} % "
        f"is {share / 100:g}."
    )


def _read(folders: Sequence[Path]) -> tuple[list[StoredRun], dict[str, str]]:
    runs, left_out = [], {}
    for folder in folders:
        if state := state_before_start(folder):
            left_out[str(folder)] = f"{folder}: {state}"
            continue
        try:
            runs.append(read_run(folder))
        except CheckpointError as error:
            left_out[str(folder)] = str(error)
    return runs, left_out


def _common_target(runs: Sequence[StoredRun]) -> float | None:
    targets = {run.target for run in runs}
    return (targets.pop() or None) if len(targets) == 1 else None


def metric_curve(records: Sequence[RoundMetrics], key: str) -> MetricCurve:
    """Return a metric in the rounds that evaluate it."""
    points = [(record["round"], record[key]) for record in records if key in record]
    finite = [value if value is not None and math.isfinite(value) else None for _, value in points]
    return MetricCurve([round_ for round_, _ in points], finite)


def _numbers(
    run: StoredRun,
    name: str,
    label: str,
    settings: dict[str, Scalar | None],
    target: float | None,
) -> ComparedRun:
    curves = {key: metric_curve(run.records, key) for key in METRICS}
    curves = {
        key: curve for key, curve in curves.items() if any(v is not None for v in curve.values)
    }
    own = next(iter(curves), "")
    best = curves[own].best(METRICS[own]) if own else None
    trained = [record for record in run.records if record["round"] > 0]
    scored = curves.get(ACCURACY)
    return ComparedRun(
        name=name,
        path=str(run.directory.path),
        label=label,
        state=run.state,
        settings=settings,
        rounds=run.rounds,
        planned=run.planned,
        metric=own,
        final=curves[own].values[-1] if own else None,
        best=best[0] if best else None,
        best_round=best[1] if best else None,
        rounds_to_target=rounds_to_target(scored.rounds, scored.values, target)
        if target and scored
        else None,
        bytes_down=int(total(trained, "bytes_down")),
        bytes_up=int(total(trained, "bytes_up")),
        seconds=sum(map(wall_seconds, run.records)),
        curves=curves,
    )


def _notes(
    compared: Sequence[ComparedRun], runs: Sequence[StoredRun], target: float | None
) -> list[str]:
    """Return what a reader must know before comparing the numbers."""
    notes = []
    metrics = Counter(METRICS[run.metric].title for run in compared if run.metric)
    if len(metrics) > 1:
        counts = ", ".join(
            f"{title} of {count} run{'s' * (count > 1)}" for title, count in metrics.items()
        )
        notes.append(
            f"The runs have different tasks: {counts}. What they share is compared: rounds, bytes and "
            "seconds. Each metric is drawn for the runs that have it, and losses, which are of different "
            "functions, are not."
        )
    elif len({run.run_info.get("fingerprint") for run in runs}) > 1:
        notes.append("The runs are of different data, and so are their test examples.")
    if target is not None and METRICS[ACCURACY].title not in metrics:
        notes.append("No run has a test accuracy: none can reach the target.")
    for run in compared:
        if run.rounds and not run.metric:
            notes.append(f"{run.label}: no round was evaluated.")
        if run.state != "finished":
            doing = "still runs" if run.state == "running" else "has stopped"
            notes.append(f"{run.label} {doing}, after round {run.rounds} of {run.planned}.")
    return notes
