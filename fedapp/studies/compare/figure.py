"""The curves of compared runs: a panel for each metric, a colour and a dash for each run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fedapp.runs.figures import (
    COLORS,
    PALE,
    by_round,
    draw_target,
    in_legend,
    new_figure,
    percent_tick,
)
from fedapp.studies.compare.comparison import ACCURACY, METRICS, ComparedRun, ComparedRuns, Metric

MAX_STYLES = 12
"""Runs with a line of their own; of more, these are the best, and the others are pale."""
DASHES = ((), (5, 2))
"""Lengths of dashes and gaps, in widths of the line: all colours solid, and then all dashed."""
SERIES = COLORS[:6]
LONGEST_BESIDE = 55
"""Characters of the longest label with which a legend has a column for each metric."""
LOG_SPAN = 30.0
"""A loss is drawn on a logarithmic scale if its largest value is so many times the smallest."""


class Style(NamedTuple):
    """The colour and the dashes of a run's line."""

    color: str
    dashes: tuple[int, ...]

    @property
    def line(self) -> tuple[int, tuple[int, ...]]:
        """The line style of matplotlib."""
        return 0, self.dashes


def styles_of(runs: Sequence[ComparedRun]) -> list[Style | None]:
    """Return each run's style; None for those beyond the ``MAX_STYLES`` best."""
    best = sorted(range(len(runs)), key=lambda i: _order(runs[i]))[:MAX_STYLES]
    styles = [Style(SERIES[i % len(SERIES)], DASHES[i // len(SERIES)]) for i in range(MAX_STYLES)]
    return [styles[sorted(best).index(i)] if i in best else None for i in range(len(runs))]


def _order(run: ComparedRun) -> tuple[int, float]:
    """Return a sort key: runs by metric, the best of each first, and those without one last."""
    if run.best is None:
        return len(METRICS), 0.0
    return list(METRICS).index(run.metric), -METRICS[run.metric].sign * run.best


def draw_panels(comparison: ComparedRuns) -> dict[Metric, Figure]:
    """Return a figure for each metric, without a legend."""
    figures = {}
    for metric in comparison.metrics:
        figures[metric] = new_figure(4.5, 3.3)
        _draw(figures[metric].subplots(), comparison, metric)
    return figures


def draw_all(comparison: ComparedRuns) -> Figure:
    """Return one figure of all metrics beside each other, with the legend below."""
    lines = [
        Line2D([], [], color=style.color, linestyle=style.line, label=in_legend(run.label))
        for run, style in zip(comparison.runs, styles_of(comparison.runs), strict=True)
        if style
    ]
    columns = max(len(comparison.metrics), 1)
    longest = max((len(str(line.get_label())) for line in lines), default=0)
    beside = columns if longest <= LONGEST_BESIDE else 1
    figure = new_figure(4.8 * columns, 3.5 + 0.22 * math.ceil(len(lines) / beside))
    axes = figure.subplots(1, columns, squeeze=False)[0]
    for each, metric in zip(axes, comparison.metrics, strict=False):
        _draw(each, comparison, metric)
    figure.legend(handles=lines, loc="outside lower left", ncols=beside, frameon=False, fontsize=9)
    return figure


def _draw(axes: Axes, comparison: ComparedRuns, metric: Metric) -> None:
    for run, style in zip(comparison.runs, styles_of(comparison.runs), strict=True):
        if metric.key in run.curves:
            _draw_curve(axes, run, metric, style)
    if metric.key == ACCURACY:
        axes.yaxis.set_major_formatter(percent_tick)
        if comparison.target:
            draw_target(axes, comparison.target)
    elif _spans_decades(comparison, metric):
        axes.set_yscale("log")
    axes.set_ylabel(metric.title)
    by_round(axes)


def _draw_curve(axes: Axes, run: ComparedRun, metric: Metric, style: Style | None) -> None:
    """Draw a curve, with a dot at its end: runs may have unequal lengths."""
    curve = run.curves[metric.key]
    values = [math.nan if value is None else value for value in curve.values]
    if style is None:
        axes.plot(curve.rounds, values, color=PALE, linewidth=0.8, zorder=1)
        return
    axes.plot(curve.rounds, values, color=style.color, linestyle=style.line, linewidth=1.6)
    axes.plot(curve.rounds[-1], values[-1], "o", color=style.color, markersize=3.5)


def _spans_decades(comparison: ComparedRuns, metric: Metric) -> bool:
    values = [
        value
        for run in comparison.runs
        if metric.key in run.curves
        for value in run.curves[metric.key].values
        if value is not None
    ]
    return bool(values) and min(values) > 0 and max(values) > LOG_SPAN * min(values)
