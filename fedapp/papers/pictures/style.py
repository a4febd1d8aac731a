"""How all figures look."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from fedapp.papers.schema import ScaleName

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's colours, which colour-blind readers can tell apart."""
DASHES: tuple[str | tuple[int, tuple[float, ...]], ...] = (
    "-",
    (0, (4, 1.5)),
    (0, (1.2, 1.2)),
    (0, (5, 1.5, 1.2, 1.5)),
    (0, (8, 2)),
)
GREY, LIGHT = "#8A8A8A", "#E6E6E6"
ENDINGS = (".png", ".svg")
SMALLER: dict[ScaleName, str] = {
    "smoke": "smoke scale: small stand-ins for data and networks, not the paper's",
    "cpu": "processor scale: less than the paper's; the page says what",
}


def new_figure(
    rows: int, columns: int, width: float, height: float, *, share_x: bool = False
) -> tuple[Figure, list[list[Axes]]]:
    """Return a figure of ``rows`` x ``columns`` panels, each ``width`` x ``height`` inches."""
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    FigureCanvasAgg(figure)
    grid: list[list[Axes]] = figure.subplots(rows, columns, sharex=share_x, squeeze=False).tolist()
    for axes in (axes for row in grid for axes in row):
        axes.tick_params(labelsize=8)
        axes.grid(visible=True, color=LIGHT, linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    return figure, grid


def note_scale(figure: Figure, scale: ScaleName) -> None:
    """Say on the picture itself that it is not the paper's experiment, where it is not."""
    if scale in SMALLER:
        figure.suptitle(SMALLER[scale], fontsize=8.5, color=GREY)


def save(figure: Figure, stem: Path) -> list[Path]:
    """Write the figure as ``stem``.png and .svg, the same file for the same picture."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    files = [stem.with_name(stem.name + ending) for ending in ENDINGS]
    for file in files:
        with mpl.rc_context({"svg.hashsalt": "papers", "svg.fonttype": "none"}):
            figure.savefig(file, dpi=130, metadata={"Date": None} if file.suffix == ".svg" else {})
    return files
