"""The batched trainer gives what the sequential trainer gives, for every algorithm and model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fedapp.config import RunConfig, read_config
from fedapp.data.base import Examples
from fedapp.holdings import read_holdings
from fedapp.training.algorithm import Tensors, Turn
from fedapp.training.plan import LocalPlan
from fedapp.training.setup import initial_parameters, make_trainer
from fedapp.training.trainer import ClientTask, Outcome, Trainer
from tests.test_algorithms import EVERY, settings

SIZES = (12, 7, 0, 1)
"""With B = 5 and E = 2: 6, 4, 0 and 2 steps; partial batches of 2, of 2, and of 1."""


def tasks(config: RunConfig, trainer: Trainer) -> list[ClientTask]:
    """Return the second turns of clients with SIZES examples, with a state that is not zero."""
    holdings = read_holdings(config, None)
    theta = initial_parameters(config, holdings.dataset.task)
    draws = torch.Generator().manual_seed(0)
    noise = {n: torch.randn(t.shape, generator=draws, dtype=t.dtype) for n, t in theta.items()}
    theta = {name: tensor + noise[name] / 10 for name, tensor in theta.items()}
    algorithm = trainer.algorithm
    extras = algorithm.broadcast(algorithm.start(theta))
    shared = Turn(
        theta,
        {name: tensor + 0.01 for name, tensor in extras.items()},
        learning_rate=config.learning_rate,
        round=2,
        momentum=config.momentum,
        nesterov=config.nesterov,
        normalisation=trainer.normalisation,
    )
    made = []
    for client, size in enumerate(SIZES):
        state = {n: t + 0.02 * client for n, t in algorithm.first_state(shared).items()}
        counts = torch.arange(1.0, trainer.num_classes + 1, dtype=trainer.dtype) + client
        turn = replace(shared, state=state, label_counts=counts if trainer.num_classes else None)
        turn = replace(turn, drawn=algorithm.draw(turn, 0, client))
        examples = holdings.train(client % config.num_clients)
        own = Examples(examples.inputs[:size], examples.targets[:size])
        made.append(ClientTask(turn, own, np.random.default_rng(client)))
    return made


def outcomes(more: Mapping[str, Any]) -> list[Outcome]:
    config = read_config(dict(more))
    trainer = make_trainer(config, read_holdings(config, None).dataset.task)
    plan = LocalPlan.of(config, config.learning_rate)
    return trainer.client_updates(tasks(config, trainer), plan)


def check_equal(mine: list[Outcome], reference: list[Outcome], tolerance: float) -> None:
    for left, right in zip(mine, reference, strict=True):
        assert (left.examples, left.steps) == (right.examples, right.steps)
        assert left.loss == pytest.approx(right.loss, rel=tolerance, nan_ok=True)
        check_close(left.params, right.params, tolerance)
        check_close(left.finish.upload, right.finish.upload, tolerance)
        check_close(left.finish.state, right.finish.state, tolerance)
        check_close(left.finish.update or {}, right.finish.update or {}, tolerance)


def check_close(mine: Tensors, reference: Tensors, tolerance: float) -> None:
    assert mine.keys() == reference.keys()
    for name, tensor in reference.items():
        torch.testing.assert_close(mine[name], tensor, rtol=tolerance, atol=tolerance)


@EVERY
@pytest.mark.parametrize("together", [1, 3])
def test_every_algorithm(name: str, together: int) -> None:
    """Unequal sizes, partial batches, a client with no examples; to 1e-9 in float64."""
    given = settings(
        name, local_epochs=2, batch_size=5 if "digits" in settings(name).values() else 0
    )
    batched = {**given, "trainer": "batched", "program": "record", "clients-together": together}
    check_equal(outcomes(batched), outcomes({**given, "trainer": "sequential"}), 1e-9)
