"""Loss landscapes: Seo et al. 2024, Figures 1 and 11, and McMahan et al. 2017, Figure 1."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from numpy.typing import NDArray

from fedapp.analysis.loss_landscape import interpolate
from fedapp.config.read import read_config
from fedapp.config.settings import Scalar
from fedapp.data.node_data import read_node_data
from fedapp.runs.figures import COLORS, GREY
from fedapp.seeds import generator
from fedapp.studies.papers.figures.style import DASHES, name_axes, new_panels
from fedapp.training.algorithm import Tensors
from fedapp.training.build import initial_parameters, make_evaluator, make_trainer
from fedapp.training.client import TrainRequest, train_cohort
from fedapp.training.round_plan import RoundPlan

Array = NDArray[np.float64]
Loss = Callable[[Array], Array]
"""Losses [n] of weights [2, n]."""
OPTIMUM = np.array([1.0, -0.5])
START = np.array([-2.2, 1.6])


def least_squares(examples: int) -> tuple[Array, Array]:
    """Return inputs [n, 2] and targets [n] of a noisy linear model whose weights are OPTIMUM."""
    rng = generator(0, "toy landscape")
    inputs = rng.normal(size=(examples, 2)) * np.array([1.0, 0.55])
    return inputs, inputs @ OPTIMUM + rng.normal(scale=0.9, size=examples)


def descent(inputs: Array, targets: Array, batch: int, rate: float, steps: int) -> Array:
    """Return the path [steps + 1, 2] of SGD with batches of ``batch`` on the mean squared error."""
    rng, path = generator(0, "toy batches", batch), [START]
    for _ in range(steps):
        chosen = rng.choice(len(inputs), batch, replace=False)
        x, y = inputs[chosen], targets[chosen]
        path.append(path[-1] - rate * x.T @ (x @ path[-1] - y) / batch)
    return np.stack(path)


def draw_descents() -> Drawing:
    """Draw Seo et al. 2024, Figure 1: B = n, B = 1 and a batch between, with one rate."""
    examples, steps = 200, 60
    inputs, targets = least_squares(examples)
    figure, [[axes]] = new_panels(1, 1, 6.0, 4.6)
    _contours(axes, lambda w: ((inputs @ w - targets[:, None]) ** 2).mean(axis=0) / 2)
    for number, (label, batch) in enumerate(
        (("SGD, B = 1", 1), ("mini-batch SGD, B = 16", 16), (f"GD, B = n = {examples}", examples))
    ):
        path = descent(inputs, targets, batch, 0.25, steps)
        axes.plot(*path.T, "o-", color=COLORS[number], markersize=2.4, linewidth=1.2, label=label)
    _mark(axes, START, "s", "start")
    best = np.linalg.lstsq(inputs, targets, rcond=None)[0].astype(np.float64)
    _mark(axes, best, "*", "optimum")
    _finish(axes, f"Paths of {steps} steps, η = 0.25, on a least-squares loss")
    axes.legend(fontsize=8, framealpha=0.8, edgecolor="none")
    return figure


CURVATURES = {
    "IID": (np.array([[1.0, 0.2], [0.2, 0.6]]), np.array([[0.95, 0.25], [0.25, 0.65]])),
    "Non-IID": (np.array([[1.6, 0.0], [0.0, 0.15]]), np.array([[0.15, 0.0], [0.0, 1.6]])),
}
OPTIMA = {
    "IID": (np.array([1.05, -0.4]), np.array([0.95, -0.6])),
    "Non-IID": (np.array([2.0, 1.2]), np.array([0.2, -1.6])),
}
LOCAL_STEPS, RATE, ROUNDS = 12, 0.25, 4


def local_path(start: Array, curvature: Array, optimum: Array) -> Array:
    """Return the path [steps + 1, 2] of gradient descent on (w - w*)'A(w - w*) / 2."""
    path = [start]
    for _ in range(LOCAL_STEPS):
        path.append(path[-1] - RATE * curvature @ (path[-1] - optimum))
    return np.stack(path)


def draw_two_clients() -> Drawing:
    """Draw Seo et al. 2024, Figure 11: two clients' landscapes, local paths, and their mean."""
    figure, [row] = new_panels(1, 2, 4.6, 4.2)
    for axes, kind in zip(row, CURVATURES, strict=True):
        _draw_pair(axes, kind)
    row[0].legend(fontsize=8, framealpha=0.8, edgecolor="none", loc="upper right")
    return figure


