"""The figure of an experiment, drawn from its results or settings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure as Drawing

from fedapp.config.read import read_config
from fedapp.data.load import load_dataset, load_partition
from fedapp.runs.figures import COLORS, GREY, losses_figure, percent_tick, similarity_figure
from fedapp.runs.partition_figure import draw_comparison
from fedapp.runs.partition_summary import labels_and_names
from fedapp.studies.papers.catalogue import Experiment
from fedapp.studies.papers.cells import Setup
from fedapp.studies.papers.figures.curves import draw_figure
from fedapp.studies.papers.figures.landscapes import (
    draw_descents,
    draw_interpolation,
    draw_two_clients,
)
from fedapp.studies.papers.figures.sharpness import draw_sharpness
from fedapp.studies.papers.figures.style import (
    PNG,
    new_panels,
    note_scale,
    reduce_colors,
    save,
)
from fedapp.studies.papers.labels import RunLabels
from fedapp.studies.papers.quadratic_rates import rates_figure
from fedapp.studies.papers.results import Results
from fedapp.studies.papers.schema import BASE, Comparison, Figure, Picture, Sharpness, Updates


def draw(experiment: Experiment, results: Results, setup: Setup, stem: Path) -> Path | None:
    """Draw the figure as ``stem``.png; tables, claims and updates that were not run have none."""
    match experiment:
        case Figure():
            return _save_noted(draw_figure(experiment, results), experiment, results, stem)
        case Comparison():
            return save(draw_ranking(results), stem)
        case Updates():
            return _draw_updates(experiment, results, stem)
        case Sharpness():
            return _save_noted(draw_sharpness(experiment, results), experiment, results, stem)
        case Picture():
            return _draw_picture(experiment, results.numbers, setup, stem)
        case _:
            return None


def _draw_updates(experiment: Updates, results: Results, stem: Path) -> Path | None:
    runs = {name: cell.runs[0].agreement for name, cell in results.cells.items() if cell.runs}
    if not runs:
        return None
    figure = losses_figure(runs) if experiment.shows == "losses" else similarity_figure(runs)
    return _save_noted(figure, experiment, results, stem)


def _save_noted(figure: Drawing, experiment: Experiment, results: Results, stem: Path) -> Path:
    note_scale(figure, results.scale, RunLabels.of(experiment, results).length(results))
    return save(figure, stem)


def _draw_picture(
    experiment: Picture, numbers: Mapping[str, Any], setup: Setup, stem: Path
) -> Path:
    match experiment.draw:
        case "interpolation":
            return save(draw_interpolation(numbers), stem)
        case "landscape-one":
            return save(draw_descents(), stem)
        case "landscape-two":
            return save(draw_two_clients(), stem)
        case "quadratic":
            return save(rates_figure(), stem)
        case "partitions":
            return _draw_partitions(experiment, setup, stem)


def _draw_partitions(experiment: Picture, setup: Setup, stem: Path) -> Path:
    """Draw the partitions of run-configs side by side, as ``stem``.png."""
    configs = {
        title: read_config(setup.settings(settings))
        for title, settings in experiment.panels.items()
    }
    dataset = load_dataset(next(iter(configs.values())))
    partitions = {
        title: load_partition(config, dataset, config.num_clients)
        for title, config in configs.items()
    }
    [path] = draw_comparison(partitions, *labels_and_names(dataset), stem, PNG)
    return reduce_colors(path)


def draw_ranking(results: Results) -> Drawing:
    """Draw mean and range of the algorithms' accuracies, the best on top; a gray line marks FedAvg."""
    ran = {name: cell for name, cell in results.cells.items() if cell.runs}
    order = sorted(ran, key=lambda name: ran[name].mean("final"))
    figure, [[axes]] = new_panels(1, 1, 6.4, 0.9 + 0.24 * max(len(order), 1))
    for place, name in enumerate(order):
        low, high = ran[name].final_range
        color = COLORS[1] if name == BASE else COLORS[0]
        axes.plot([low, high], [place, place], color=color, linewidth=3, alpha=0.35)
        axes.plot(ran[name].mean("final"), place, "o", color=color, markersize=5)
    if BASE in ran:
        axes.axvline(ran[BASE].mean("final"), color=GREY, linewidth=1, linestyle=(0, (5, 3)))
    axes.set_yticks(range(len(order)), order)
    axes.set_ylim(-0.6, len(order) - 0.4)
    axes.xaxis.set_major_formatter(percent_tick)
    axes.set_xlabel("test accuracy at the end: mean and range over the seeds", fontsize=9)
    return figure
