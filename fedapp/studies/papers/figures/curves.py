"""Learning curves in panels, as the papers draw them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.ticker import EngFormatter, MaxNLocator

from fedapp.analysis.curves import band, least, monotone
from fedapp.runs.figures import COLORS, GREY, percent_tick
from fedapp.studies.papers.cells import line_name
from fedapp.studies.papers.figures.style import DASHES, grid_of, log_scale, name_axes
from fedapp.studies.papers.labels import RunLabels
from fedapp.studies.papers.results import CellResult, Curve, Envelope, Results
from fedapp.studies.papers.schema import CurveKey, Figure, Line, Panel

NAMES: dict[CurveKey, str] = {
    "accuracy": "test accuracy",
    "best accuracy": "best test accuracy so far",
    "loss": "test loss",
    "train_loss": "training loss (clients' mean)",
    "training_set_loss": "training loss",
}
HIGHEST_LOSS = 3.0
"""The upper end of a linear axis of losses, as a multiple of the first loss."""
LONGEST = 22
"""Longer labels of a legend within one of several panels are set smaller."""
WIDTHS = {1: 6.4, 2: 4.9, 3: 3.7}


def draw_figure(experiment: Figure, results: Results) -> Drawing:
    """Draw the lines that were run: mean and range over seeds."""
    across = min(experiment.across, len(experiment.panels))
    height = 3.1 if across < 3 else 2.7
    figure, cells = grid_of(len(experiment.panels), across, WIDTHS.get(across, 3.7), height)
    drawn: dict[str, Artist] = {}
    run_labels = RunLabels.of(experiment, results)
    for number, (axes, panel) in enumerate(zip(cells, experiment.panels, strict=True)):
        _draw_panel(axes, experiment, panel, results, run_labels)
        handles, labels = axes.get_legend_handles_labels()
        drawn |= zip(labels, handles, strict=True)
        following = experiment.panels[number + 1 : number + 2]
        ends_row = (number + 1) % across == 0 or not following
        if ends_row or following[0].lines != panel.lines:
            _legend(axes, drawn, across, outside=ends_row and across > 1)
            drawn = {}
    return figure


def _draw_panel(
    axes: Axes, experiment: Figure, panel: Panel, results: Results, run_labels: RunLabels
) -> None:
    ran = {name for name, cell in results.cells.items() if cell.runs}
    was_run = any(line_name(panel, line) in ran for line in experiment.lines[panel.lines])
    for number, line in enumerate(experiment.lines[panel.lines]):
        name = line_name(panel, line)
        cell = results.cells.get(name, CellResult())
        shown = run_labels.line(line.label, name, cell)
        curves = [run.curve for run in cell.runs if run.curve]
        if any(points(curve, panel)[0][1:] for curve in curves):
            own = line.model_copy(update={"label": shown})
            _draw_line(axes, panel, own, number, curves, _envelope(panel, cell))
    _finish(axes, panel, results)
    if not was_run:
        axes.text(0.5, 0.5, "not run", transform=axes.transAxes, ha="center", color=GREY)
        axes.set(xticks=[], yticks=[])


def _draw_line(
    axes: Axes,
    panel: Panel,
    line: Line,
    number: int,
    curves: Sequence[Curve],
    best: Envelope | None,
) -> None:
    color = COLORS[(number if line.color is None else line.color) % len(COLORS)]
    dash = DASHES[(number // len(COLORS) if line.dash is None else line.dash) % len(DASHES)]
    x, mean, low, high = band([points(curve, panel) for curve in curves])
    if best:
        axes.plot(x, mean, color=color, linewidth=0.6, alpha=0.45)
        axes.plot(
            best.rounds, best.values, color=color, linestyle=dash, linewidth=1.3, label=line.label
        )
        return
    axes.plot(x, mean, color=color, linestyle=dash, linewidth=1.3, label=line.label)
    if len(curves) > 1:
        axes.fill_between(x, low, high, color=color, alpha=0.18, linewidth=0)
    marked = least([int(value) for value in x], mean) if panel.least else None
    if marked:
        axes.plot(*marked, "o", color=color, markersize=6, fillstyle="none")


def _envelope(panel: Panel, cell: CellResult) -> Envelope | None:
    """Return the envelope that a panel draws, if several rates were tried."""
    if not panel.envelope:
        return None
    return cell.envelopes.get("accuracy" if panel.y == "best accuracy" else panel.y)


def points(curve: Curve, panel: Panel) -> tuple[list[float], list[float]]:
    """Return x and y of a curve as a panel draws it; nan for missing values."""
    key = "accuracy" if panel.y == "best accuracy" else panel.y
    y = [float("nan") if value is None else value for value in getattr(curve, key)]
    x = [float(value) for value in (curve.rounds if panel.x == "rounds" else curve.gradients)]
    return x, monotone(y) if panel.y == "best accuracy" else y


def _finish(axes: Axes, panel: Panel, results: Results) -> None:
    by = "communication round" if panel.x == "rounds" else "mini-batch gradient computations"
    name_axes(axes, panel.title, by, NAMES[panel.y])
    axes.margins(x=0.02)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6, steps=[1, 2, 5, 10]))
    if panel.x == "gradients":
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    if panel.yscale == "log":
        log_scale(axes)
    if "accuracy" in panel.y:
        axes.yaxis.set_major_formatter(percent_tick)
    target = _target(panel, results)
    if target:
        axes.axhline(target, color=GREY, linewidth=1, linestyle=(0, (5, 3)), zorder=0)
    if panel.ylim and results.scale != "smoke":
        axes.set_ylim(*panel.ylim)
    elif "loss" in panel.y and panel.yscale == "linear":
        _cut_spikes(axes)


def _cut_spikes(axes: Axes) -> None:
    """Limit the axis to a multiple of the first loss, so that diverging runs do not hide the others."""
    lines = [y for y in (np.asarray(line.get_ydata(), float) for line in axes.lines) if len(y)]
    top = HIGHEST_LOSS * max((y[0] for y in lines if np.isfinite(y[0])), default=np.inf)
    if axes.get_ylim()[1] > top > 0:
        low = min(float(np.nanmin(y)) for y in lines)
        axes.set_ylim(low - axes.get_ymargin() * (top - low), top)


def _target(panel: Panel, results: Results) -> float:
    """Return the target of the panel's runs, which may differ at a smaller scale."""
    if not panel.target:
        return 0.0
    had = {cell.target for cell in results.cells.values() if cell.runs and cell.target}
    return had.pop() if len(had) == 1 else panel.target


def _legend(axes: Axes, drawn: Mapping[str, Artist], across: int, *, outside: bool) -> None:
    """Draw the legend for this panel, one of ``across``, and those beside it with the same lines."""
    if not drawn:
        return
    lines = [*drawn.values()], [*drawn]
    if outside:
        axes.legend(*lines, frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.03))
    else:
        size = 6.0 if across > 1 and max(map(len, drawn)) > LONGEST else 7.5
        axes.legend(*lines, fontsize=size, framealpha=0.75, edgecolor="none")
