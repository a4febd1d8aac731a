"""Figures of runs: the common style, learning curves, and the similarity of updates."""

from __future__ import annotations

import io
import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedapp.analysis.curves import least
from fedapp.errors import DataError
from fedapp.federation.callback import RoundMetrics
from fedapp.files import write_atomically
from fedapp.runs.directory import RunDirectory, read_settings
from fedapp.runs.metrics import read_metrics

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's colour-blind safe palette."""
GREY, PALE, LIGHT = "#8A8A8A", "#C9C9C9", "#E6E6E6"
"""Colours of annotations, of lines in the background, and of the grid."""
ENDINGS = (".png", ".svg")
SALT = "papers"
"""A constant, so that the same figure is the same SVG file; this one is that of the published ones."""

BLUE, ORANGE = COLORS[:2]

TRACED_CLIENTS = 5
"""Clients in Figure 12."""
MAX_COLUMNS = 4

Runs = Mapping[str, Sequence[RoundMetrics]]
"""The metrics of runs, by title."""


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of this size in inches."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def panels(
    rows: int, columns: int, width: float, height: float, *, shared: bool = False
) -> tuple[Figure, list[list[Axes]]]:
    """Return a figure of this size in inches, and its panels; ``shared``: they have the same axes."""
    figure = new_figure(width, height)
    grid = figure.subplots(rows, columns, sharex=shared, sharey=shared, squeeze=False).tolist()
    for axes in (axes for row in grid for axes in row):
        axes.tick_params(labelsize=8)
        make_plain(axes)
    return figure, grid


