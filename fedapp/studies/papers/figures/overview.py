"""One picture of all tables: the published against the measured rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing

from fedapp.runs.figures import COLORS, GREY, LIGHT, make_plain, new_figure
from fedapp.studies.papers.figures.style import save
from fedapp.studies.papers.pages.index import (
    PICTURE,
    Tables,
    counted_cells,
    has_picture,
    tables_of,
)
from fedapp.studies.papers.pages.tables import FACTOR, Entry
from fedapp.studies.sweep.record import RunRecord

PAD = 1.4
"""The axes end at the least and the greatest number of rounds by this factor."""


def draw_overview(folder: Path, records: Mapping[str, RunRecord]) -> Path | None:
    """Draw the tables of the results in ``folder``; None if no published cell was run."""
    tables = tables_of(folder, records)
    return save(overview(tables), folder / PICTURE) if has_picture(tables) else None


def overview(tables: Tables) -> Drawing:
    """Draw measured against published rounds, and below them a strip of the cells that were not run.

    One colour for a table; a filled mark is of a variant of the columns, a hollow one of the columns
    themselves.
    """
    cells = {tables[name][0].title: own for name, own in counted_cells(tables).items() if own}
    figure = new_figure(7.4, 7.6)
    axes, strip = figure.subplots(2, 1, height_ratios=[5, 1.35])
    ends = _limits([entry for own in cells.values() for entry in own])
    _draw_band(axes, ends)
    for number, (title, own) in enumerate(cells.items()):
        color = COLORS[number % len(COLORS)]
        axes.plot([], [], "s", color=color, label=title.partition(":")[0])
        for entry in sorted(own, key=lambda entry: not entry.column.variant):
            _draw_cell(axes, entry, color)
    for label, style in (
        ("the paper's settings, as read here", {"marker": "o", "fillstyle": "none"}),
        ("with the tutorial's images and weights", {"marker": "o"}),
        ("target not reached (rounds run)", {"marker": "^", "fillstyle": "none"}),
    ):
        axes.plot([], [], linestyle="", color=GREY, label=label, **style)
    axes.legend(fontsize=7.5, frameon=False, loc="upper left")
    axes.set_ylabel("measured rounds", fontsize=9)
    _draw_strip(strip, cells)
    for each in (axes, strip):
        each.set_xscale("log")
        each.set_xlim(*ends)
        each.xaxis.set_major_formatter("{x:,g}")
        each.tick_params(labelsize=8)
        make_plain(each)
    axes.yaxis.set_major_formatter("{x:,g}")
    return figure


def measured_rounds(entry: Entry) -> float:
    """Return the rounds to the target, or those that were run without reaching it."""
    return entry.result.needed or float(max(run.rounds for run in entry.result.runs))


def not_run(cells: Sequence[Entry]) -> list[float]:
    """Return the published rounds of the cells that were run neither as read here nor as a variant."""
    ran = {entry.published_name for entry in cells if entry.result.runs}
    return [
        float(entry.published)
        for entry in cells
        if not entry.column.variant and entry.published_name not in ran
    ]


def _limits(cells: Sequence[Entry]) -> tuple[float, float]:
    rounds = [float(entry.published) for entry in cells]
    rounds += [measured_rounds(entry) for entry in cells if entry.result.runs]
    return min(rounds) / PAD, max(rounds) * PAD


def _draw_band(axes: Axes, ends: tuple[float, float]) -> None:
    """Draw where both numbers are equal, the band of 25 %, and on which side a cell is faster."""
    line = np.array(ends)
    axes.fill_between(line, line / FACTOR, line * FACTOR, color=LIGHT, linewidth=0, zorder=0)
    axes.plot(line, line, color=GREY, linewidth=0.8, zorder=1)
    axes.set_yscale("log")
    axes.set_ylim(*ends)
    for text, place in (("slower than published", (0.72, 0.93)), ("faster", (0.86, 0.55))):
        axes.annotate(text, place, xycoords="axes fraction", color=GREY, fontsize=9, ha="center")
    middle = float(np.sqrt(ends[0] * ends[1])) * 12
    axes.annotate("within 25 %", (middle, middle), color=GREY, fontsize=8, rotation=42, ha="center")


def _draw_cell(axes: Axes, entry: Entry, color: str) -> None:
    if not entry.result.runs:
        return
    missed = entry.result.needed is None
    hollow = 9.0 if missed else 6.5  # larger, so as to be seen around a filled one
    axes.plot(
        float(entry.published),
        measured_rounds(entry),
        "^" if missed else "o",
        color=color,
        fillstyle="full" if entry.column.variant else "none",
        markersize=4.5 if entry.column.variant else hollow,
        markeredgewidth=1.1,
    )


def _draw_strip(axes: Axes, cells: Mapping[str, Sequence[Entry]]) -> None:
    """Draw the published rounds of the cells that were not run, a row for each table."""
    labels = []
    for row, (title, own) in enumerate(cells.items()):
        missing = not_run(own)
        color = COLORS[row % len(COLORS)]
        axes.plot(missing, [row] * len(missing), "|", color=color, markersize=7)
        published = sum(not entry.column.variant for entry in own)
        labels.append(f"{title.partition(':')[0]}: {len(missing)} of {published}")
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    total = sum(len(not_run(own)) for own in cells.values())
    axes.set_title(f"not run: {total} cells", fontsize=9, color=GREY, loc="left")
    axes.set_xlabel("published rounds", fontsize=9)
