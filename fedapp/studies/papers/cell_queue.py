"""``fedapp reproduce --queue``: the cells that are not done, one after another, the cheapest first."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rich.console import Console
from rich.table import Table

from fedapp.runs.formatting import duration
from fedapp.studies.papers.cells import EXPERIMENT_SEPARATOR
from fedapp.studies.papers.options import ReproduceOptions
from fedapp.studies.papers.reproduce import (
    Work,
    prepare,
    publish_done,
    seconds_of,
    split_name,
)
from fedapp.studies.sweep.identity import RECORD_UPDATES
from fedapp.studies.sweep.plans import run_plans
from fedapp.studies.sweep.search import Cell, SearchResult, replay


@dataclass(frozen=True)
class Waiting:
    """A cell that is not done: the name of its plan, and its estimated seconds on one core."""

    name: str
    seconds: float


def waiting_cells(work: Work) -> list[Waiting]:
    """Return the cells that are not done, the cheapest first; equal cells of several experiments once.

    A cell of a table or figure is named by it, and not by the claims about it. Of equal cells one that
    records updates comes first, because it serves the others.
    """
    seconds, cells, seen = seconds_of(work), list[Waiting](), list[Cell | None]()

    def order(name: str) -> tuple[bool, bool]:
        cell = work.cell(name)
        records = cell is not None and bool(cell.settings.get(RECORD_UPDATES))
        return not records, EXPERIMENT_SEPARATOR in split_name(name)[1]

    for name in sorted(work.chosen, key=order):
        cell = work.cell(name)
        if cell in seen or _outcome(work, name) is not None:
            continue
        seen.append(cell)
        cells.append(Waiting(name, seconds[name]))
    return sorted(cells, key=lambda each: each.seconds)


def run_queue(names: Sequence[str], options: ReproduceOptions, console: Console) -> str:
    """Run the cells that are not done, the cheapest first, and write each as soon as it is done.

    Whenever it ends, by the time limit or by an interruption, the cells that are done are written, the
    one that is not has a checkpoint, and what is left is printed with its estimated cost. Returns a
    message about runs that failed and results that were not written, or "".

    Raises
    ------
    ConfigError
        As :func:`fedapp.studies.papers.reproduce.reproduce`.
    """
    work = prepare(names, options)
    limit, problems = options.scheduler.seconds, list[str]()
    until = None if limit is None else time.monotonic() + limit
    queue = waiting_cells(work)
    try:
        while queue:
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                break
            problems.append(_run_cell(work, queue[0], left, console))
            queue = [each for each in queue[1:] if _outcome(work, each.name) is None]
    finally:
        console.print(summary(waiting_cells(work), _jobs(options)), highlight=False, soft_wrap=True)
    return " ".join(dict.fromkeys(filter(None, problems)))


def _run_cell(work: Work, cell: Waiting, left: float | None, console: Console) -> str:
    """Run a cell within ``left`` seconds, and write the experiments that have it once it is done."""
    scheduler = work.options.scheduler
    if left is not None:
        scheduler = replace(scheduler, hours=left / 3600)
    cost = duration(cell.seconds / _jobs(work.options))
    console.print(f"{cell.name}: about {cost}", highlight=False, soft_wrap=True)
    outcomes = run_plans({cell.name: work.plans[cell.name]}, work.store, scheduler, console)
    if not outcomes:
        return ""
    settings = work.cell(cell.name)
    sharing = dict.fromkeys(
        split_name(name)[0] for name in work.plans if work.cell(name) == settings
    )
    return publish_done(work, list(sharing), console)


def _outcome(work: Work, name: str) -> SearchResult | None:
    """Return the result of a plan, or None if a run of it is missing."""
    return replay(work.plans[name](), work.store.find).outcome


def _jobs(options: ReproduceOptions) -> int:
    return options.scheduler.processes([options.overrides.get("device", "auto")])


def summary(cells: Sequence[Waiting], jobs: int) -> str:
    """Return how many cells are left, what they cost together, and which is next."""
    if not cells:
        return "No cell is left."
    total = duration(sum(each.seconds for each in cells) / jobs)
    number = "1 cell is" if len(cells) == 1 else f"{len(cells)} cells are"
    first = f"{cells[0].name}, about {duration(cells[0].seconds / jobs)}"
    return f"{number} left, about {total} with {jobs} runs in parallel; next {first}."


def show_queue(names: Sequence[str], options: ReproduceOptions, console: Console) -> None:
    """List the cells that are not done in the order of the queue, and run nothing.

    Raises
    ------
    ConfigError
        As :func:`fedapp.studies.papers.reproduce.reproduce`.
    """
    cells, jobs, so_far = waiting_cells(prepare(names, options)), _jobs(options), 0.0
    table = Table("", "cell", "time", "in all", box=None)
    for place, each in enumerate(cells, 1):
        so_far += each.seconds
        times = duration(each.seconds / jobs), duration(so_far / jobs)
        table.add_row(str(place), each.name, *times)
    table.caption = summary(cells, jobs)
    console.print(table)
