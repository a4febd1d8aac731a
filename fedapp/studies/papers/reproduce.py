"""``fedapp reproduce``: runs of the papers' experiments, their results and pages."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from fedapp.config.run_config import Scalar
from fedapp.errors import ConfigError
from fedapp.studies.papers.catalogue import Experiment, all_experiments, choose_at
from fedapp.studies.papers.cells import (
    Cells,
    Setup,
    cells_without_data,
    is_among,
    make_cells,
    parts_of,
)
from fedapp.studies.papers.costs import costs_of_cells, list_experiments
from fedapp.studies.papers.data import locate
from fedapp.studies.papers.figures.draw import draw, numbers_of
from fedapp.studies.papers.figures.overview import draw_overview
from fedapp.studies.papers.figures.sharpness import measure_sharpness
from fedapp.studies.papers.pages.index import write_index
from fedapp.studies.papers.pages.page import write_page
from fedapp.studies.papers.results import (
    CellResult,
    Results,
    cell_result,
    collect,
)
from fedapp.studies.papers.schema import Cut, Figure, ScaleName, Sharpness
from fedapp.studies.papers.stored import (
    read_results,
    results_of,
    results_path,
    with_curves,
    write_results,
)
from fedapp.studies.sweep.identity import LENGTH
from fedapp.studies.sweep.plans import Plan, Plans, failure, records_of, run_plans
from fedapp.studies.sweep.record import RunRecord
from fedapp.studies.sweep.scheduler import SchedulerOptions
from fedapp.studies.sweep.search import SearchResult, replay, search
from fedapp.studies.sweep.store import Store, as_folder
from fedapp.studies.sweep.table import EARLIER, read_records, update_table


@dataclass(frozen=True)
class ReproduceOptions:
    """The options of ``fedapp reproduce``: scale, data, and the folders of runs and results.

    Runs with a record beside the results in the folders ``recorded`` are taken from there. ``only``
    names the rows, columns, lines, algorithms or cells to run (empty: all of the scale); of the others,
    finished runs are shown.
    """

    scale: ScaleName
    data: Path | None
    runs: Path
    to: Path
    scheduler: SchedulerOptions
    overrides: Mapping[str, Scalar]
    recorded: tuple[Path, ...] = ()
    only: tuple[str, ...] = ()


def reproduce(names: Sequence[str], options: ReproduceOptions, console: Console) -> str:
    """Run the cells of all experiments in one queue, and write results, figures and pages.

    Returns a message about runs that failed and results that were not written, or "". A run that
    diverged is a result.

    With a time limit, the cheapest cells run first, and unfinished cells count as not run. The results
    of an experiment are not written if none of its cells is finished, or if they would replace results
    of runs that are no longer found.

    Raises
    ------
    ConfigError
        A name is unknown, data are missing, ``only`` names no cell, an override is not allowed, or the
        folder of results cannot be read or written.
    """
    _check_overrides(options.overrides)
    experiments = choose_at(list(names), options.scale)
    options = replace(options, to=as_folder(options.to, "--to"))
    recorded = _recorded(options.recorded)
    read_records(options.to)  # a damaged table is named before anything runs
    earlier = {name: read_results(options.to, name, options.scale) for name in experiments}
    setups = {name: setup_of(experiment, options) for name, experiment in experiments.items()}
    cells = {name: make_cells(experiment, setups[name]) for name, experiment in experiments.items()}
    plans = _plans(cells)
    if options.scheduler.hours:
        plans = _cheapest_first(plans, experiments, options)
    chosen = _chosen(list(plans), options.only)
    store = Store(options.runs, recorded)
    outcomes = run_plans({name: plans[name] for name in chosen}, store, options.scheduler, console)
    for name in plans.keys() - chosen:
        if outcome := replay(plans[name](), store.find).outcome:
            outcomes[name] = outcome
    _write_records(plans, store, options.to)
    records = read_records(options.to)
    problems = [failure(outcomes.values(), store)]
    for name, experiment in experiments.items():
        own = {label: outcomes.get(_plan_name(name, label)) for label in cells[name]}
        if own and not any(own.values()):
            continue  # no cell has run, at this scale or yet
        results = _results(name, experiment, cells[name], own, setups[name], options)
        if problem := _refuse_to_overwrite(results, earlier[name], options):
            problems.append(problem)
            continue
        for path in publish(experiment, results, setups[name], options.to, records):
            console.print(str(path), highlight=False, soft_wrap=True)
    for path in publish_index(options.to, records):
        console.print(str(path), highlight=False, soft_wrap=True)
    return " ".join(filter(None, problems))


def _check_overrides(overrides: Mapping[str, Scalar]) -> None:
    """Refuse keys of ``--set`` that the experiment and the scale determine."""
    for key in {*LENGTH, "seed", "run-dir", "resume"}.intersection(overrides):
        raise ConfigError(
            f"--set {key}: has no effect, because the experiment and the scale determine the length and "
            "the seeds of its runs, and their folders are in --runs. Leave it out; for runs of your own "
            "use `fedapp sweep`."
        )


def _plans(cells: Mapping[str, Cells]) -> dict[str, Plan]:
    """Return the search plan of each cell that the scale runs."""
    return {
        _plan_name(name, label): (lambda cell=cell: search(cell))  # type: ignore[misc]
        for name, own in cells.items()
        for label, cell in own.items()
        if cell is not None
    }


def _recorded(folders: Sequence[Path]) -> dict[str, RunRecord]:
    """Return the records beside the results in ``folders``."""
    folders = [folder.expanduser() for folder in folders]
    for folder in folders:
        if not any(file for pattern in ("*.parquet", EARLIER) for file in folder.glob(pattern)):
            raise ConfigError(
                f"--from {folder}: it has no table of records (*.parquet). Name a folder of results, "
                "for instance docs/results."
            )
    return read_records(*folders)


def _write_records(plans: Plans, store: Store, folder: Path) -> None:
    """Merge the records of all runs that were found into the tables, one for each paper."""
    for paper in dict.fromkeys(map(_paper, plans)):
        own = {name: plan for name, plan in plans.items() if _paper(name) == paper}
        runs = [request.run for request, _ in records_of(own, store)]
        update_table(folder / f"{paper}.parquet", [store.known[run] for run in runs])


def _paper(name: str) -> str:
    """Return the paper of an experiment or of its plan: the first word of its name."""
    return name.partition("-")[0]


def _plan_name(experiment: str, label: str) -> str:
    return f"{experiment}: {label}"


def _chosen(plans: Sequence[str], only: Sequence[str]) -> list[str]:
    """Return the names of the plans whose cells are in ``only``; without it all.

    Raises
    ------
    ConfigError
        A name in ``only`` matches no cell.
    """
    labels = {plan: plan.partition(": ")[2] for plan in plans}
    for each in only:
        if not any(is_among(label, (each,)) for label in labels.values()):
            parts = dict.fromkeys(part for label in labels.values() for part in parts_of(label))
            known = f'One of: {"; ".join(parts)}. Or two of them joined by " | ", for one cell.'
            raise ConfigError(
                f"--only {each}: these experiments have no such row, column or cell at this scale. "
                f"{known if parts else 'They run nothing at it: choose another with --scale.'}"
            )
    return [plan for plan, label in labels.items() if not only or is_among(label, only)]


def _cheapest_first(
    plans: Plans, experiments: Mapping[str, Experiment], options: ReproduceOptions
) -> dict[str, Plan]:
    """Sort the plans by their estimated cost."""
    seconds = {
        _plan_name(name, label): cost.seconds
        for name, experiment in experiments.items()
        for label, cost in costs_of_cells(experiment, options.scale, options.overrides).items()
    }
    return {name: plans[name] for name in sorted(plans, key=seconds.__getitem__)}


def show_costs(names: Sequence[str], options: ReproduceOptions, console: Console) -> None:
    """List the experiments, or their cells ``only``, with their cost on this machine.

    Raises
    ------
    ConfigError
        A name is unknown, ``only`` names no cell, or an override is not allowed.
    """
    _check_overrides(options.overrides)
    experiments = choose_at(list(names), options.scale)
    jobs = options.scheduler.processes([options.overrides.get("device", "auto")])
    cells = {
        name: cells_without_data(experiment, options.scale, options.overrides)
        for name, experiment in experiments.items()
    }
    _chosen(list(_plans(cells)), options.only)
    console.print(
        list_experiments(experiments, options.scale, jobs, options.overrides, options.only)
    )


def setup_of(experiment: Experiment, options: ReproduceOptions) -> Setup:
    """Return the setup of an experiment for the options' scale, data and overrides."""
    cuts = options.runs.expanduser().absolute() / ".data"

    def where(dataset: str, cut: Cut | None) -> str:
        return locate(dataset, options.data, cut, cuts)

    scale = experiment.at(options.scale)
    return Setup(experiment, options.scale, scale, options.overrides, where)


