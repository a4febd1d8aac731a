"""The picture of who was available in each round, and who trained."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from fedapp.config.run_config import RunConfig
from fedapp.federation.callback import RoundMetrics
from fedapp.federation.samplers.sampler import prepared_sampler
from fedapp.runs.figures import BLUE, GREY, ORANGE, new_figure, save
from fedapp.runs.metrics import trained_clients

KINDS = {
    "not available": "white",
    "available": "#B5D5EA",
    "trained": BLUE,
    "failed": ORANGE,
    "surplus": GREY,
}
MAX_CLIENTS = 400
"""Rows of the picture; of more clients the first are drawn."""


def draw_participation(records: Sequence[RoundMetrics], config: RunConfig, stem: Path) -> None:
    """Draw clients by rounds as ``stem``.png and .svg."""
    trained = [record for record in records if record["round"] > 0]
    clients = range(config.num_clients)
    sampler = prepared_sampler(config)
    cells = np.zeros((min(len(clients), MAX_CLIENTS), len(trained)), dtype=np.int64)
    for column, record in enumerate(trained):
        failed = [int(client) for client in record.get("failures", {})]
        available = sampler.available(config.seed, record["round"], clients)
        groups = (available, trained_clients(record), failed, record.get("surplus", ()))
        for kind, members in enumerate(groups, start=1):
            cells[[client for client in members if client < len(cells)], column] = kind
    figure = new_figure(9.2, 1.6 + 0.012 * max(len(cells), 100))
    axes = figure.subplots()
    shown = {
        name: color for kind, (name, color) in enumerate(KINDS.items()) if (cells == kind).any()
    }
    axes.imshow(
        cells,
        ListedColormap(list(KINDS.values())),
        aspect="auto",
        interpolation="nearest",
        vmin=0,
        vmax=len(KINDS) - 1,
        extent=(trained[0]["round"] - 0.5, trained[-1]["round"] + 0.5, len(cells) - 0.5, -0.5),
    )
    axes.set_xlabel("communication round")
    cut = f" (the first {MAX_CLIENTS} of {len(clients):,})" if len(clients) > MAX_CLIENTS else ""
    axes.set_ylabel(f"client{cut}")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True, nbins=7))
    handles = [Patch(facecolor=color, edgecolor=GREY, label=name) for name, color in shown.items()]
    figure.legend(handles=handles, loc="outside upper left", ncols=len(handles), frameon=False)
    save(figure, stem, dpi=100)
