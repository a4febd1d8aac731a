"""``fedapp sweep``, and the execution of plans: retries of failed runs, and messages."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from fedapp.config.read import parse_settings, read_config
from fedapp.errors import ConfigError
from fedapp.runs.checkpoint import checkpoint_rounds, drop_checkpoints
from fedapp.runs.directory import RunDirectory, read_stored, write_config
from fedapp.runs.metrics import cut_metrics, read_metrics
from fedapp.studies.sweep.grid import expand, make_rows, request_for, show, split_grid, write_rows
from fedapp.studies.sweep.identity import EXECUTION, LENGTH, Request
from fedapp.studies.sweep.record import SOURCES, RunRecord, problem_of
from fedapp.studies.sweep.scheduler import SchedulerOptions, execute_plans
from fedapp.studies.sweep.search import SearchResult, Steps, fixed, replay
from fedapp.studies.sweep.store import Store, as_folder
from fedapp.training.build import sources
from fedapp.training.device import choose_device


def sweep_settings(
    settings: Sequence[str],
    runs: Path,
    to: Path,
    best_of: str,
    options: SchedulerOptions,
    console: Console,
) -> str:
    """Run the grid of ``settings``, print the table and write it to ``to``.

    Points that are not finished at the time limit are not in the table. Returns a message about runs
    that failed, or ""; a run that diverged is a result.

    Raises
    ------
    ConfigError
        A point of the grid is not a valid configuration, a key of the grid does not distinguish runs,
        ``best_of`` is not in the grid, or ``runs`` or ``to`` cannot be written.
    """
    to = as_folder(to, "--to")
    plain, grid = split_grid(settings)
    rows_differ_in = [key for key in grid if key != "seed"]
    if best_of and best_of not in rows_differ_in:
        raise ConfigError(
            f"--best-of {best_of}: must be a key, other than seed, with several values in this sweep. "
            f"One of: {', '.join(rows_differ_in) or 'none here'}."
        )
    base = {key: value for key, value in parse_settings(plain).items() if key not in grid}
    for key in ("run-dir", "resume"):
        if key in {**base, **grid}:
            raise ConfigError(
                f"{key}: a sweep names its runs itself, in the folder --runs. Leave the key out."
            )
    for key in EXECUTION.difference(LENGTH).intersection(grid):
        raise ConfigError(
            f"{key}: is not part of the identity of a run, and all its values would be one run. Give "
            f"it one value, as in {key}={grid[key][0]}, or compare `fedapp run` with each."
        )
    points = expand(base, grid)
    store = Store(runs)
    requests = [request_for({**base, **point}) for point in points]
    plans: dict[str, Callable[[], Steps]] = {
        _title(point): (lambda request=request: fixed([request]))  # type: ignore[misc]
        for point, request in zip(points, requests, strict=True)
    }
    outcomes = run_plans(plans, store, options, console)
    done = [i for i, point in enumerate(points) if _title(point) in outcomes]
    records = [outcomes[_title(points[i])].runs[0] for i in done]
    targets = [requests[i].target for i in done]
    rows = make_rows([points[i] for i in done], records, targets, best_of)
    console.print(show(rows))
    for path in write_rows(rows, to, base):
        console.print(str(path), highlight=False, soft_wrap=True)
    return failure(outcomes.values(), store)


def run_plans(
    plans: Mapping[str, Callable[[], Steps]],
    store: Store,
    options: SchedulerOptions,
    console: Console,
) -> dict[str, SearchResult]:
    """Execute the plans and print the runs that diverged now, or failed now or before."""
    if options.retry:
        retry_failures(plans, store)
    outcomes, problems = execute_plans(plans, store, options, console)
    for run, problem in {**problems, **_failed(outcomes.values())}.items():
        console.print(f"[yellow]{run}[/]: {escape(problem)}", highlight=False, soft_wrap=True)
    _warn_of(outdated(plans, store), store.root, console)
    return outcomes


def _warn_of(outdated: Mapping[str, str], root: Path, console: Console) -> None:
    """Print which runs were made with code that has changed since, and how to repeat them."""
    if outdated:
        folders = " ".join(shlex.quote(str(root / run)) for run in outdated)
        console.print(
            f"[yellow]Old numbers[/]: the code of {'; '.join(dict.fromkeys(outdated.values()))} has "
            f"changed since {len(outdated)} of these runs began: {', '.join(outdated)}. If it gives "
            f"other numbers now, repeat them: rm -r {folders}, and the same command.",
            highlight=False,
            soft_wrap=True,
        )


def failure(outcomes: Iterable[SearchResult], store: Store) -> str:
    """Return a message about the plans' failed runs, or ""."""
    failed = _failed(outcomes)
    if not failed:
        return ""
    run, problem = next(iter(failed.items()))
    number = "1 run failed" if len(failed) == 1 else f"{len(failed)} runs failed; the first"
    return (
        f"{number}: {run}: {problem.removesuffix('.')}. Failed runs are not repeated without "
        f"--retry. The folders are in {store.root}."
    )


