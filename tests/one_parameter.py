"""Two clients and one parameter, small enough to work out by hand.

Client 0 minimises (w - 1)^2 / 2 (gradient w - 1), client 1 (w - 3)^2 (gradient 2 w - 6). With
eta = 1/4 and two full-batch steps from w = 0: client 0 goes 0, 0.25, 0.4375 and client 1 goes 0,
1.5, 2.25. Federated averaging, uniform: 1.34375.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from fedapp.data.dataset import Examples, Task
from fedapp.data.transforms.transform import Transform
from fedapp.models.model import Model
from fedapp.training.algorithm import Algorithm, ServerStep, Tensors
from fedapp.training.client import TrainRequest, train_cohort
from fedapp.training.client_state import ClientStates, StateLocation
from fedapp.training.round_plan import RoundPlan
from fedapp.training.sequential import SequentialTrainer
from tests.conftest import small_config

RATE = 0.25


class Scalar(nn.Module):
    """The parameter w, and z = (w, 1) before a fixed last layer that reads off w."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros((), dtype=torch.float64))
        self.head = nn.Linear(2, 1, bias=False)
        del self.head.weight
        self.head.register_buffer("weight", torch.tensor([[1.0, 0.0]], dtype=torch.float64))

    def forward(self, inputs: Tensor) -> Tensor:
        point = torch.stack([self.w, torch.ones_like(self.w)])
        # A column of curvatures h beside the outputs w: [n, 2].
        return torch.cat([self.head(point.expand(len(inputs), 2)), inputs], 1)


class HalfSquare(Model):
    """Loss h (w - a)^2 / 2 for the input h and the target a."""

    def build(self, task: Task) -> nn.Module:
        return Scalar()

    def loss(self, outputs: Tensor, targets: Tensor, mask: Tensor | None = None) -> Tensor:
        return (outputs[:, 1] * (outputs[:, 0] - targets) ** 2 / 2).mean()


class Choice(nn.Module):
    """Logits (w, 0, ..., 0), whatever the input."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros((), dtype=torch.float64))
        self.classes = classes

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.cat([self.w.view(1), inputs.new_zeros(self.classes - 1)]).expand(
            len(inputs), -1
        )


class CrossEntropy(Model):
    """The usual loss."""

    def build(self, task: Task) -> nn.Module:
        return Choice(task.num_classes)


def examples(curvature: float, target: float, count: int = 1) -> Examples:
    """Return ``count`` equal examples of a client."""
    return Examples(np.full((count, 1), curvature), np.full(count, target))


def labelled(*labels: int) -> Examples:
    """Return examples with these labels."""
    return Examples(np.zeros((len(labels), 1)), np.array(labels))


CLIENTS = (examples(1, 1), examples(2, 3))


class Federation:
    """The algorithm's rounds over the two clients, with their states in ``folder``."""

    def __init__(
        self,
        algorithm: Algorithm,
        folder: Path,
        clients: tuple[Examples, ...] = CLIENTS,
        classes: int = 0,
        **settings: object,
    ) -> None:
        self.algorithm, self.clients = algorithm, clients
        self.config = small_config(
            **{"local_epochs": 2, "batch_size": 0, "weighting": "uniform", **settings}
        )
        self.trainer = SequentialTrainer(
            Choice(classes) if classes else Scalar(),
            CrossEntropy() if classes else HalfSquare(),
            algorithm,
            Transform(),
            torch.device("cpu"),
            torch.float64,
            classes,
        )
        self.location = StateLocation("run", str(folder), (0,), ())
        self.theta: Tensors = {"w": torch.zeros((), dtype=torch.float64)}
        self.state = algorithm.start(self.theta)
        self.round = 0

    def play(self, *present: int) -> float:
        """Run one round with the clients ``present`` (none named: all) and return theta."""
        self.round += 1
        cohort = present or tuple(range(len(self.clients)))
        plan = replace(
            RoundPlan.of(self.config),
            round=self.round,
            learning_rate=RATE,
            reply=self.algorithm.reply,
        )
        request = TrainRequest(plan, cohort, self.location)
        states = ClientStates(Path(self.location.folder), self.location, self.round)
        extras = self.algorithm.broadcast(self.state)
        reply = train_cohort(
            self.trainer, request, self.theta, extras, self.clients.__getitem__, states
        )
        assert not reply.failures
        trained = [metrics.client for metrics in reply.client_metrics if metrics.steps]
        counted = {**self.location.last_used_round, **dict.fromkeys(trained, self.round)}
        self.location = replace(self.location, last_used_round=counted)
        total = len(self.clients)
        if self.config.weighting == "examples":
            total = sum(map(len, self.clients))
        step = ServerStep(
            plan=replace(RoundPlan.of(self.config, self.round), learning_rate=RATE),
            server_learning_rate=self.config.server_learning_rate,
            num_clients=len(self.clients),
            participants=len(cohort),
            share=reply.weight / total,
        )
        mean = reply.mean
        if reply.each:
            weights = {report.client: report.weight for report in reply.client_metrics}
            mean = self.algorithm.aggregate(
                list(reply.each.values()), [weights[k] for k in reply.each]
            )
        self.theta, self.state = self.algorithm.apply(
            self.theta, mean, reply.uploads, self.state, step
        )
        return float(self.theta["w"])
