"""Results, figures, pages and the index of experiments, written from the outcomes of their runs."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedapp.config.settings import Scalar
from fedapp.studies.papers.catalogue import Experiment, all_experiments
from fedapp.studies.papers.cells import Cells, Setup
from fedapp.studies.papers.figures.draw import draw
from fedapp.studies.papers.figures.landscapes import measure_interpolation
from fedapp.studies.papers.figures.overview import draw_overview
from fedapp.studies.papers.figures.sharpness import measure_sharpness
from fedapp.studies.papers.options import ReproduceOptions, setup_of
from fedapp.studies.papers.pages.index import write_index
from fedapp.studies.papers.pages.page import write_page
from fedapp.studies.papers.results import CellResult, Results, cell_result, collect
from fedapp.studies.papers.schema import Figure, Picture, Sharpness
from fedapp.studies.papers.stored import (
    read_results,
    results_of,
    results_path,
    with_curves,
    write_results,
)
from fedapp.studies.sweep.identity import EXECUTION
from fedapp.studies.sweep.record import RunRecord
from fedapp.studies.sweep.scheduler import SchedulerOptions
from fedapp.studies.sweep.search import SearchResult
from fedapp.studies.sweep.table import read_records


def results_from(
    name: str,
    experiment: Experiment,
    cells: Cells,
    outcomes: Mapping[str, SearchResult | None],
    setup: Setup,
    options: ReproduceOptions,
) -> Results:
    """Return the results of an experiment from the outcomes of its cells."""
    cell_results = {
        label: cell_result(cell, outcomes[label], envelopes=isinstance(experiment, Figure))
        for label, cell in cells.items()
    }
    records = [record for outcome in filter(None, outcomes.values()) for record in outcome.records]
    overrides = sorted(options.overrides.items())
    chosen = "".join(f" --set {shlex.quote(f'{key}={value}')}" for key, value in overrides)
    command = f"fedapp reproduce {name} --scale {options.scale}{chosen}"
    datasets = {label: str(cell.settings["dataset"]) for label, cell in cells.items() if cell}
    numbers = _numbers(name, experiment, cell_results, datasets, setup, options)
    return collect(name, options.scale, command, cell_results, records, numbers)


def refuse_to_overwrite(
    results: Results, earlier: Results | None, options: ReproduceOptions
) -> str:
    """Return a message if ``earlier`` results have another ``--set`` or a cell more seeds, else ""."""
    if earlier is None:
        return ""
    path = results_path(options.to, results.experiment, options.scale)
    if _overrides(results) != _overrides(earlier):
        return (
            f"{path} is not overwritten: it is from `{earlier.command}`, whose runs had other settings. "
            "Write --to another folder, or delete the file."
        )
    cells = earlier.cells
    lost = [name for name, cell in cells.items() if not _is_there(results, name, len(cell.runs))]
    if not lost:
        return ""
    names = f"{', '.join(lost[:3])}{', ...' if len(lost) > 3 else ''}"
    return (
        f"{path} is not overwritten: it has results of {len(lost)} cells whose runs are neither in "
        f"--runs nor in --from ({names}), and they would be lost. "
        "Name their folder, run those cells too, write --to another folder, or delete the file."
    )


def _overrides(results: Results) -> dict[str, Scalar]:
    """Return the settings of ``--set`` but for those of execution alone."""
    return {key: value for key, value in results.overrides.items() if key not in EXECUTION}


def _is_there(results: Results, name: str, seeds: int) -> bool:
    """Return whether a cell has so many seeds, or the experiment no longer has the cell."""
    return name not in results.cells or len(results.cells[name].runs) >= seeds


def _numbers(
    name: str,
    experiment: Experiment,
    cell_results: Mapping[str, CellResult],
    datasets: Mapping[str, str],
    setup: Setup,
    options: ReproduceOptions,
) -> dict[str, Any]:
    """Return the numbers beside the cells; may train models. Measured sharpness is reused."""
    if isinstance(experiment, Picture) and experiment.draw == "interpolation":
        return measure_interpolation(setup.settings())
    if not isinstance(experiment, Sharpness):
        return {}
    folders = (options.to, *options.recorded)
    earlier = [read_results(folder, name, options.scale) for folder in folders]
    known = [results.numbers for results in earlier if results]
    return measure_sharpness(experiment, cell_results, datasets, options.runs, known)


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
