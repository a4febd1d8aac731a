"""Subnormal numbers are zero where clients train and where a model is tested, and nowhere else."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedapp.data.dataset import Examples, Task
from fedapp.data.transforms.transform import Scale
from fedapp.models.mlp import Linear
from fedapp.models.model import initialise
from fedapp.training.algorithm import ClientContext
from fedapp.training.batched.trainer import BatchedTrainer
from fedapp.training.device import denormals_are_flushed, flush_denormals
from fedapp.training.round_plan import RoundPlan
from fedapp.training.sequential import SequentialTrainer
from fedapp.training.trainer import ClientTask
from strategies.fedavg import FedAvg

CPU = torch.device("cpu")

TINY = 1e-30
"""Its square, 1e-60, is nothing in float32; times 1e-10 it is subnormal."""


def product() -> float:
    return float(torch.tensor(TINY) * torch.tensor(1e-10))


def test_within_it_they_are_zero_and_afterwards_as_before() -> None:
    assert product() > 0
    with flush_denormals():
        assert product() == 0
        with flush_denormals():
            assert denormals_are_flushed()
        assert product() == 0
    assert product() > 0


def test_an_error_within_it_leaves_no_trace() -> None:
    with pytest.raises(ValueError, match="why"), flush_denormals():
        raise ValueError("why")
    assert product() > 0


@given(st.floats(min_value=2.0**-126, max_value=2.0**100, width=32))
def test_normal_numbers_stay_as_they_are(number: float) -> None:
    with flush_denormals():
        assert float(torch.tensor(number)) == number
        assert float(torch.tensor(number) + 1e-40) == number


def test_so_numpy_says_nothing_of_it() -> None:
    """It warns where it finds the smallest subnormal number to be zero."""
    with flush_denormals():
        pass
    assert float(np.finfo(np.float32).smallest_subnormal) > 0


@pytest.mark.parametrize("kind", [SequentialTrainer, BatchedTrainer], ids=["sequential", "batched"])
def test_a_gradient_that_is_subnormal_moves_no_parameter(
    kind: type[SequentialTrainer | BatchedTrainer],
) -> None:
    """Logistic regression at theta = 0: the gradient is (1/2 - y) x, with x = 2e-38 below 1.2e-38."""
    task, model = Task("vector", (1,), 2), Linear()
    examples = Examples(np.full((4, 1), 2e-38, np.float32), np.zeros(4, np.int64))
    module = initialise(model, task, 0)
    theta = {name: torch.zeros_like(tensor) for name, tensor in module.named_parameters()}
    trainer = kind(module, model, FedAvg(), Scale(), CPU, torch.float32, 2)
    context = ClientContext(theta, learning_rate=1.0)
    tasks = [ClientTask(context, examples, np.random.default_rng(0))]
    (outcome,) = trainer.client_updates(tasks, RoundPlan(1, 0, 0, "epoch", 1.0))
    moved = {name: int(tensor.count_nonzero()) for name, tensor in outcome.params.items()}
    assert sorted(moved.values()) == [0, 2]  # the weights, the bias
    assert product() > 0