def _draw_pair(axes: Axes, kind: str) -> None:
    pairs = list(zip(CURVATURES[kind], OPTIMA[kind], strict=True))
    for number, (curvature, optimum) in enumerate(pairs):
        _contours(axes, _quadratic(curvature, optimum), COLORS[number], 6)
        _mark(axes, optimum, "*", f"client {number + 1}'s optimum", COLORS[number])
    total = sum(a for a, _ in pairs)
    best = np.linalg.solve(total, sum((a @ w for a, w in pairs), start=np.zeros(2)))
    theta, means = START, [START]
    for round_ in range(ROUNDS):
        paths = [local_path(theta, curvature, optimum) for curvature, optimum in pairs]
        for number, path in enumerate(paths):
            label = f"client {number + 1}'s steps" if round_ == 0 else None
            axes.plot(
                *path.T, color=COLORS[number], linewidth=1.2, linestyle=DASHES[1], label=label
            )
        theta = np.mean([path[-1] for path in paths], axis=0)
        means.append(theta)
    axes.plot(*np.stack(means).T, "o-", color="#000000", markersize=4, label="mean model")
    _mark(axes, best, "P", "global optimum", COLORS[2])
    _finish(axes, f"{kind}: {ROUNDS} rounds of {LOCAL_STEPS} local steps")


def _quadratic(curvature: Array, optimum: Array) -> Loss:
    def loss(w: Array) -> Array:
        away = w - optimum[:, None]
        return np.asarray(np.einsum("in,ij,jn->n", away, curvature, away) / 2)

    return loss


def _contours(axes: Axes, loss: Loss, color: str = GREY, count: int = 12) -> None:
    x, y = np.meshgrid(np.linspace(-2.8, 3.2, 160), np.linspace(-2.8, 2.6, 160))
    values = loss(np.stack([x.ravel(), y.ravel()])).reshape(x.shape)
    levels = values.min() + (values.max() - values.min()) * np.linspace(0.03, 1, count) ** 2
    axes.contour(x, y, values, levels=levels, colors=color, linewidths=0.6, alpha=0.55)


def _mark(axes: Axes, point: Array, marker: str, label: str, color: str = "#000000") -> None:
    axes.plot(
        *point, marker, color=color, markersize=10, markeredgecolor="white", label=label, zorder=5
    )


def _finish(axes: Axes, title: str) -> None:
    name_axes(axes, title, "first weight", "second weight")
    axes.grid(visible=False)


THETAS = np.linspace(-0.2, 1.2, 50)
"""The 50 evenly spaced values of the figure, [50]."""
TITLES = {
    "separate": "Independent initialisation",
    "shared": "Common initialisation",
}


def measure_interpolation(settings: Mapping[str, Scalar]) -> dict[str, Any]:
    """Train two clients from separate and from shared weights; return the losses between them.

    The losses of theta * w + (1 - theta) * w' are over the whole training set: a list of 50 for
    each of ``separate`` and ``shared``. w' has the next seed's initial weights in ``separate``.
    """
    config = read_config(settings)
    node_data = read_node_data(config, None)
    task, train = node_data.dataset.task, node_data.dataset.train
    score = make_evaluator(config, task, train).score
    own = initial_parameters(config, task)
    other = initial_parameters(config.model_copy(update={"seed": config.seed + 1}), task)
    starts = {"separate": (own, other), "shared": (own, own)}

    trainer = make_trainer(config, task)

    def trained(theta: Tensors, client: int) -> Tensors:
        request = TrainRequest(RoundPlan.of(config), (client,))
        reply = train_cohort(trainer, request, theta, {}, node_data.train)
        return {name: theta[name] + reply.mean[name] for name in theta}

    losses: dict[str, Any] = {"thetas": [round(float(theta), 6) for theta in THETAS]}
    for name, (first, second) in starts.items():
        w, w_ = trained(first, 0), trained(second, 1)
        losses[name] = [
            float(f"{score(interpolate(w, w_, float(theta))).loss:.6g}") for theta in THETAS
        ]
        losses[f"{name} parents"] = [score(w_).loss, score(w).loss]
    return losses


def draw_interpolation(numbers: Mapping[str, Any]) -> Drawing:
    """Draw both panels; the better parent's loss is dashed, the parents' positions are dotted."""
    figure, [row] = new_panels(1, 2, 4.4, 3.3)
    for axes, (name, title) in zip(row, TITLES.items(), strict=True):
        axes.plot(numbers["thetas"], numbers[name], color=COLORS[0], linewidth=1.5)
        best = min(numbers[f"{name} parents"])
        axes.axhline(best, color=GREY, linewidth=1, linestyle=DASHES[1])
        for parent in (0, 1):
            axes.axvline(parent, color=GREY, linewidth=0.9, linestyle=DASHES[2])
        name_axes(axes, title, "mixing weight θ", "loss on all training data")
        axes.margins(x=0)
    return figure
