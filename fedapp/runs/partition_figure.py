"""The figure of a partition: label counts by client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator, StrMethodFormatter
from numpy.typing import NDArray

from fedapp.analysis.partition import (
    mean_total_variation,
    size_ratio,
    total_variation,
    update_multiplier,
)
from fedapp.data.dataset import Partition
from fedapp.runs.figures import ENDINGS, make_plain, new_figure, save, without_math
from fedapp.runs.partition_summary import Matrix, count_labels

COLORS = (
    *("#332288", "#88CCEE", "#117733", "#DDCC77", "#CC6677"),
    *("#44AA99", "#882255", "#999933", "#AA4499", "#BBBBBB"),
)
"""Paul Tol's muted colour-blind safe palette; grey last."""

MAX_BARS = 100
"""Largest number of clients in the figure; of more, this many are shown by increasing skew."""

MAX_WRITTEN = 12
"""Largest numbers of clients and labels with counts in the heat map."""

HISTOGRAM_BINS = 40


def draw_partition(
    partition: Partition,
    targets: NDArray[Any],
    labels: Sequence[str],
    path: Path,
    title: str = "",
    endings: Sequence[str] = ENDINGS,
) -> list[Path]:
    """Draw labels and sizes by client as ``path`` with each of the endings; return the files.

    Stacked bars and a heat map, as in Seo et al. 2024, Figs. 6 and 8. Of more than 100 clients,
    100 are shown from least to most skewed, with histograms over all. With one label, as all data without
    labels have, only sizes are shown.
    """
    matrix = count_labels(partition, targets, len(labels))
    labelled, many = len(labels) > 1, partition.num_clients > MAX_BARS
    shown = _spread_by_skew(matrix) if many else matrix
    heights = (3, *[2] * labelled, *[1.5] * many)
    figure = new_figure(9.2, 4.0 + 2 * labelled + 2 * many)
    grid = figure.add_gridspec(len(heights), 2, height_ratios=heights)
    lowest = bars = figure.add_subplot(grid[0, :])
    _draw_bars(bars, shown.counts, labels)
    bars.set_ylabel("examples")
    if labelled:
        lowest = figure.add_subplot(grid[1, :], sharex=bars)
        bars.tick_params(labelbottom=False)
        _legend(bars)
        _color_bar(lowest, _draw_heat_map(lowest, shown.counts, labels), 0.02)
        if max(matrix.counts.shape) <= MAX_WRITTEN:
            _write_counts(lowest, matrix.counts)
    lowest.set_xlabel(_clients_shown(partition.num_clients, labelled=labelled))
    if many:
        sizes = figure.add_subplot(grid[-1, 0 if labelled else slice(None)])
        _draw_histogram(sizes, partition.sizes, "examples of a client")
    if many and labelled:
        distance = total_variation(matrix.counts)
        _draw_histogram(figure.add_subplot(grid[-1, 1]), distance, "label distance of a client")
    numbers = " · ".join(_numbers(partition.sizes, matrix.counts))
    figure.suptitle(without_math(f"{title}\n{numbers}".strip()), fontsize=10, color="#333333")
    return save(figure, path, dpi=120, endings=endings)


def _clients_shown(num_clients: int, *, labelled: bool) -> str:
    if num_clients <= MAX_BARS:
        return "client"
    order = ", from the least to the most skewed" if labelled else ""
    return f"{MAX_BARS} of {num_clients:,} clients{order}"


def draw_comparison(
    partitions: Mapping[str, Partition],
    targets: NDArray[Any],
    labels: Sequence[str],
    path: Path,
    endings: Sequence[str] = ENDINGS,
) -> list[Path]:
    """Draw partitions of the same data side by side, by title; for a few clients each."""
    figure = new_figure(2.2 * len(partitions) + 1.5, 4.9)
    grid = figure.subplots(
        2, len(partitions), sharex="col", sharey="row", height_ratios=(3, 2), squeeze=False
    )
    for (bars, heat), (title, partition) in zip(grid.T, partitions.items(), strict=True):
        matrix = count_labels(partition, targets, len(labels))
        _draw_bars(bars, matrix.counts, labels)
        image = _draw_heat_map(heat, matrix.counts, labels)
        numbers = "\n".join(_numbers(partition.sizes, matrix.counts))
        bars.set_title(f"{title}\n{numbers}", fontsize=9, color="#333333")
        heat.set_xlabel("client")
    grid[0, 0].set_ylabel("examples")
    _color_bar(grid[1, -1], image, 0.07)
    _legend(grid[0, -1])
    return save(figure, path, dpi=120, endings=endings)