def _results(
    name: str,
    experiment: Experiment,
    cells: Cells,
    outcomes: Mapping[str, SearchResult | None],
    setup: Setup,
    options: ReproduceOptions,
) -> Results:
    cell_results = {
        label: cell_result(cell, outcomes[label], envelopes=isinstance(experiment, Figure))
        for label, cell in cells.items()
    }
    records = [record for outcome in outcomes.values() for record in _records(outcome)]
    chosen = "".join(f" --set {key}={value}" for key, value in sorted(options.overrides.items()))
    command = f"fedapp reproduce {name} --scale {options.scale}{chosen}"
    datasets = {label: str(cell.settings["dataset"]) for label, cell in cells.items() if cell}
    numbers = _numbers(name, experiment, cell_results, datasets, setup, options)
    return collect(name, options.scale, command, cell_results, records, numbers)


def _refuse_to_overwrite(
    results: Results, earlier: Results | None, options: ReproduceOptions
) -> str:
    """Return a message if the results would replace ``earlier`` ones by "not run", else ""."""
    cells = earlier.cells if earlier else {}
    lost = [name for name, cell in cells.items() if cell.runs and not _is_there(results, name)]
    if not lost:
        return ""
    path = results_path(options.to, results.experiment, options.scale)
    names = f"{', '.join(lost[:3])}{', ...' if len(lost) > 3 else ''}"
    return (
        f"{path} is not overwritten: it has results of {len(lost)} cells whose runs are neither in "
        f"--runs nor in --from ({names}), and they would be lost. "
        "Name their folder, run those cells too, write --to another folder, or delete the file."
    )


