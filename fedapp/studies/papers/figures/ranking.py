"""A comparison as a picture: a point for each algorithm, with the range over its seeds."""

from __future__ import annotations

from matplotlib.figure import Figure as Drawing

from fedapp.runs.figures import COLORS, GREY, percent_tick
from fedapp.studies.papers.figures.style import new_figure
from fedapp.studies.papers.results import Results

REFERENCE = "fedavg"


def draw_ranking(results: Results) -> Drawing:
    """Draw the algorithms that ran, the best on top; a gray line marks FedAvg."""
    ran = {name: cell for name, cell in results.cells.items() if cell.runs}
    order = sorted(ran, key=lambda name: ran[name].mean("final"))
    figure, [[axes]] = new_figure(1, 1, 6.4, 0.9 + 0.24 * max(len(order), 1))
    for place, name in enumerate(order):
        low, high = ran[name].spread("final")
        color = COLORS[1] if name == REFERENCE else COLORS[0]
        axes.plot([low, high], [place, place], color=color, linewidth=3, alpha=0.35)
        axes.plot(ran[name].mean("final"), place, "o", color=color, markersize=5)
    if REFERENCE in ran:
        axes.axvline(ran[REFERENCE].mean("final"), color=GREY, linewidth=1, linestyle=(0, (5, 3)))
    axes.set_yticks(range(len(order)), order)
    axes.set_ylim(-0.6, len(order) - 0.4)
    axes.xaxis.set_major_formatter(percent_tick)
    axes.set_xlabel("test accuracy at the end: mean and range over the seeds", fontsize=9)
    return figure
