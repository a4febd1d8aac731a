"""How all pictures look, and how they are written: colours, plain axes, PNG beside SVG."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from fedapp.errors import ConfigError

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's colours, which colour-blind readers can tell apart."""
GREY, PALE, LIGHT = "#8A8A8A", "#C9C9C9", "#E6E6E6"
"""Of what is read, of what stands behind the lines, and of the grid."""
ENDINGS = (".png", ".svg")
SALT = "papers"
"""Any constant makes the same picture the same SVG file; this one keeps the published ones."""


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of so many inches."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def make_plain(axes: Axes) -> None:
    """Give axes a light grid behind what is drawn, and no frame at the top and the right."""
    axes.grid(visible=True, color=LIGHT, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def stem_of(picture: Path) -> Path:
    """Return where to :func:`save` what the user calls ``picture``, with or without an ending.

    Raises
    ------
    ConfigError
        Its ending is that of another kind of picture.
    """
    if picture.suffix.lower() in ENDINGS:
        return picture.with_suffix("")
    if picture.suffix.lower().removeprefix(".") in {
        *Figure().canvas.get_supported_filetypes(),
        "bmp",
    }:
        raise ConfigError(
            f"--picture {str(picture)!r}: pictures are written as {' and '.join(ENDINGS)}. Name it "
            f"{picture.stem}.png, or {picture.stem} alone."
        )
    return picture


def save(
    figure: Figure,
    stem: Path,
    *,
    dpi: int,
    endings: Sequence[str] = ENDINGS,
    outlines: bool = True,
) -> list[Path]:
    """Write the figure as ``stem`` with each of the endings; the same file for the same picture.

    In an SVG letters are ``outlines``, which look alike everywhere, or else text, which is smaller.
    """
    stem.parent.mkdir(parents=True, exist_ok=True)
    files = [stem.with_name(stem.name + ending) for ending in endings]
    letters = "path" if outlines else "none"
    for file in files:
        with mpl.rc_context({"svg.hashsalt": SALT, "svg.fonttype": letters}):
            figure.savefig(file, dpi=dpi, metadata={"Date": None} if file.suffix == ".svg" else {})
    return files
