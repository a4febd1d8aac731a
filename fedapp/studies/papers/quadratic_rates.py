"""Convergence of gradient descent, heavy ball and Nesterov on a quadratic, beside their bounds.

As federated rounds over ten clients that differ.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from logging import WARNING
from pathlib import Path

import numpy as np
from flwr.common.logger import FLOWER_LOGGER
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from fedapp.analysis.rates import Method, accelerated, bound, gradient_descent, heavy_ball
from fedapp.client_app import app as client_app
from fedapp.config.read import read_config
from fedapp.config.settings import Scalar
from fedapp.data.embedded.quadratic import (
    MATRIX,
    OPTIMUM,
    SMOOTHNESS,
    STRONG_CONVEXITY,
    VECTOR,
)
from fedapp.engines.in_process import InlineGrid
from fedapp.federation.callback import Callback, ServerState
from fedapp.federation.round_result import RoundResult
from fedapp.runs.figures import COLORS, GREY, LIGHT, new_figure
from fedapp.server import run

Array = NDArray[np.float64]
METHODS = tuple(
    make(STRONG_CONVEXITY, SMOOTHNESS) for make in (gradient_descent, heavy_ball, accelerated)
)
COLORS_OF_METHODS = (GREY, *COLORS[:2])


class Trace(Callback):
    """Collects theta of every round."""

    def __init__(self) -> None:
        self.points: list[Array] = []

    def on_round(self, result: RoundResult, state: ServerState) -> bool:
        """Append theta."""
        self.points.append(state.theta["x"].double().numpy().copy())
        return False


def on_the_server(method: Method, steps: int) -> Array:
    """Return x_0 .. x_steps [steps + 1, 2]: one full-batch local step, momentum on the server."""
    values: dict[str, Scalar] = {
        "algorithm": "fedavgm",
        "fedavgm.momentum": method.momentum,
        "fedavgm.nesterov": method.nesterov,
        "num-clients": 10,
        "local-epochs": 1,
        "num-server-rounds": steps,
    }
    return trace(method, values)


def trace(method: Method, values: Mapping[str, Scalar]) -> Array:
    """Return theta of every round of a run with ``values`` and the method's step: [T + 1, 2]."""
    with tempfile.TemporaryDirectory() as folder:
        everything: dict[str, Scalar] = {
            "dataset": "quadratic",
            "model": "quadratic",
            "partitioner": "natural",
            "fraction-train": 1.0,
            "batch-size": 0,
            "learning-rate": method.step,
            "precision": "float64",
            "device": "cpu",
            "pictures": False,
            "checkpoint-every": 0,
            "run-dir": str(Path(folder) / "run"),
            **values,
        }
        callback = Trace()
        with _silent():
            run(InlineGrid(client_app, everything, [{}]), read_config(everything), [callback])
    return np.stack(callback.points)


@contextmanager
def _silent() -> Iterator[None]:
    """Log warnings only."""
    level = FLOWER_LOGGER.level
    FLOWER_LOGGER.setLevel(WARNING)
    try:
        yield
    finally:
        FLOWER_LOGGER.setLevel(level)


def excess(points: Array) -> Array:
    """Return f(x) - f* = (x - x*)'A(x - x*) / 2 for points [n, 2]: [n]."""
    away = points - OPTIMUM
    return np.asarray(np.einsum("ni,ij,nj->n", away, MATRIX, away) / 2)


def measured(method: Method, steps: int) -> Array:
    """Return f(x_t) - f* for t = 0 .. steps, as federated rounds: [steps + 1].

    PyTorch's form of Nesterov's method iterates over the points y_t where gradients are computed;
    the theorem bounds x_t = y_(t-1) - eta grad f(y_(t-1)), with x_0 = y_0.
    """
    points = on_the_server(method, steps)
    if method.nesterov:
        stepped = points - method.step * (points @ MATRIX - VECTOR)
        points = np.concatenate([points[:1], stepped[:-1]])
    return excess(points)


def promised(method: Method, steps: int) -> Array:
    """Return the bound on f(x_t) - f* from x_0 = 0, for t = 0 .. steps: [steps + 1]."""
    start = np.zeros((1, 2))
    distance = float(np.linalg.norm(OPTIMUM))
    return bound(method, float(excess(start)[0]), distance, STRONG_CONVEXITY, steps)


def rates_figure() -> Figure:
    """Draw measured gaps (points) and bounds (lines) by round."""
    steps = 16
    figure = new_figure(7.2, 4.2)
    axes = figure.subplots()
    for method, color in zip(METHODS, COLORS_OF_METHODS, strict=True):
        label = f"{method.name}: η = {method.step:.3f}, β = {method.momentum:.3f}"
        axes.semilogy(promised(method, steps), color=color, linewidth=1.4)
        axes.semilogy(measured(method, steps), "o", color=color, markersize=4, label=label)
    axes.set_xlabel("communication round t (one full-batch local step)")
    axes.set_ylabel("$f(x_t) - f^*$")
    axes.set_ylim(1e-16, 3)
    axes.set_xlim(-0.3, steps + 0.3)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_title(
        f"The notes' quadratic over 10 clients: points measured, lines the bounds; "
        f"M / m = {SMOOTHNESS / STRONG_CONVEXITY:.2f}",
        fontsize=9,
    )
    axes.legend(frameon=False, fontsize=8)
    axes.grid(visible=True, color=LIGHT, linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    return figure