def make_plain(axes: Axes, grid: Literal["both", "y"] = "both") -> None:
    """Give axes a light grid in the background, and no spines at the top and the right."""
    axes.grid(visible=True, axis=grid, color=LIGHT, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def without_math(text: str) -> str:
    """Return a text that matplotlib does not interpret as a formula."""
    return text.replace("$", r"\$")


def in_legend(label: str) -> str:
    """Return a label that matplotlib shows as it is; it hides those that begin with _."""
    return without_math(label).lstrip("_")


def save(figure: Figure, stem: Path, *, dpi: int, endings: Sequence[str] = ENDINGS) -> list[Path]:
    """Write the figure as ``stem`` with each of the endings; the files are reproducible."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    files = [stem.with_name(stem.name + ending) for ending in endings]
    for file in files:
        drawn = io.BytesIO()
        if file.suffix == ".svg":
            write_svg(figure, drawn, dpi=dpi)
        else:
            figure.savefig(drawn, format=file.suffix[1:], dpi=dpi)
        write_atomically(file, drawn.getvalue())
    return files


def write_svg(figure: Figure, to: io.BytesIO | io.StringIO, *, dpi: int = 150) -> None:
    """Write the figure as SVG, with letters as outlines; the same figure is the same text."""
    with mpl.rc_context({"svg.hashsalt": SALT, "svg.fonttype": "path"}):
        figure.savefig(to, format="svg", dpi=dpi, metadata={"Date": None})


def draw_curves(records: Sequence[RoundMetrics], target: float, title: str, stem: Path) -> None:
    """Draw test accuracy (or RMSE), if there is any, and losses by round as ``stem``.png and .svg."""
    figure, draw = new_figure(9.2, 3.7), _panels_of(records, target)
    for axes, panel in zip(figure.subplots(1, len(draw), squeeze=False)[0], draw, strict=True):
        panel(axes)
    figure.suptitle(without_math(title), fontsize=10, color="#333333")
    save(figure, stem, dpi=150)


def curve_panels(records: Sequence[RoundMetrics], target: float) -> list[tuple[str, Figure]]:
    """Return what ``draw_curves`` shows as a figure a panel, for a page, with what each is."""
    shown = []
    for panel in _panels_of(records, target):
        figure = new_figure(4.6, 3.4)
        shown.append((panel(figure.subplots()), figure))
    return shown


def _panels_of(records: Sequence[RoundMetrics], target: float) -> list[Callable[[Axes], str]]:
    """Return what draws each panel, and returns what it shows: no score if there is none."""

    def score(axes: Axes) -> str:
        _draw_score(axes, records, target)
        by_round(axes)
        return axes.get_ylabel()

    def losses(axes: Axes) -> str:
        _draw_losses(axes, records)
        by_round(axes)
        return "losses"

    scored = any(_series(records, key)[0] for key in ("test_accuracy", "test_rmse"))
    return [score, losses] if scored else [losses]


def by_round(axes: Axes) -> None:
    """Label the x-axis with rounds, at whole numbers, and make the axes plain."""
    axes.set_xlabel("communication round")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=7, steps=[1, 2, 5, 10]))
    make_plain(axes)
    axes.margins(x=0.02)


def percent_tick(value: float, _: object = None) -> str:
    """Return the tick label of a share in percent."""
    return f"{100 * value:.6g}%"


def _series(records: Sequence[RoundMetrics], key: str) -> tuple[list[int], list[float]]:
    points = [(r["round"], r[key]) for r in records if r.get(key) is not None]
    return [x for x, _ in points], [y for _, y in points]


def _draw_score(axes: Axes, records: Sequence[RoundMetrics], target: float) -> None:
    """Draw the test accuracy, or the RMSE of a run that predicts numbers."""
    rounds, errors = _series(records, "test_rmse")
    if errors:
        axes.plot(rounds, errors, color=BLUE, linewidth=1.6)
        axes.set_ylabel("test RMSE")
        if smallest := least(rounds, errors):
            axes.plot(*smallest, "o", color=BLUE, markersize=4)
            _note(axes, f"best {smallest[1]:.4g}, round {smallest[0]}", 0.94)
        return
    rounds, accuracy = _series(records, "test_accuracy")
    axes.plot(rounds, accuracy, color=BLUE, linewidth=1.6)
    axes.set_ylabel("test accuracy")
    axes.yaxis.set_major_formatter(percent_tick)
    if target:
        draw_target(axes, target)
    if accuracy:
        best = max(range(len(accuracy)), key=accuracy.__getitem__)
        axes.plot(rounds[best], accuracy[best], "o", color=BLUE, markersize=4)
        _note(axes, f"best {accuracy[best]:.2%}, round {rounds[best]}", 0.06)


def draw_target(axes: Axes, target: float) -> None:
    """Draw a line at a target accuracy, with its name beside the axes, where no curve crosses it."""
    axes.axhline(target, color=GREY, linewidth=1, zorder=0)
    axes.annotate(
        f"target\n{percent_tick(target)}",
        (1.01, target),
        xycoords=("axes fraction", "data"),
        color=GREY,
        fontsize=8,
        va="center",
        annotation_clip=False,
    )


def _note(axes: Axes, text: str, height: float) -> None:
    """Write a note at the right of the axes, at this share of their height."""
    place = (0.98, height)
    axes.annotate(text, place, xycoords="axes fraction", ha="right", fontsize=9, color=BLUE)


def _draw_losses(axes: Axes, records: Sequence[RoundMetrics]) -> None:
    for key, label, color in (
        ("test_loss", "test", BLUE),
        ("train_loss", "training (clients' objective)", ORANGE),
        ("training_set_loss", "training set", GREY),
    ):
        rounds, losses = _series(records, key)
        if losses:
            marker = "." if len(rounds) == 1 else ""
            axes.plot(rounds, losses, color=color, linewidth=1.6, marker=marker, label=label)
    if smallest := least(*_series(records, "test_loss")):
        label = f"least test loss {smallest[1]:.3f}, round {smallest[0]}"
        axes.plot(*smallest, "o", color=BLUE, markersize=6, fillstyle="none", label=label)
    axes.set_ylabel("loss")
    if axes.lines:
        axes.legend(frameon=False, loc="best")


def read_runs(folders: Sequence[Path]) -> Runs:
    """Return the metrics of the runs in ``folders``, by the folders' names, or paths where names repeat.

    Raises
    ------
    CheckpointError
        A folder holds no run.
    DataError
        A run has no round with ``record-updates = true``, or no client of it a finite training loss.
    """
    runs = {}
    names = [folder.resolve().name for folder in folders]
    for folder, name in zip(folders, names, strict=True):
        read_settings(folder)
        records = read_metrics(RunDirectory(folder).metrics)
        if not any("similarity" in record for record in records):
            raise DataError(
                f"{folder}: its metrics.jsonl has no similarity of updates. Run it again with "
                "record-updates=true."
            )
        if not loss_traces(records):
            raise DataError(
                f"{folder}: no client has a finite training loss in any round, so there is nothing to "
                "draw. Run it again with more clients a round, or a smaller learning rate."
            )
        runs[name if names.count(name) == 1 else str(folder)] = records
    return runs


def draw_updates(runs: Runs, folder: Path) -> list[Path]:
    """Draw ``client-losses`` (Figure 12) and ``similarity`` (Figure 13) into ``folder``."""
    return [
        *save(losses_figure(runs), folder / "client-losses", dpi=150),
        *save(similarity_figure(runs), folder / "similarity", dpi=150),
    ]


def losses_figure(runs: Runs) -> Figure:
    """Draw a row of panels a run: the training losses of five clients, with the others in grey."""
    traces = {title: loss_traces(records) for title, records in runs.items()}
    columns = max(map(len, traces.values()))
    figure, grid = _small_panels(len(runs), columns, 1.95 * columns + 0.6, 1.75 * len(runs) + 0.7)
    for row, (title, clients) in zip(grid, traces.items(), strict=True):
        row[0].set_ylabel(f"{without_math(title)}\ntraining loss", fontsize=9)
        for axes in row[len(clients) :]:
            axes.set_visible(False)
        for axes, (client, points) in zip(row, clients.items(), strict=False):
            for others in clients.values():
                axes.plot(*others, color=PALE, linewidth=0.8)
            marker = "." if len(points[0]) == 1 else ""
            axes.plot(*points, color=COLORS[0], linewidth=1.6, marker=marker)
            axes.set_title(f"client {client}", fontsize=9, color="#333333")
    for axes in grid[-1]:
        axes.set_xlabel("round", fontsize=9)
    if min(min(losses) for clients in traces.values() for _, losses in clients.values()) >= 0:
        grid[0][0].set_ylim(bottom=0)  # of all panels, which share it
    return figure


def loss_traces(records: Sequence[RoundMetrics]) -> dict[str, tuple[list[int], list[float]]]:
    """Return rounds and training losses of the five clients that trained most often.

    A client without examples, or whose loss is not finite, has no point in that round.
    """
    traces = [(r["round"], r["client_train_loss"]) for r in records if "client_train_loss" in r]
    times_sampled = Counter(
        k for _, losses in traces for k, loss in losses.items() if loss is not None
    )
    chosen = sorted(
        sorted(times_sampled, key=lambda k: (-times_sampled[k], int(k)))[:TRACED_CLIENTS], key=int
    )
    return {
        client: (
            [round_ for round_, losses in traces if losses.get(client) is not None],
            [losses[client] for _, losses in traces if losses.get(client) is not None],
        )
        for client in chosen
    }


def similarity_figure(runs: Runs) -> Figure:
    """Draw a panel a layer: the mean cosine of all pairs of clients by round, a line a run."""
    curves = {title: similarity_curves(records) for title, records in runs.items()}
    layers = list(dict.fromkeys(layer for curve in curves.values() for layer in curve))
    columns = min(len(layers), MAX_COLUMNS)
    rows = -(-len(layers) // columns)
    figure, grid = _small_panels(rows, columns, 2.5 * columns + 0.6, 2.3 * rows + 0.4)
    flat = [axes for row in grid for axes in row]
    for axes in flat[len(layers) :]:
        axes.set_visible(False)
    for axes, layer in zip(flat, layers, strict=False):
        colors = itertools.cycle(COLORS)
        for color, (title, curve) in zip(colors, curves.items(), strict=False):
            points = curve.get(layer, ([], []))
            axes.plot(*points, color=color, linewidth=1.4, label=in_legend(title))
        axes.axhline(0, color=PALE, linewidth=0.8, zorder=0)
        title = f"layer {layer}" if layer.isdigit() else layer
        axes.set_title(title, fontsize=9, color="#333333")
        axes.set_xlabel("round", fontsize=9)
    for row in grid:
        row[0].set_ylabel("cosine similarity", fontsize=9)
    flat[0].legend(frameon=False, fontsize=8)
    return figure


def similarity_curves(records: Sequence[RoundMetrics]) -> dict[str, tuple[list[int], list[float]]]:
    """Return rounds and mean cosine similarities by layer."""
    curves: dict[str, tuple[list[int], list[float]]] = {}
    for record in records:
        for layer, value in record.get("similarity", {}).items():
            rounds, values = curves.setdefault(layer, ([], []))
            if value is not None:
                rounds.append(record["round"])
                values.append(value)
    return curves


def _small_panels(
    rows: int, columns: int, width: float, height: float
) -> tuple[Figure, list[list[Axes]]]:
    figure, grid = panels(rows, columns, width, height, shared=True)
    for axes in (axes for row in grid for axes in row):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))
        axes.margins(x=0.02)
    return figure, grid
