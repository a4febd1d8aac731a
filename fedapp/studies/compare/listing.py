"""The state of all runs in a folder, a line each."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fedapp.config.settings import Scalar
from fedapp.errors import CheckpointError
from fedapp.runs.stored_run import StoredRun, read_run, state_before_start
from fedapp.studies.compare.comparison import METRICS, metric_curve
from fedapp.studies.compare.runs import (
    differing_settings,
    find_runs,
    is_execution,
    names_of,
    phrase,
)

HEAD = ("run", "state", "rounds", "last", "best", "differs in")


def list_runs(folder: Path) -> list[tuple[str, ...]]:
    """Return a head and a line for each run in ``folder``; of one that is not read name and state.

    Raises
    ------
    CheckpointError
        There is no run.
    """
    paths = find_runs(folder)
    runs = {path: _read(path) for path in paths}
    readable = [run for run in runs.values() if isinstance(run, StoredRun)]
    differing = {
        key: values for key, values in differing_settings(readable).items() if not is_execution(key)
    }
    lines: list[tuple[str, ...]] = [HEAD]
    for path, name in zip(paths, names_of(paths), strict=True):
        run = runs[path]
        if isinstance(run, StoredRun):
            settings = {key: own[readable.index(run)] for key, own in differing.items()}
            lines.append((name, *_line(run, settings)))
        else:
            lines.append((name, run))
    return lines


def _read(path: Path) -> StoredRun | str:
    """Return a run, or why there is none to read."""
    if state := state_before_start(path):
        return state
    try:
        return read_run(path)
    except CheckpointError as error:
        return f"damaged: {' '.join(str(error).split())}"


def _line(run: StoredRun, settings: Mapping[str, Scalar | None]) -> tuple[str, ...]:
    last, best = _values(run)
    phrases = (phrase(key, value) for key, value in settings.items() if value is not None)
    return _state(run), f"{run.rounds} of {run.planned}", last, best, ", ".join(phrases)


def _state(run: StoredRun) -> str:
    state = run.state
    if state != "stopped":
        return state
    return "stopped" if run.resume_round is None else f"stopped, resumable from {run.resume_round}"


def _values(run: StoredRun) -> tuple[str, str]:
    """Return the last and the best value of a run's own metric."""
    for metric in METRICS.values():
        curve = metric_curve(run.records, metric.key)
        if best := curve.best(metric):
            last = curve.values[-1]
            shown = "not finite" if last is None else metric.show(last)
            name = metric.title.removeprefix("test ")
            return f"{name} {shown}", metric.show(best[0])
    return "", ""
