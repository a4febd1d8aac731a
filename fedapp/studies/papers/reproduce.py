"""What ``fedapp reproduce`` does: runs, results, pages."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from fedapp.config.run_config import Scalar
from fedapp.errors import ConfigError
from fedapp.studies.papers.catalogue import Item, choose_at
from fedapp.studies.papers.cells import (
    Cells,
    Maker,
    cells_of,
    cells_without_data,
    is_among,
    make_cells,
    parts_of,
)
from fedapp.studies.papers.claims import Claims
from fedapp.studies.papers.costs import costs_of_cells, list_items
from fedapp.studies.papers.data import locate
from fedapp.studies.papers.figures.draw import draw, numbers_of
from fedapp.studies.papers.figures.sharpness import measure_sharpness
from fedapp.studies.papers.pages.index import write_index
from fedapp.studies.papers.pages.page import write_page
from fedapp.studies.papers.results import (
    CellResult,
    Results,
    cell_result,
    collect,
    read_results,
    results_path,
    write_results,
)
from fedapp.studies.papers.schema import Cut, ScaleName, Sharpness, Table
from fedapp.studies.sweep.command import failure, run_plans
from fedapp.studies.sweep.identity import LENGTH
from fedapp.studies.sweep.record import RunRecord
from fedapp.studies.sweep.scheduler import Effort
from fedapp.studies.sweep.search import SearchResult, Steps, search, stage
from fedapp.studies.sweep.store import Archive, Store, as_folder

Plan = Callable[[], Steps]


@dataclass(frozen=True)
class Order:
    """How to reproduce: at which scale, with which data, where runs and results go.

    Runs that are recorded beside the results in ``recorded`` are taken from there. ``only`` names the
    rows, columns, lines, algorithms or cells that are run (none: all of the scale); of the others
    those are shown whose runs are there.
    """

    scale: ScaleName
    data: Path | None
    runs: Path
    to: Path
    effort: Effort
    overrides: Mapping[str, Scalar]
    recorded: Path | None = None
    only: tuple[str, ...] = ()


def reproduce(names: Sequence[str], order: Order, console: Console) -> str:
    """Run the items' cells, all in one queue, and write each item's results, picture and page.

    Returns which runs failed and why, or which results were not written, or nothing; a run that
    diverged is a result.

    Where the time is limited the cells that cost least come first, and those that are not done when
    it is up count as not run; an item of which none is done is left as it is, and so is one that has
    results there whose runs are not to be found now.

    Raises
    ------
    ConfigError
        A name is unknown, or the data an item needs is not there, or ``only`` names no cell, or an
        override is of what items and scales alone say, or results where these are to go cannot be read,
        or written.
    """
    _check_overrides(order.overrides)
    items = choose_at(list(names), order.scale)
    as_folder(order.to, "--to")
    earlier = {name: read_results(order.to, name, order.scale) for name in items}
    makers = {name: maker_of(item, order) for name, item in items.items()}
    cells = {name: make_cells(item, makers[name]) for name, item in items.items()}
    plans = _plans(cells)
    if order.effort.hours:
        plans = _cheapest_first(plans, items, order)
    wanted = _wanted(list(plans), order.only)
    store = Store(order.runs, _archive(order.recorded))
    outcomes = run_plans({name: plans[name] for name in wanted}, store, order.effort, console)
    for name in plans.keys() - wanted:
        if there := stage(plans[name](), store.find).outcome:
            outcomes[name] = there
    if order.scale != "smoke":
        Archive(order.to).keep(store.known)
    problems = [failure(outcomes.values(), store)]
    for name, item in items.items():
        own = {label: outcomes.get(_plan_name(name, label)) for label in cells[name]}
        if own and not any(own.values()):
            continue  # nothing of it is run, at this scale or yet
        results = _results(name, item, cells[name], own, makers[name], order)
        if lost := _lost(results, earlier[name], order):
            problems.append(lost)
            continue
        for path in publish(item, results, makers[name], order.to.absolute()):
            console.print(str(path), highlight=False, soft_wrap=True)
    console.print(str(write_index(order.to.absolute())), highlight=False, soft_wrap=True)
    return " ".join(filter(None, problems))


def _check_overrides(overrides: Mapping[str, Scalar]) -> None:
    """Refuse what no cell would take over from ``--set``."""
    for key in {*LENGTH, "seed", "run-dir", "resume"}.intersection(overrides):
        raise ConfigError(
            f"--set {key}: has no effect, because the item and the scale say how far its runs go and "
            "with which seeds, and their folders lie in --runs. Leave it out; for runs of your own there "
            "is `fedapp sweep`."
        )


def _plans(cells: Mapping[str, Cells]) -> dict[str, Plan]:
    """Return a plan for each cell that the scale runs."""
    return {
        _plan_name(name, label): (lambda cell=cell: search(cell))  # type: ignore[misc]
        for name, own in cells.items()
        for label, cell in own.items()
        if cell is not None
    }


def _archive(folder: Path | None) -> Archive | None:
    """Return the records beside the results in ``folder``."""
    if folder is None:
        return None
    archive = Archive(folder)
    if not archive.root.is_dir():
        raise ConfigError(
            f"--from {folder}: there is no {archive.root.name} folder in it. Name a folder of results, "
            "docs/results for instance."
        )
    return archive


def _plan_name(item: str, label: str) -> str:
    return f"{item}: {label}"


def _wanted(plans: Sequence[str], only: Sequence[str]) -> list[str]:
    """Return those of the plans' names whose cells are to be run.

    Raises
    ------
    ConfigError
        One of ``only`` names no cell.
    """
    labels = {plan: plan.partition(": ")[2] for plan in plans}
    for each in only:
        if not any(is_among(label, (each,)) for label in labels.values()):
            parts = dict.fromkeys(part for label in labels.values() for part in parts_of(label))
            known = f'One of: {"; ".join(parts)}. Or two of them with " | " between, for one cell.'
            raise ConfigError(
                f"--only {each}: nothing is called so in these items at this scale. "
                f"{known if parts else 'Nothing of them is run at it: choose another with --scale.'}"
            )
    return [plan for plan, label in labels.items() if not only or is_among(label, only)]


def _cheapest_first(
    plans: Mapping[str, Plan], items: Mapping[str, Item], order: Order
) -> dict[str, Plan]:
    """Return the cells' plans, those first that are estimated to cost least."""
    seconds = {
        _plan_name(name, label): cost.seconds
        for name, item in items.items()
        for label, cost in costs_of_cells(item, order.scale, order.overrides).items()
    }
    return {name: plans[name] for name in sorted(plans, key=seconds.__getitem__)}


