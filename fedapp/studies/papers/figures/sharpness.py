"""The sharpness of final models over η and B: Seo et al. 2024, section 6."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.ticker import NullFormatter

from fedapp.runs.directory import RunDirectory, read_stored
from fedapp.runs.figures import COLORS, GREY
from fedapp.runs.model_sharpness import Measurement, last_round, sharpness_of
from fedapp.studies.papers.figures.style import DASHES, grid_of, log_scale, name_axes
from fedapp.studies.papers.results import CellResult, Results, RunResult
from fedapp.studies.papers.schema import Sharpness, SharpnessPanel

SYMBOLS = {"learning-rate": "η", "batch-size": "B"}


def measure_sharpness(
    experiment: Sharpness,
    cells: Mapping[str, CellResult],
    datasets: Mapping[str, str],
    runs: Path,
    earlier: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """Return by cell the sharpness of its runs that have a final model in ``runs``.

    ``datasets`` are the current locations of the cells' data. Equal measurements in ``earlier`` are
    reused. Runs without either, and runs whose model is from a later round than the cell's last, are
    left out.
    """
    how = Measurement(examples=experiment.examples)
    known = {
        _entry_key(entry): entry for numbers in earlier for own in numbers.values() for entry in own
    }
    numbers: dict[str, Any] = {}
    for name, cell in cells.items():
        numbers[name] = []
        for run in cell.runs:
            key = _run_key(run, how)
            entry = known.get(key) or _measured(run, runs, datasets.get(name, ""), how)
            if entry:
                known[key] = entry
                numbers[name].append(entry)
    return numbers


def _entry_key(entry: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the key that identifies a measurement."""
    asked = entry["asked"], entry["distance"], entry["directions"]
    return (entry["run"], entry["round"], *asked)


def _run_key(run: RunResult, how: Measurement) -> tuple[Any, ...]:
    return (run.run, run.rounds, how.examples, how.distance, how.directions)


def _measured(run: RunResult, runs: Path, dataset: str, how: Measurement) -> dict[str, Any] | None:
    folder = runs / run.run
    if not RunDirectory(folder).model.exists() or last_round(folder) != run.rounds:
        return None
    config, _ = read_stored(folder)
    own = {"learning-rate": config.learning_rate, "batch-size": config.batch_size}
    numbers = {
        key: float(f"{value:.5g}") if isinstance(value, float) else value
        for key, value in asdict(sharpness_of(folder, how, dataset)).items()
    }
    return {"run": run.run, "seed": run.seed, **own, "asked": how.examples, **numbers}


@dataclass(frozen=True)
class Point:
    """A cell in a panel: its setting and means over seeds.

    ``step`` is the learning rate; ``relative`` is the eigenvalue times the squared norm of theta;
    ``collapsed`` is whether a run ends at less than half of its best accuracy.
    """

    x: float
    step: float
    eigenvalue: float
    error: float
    relative: float
    loss: float
    rise: float
    collapsed: bool


def points(panel: SharpnessPanel, results: Results) -> dict[str, dict[str, Point]]:
    """Return the measured points by line and cell, sorted by the panel's setting."""
    by_line: dict[str, dict[str, Point]] = {}
    for line in panel.lines:
        own = {name: _point(panel, name, results) for name in line.cells}
        there = [(name, point) for name, point in own.items() if point]
        by_line[line.label] = dict(sorted(there, key=lambda pair: pair[1].x))
    return by_line


def _point(panel: SharpnessPanel, name: str, results: Results) -> Point | None:
    entries, cell = results.numbers.get(name, []), results.cells[name]
    if not entries:
        return None
    mean = {
        key: float(np.mean([entry[key] for entry in entries]))
        for key in ("eigenvalue", "error", "loss", "rise")
    }
    return Point(
        x=float(entries[0][panel.key]),
        step=float(entries[0]["learning-rate"]),
        **mean,
        relative=float(np.mean([each["eigenvalue"] * each["length"] ** 2 for each in entries])),
        collapsed=cell.collapsed,
    )


def draw_sharpness(experiment: Sharpness, results: Results) -> Drawing:
    """Draw the largest eigenvalues; collapsed runs are hollow, and 2 / η is dashed."""
    across = min(experiment.across, len(experiment.panels))
    figure, cells = grid_of(len(experiment.panels), across, 4.4, 3.1)
    for axes, panel in zip(cells, experiment.panels, strict=True):
        _draw_panel(axes, panel, results)
    return figure


def _draw_panel(axes: Axes, panel: SharpnessPanel, results: Results) -> None:
    by_line = points(panel, results)
    for color, (label, own) in zip(COLORS, by_line.items(), strict=False):
        drawn = [point for point in own.values() if point.eigenvalue > 0]
        sound = [point for point in drawn if not point.collapsed]
        axes.plot([p.x for p in drawn], [p.eigenvalue for p in drawn], "o", color=color, mfc="none")
        axes.plot(
            [p.x for p in sound], [p.eigenvalue for p in sound], "o-", color=color, label=label
        )
    if any(point.collapsed for own in by_line.values() for point in own.values()):
        axes.plot([], [], "o", color=GREY, mfc="none", label="collapsed")
    steps = sorted({point.x for own in by_line.values() for point in own.values()})
    name_axes(axes, panel.title, SYMBOLS[panel.key], "largest eigenvalue of the Hessian")
    if not steps:
        axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center", color=GREY)
        return
    axes.set_xscale("log")
    log_scale(axes)
    axes.set_xticks(steps)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    if panel.key == "learning-rate":
        bound = [2 / step for step in steps]
        axes.plot(steps, bound, color=GREY, linestyle=DASHES[1], linewidth=1, label="2 / η")
    axes.legend(fontsize=7.5, framealpha=0.75, edgecolor="none")