def _is_there(results: Results, name: str) -> bool:
    """Return whether a cell has runs, or the experiment no longer has the cell."""
    return name not in results.cells or bool(results.cells[name].runs)


def _numbers(
    name: str,
    experiment: Experiment,
    cell_results: Mapping[str, CellResult],
    datasets: Mapping[str, str],
    setup: Setup,
    options: ReproduceOptions,
) -> dict[str, Any]:
    """Return the numbers of an experiment beside its cells; measured sharpness is reused."""
    if not isinstance(experiment, Sharpness):
        return numbers_of(experiment, setup)
    folders = (options.to, *options.recorded)
    earlier = [read_results(folder, name, options.scale) for folder in folders]
    known = [results.numbers for results in earlier if results]
    return measure_sharpness(experiment, cell_results, datasets, options.runs, known)


def _records(outcome: SearchResult | None) -> list[RunRecord]:
    if outcome is None:
        return []
    return [*outcome.runs, *(record for each in outcome.tried for record in each.records)]


def publish(
    experiment: Experiment,
    results: Results,
    setup: Setup,
    folder: Path,
    records: Mapping[str, RunRecord],
) -> list[Path]:
    """Write results, figure and page of an experiment and return the files."""
    stem = folder / results.experiment / results.scale
    written = write_results(folder, results)
    drawn = draw(experiment, with_curves(results, records), setup, stem)
    page = write_page(folder, results.experiment, records)
    return [written, *([drawn] if drawn else []), page]


def publish_index(folder: Path, records: Mapping[str, RunRecord]) -> list[Path]:
    """Write the index and the picture of all tables and return the files."""
    drawn = draw_overview(folder, records)
    return [*([drawn] if drawn else []), write_index(folder, records)]


def redraw(folder: Path, data: Path | None) -> None:
    """Draw the figures of all results in ``folder`` again, and the picture of all tables."""
    records = read_records(folder)
    draw_overview(folder, records)
    for name, experiment in all_experiments().items():
        for results in results_of(folder, name, records):
            options = ReproduceOptions(results.scale, data, folder, folder, SchedulerOptions(), {})
            draw(experiment, results, setup_of(experiment, options), folder / name / results.scale)


def data_folder(given: Path | None) -> Path | None:
    """Return the folder of local data sets: ``given``, or $FEDAPP_DATA, or None.

    Raises
    ------
    ConfigError
        There is no such folder.
    """
    named = os.environ.get("FEDAPP_DATA", "")
    folder, origin = (
        given or (Path(named) if named else None),
        "--data" if given else "FEDAPP_DATA =",
    )
    if folder is not None and not folder.expanduser().is_dir():
        raise ConfigError(
            f"{origin} {folder}: there is no such folder. Name one with mnist, cifar10 or "
            "shakespeare, or leave it out: full scale then downloads the data from the hub."
        )
    return folder
