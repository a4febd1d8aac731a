"""The names of the runs of each item of the papers at each scale: ``names.json`` has a hash of them.

The one pinned thing that is asked inside of fedapp: nothing that users see has these names before
there are runs.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator
from typing import Any

from fedapp.studies.papers.catalogue import all_experiments
from fedapp.studies.papers.costs import cells_without_data
from fedapp.studies.papers.schema import SCALES
from fedapp.studies.sweep.identity import Request
from fedapp.studies.sweep.search import LEARNING_RATE, Cell

EMBEDDED = ("digits", "quadratic", "skewed-digits")
READING = ("text-", "client-key", "label-key", "input-key", "test-fraction", "dataset-subset")
"""The start of keys about reading data: part of a run's name only where data are read."""


def found() -> dict[str, dict[str, list[Any]]]:
    """Return the number of runs, and the hash of their sorted names, by item and scale."""
    return {
        name: {
            scale: _digest(
                run
                for cell in cells_without_data(experiment, scale, {}).values()
                if cell is not None
                for run in _runs(cell)
            )
            for scale in SCALES
        }
        for name, experiment in all_experiments().items()
    }


def _digest(runs: Iterator[str]) -> list[Any]:
    names = sorted(set(runs))
    return [len(names), hashlib.sha256("\n".join(names).encode()).hexdigest()[:16]]


def _runs(cell: Cell) -> Iterator[str]:
    """Yield the names of the runs of a cell: of each option, at each rate that is tried at first.

    Data that are not here stand as digits beside what the item calls them: a name is of their content.
    """
    rates: list[dict[str, Any]] = [{}]
    if cell.rates is not None:
        places = range(
            cell.rates.middle - cell.rates.width, cell.rates.middle + cell.rates.width + 1
        )
        rates = [{LEARNING_RATE: cell.rates.rate(place)} for place in places]
    seeds = sorted({*cell.seeds, *(cell.rates.seeds if cell.rates else ())})
    options = itertools.product(*cell.options.values())
    for values, rate, seed in itertools.product(options, rates, seeds):
        option = dict(zip(cell.options, values, strict=True))
        settings = {**cell.settings, **option, **rate, "seed": seed}
        read = {}
        if settings["dataset"] not in EMBEDDED:
            read = {key: settings.pop(key) for key in [*settings] if key.startswith(READING)}
            read["dataset"] = settings.pop("dataset")
        name = Request.of({"dataset": "digits", **settings}, 1).run
        yield json.dumps([name, read, cell.rounds, cell.target, cell.draw], sort_keys=True)
