"""What ``fedapp sweep`` does."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from fedapp.config.read import parse_settings
from fedapp.errors import ConfigError
from fedapp.studies.sweep.grid import expand, make_rows, request_for, show, split_grid, write_rows
from fedapp.studies.sweep.identity import EXECUTION, LENGTH
from fedapp.studies.sweep.plans import SearchResult, Steps, fixed
from fedapp.studies.sweep.retry import outdated, retry_failures
from fedapp.studies.sweep.scheduler import Effort, carry_out
from fedapp.studies.sweep.store import Store, as_folder


def sweep_settings(
    settings: Sequence[str],
    runs: Path,
    to: Path,
    best_of: str,
    effort: Effort,
    console: Console,
) -> str:
    """Run the grid that ``settings`` span, show the table and write it into ``to``.

    Points that are not done when the time is up are not in the table. Returns which runs failed and
    why, or nothing; one that diverged is a result.

    Raises
    ------
    ConfigError
        A point of the grid is no sensible configuration, a key of the grid does not tell runs apart,
        ``best_of`` is not in the grid, or ``runs`` or ``to`` is a file or cannot be written.
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
            raise ConfigError(f"{key}: a sweep names its runs itself, in the folder of --runs.")
    for key in EXECUTION.difference(LENGTH).intersection(grid):
        raise ConfigError(
            f"{key}: says how a run is carried out, and runs that differ in it alone are one run. Give "
            f"it one value, as in {key}={grid[key][0]}, or compare `fedapp run` with each."
        )
    points = expand(base, grid)
    store = Store(runs)
    requests = [request_for({**base, **point}) for point in points]
    plans: dict[str, Callable[[], Steps]] = {
        _title(point): (lambda request=request: fixed([request]))  # type: ignore[misc]
        for point, request in zip(points, requests, strict=True)
    }
    outcomes = run_plans(plans, store, effort, console)
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
    effort: Effort,
    console: Console,
) -> dict[str, SearchResult]:
    """Carry out the plans and name the runs that went wrong, now or, if they failed, before."""
    if effort.retry:
        retry_failures(plans, store)
    outcomes, problems = carry_out(plans, store, effort, console)
    for run, problem in {**problems, **_failed(outcomes.values())}.items():
        console.print(f"[yellow]{run}[/]: {escape(problem)}", highlight=False, soft_wrap=True)
    _warn_of(outdated(plans, store), store.root, console)
    return outcomes


def _warn_of(outdated: Mapping[str, str], root: Path, console: Console) -> None:
    """Say which runs were made with code that has changed since, and how to do them again."""
    if outdated:
        folders = " ".join(shlex.quote(str(root / run)) for run in outdated)
        console.print(
            f"[yellow]Old numbers[/]: the code of {'; '.join(dict.fromkeys(outdated.values()))} has "
            f"changed since {len(outdated)} of these runs began: {', '.join(outdated)}. If it gives "
            f"other numbers now, do them again: rm -r {folders}, and the same command.",
            highlight=False,
            soft_wrap=True,
        )


def failure(outcomes: Iterable[SearchResult], store: Store) -> str:
    """Return how many of the plans' runs failed, why the first did and what to do, or nothing."""
    failed = _failed(outcomes)
    if not failed:
        return ""
    run, problem = next(iter(failed.items()))
    number = "1 run failed" if len(failed) == 1 else f"{len(failed)} runs failed; the first"
    return (
        f"{number}: {run}: {problem.removesuffix('.')}. What failed stays so until it is tried again: "
        f"add --retry. The folders are in {store.root}."
    )


def _failed(outcomes: Iterable[SearchResult]) -> dict[str, str]:
    """Return the runs that failed, among all that the plans had, and why."""
    return {
        record.run: record.problem
        for outcome in outcomes
        for each in (outcome.runs, *(candidate.records for candidate in outcome.tried))
        for record in each
        if record.status == "failed"
    }


def _title(point: Mapping[str, object]) -> str:
    return " ".join(f"{key}={value}" for key, value in point.items()) or "run"
