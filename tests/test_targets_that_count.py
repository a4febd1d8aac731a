"""Padded targets: gradients of several batches, and the training loss, are means over targets."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedapp.config.read import read_config
from fedapp.data.dataset import IGNORE, Examples, Task
from fedapp.data.transforms.transform import Transform
from fedapp.models.model import Model
from fedapp.training.algorithm import Algorithm, Batch, ClientContext
from fedapp.training.batched.chunks import ClientBatching
from fedapp.training.batched.trainer import BatchedTrainer
from fedapp.training.batches import counted_targets
from fedapp.training.round_plan import RoundPlan
from fedapp.training.sequential import SequentialTrainer
from fedapp.training.trainer import ClientResult, ClientTask
from strategies.fedsgd import FedSGD
from strategies.scaffold import Scaffold
from tests.conftest import Run
from tests.in_process import metrics

TARGETS = np.array([[0, IGNORE, IGNORE], [1, 1, 1]])
"""Two sequences, of one target and of three."""
GRADIENT = 0.5
"""At w = log 3 the classes have 3/4 and 1/4: (-1/4 + 3 * 3/4) / 4. By sequences it would be 1/4."""
LOSS = (math.log(4 / 3) + 3 * math.log(4)) / 4
PLAN = {"epochs": 1, "steps": 0, "batch_size": 1, "sampling": "epoch", "learning_rate": 0.1}
TRAINERS = [SequentialTrainer, BatchedTrainer]


class Constant(nn.Module):
    """Logits (w, 0) at every step, with w = log 3."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(math.log(3), dtype=torch.float64))

    def forward(self, inputs: Tensor) -> Tensor:
        logits = torch.stack([self.w, torch.zeros_like(self.w)])
        return logits.view(1, 2, 1).expand(len(inputs), 2, inputs.shape[1])


class OfText(Model):
    """Cross-entropy over the targets that count."""

    takes: ClassVar[frozenset[str]] = frozenset({"tokens"})

    def build(self, task: Task) -> nn.Module:
        return Constant()


def trained(kind: Any, algorithm: Algorithm, copies: int = 1) -> list[ClientResult]:
    """Return what clients that hold the two sequences give, each in batches of one."""
    more = {"batching": ClientBatching(copies)} if kind is BatchedTrainer else {}
    trainer = kind(
        *(Constant(), OfText(), algorithm, Transform(), torch.device("cpu"), torch.float64, 2),
        **more,
    )
    theta = {"w": torch.tensor(math.log(3), dtype=torch.float64)}
    context = ClientContext(
        theta, algorithm.broadcast(algorithm.start(theta)), learning_rate=0.1, steps=2
    )
    context = ClientContext(**{**vars(context), "state": algorithm.initial_client_state(context)})
    examples = Examples(np.zeros((2, 3)), TARGETS)
    tasks = [ClientTask(context, examples, np.random.default_rng(k)) for k in range(copies)]
    found: list[ClientResult] = trainer.client_updates(tasks, RoundPlan(**PLAN))
    return found


@pytest.mark.parametrize("copies", [1, 2])
@pytest.mark.parametrize("kind", TRAINERS)
def test_fedsgds_gradient_and_loss_are_means_over_targets(kind: Any, copies: int) -> None:
    for outcome in trained(kind, FedSGD(), copies):
        assert outcome.extras.update is not None
        assert float(outcome.extras.update["w"]) == pytest.approx(GRADIENT, abs=1e-12)
        assert outcome.loss == pytest.approx(LOSS, abs=1e-12)


@pytest.mark.parametrize("copies", [1, 2])
@pytest.mark.parametrize("kind", TRAINERS)
def test_the_gradient_that_scaffold_keeps_is_a_mean_over_targets(kind: Any, copies: int) -> None:
    for outcome in trained(kind, Scaffold(option="I"), copies):
        assert float(outcome.extras.state["w"]) == pytest.approx(GRADIENT, abs=1e-12)


def test_which_targets_count() -> None:
    inputs, mask = torch.zeros(2, 3), torch.tensor([1.0, 0.0])
    batch = Batch(inputs, torch.from_numpy(TARGETS), mask)
    assert counted_targets(batch).tolist() == [[True, False, False], [False] * 3]
    floats = Batch(inputs, torch.tensor([float(IGNORE), 2.0]))
    assert counted_targets(floats).tolist() == [True, True]


def test_fedsgd_computes_one_gradient_whatever_e_and_b_are() -> None:
    """72 examples in batches of 10: 8 parts of one gradient, and u = 1."""
    config = read_config({"algorithm": "fedsgd"})
    assert config.local_epochs == 1
    assert RoundPlan.of(config).num_steps(72) == 8
    assert [RoundPlan.of(config).updates(n) for n in (72, 1, 0)] == [1.0, 1.0, 0.0]
    fedavg = read_config({})
    assert RoundPlan.of(fedavg).updates(72) == 36.0


def test_a_round_of_fedsgd_is_one_update(run: Run) -> None:
    record = metrics(run(algorithm="fedsgd", local_epochs=5, learning_rate=0.5))[1]
    assert (record["updates"], record["effective_updates"]) == (1.0, 0.5)
