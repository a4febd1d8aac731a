"""``fedapp reproduce --queue``: the cells that are not done, the cheapest first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from rich.console import Console
from rich.table import Table

from fedapp.runs.checkpoint import checkpoint_rounds
from fedapp.runs.directory import RunDirectory
from fedapp.runs.formatting import duration
from fedapp.studies.papers.cells import EXPERIMENT_SEPARATOR
from fedapp.studies.papers.costs import Cost
from fedapp.studies.papers.options import ReproduceOptions
from fedapp.studies.papers.reproduce import (
    Work,
    done_so_far,
    estimated_costs,
    prepare,
    publish_done,
    split_name,
    write_records,
)
from fedapp.studies.sweep.identity import RECORD_UPDATES
from fedapp.studies.sweep.plans import failure, records_of, retry_failures, run_plans
from fedapp.studies.sweep.search import Cell, replay, search


@dataclass(frozen=True)
class Waiting:
    """A cell that is not done: the name of its plan, and the estimated seconds left on one core."""

    name: str
    seconds: float


def waiting_cells(work: Work) -> list[Waiting]:
    """Return the cells that are not done, the cheapest first; equal cells of several experiments once.

    Those without a seed come before those of which further seeds are left, as their runs do; these need
    no search any more. A cell of a table or figure is named by it, and not by the claims about it. Of
    equal cells one that records updates comes first, because it serves the others.
    """
    costs, cells, seen = estimated_costs(work), list[tuple[bool, Waiting]](), list[Cell]()

    def order(name: str) -> tuple[bool, bool]:
        records = bool(work.planned[name].settings.get(RECORD_UPDATES))
        return not records, EXPERIMENT_SEPARATOR in split_name(name)[1]

    for name in sorted(work.chosen, key=order):
        cell, cost = work.planned[name], costs[name]
        done = seeds_done(work, name)
        if cell in seen or done == len(cell.seeds):
            continue
        seen.append(cell)
        seeds_left = (len(cell.seeds) - done) * cost.seed_seconds
        left = seeds_left if done else _search_seconds(cell, cost, work)
        cells.append((done > 0, Waiting(name, left)))
    return [each for _, each in sorted(cells, key=lambda pair: (pair[0], pair[1].seconds))]


def _search_seconds(cell: Cell, cost: Cost, work: Work) -> float:
    """Return the seconds left of a search: without its rounds so far, and at least the next runs'."""
    next_runs, store = replay(search(cell), work.store.find).missing, work.store
    reached = {run.run: run.last_round for _, run in records_of({"": partial(search, cell)}, store)}
    for each in next_runs:
        rounds = checkpoint_rounds(RunDirectory(store.folder(each.run)).checkpoints)
        reached[each.run] = max([reached.get(each.run, 0), *rounds])
    least = sum(max(each.rounds - reached[each.run], 0) for each in next_runs)
    return max(cost.rounds - sum(reached.values()), least) * cost.seconds / cost.rounds


def seeds_done(work: Work, name: str) -> int:
    """Return the number of seeds, from the first on, that a cell has."""
    cell, outcome = done_so_far(work.planned[name], work.store)
    return len(cell.seeds) if outcome else 0


def run_queue(names: Sequence[str], options: ReproduceOptions, console: Console) -> str:
    """Run the cells that are not done, the cheapest first, and write each as soon as it is done.

    The first seed of all cells runs before the second, and a cell is written with the seeds that it has,
    of a search that is not finished the records of its runs.
    Whenever it ends, by the time limit or by an interruption, what is done is written, a run that is not
    has a checkpoint, and what is left is printed with its estimated cost, as before the first run.
    Returns a message about runs that failed and results that were not written, or "".

    Raises
    ------
    ConfigError
        As :func:`fedapp.studies.papers.reproduce.reproduce`.
    """
    work = prepare(names, options)
    if options.scheduler.retry:
        retry_failures({name: work.plans[name] for name in work.chosen}, work.store)
    writer, waiting = _Writer(work, console), waiting_cells(work)
    plans = {each.name: work.plans[each.name] for each in waiting}
    console.out(summary(waiting, options.jobs))
    try:
        run_plans(plans, work.store, options.scheduler, console, on_finish=writer.write)
        writer.write()
    finally:
        console.out(summary(waiting_cells(work), options.jobs))
    outcomes = (done_so_far(work.planned[name], work.store)[1] for name in work.chosen)
    failed = failure(filter(None, outcomes), work.store)
    return " ".join(dict.fromkeys(filter(None, [*writer.problems.values(), failed])))


class _Writer:
    """Writes the records of runs, and the experiments of which a cell has more seeds than in ``--to``."""

    def __init__(self, work: Work, console: Console) -> None:
        self.work, self.console = work, console
        self.problems: dict[str, str] = {}
        """The last message about each experiment that was written."""
        self.written = {
            name: len(results.cells[cell].runs)
            + (0 if work.options.scheduler.retry else len(results.cells[cell].failed))
            for name in work.plans
            for experiment, cell in [split_name(name)]
            if (results := work.earlier[experiment]) and cell in results.cells
        }

    def write(self) -> None:
        done = {name: seeds_done(self.work, name) for name in self.work.plans}
        new = [name for name in done if done[name] > self.written.get(name, 0)]
        if experiments := list(dict.fromkeys(split_name(name)[0] for name in new)):
            problem = publish_done(self.work, experiments, self.console)
            self.problems |= dict.fromkeys(experiments, problem)
        else:
            write_records(self.work)
        self.written.update(done)


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
    cells, jobs, so_far = waiting_cells(prepare(names, options)), options.jobs, 0.0
    table = Table("", "cell", "time", "in all", box=None)
    for place, each in enumerate(cells, 1):
        so_far += each.seconds
        times = duration(each.seconds / jobs), duration(so_far / jobs)
        table.add_row(str(place), each.name, *times)
    console.print(table)
    console.out(summary(cells, jobs))
