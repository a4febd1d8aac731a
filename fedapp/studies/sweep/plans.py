"""Execution of plans, with messages about runs that failed or whose code has changed since."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from fedapp.config.read import read_config
from fedapp.studies.sweep.identity import Request
from fedapp.studies.sweep.record import SOURCES, RunRecord
from fedapp.studies.sweep.retry import retry
from fedapp.studies.sweep.scheduler import Schedule, SchedulerOptions
from fedapp.studies.sweep.search import Plans, SearchResult, replay
from fedapp.studies.sweep.store import Store
from fedapp.training.build import sources


def run_plans(
    plans: Plans,
    store: Store,
    options: SchedulerOptions,
    console: Console,
    on_finish: Callable[[], None] = lambda: None,
) -> dict[str, SearchResult]:
    """Execute the plans and print the runs that diverged now, or failed now or before.

    ``on_finish`` is called when runs have finished.
    """
    if options.retry:
        retry_failures(plans, store)
    schedule = Schedule(plans, store, options, console, on_finish)
    outcomes = schedule.run()
    for run, problem in {**schedule.failed, **_failed(outcomes.values())}.items():
        console.print(f"[yellow]{run}[/]: {escape(problem)}", soft_wrap=True)
    _warn_of(outdated(plans, store), store.root, console)
    return outcomes


def _warn_of(runs: Mapping[str, str], root: Path, console: Console) -> None:
    """Print which runs were made with code that has changed since, and how to repeat them."""
    if runs:
        folders = " ".join(shlex.quote(str(root / run)) for run in runs)
        console.print(
            f"[yellow]Old numbers[/]: the code of {'; '.join(dict.fromkeys(runs.values()))} has "
            f"changed since {len(runs)} of these runs began: {', '.join(runs)}. If it gives "
            f"other numbers now, repeat them: rm -r {folders}, and the same command.",
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
        for record in outcome.records
        if record.status == "failed"
    }


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
            runs[record.run] = ", ".join(f"{key} {getattr(config, key)!r}" for key in changed)
    return runs


def retry_failures(plans: Plans, store: Store) -> None:
    """Prepare all failed runs of the plans to be repeated."""
    for request, record in records_of(plans, store):
        if record.status == "failed":
            retry(request, store)