def _numbers(sizes: NDArray[np.int64], counts: NDArray[np.int64]) -> list[str]:
    ratio = size_ratio(sizes)
    empty = int((sizes == 0).sum())
    labelled = counts.shape[1] > 1
    return [
        *([f"mean label distance {mean_total_variation(counts):.3f}"] if labelled else []),
        f"{empty:,} empty" if empty else f"sizes {ratio:,.{0 if ratio >= 100 else 1}f} : 1",
        f"updates × {update_multiplier(sizes):.2f}",
    ]


def _spread_by_skew(matrix: Matrix) -> Matrix:
    """Return 100 clients, evenly spaced in the order of their distance to the global labels."""
    order = np.argsort(total_variation(matrix.counts), kind="stable")
    chosen = order[np.linspace(0, len(order) - 1, MAX_BARS).astype(np.int64)]
    return Matrix(matrix.clients[chosen], matrix.counts[chosen])


def _draw_bars(axes: Axes, counts: NDArray[np.int64], labels: Sequence[str]) -> None:
    """Draw one bar a client, stacked by label; the rarest labels are merged if colours run out."""
    names, columns = [without_math(label) for label in labels], counts
    if len(labels) > len(COLORS):
        frequent = np.sort(np.argsort(-counts.sum(axis=0), kind="stable")[: len(COLORS) - 1])
        rest = counts.sum(axis=1) - counts[:, frequent].sum(axis=1)
        columns = np.column_stack([counts[:, frequent], rest])
        names = [*(names[c] for c in frequent), "others"]
    bottom = np.zeros(len(counts))
    for name, column, color in zip(names, columns.T, COLORS, strict=False):
        axes.bar(np.arange(len(counts)), column, bottom=bottom, width=0.85, color=color, label=name)
        bottom += column
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=11))
    make_plain(axes, grid="y")
    axes.set_xlim(-0.6, len(counts) - 0.4)


def _legend(axes: Axes) -> None:
    axes.legend(
        # Explicit, since a legend omits labels that begin with an underscore.
        axes.containers,
        [str(bars.get_label()) for bars in axes.containers],
        title="label",
        frameon=False,
        fontsize=8,
        title_fontsize=8,
        reverse=True,
        loc="upper left",
        bbox_to_anchor=(1.0, 1.03),
    )


def _draw_heat_map(axes: Axes, counts: NDArray[np.int64], labels: Sequence[str]) -> AxesImage:
    """Draw each client's distribution over the labels; an empty client's column stays blank."""
    sizes = counts.sum(axis=1)
    shares = np.full(counts.shape, np.nan)
    np.divide(counts, sizes[:, None], out=shares, where=sizes[:, None] > 0)
    # A fixed scale: pictures of two partitions compare.
    image = axes.imshow(
        shares.T,
        aspect="auto",
        origin="lower",
        cmap="Blues",
        vmin=0,
        vmax=1,
        interpolation="nearest",
    )
    ticks = range(0, len(labels), -(-len(labels) // MAX_WRITTEN))
    axes.set_yticks(ticks, [without_math(labels[c]) for c in ticks], fontsize=8)
    return image


def _write_counts(axes: Axes, counts: NDArray[np.int64]) -> None:
    """Write each cell's number of examples into the heat map."""
    for client, row in enumerate(counts):
        for label, count in enumerate(row):
            color = "white" if 2 * count > row.sum() else "#333333"
            axes.text(client, label, f"{count:,}", ha="center", va="center", size=7, color=color)


def _color_bar(axes: Axes, image: AxesImage, width: float) -> None:
    """Draw a colour bar right of ``axes``, of ``width`` times their width."""
    # An inset, since a colour bar of its own would be placed right of the legend.
    bar = axes.inset_axes((1 + width, 0, width, 1))
    bar.figure.colorbar(image, cax=bar)
    bar.set_ylabel("share of the\nclient's examples", fontsize=8)
    bar.tick_params(labelsize=8)


def _draw_histogram(axes: Axes, values: NDArray[Any], meaning: str) -> None:
    known = values[np.isfinite(values)]
    span = np.ptp(known)
    whole = np.issubdtype(known.dtype, np.integer) and span < HISTOGRAM_BINS
    edges = (np.arange(known.min(), known.max() + 2) - 0.5).tolist() if whole else None
    axes.hist(known, bins=edges or HISTOGRAM_BINS, color=COLORS[0])
    axes.set_xlabel(meaning)
    axes.set_ylabel("clients")
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=4))
    axes.spines[["top", "right"]].set_visible(False)
