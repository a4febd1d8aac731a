"""Pictures of how clients' updates agree: Seo et al. 2024, Figures 12 and 13, of any runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedapp.errors import DataError
from fedapp.federation.callback import RoundMetrics
from fedapp.runs.callbacks import read_metrics
from fedapp.runs.directory import read_stored
from fedapp.runs.style import COLORS, PALE, make_plain, new_figure, save

CLIENTS = 5
"""How many clients Figure 12 traces."""
COLUMNS = 4

Runs = Mapping[str, Sequence[RoundMetrics]]
"""The records of runs, by title."""


def read_runs(folders: Sequence[Path]) -> Runs:
    """Return the records of the runs in ``folders``, by the folders' names.

    Raises
    ------
    CheckpointError
        A folder holds no run.
    DataError
        A folder has no round that was recorded with ``record-updates = true``.
    """
    runs = {}
    for folder in folders:
        read_stored(folder)
        records = read_metrics(folder / "metrics.jsonl")
        if not any("similarity" in record for record in records):
            raise DataError(
                f"{folder}: its metrics.jsonl does not say how updates agree. Run it again with "
                "record-updates=true."
            )
        runs[folder.resolve().name] = records
    return runs


def draw_updates(runs: Runs, folder: Path) -> list[Path]:
    """Draw ``client-losses`` (Figure 12) and ``similarity`` (Figure 13) into ``folder``."""
    return [
        *save(losses_figure(runs), folder / "client-losses", dpi=150),
        *save(similarity_figure(runs), folder / "similarity", dpi=150),
    ]


def losses_figure(runs: Runs) -> Figure:
    """Draw a row of panels a run: the training loss of each of five clients, the others in grey."""
    traces = {title: loss_traces(records) for title, records in runs.items()}
    columns = max(map(len, traces.values()))
    figure, grid = _figure(1.95 * columns + 0.6, 1.75 * len(runs) + 0.7, len(runs), columns)
    for row, (title, clients) in zip(grid, traces.items(), strict=True):
        row[0].set_ylabel(f"{title}\ntraining loss", fontsize=9)
        for axes in row[len(clients) :]:
            axes.set_visible(False)
        for axes, (client, points) in zip(row, clients.items(), strict=False):
            for others in clients.values():
                axes.plot(*others, color=PALE, linewidth=0.8)
            axes.plot(*points, color=COLORS[0], linewidth=1.6)
            axes.set_title(f"client {client}", fontsize=9, color="#333333")
            axes.set_ylim(bottom=0)
    for axes in grid[-1]:
        axes.set_xlabel("round", fontsize=9)
    return figure


def loss_traces(records: Sequence[RoundMetrics]) -> dict[str, tuple[list[int], list[float]]]:
    """Return rounds and training losses of the five clients that trained most often.

    A client without examples, or whose loss is not finite, has no point in that round.
    """
    said = [(r["round"], r["client_train_loss"]) for r in records if "client_train_loss" in r]
    times_sampled = Counter(
        k for _, losses in said for k, loss in losses.items() if loss is not None
    )
    chosen = sorted(
        sorted(times_sampled, key=lambda k: (-times_sampled[k], int(k)))[:CLIENTS], key=int
    )
    return {
        client: (
            [round_ for round_, losses in said if losses.get(client) is not None],
            [losses[client] for _, losses in said if losses.get(client) is not None],
        )
        for client in chosen
    }


def similarity_figure(runs: Runs) -> Figure:
    """Draw a panel a layer: the mean cosine of all pairs of clients over the rounds, a line a run."""
    curves = {title: similarity_curves(records) for title, records in runs.items()}
    layers = list(dict.fromkeys(layer for found in curves.values() for layer in found))
    columns = min(len(layers), COLUMNS)
    rows = -(-len(layers) // columns)
    figure, grid = _figure(2.5 * columns + 0.6, 2.3 * rows + 0.4, rows, columns)
    panels = [axes for row in grid for axes in row]
    for axes in panels[len(layers) :]:
        axes.set_visible(False)
    for axes, layer in zip(panels, layers, strict=False):
        for color, (title, found) in zip(COLORS, curves.items(), strict=False):
            axes.plot(*found.get(layer, ([], [])), color=color, linewidth=1.4, label=title)
        axes.axhline(0, color=PALE, linewidth=0.8, zorder=0)
        title = f"layer {layer}" if layer.isdigit() else layer
        axes.set_title(title, fontsize=9, color="#333333")
        axes.set_xlabel("round", fontsize=9)
    for row in grid:
        row[0].set_ylabel("cosine similarity", fontsize=9)
    if len(runs) > 1:
        panels[0].legend(frameon=False, fontsize=8)
    return figure


def similarity_curves(records: Sequence[RoundMetrics]) -> dict[str, tuple[list[int], list[float]]]:
    """Return rounds and mean cosine similarities by layer, where there are any."""
    curves: dict[str, tuple[list[int], list[float]]] = {}
    for record in records:
        for layer, value in record.get("similarity", {}).items():
            rounds, values = curves.setdefault(layer, ([], []))
            if value is not None:
                rounds.append(record["round"])
                values.append(value)
    return curves


def _figure(
    width: float, height: float, rows: int, columns: int
) -> tuple[Figure, list[list[Axes]]]:
    figure = new_figure(width, height)
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).tolist()
    for axes in (axes for row in grid for axes in row):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))
        axes.tick_params(labelsize=8)
        make_plain(axes)
        axes.margins(x=0.02)
    return figure, grid
