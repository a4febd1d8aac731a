"""``fedapp reproduce``: runs of the papers' experiments, their results and pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from rich.console import Console

from fedapp.config.settings import Scalar
from fedapp.errors import ConfigError
from fedapp.files import as_folder, as_path
from fedapp.studies.papers.catalogue import Experiment, choose_at
from fedapp.studies.papers.cells import (
    EXPERIMENT_SEPARATOR,
    Cells,
    Setup,
    cells_without_data,
    is_among,
    make_cells,
    parts_of,
)
from fedapp.studies.papers.costs import Cost, costs_of_cells, list_experiments
from fedapp.studies.papers.options import ReproduceOptions, setup_of
from fedapp.studies.papers.publish import (
    publish,
    publish_index,
    refuse_to_overwrite,
    results_from,
)
from fedapp.studies.papers.results import Results
from fedapp.studies.papers.stored import read_results
from fedapp.studies.sweep.identity import LENGTH
from fedapp.studies.sweep.plans import failure, records_of, run_plans
from fedapp.studies.sweep.record import RunRecord
from fedapp.studies.sweep.search import Cell, Plan, SearchResult, replay, search
from fedapp.studies.sweep.store import Store
from fedapp.studies.sweep.table import read_records, update_table


def reproduce(names: Sequence[str], options: ReproduceOptions, console: Console) -> str:
    """Run the cells of all experiments in one queue, and write results, figures and pages.

    Returns a message about runs that failed and results that were not written, or "". A run that
    diverged is a result.

    The first seed of all cells runs before the second, and with a time limit the cheapest cells before
    others. An unfinished cell has the results of its first seeds that are done. The results of an
    experiment are not written if it has none, or if they would replace results of runs that are no longer
    found.

    Raises
    ------
    ConfigError
        A name is unknown, data are missing, ``only`` names no cell, an override is not allowed, or the
        folder of results cannot be read or written.
    """
    work = prepare(names, options)
    plans, store = work.plans, work.store
    if options.scheduler.hours:
        plans = _cheapest_first(work)
    chosen = {name: plan for name, plan in plans.items() if name in work.chosen}
    run_plans(chosen, store, options.scheduler, console)
    return publish_done(work, list(work.experiments), console)


@dataclass(frozen=True)
class Work:
    """The experiments of a command, their cells, the plans of all cells by name, and the runs so far."""

    options: ReproduceOptions
    experiments: Mapping[str, Experiment]
    setups: Mapping[str, Setup]
    cells: Mapping[str, Cells]
    planned: Mapping[str, Cell]
    """The cells that the scale runs, by the names of their plans."""
    plans: Mapping[str, Plan]
    chosen: Sequence[str]
    """The names of the plans of the cells that are to run."""
    store: Store
    earlier: Mapping[str, Results | None]


def prepare(names: Sequence[str], options: ReproduceOptions) -> Work:
    """Return the work of a command; nothing runs.

    Raises
    ------
    ConfigError
        As :func:`reproduce`.
    """
    _check_overrides(options.overrides)
    experiments = choose_at(list(names), options.scale)
    recorded = _recorded(options.recorded)
    runs = as_path(options.runs, f"--runs {options.runs}").absolute()
    options = replace(options, runs=runs, to=as_folder(options.to, "--to"))
    setups = {name: setup_of(experiment, options) for name, experiment in experiments.items()}
    cells = {name: make_cells(experiment, setups[name]) for name, experiment in experiments.items()}
    planned = _planned(cells)
    plans = {name: partial(search, cell) for name, cell in planned.items()}
    chosen = _chosen(list(plans), options.only)
    read_records(options.to)  # a damaged table is named before anything runs
    earlier = {name: read_results(options.to, name, options.scale) for name in experiments}
    store = Store(options.runs, recorded)
    return Work(options, experiments, setups, cells, planned, plans, chosen, store, earlier)


def publish_done(work: Work, names: Sequence[str], console: Console) -> str:
    """Write records, results, figures and pages of what is done of experiments, and the index.

    Returns a message about runs that failed and results that were not written, or "".
    """
    options, problems, outcomes = work.options, list[str](), list[SearchResult]()
    write_records(work)
    records = read_records(options.to)
    for name in names:
        setup = work.setups[name]
        done = {
            label: done_so_far(cell, work.store) if cell else (None, None)
            for label, cell in work.cells[name].items()
        }
        cells = {label: cell for label, (cell, _) in done.items()}
        own = {label: outcome for label, (_, outcome) in done.items()}
        if own and not any(own.values()):
            continue  # no cell has run, at this scale or yet
        outcomes += filter(None, own.values())
        results = results_from(name, work.experiments[name], cells, own, setup, options)
        # As it is now: another command may have written results there in the meantime.
        earlier = read_results(options.to, name, options.scale)
        if problem := refuse_to_overwrite(results, earlier, options):
            problems.append(problem)
            continue
        for path in publish(work.experiments[name], results, setup, options.to, records):
            console.out(path)
    for path in publish_index(options.to, records):
        console.out(path)
    return " ".join(filter(None, [failure(outcomes, work.store), *problems]))


def done_so_far(cell: Cell, store: Store) -> tuple[Cell, SearchResult | None]:
    """Return a cell with those of its seeds, from the first on, that are done, and their result."""
    for number in range(len(cell.seeds), 0, -1):
        part = replace(cell, seeds=cell.seeds[:number])
        if outcome := replay(search(part), store.find).outcome:
            return part, outcome
    return cell, None


def _check_overrides(overrides: Mapping[str, Scalar]) -> None:
    """Refuse keys of ``--set`` that the experiment and the scale determine."""
    for key in {*LENGTH, "seed", "run-dir", "resume"}.intersection(overrides):
        raise ConfigError(
            f"--set {key}: has no effect, because the experiment and the scale determine the length and "
            "the seeds of its runs, and their folders are in --runs. Leave it out; for runs of your own "
            "use `fedapp sweep`."
        )
    if overrides.get("num-clients") == 0:
        raise ConfigError(
            "--set num-clients=0: the clients of an experiment are simulated, and here they would be "
            "devices. Give their number, or leave it out."
        )


def _planned(cells: Mapping[str, Cells]) -> dict[str, Cell]:
    """Return the cells that the scale runs, by the names of their plans."""
    return {
        _plan_name(name, label): cell
        for name, own in cells.items()
        for label, cell in own.items()
        if cell is not None
    }


def _recorded(folders: Sequence[Path]) -> dict[str, RunRecord]:
    """Return the records beside the results in ``folders``."""
    folders = [as_path(folder, f"--from {folder}") for folder in folders]
    for folder in folders:
        if not any(folder.glob("*.parquet")):
            raise ConfigError(
                f"--from {folder}: it has no table of records (*.parquet). Name a folder of results, "
                "for instance docs/results."
            )
    return read_records(*folders)


def write_records(work: Work) -> None:
    """Merge the records of all runs that were found into the tables, one for each paper.

    So a search that is not finished has its runs there, and continues with them (``--from``).
    """
    for paper in dict.fromkeys(map(_paper, work.plans)):
        own = {name: plan for name, plan in work.plans.items() if _paper(name) == paper}
        runs = [request.run for request, _ in records_of(own, work.store)]
        update_table(work.options.to / f"{paper}.parquet", [work.store.known[run] for run in runs])


def _paper(name: str) -> str:
    """Return the paper of an experiment or of its plan: the first word of its name."""
    return name.partition("-")[0]


def _plan_name(experiment: str, label: str) -> str:
    return f"{experiment}{EXPERIMENT_SEPARATOR}{label}"


def split_name(plan: str) -> tuple[str, str]:
    """Split the name of a plan into the experiment and the label of the cell."""
    experiment, _, label = plan.partition(EXPERIMENT_SEPARATOR)
    return experiment, label


def _chosen(plans: Sequence[str], only: Sequence[str]) -> list[str]:
    """Return the names of the plans whose cells are in ``only``; without it all.

    Raises
    ------
    ConfigError
        A name in ``only`` matches no cell.
    """
    labels = {plan: split_name(plan)[1] for plan in plans}
    for each in only:
        if not any(is_among(label, (each,)) for label in labels.values()):
            parts = dict.fromkeys(part for label in labels.values() for part in parts_of(label))
            known = f'One of: {"; ".join(parts)}. Or two of them joined by " | ", for one cell.'
            raise ConfigError(
                f"--only {each}: these experiments have no such row, column or cell at this scale. "
                f"{known if parts else 'They run nothing at it: choose another with --scale.'}"
            )
    return [plan for plan, label in labels.items() if not only or is_among(label, only)]


def estimated_costs(work: Work) -> dict[str, Cost]:
    """Return the estimated cost of each plan."""
    options = work.options
    return {
        _plan_name(name, label): cost
        for name, experiment in work.experiments.items()
        for label, cost in costs_of_cells(experiment, options.scale, options.overrides).items()
    }


def _cheapest_first(work: Work) -> dict[str, Plan]:
    """Sort the plans by their estimated cost."""
    costs = estimated_costs(work)
    return {name: work.plans[name] for name in sorted(work.plans, key=lambda n: costs[n].seconds)}


def show_costs(names: Sequence[str], options: ReproduceOptions, console: Console) -> None:
    """List the experiments, or their cells ``only``, with their cost on this machine.

    Raises
    ------
    ConfigError
        A name is unknown, ``only`` names no cell, or an override is not allowed.
    """
    _check_overrides(options.overrides)
    experiments = choose_at(list(names), options.scale)
    jobs = options.jobs
    cells = {
        name: cells_without_data(experiment, options.scale, options.overrides)
        for name, experiment in experiments.items()
    }
    _chosen(list(_planned(cells)), options.only)
    console.print(
        list_experiments(experiments, options.scale, jobs, options.overrides, options.only)
    )
