"""What ``fedapp reproduce`` does: runs, results, pages."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from fedapp.config import Scalar
from fedapp.papers.cells import Cells, Maker, make_cells
from fedapp.papers.data import locate
from fedapp.papers.results import cell_result, collect, write_results
from fedapp.papers.schema import Item, Scale, ScaleName, choose
from fedapp.sweeps.command import run_plans
from fedapp.sweeps.plans import Outcome, Steps
from fedapp.sweeps.record import RunRecord
from fedapp.sweeps.store import Store
from fedapp.sweeps.tuning import Cell, search


@dataclass(frozen=True)
class Order:
    """How to reproduce: at which scale, with which data, where runs and results go."""

    scale: ScaleName
    data: Path | None
    runs: Path
    to: Path
    jobs: int
    retry: bool
    overrides: Mapping[str, Scalar]


def reproduce(names: Sequence[str], order: Order, console: Console) -> None:
    """Run the items' cells, all in one queue, and write each item's results and page.

    Raises
    ------
    ConfigError
        A name is unknown, or the data an item needs is not there.
    """
    items = dict(choose(list(names)))
    store = Store(order.runs)
    cells = {name: cells_of(item, order) for name, item in items.items()}
    plans: dict[str, Callable[[], Steps]] = {
        f"{name}: {label}": (lambda cell=cell: search(cell))  # type: ignore[misc]
        for name, own in cells.items()
        for label, cell in own.items()
        if cell is not None
    }
    outcomes = run_plans(plans, store, order.jobs, order.retry, console)
    for name, item in items.items():
        own = {label: outcomes.get(f"{name}: {label}") for label in cells[name]}
        _finish(name, item, cells[name], own, order, console)


def cells_of(item: Item, order: Order) -> Cells:
    """Return an item's cells at the order's scale, with its data where the order says it is."""
    scale = item.scales.get(order.scale) or Scale()
    cells = make_cells(item, Maker(item, scale, order.overrides))
    return {
        name: None if cell is None else _with_data(cell, scale, order)
        for name, cell in cells.items()
    }


def _with_data(cell: Cell, scale: Scale, order: Order) -> Cell:
    name = str(cell.settings.get("dataset", "digits"))
    where = locate(name, order.data, scale.cut, order.runs.expanduser().absolute() / ".data")
    return replace(cell, settings={**cell.settings, "dataset": where})


def _finish(
    name: str,
    item: Item,
    cells: Cells,
    outcomes: Mapping[str, Outcome | None],
    order: Order,
    console: Console,
) -> None:
    curves = item.kind != "table"
    found = {
        label: cell_result(cell, outcomes[label], curves=curves) for label, cell in cells.items()
    }
    records = [record for outcome in outcomes.values() for record in _records(outcome)]
    numbers: dict[str, Any] = {}
    command = f"fedapp reproduce {name} --scale {order.scale}"
    results = collect(name, order.scale, command, found, records, numbers)
    path = write_results(order.to.absolute(), results)
    console.print(str(path), highlight=False, soft_wrap=True)


def _records(outcome: Outcome | None) -> list[RunRecord]:
    if outcome is None:
        return []
    return [*outcome.runs, *(record for each in outcome.tried for record in each.records)]


def data_folder(given: Path | None) -> Path | None:
    """Return the folder of local data sets: the one given, or $FEDAPP_DATA, if any."""
    named = os.environ.get("FEDAPP_DATA", "")
    return given or (Path(named) if named else None)