def show_costs(names: Sequence[str], order: Order, console: Console) -> None:
    """List the items with what they cost on this machine, or what is chosen of them.

    Raises
    ------
    ConfigError
        A name is unknown, or ``only`` names no cell, or an override is refused.
    """
    _check_overrides(order.overrides)
    items = choose_at(list(names), order.scale)
    jobs = order.effort.processes([order.overrides.get("device", "auto")])
    cells = {
        name: cells_without_data(item, order.scale, order.overrides) for name, item in items.items()
    }
    _wanted(list(_plans(cells)), order.only)
    console.print(list_items(items, order.scale, jobs, order.overrides, order.only))


def maker_of(item: Item, order: Order) -> Maker:
    """Return what makes an item's cells at the order's scale, with data where the order has it."""
    cuts = order.runs.expanduser().absolute() / ".data"

    def where(dataset: str, cut: Cut | None) -> str:
        return locate(dataset, order.data, cut, cuts)

    scale = item.at(order.scale)
    return Maker(item, order.scale, scale, order.overrides, where)


def _results(
    name: str,
    item: Item,
    cells: Cells,
    outcomes: Mapping[str, SearchResult | None],
    maker: Maker,
    order: Order,
) -> Results:
    kept = cells_with_curves(item, cells)
    found = {
        label: cell_result(cell, outcomes[label], curves=label in kept)
        for label, cell in cells.items()
    }
    records = [record for outcome in outcomes.values() for record in _records(outcome)]
    chosen = "".join(f" --set {key}={value}" for key, value in sorted(order.overrides.items()))
    command = f"fedapp reproduce {name} --scale {order.scale}{chosen}"
    datasets = {label: str(cell.settings["dataset"]) for label, cell in cells.items() if cell}
    numbers = _numbers(name, item, found, datasets, maker, order)
    return collect(name, order.scale, command, found, records, numbers)


def _lost(results: Results, earlier: Results | None, order: Order) -> str:
    """Say which of the ``earlier`` results these would replace by "not run"; "" if none."""
    cells = earlier.cells if earlier else {}
    lost = [name for name, cell in cells.items() if cell.runs and not _is_there(results, name)]
    if not lost:
        return ""
    path = results_path(order.to, results.item, order.scale)
    names = f"{', '.join(lost[:3])}{', ...' if len(lost) > 3 else ''}"
    return (
        f"{path} is left as it is: it has results of {len(lost)} cells whose runs are neither in --runs "
        f"nor in --from ({names}), and they would be lost. "
        "Name their folder, run those cells too, or write --to another folder; or delete the file."
    )


def _is_there(results: Results, name: str) -> bool:
    """Return whether a cell has runs, or is none of the item's any more."""
    return name not in results.cells or bool(results.cells[name].runs)


def _numbers(
    name: str,
    item: Item,
    found: Mapping[str, CellResult],
    datasets: Mapping[str, str],
    maker: Maker,
    order: Order,
) -> dict[str, Any]:
    """Return what an item has beside its cells; a sharpness from earlier, where it was measured."""
    if not isinstance(item, Sharpness):
        return numbers_of(item, maker)
    folders = [order.to, *([order.recorded] if order.recorded else [])]
    earlier = [read_results(folder, name, order.scale) for folder in folders]
    known = [results.numbers for results in earlier if results]
    return measure_sharpness(item, found, datasets, order.runs, known)


def cells_with_curves(item: Item, cells: Cells) -> set[str]:
    """Return the cells whose curves are kept: those that are drawn, or that claims read."""
    if isinstance(item, Claims):
        return {name for claim in item.claims if claim.needs_curves for name in cells_of(claim)}
    return set() if isinstance(item, Table | Sharpness) else set(cells)


def _records(outcome: SearchResult | None) -> list[RunRecord]:
    if outcome is None:
        return []
    return [*outcome.runs, *(record for each in outcome.tried for record in each.records)]


def publish(item: Item, results: Results, maker: Maker, folder: Path) -> list[Path]:
    """Write results, picture and page of an item and return the files."""
    files = [write_results(folder, results)]
    files += draw(item, results, maker, folder / results.item / results.scale)
    return [*files, *write_page(folder, results.item)]


def data_folder(given: Path | None) -> Path | None:
    """Return the folder of local data sets: the one given, or $FEDAPP_DATA, if any.

    Raises
    ------
    ConfigError
        There is no such folder.
    """
    named = os.environ.get("FEDAPP_DATA", "")
    folder, said = given or (Path(named) if named else None), "--data" if given else "FEDAPP_DATA ="
    if folder is not None and not folder.expanduser().is_dir():
        raise ConfigError(
            f"{said} {folder}: there is no such folder. Name one that holds mnist, cifar10 or "
            "shakespeare, or leave it out: full scale then takes the data from the hub."
        )
    return folder
