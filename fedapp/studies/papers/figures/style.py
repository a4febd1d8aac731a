"""The style of the papers' figures."""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter
from PIL import Image

from fedapp.runs import figures as style
from fedapp.runs.figures import GREY
from fedapp.studies.papers.schema import ScaleName

DASHES: tuple[str | tuple[int, tuple[float, ...]], ...] = (
    "-",
    (0, (4, 1.5)),
    (0, (1.2, 1.2)),
    (0, (5, 1.5, 1.2, 1.5)),
    (0, (8, 2)),
)
PNG = (".png",)
PALETTE = 256
"""Colours of a figure."""
SMALLER: dict[ScaleName, str] = {
    "smoke": "smoke scale: small stand-ins for data and networks, not the paper's",
    "narrow": "narrow scale: the paper's images, K, E, B and η, a smaller network",
    "normalised": "narrow scale, images of mean 0 and deviation 1: else the paper's, a smaller network",
    "cpu": "processor scale: less than the paper's; the page says what",
}


def new_panels(
    rows: int, columns: int, width: float, height: float
) -> tuple[Figure, list[list[Axes]]]:
    """Return a figure of ``rows`` x ``columns`` panels, each ``width`` x ``height`` inches."""
    return style.panels(rows, columns, width * columns, height * rows)


def grid_of(count: int, across: int, width: float, height: float) -> tuple[Figure, list[Axes]]:
    """Return a figure of ``count`` panels, ``across`` in a row, each ``width`` x ``height`` inches."""
    rows = -(-count // across)
    figure, grid = new_panels(rows, across, width, height)
    cells = [axes for row in grid for axes in row]
    for axes in cells[count:]:
        axes.set_visible(False)
    return figure, cells[:count]


def name_axes(axes: Axes, title: str, x: str, y: str) -> None:
    """Write the title of a panel, and what its axes show."""
    axes.set_title(title, fontsize=9.5, color="#333333")
    axes.set_xlabel(x, fontsize=9)
    axes.set_ylabel(y, fontsize=9)


def log_scale(axes: Axes) -> None:
    """Set a logarithmic y-axis with plain numbers, at least one a decade."""
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    steps = (1.0,) if high > 1000 * low else (1.0, 2.0, 5.0)
    axes.yaxis.set_major_locator(LogLocator(subs=steps))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())


def note_scale(figure: Figure, scale: ScaleName, length: str) -> None:
    """Note on the figure a scale smaller than the paper's, and what part of the rounds was run."""
    text = "; ".join(filter(None, (SMALLER.get(scale, ""), length)))
    if text:
        figure.suptitle(text, fontsize=8.5, color=GREY)


def save(figure: Figure, stem: Path) -> Path:
    """Write the figure as ``stem``.png, reproducibly, and return the file."""
    [path] = style.save(figure, stem, dpi=130, endings=PNG)
    return reduce_colors(path)


def reduce_colors(path: Path) -> Path:
    """Rewrite a PNG with the palette nearest to its colours, which takes about a third of the space."""
    with Image.open(path) as image:
        reduced = image.convert("RGB").quantize(
            PALETTE, Image.Quantize.MAXCOVERAGE, kmeans=3, dither=Image.Dither.NONE
        )
    reduced.save(path, optimize=True)
    return path