def _failed(outcomes: Iterable[SearchResult]) -> dict[str, str]:
    """Return the failed runs of all candidates, with the reason."""
    return {
        record.run: record.problem
        for outcome in outcomes
        for each in (outcome.runs, *(candidate.records for candidate in outcome.tried))
        for record in each
        if record.status == "failed"
    }


def _title(point: Mapping[str, object]) -> str:
    return " ".join(f"{key}={value}" for key, value in point.items()) or "run"


Plans = Mapping[str, Callable[[], Steps]]


def records_of(plans: Plans, store: Store) -> list[tuple[Request, RunRecord]]:
    """Return the plans' requests that have a record, with the record; each run once."""
    records: dict[str, tuple[Request, RunRecord]] = {}

    def find(request: Request) -> RunRecord | None:
        record = store.find(request)
        if record is not None:
            records[request.run] = (request, record)
        return record

    for plan in plans.values():
        replay(plan(), find)
    return list(records.values())


def outdated(plans: Plans, store: Store) -> dict[str, str]:
    """Return the runs that were made with other code than the current, with the components.

    Records without digests of the code, such as published ones, are not among them.
    """
    runs: dict[str, str] = {}
    for request, record in records_of(plans, store):
        config = read_config(dict(request.settings))
        now = sources(config)
        before: dict[str, str] = record.execution.get(SOURCES, now)
        changed = [key for key in now if before.get(key) != now[key]]
        if changed:
            runs[request.run] = ", ".join(f"{key} {getattr(config, key)!r}" for key in changed)
    return runs


def retry_failures(plans: Plans, store: Store) -> None:
    """Prepare all failed runs of the plans to be repeated."""
    for request, record in records_of(plans, store):
        if record.status == "failed":
            retry(request, store)


def retry(request: Request, store: Store) -> None:
    """Prepare a failed run to continue from its last good checkpoint, or from the start without one.

    Keys of execution (device, trainer, program, threads ...) are taken from ``request``.

    Raises
    ------
    CheckpointError
        The run directory is damaged.
    """
    with store.lock(request.run):
        folder = store.folder(request.run)
        if _roll_back(RunDirectory(folder)):
            _write_execution_settings(request, folder)
        else:
            shutil.rmtree(folder, ignore_errors=True)
        store.retry(request.run)


def _roll_back(directory: RunDirectory) -> bool:
    """Drop checkpoints from the first failed round on; return whether a trained one is left."""
    if not directory.config.exists():
        return False
    rows = read_metrics(directory.metrics)
    failed = [row["round"] for row in rows if problem_of(row)[0] == "failed"]
    if failed:
        drop_checkpoints(directory.checkpoints, min(failed))
        cut_metrics(directory.metrics, min(failed) - 1)
    return any(round_ > 0 for round_ in checkpoint_rounds(directory.checkpoints))


def _write_execution_settings(request: Request, folder: Path) -> None:
    """Replace the stored keys of execution by the request's."""
    stored, run_info = read_stored(folder)
    asked = read_config({"pictures": False, **dict(request.settings)}).to_run_config()
    execution = {key: asked[key] for key in EXECUTION}
    config = read_config({**stored.to_run_config(), **execution, "run-dir": str(folder)})
    run_info = {key: value for key, value in run_info.items() if key != "threads"}
    run_info["device"] = str(choose_device(config))
    write_config(RunDirectory(folder), config, run_info)
