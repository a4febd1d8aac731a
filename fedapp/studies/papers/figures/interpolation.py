"""Two models on a line through both: McMahan et al. 2017, Figure 1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure as Drawing

from fedapp.analysis.loss_landscape import interpolate
from fedapp.config.read import read_config
from fedapp.config.run_config import Scalar
from fedapp.data.node_data import read_node_data
from fedapp.runs.figures import COLORS, GREY
from fedapp.studies.papers.figures.style import DASHES, new_figure
from fedapp.training.algorithm import Tensors
from fedapp.training.build import initial_parameters, make_evaluator, make_trainer
from fedapp.training.client import TrainRequest, train_cohort

THETAS = np.linspace(-0.2, 1.2, 50)
"""The 50 evenly spaced values of the figure, [50]."""
TITLES = {
    "separate": "Independent initialisation",
    "shared": "Common initialisation",
}


def measure(settings: Mapping[str, Scalar]) -> dict[str, Any]:
    """Train two clients from separate and from shared weights; return the losses between them.

    The losses of theta * w + (1 - theta) * w' are over the whole training set: a list of 50 for
    each of ``separate`` and ``shared``. w' has the next seed's initial weights in ``separate``.
    """
    config = read_config(settings)
    node_data = read_node_data(config, None)
    task, train = node_data.dataset.task, node_data.dataset.train
    score = make_evaluator(config, task, train).score
    other = config.model_copy(update={"seed": config.seed + 1})
    starts = {
        "separate": (initial_parameters(config, task), initial_parameters(other, task)),
        "shared": (initial_parameters(config, task), initial_parameters(config, task)),
    }

    trainer = make_trainer(config, task)

    def trained(theta: Tensors, client: int) -> Tensors:
        request = TrainRequest(1, (client,), config.learning_rate, "mean")
        reply = train_cohort(config, trainer, request, theta, {}, node_data.train)
        return {name: theta[name] + reply.mean[name] for name in theta}

    found: dict[str, Any] = {"thetas": [round(float(theta), 6) for theta in THETAS]}
    for name, (first, second) in starts.items():
        w, w_ = trained(first, 0), trained(second, 1)
        found[name] = [
            float(f"{score(interpolate(w, w_, float(theta))).loss:.6g}") for theta in THETAS
        ]
        found[f"{name} parents"] = [score(w_).loss, score(w).loss]
    return found


def draw_interpolation(numbers: Mapping[str, Any]) -> Drawing:
    """Draw both panels; the dashed line is the better parent's loss, the dotted ones the parents."""
    figure, [row] = new_figure(1, 2, 4.4, 3.3)
    for axes, (name, title) in zip(row, TITLES.items(), strict=True):
        axes.plot(numbers["thetas"], numbers[name], color=COLORS[0], linewidth=1.5)
        best = min(numbers[f"{name} parents"])
        axes.axhline(best, color=GREY, linewidth=1, linestyle=DASHES[1])
        for parent in (0, 1):
            axes.axvline(parent, color=GREY, linewidth=0.9, linestyle=DASHES[2])
        axes.set_title(title, fontsize=9.5, color="#333333")
        axes.set_xlabel("mixing weight θ", fontsize=9)
        axes.set_ylabel("loss on all training data", fontsize=9)
        axes.margins(x=0)
    return figure
