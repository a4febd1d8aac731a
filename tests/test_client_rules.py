"""Client rules are pure: under torch.func.vmap they give what the sequential trainer gives."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from fedapp.config import read_config
from fedapp.data.base import Examples
from fedapp.holdings import read_holdings
from fedapp.training.algorithm import Algorithm, Batch, Differentiate, Objective, Turn
from fedapp.training.plan import LocalPlan
from fedapp.training.sequential import normalisation_names, with_features
from fedapp.training.setup import initial_parameters, make_model, make_module, make_trainer
from tests.test_algorithms import EVERY, settings

STEPS, RATE, CLIENTS = 3, 0.1, 3
PLAN = LocalPlan(STEPS, 0, 0, "epoch", RATE)


class PureNetwork:
    """A module as a pure function, as a batched trainer has it."""

    def __init__(self, module: nn.Module, loss: Any) -> None:
        self.module, self.loss = module, loss

    def outputs(self, params: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        return functional_call(self.module, dict(params), (inputs,))

    def features(self, params: Mapping[str, Tensor], inputs: Tensor) -> tuple[Tensor, Tensor]:
        return with_features(self.module, lambda: self.outputs(params, inputs))


def differentiator(algorithm: Algorithm, network: PureNetwork, turn: Turn) -> Differentiate:
    def differentiate(
        params: Mapping[str, Tensor], batch: Batch, objective: Objective | None = None
    ) -> tuple[dict[str, Tensor], Tensor]:
        rule = objective or algorithm.loss
        return grad_and_value(lambda at: rule(network, at, batch, turn))(dict(params))

    return differentiate


def pure_turn(
    algorithm: Algorithm, network: PureNetwork, turn: Turn, batch: Batch
) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
    """Run STEPS steps of plain SGD, and return theta_k and what ``finish`` gives."""
    params = dict(algorithm.begin(turn))
    for _ in range(STEPS):
        differentiate = differentiator(algorithm, network, turn)
        direction, _ = algorithm.gradient(differentiate, params, batch, turn)
        params = {name: p - RATE * direction[name] for name, p in params.items()}
        memory = algorithm.remember(params, direction, turn)
        turn = dataclasses.replace(turn, memory=memory)
    finish = algorithm.finish(params, turn, torch.tensor(STEPS))
    return params, finish.upload, finish.state, finish.update or {}


@EVERY
def test_vmap_agrees_with_the_sequential_trainer(name: str) -> None:
    """Three clients, three full-batch steps, in one vmapped program; to 1e-9 in float64."""
    config = read_config(settings(name))
    holdings = read_holdings(config, None)
    task = holdings.dataset.task
    trainer = make_trainer(config, task)
    theta = initial_parameters(config, task)
    generator = torch.Generator().manual_seed(0)
    theta = {
        n: t + torch.randn(t.shape, generator=generator, dtype=t.dtype) / 10
        for n, t in theta.items()
    }
    data = [first(holdings.train(client), 12) for client in range(CLIENTS)]
    turn = opening_turn(trainer.algorithm, theta, trainer.num_classes)
    alone = [
        trainer.client_update(turn, examples, PLAN, np.random.default_rng(0)) for examples in data
    ]
    network = PureNetwork(make_module(config, task), make_model(config).loss)
    inputs = torch.stack([torch.from_numpy(examples.inputs) for examples in data]).double()
    targets = torch.stack([torch.from_numpy(examples.targets) for examples in data])

    def one(x: Tensor, y: Tensor) -> Any:
        return pure_turn(trainer.algorithm, network, turn, Batch(x, y))

    together = vmap(one)(inputs, targets)
    for client, outcome in enumerate(alone):
        finish = outcome.finish
        parts = (outcome.params, finish.upload, finish.state, finish.update or {})
        for mine, theirs in zip(parts, together, strict=True):
            assert mine.keys() == theirs.keys()
            for key, tensor in mine.items():
                torch.testing.assert_close(theirs[key][client], tensor, rtol=1e-9, atol=1e-9)


def first(examples: Examples, count: int) -> Examples:
    return Examples(examples.inputs[:count], examples.targets[:count])


def opening_turn(algorithm: Algorithm, theta: dict[str, Tensor], classes: int) -> Turn:
    """Return a turn with a broadcast and a state that are not zero."""
    turn = Turn(theta, learning_rate=RATE, round=2, normalisation=frozenset())
    counts = torch.arange(1.0, classes + 1, dtype=torch.float64)
    extras = algorithm.broadcast(algorithm.start(theta))
    return dataclasses.replace(
        turn,
        broadcast={name: tensor + 0.01 for name, tensor in extras.items()},
        state={name: tensor + 0.02 for name, tensor in algorithm.first_state(turn).items()},
        label_counts=counts if classes else None,
        drawn=algorithm.draw(turn, 0, 0),
    )


def test_which_parameters_are_of_normalisation_layers() -> None:
    module = nn.Sequential(nn.Linear(2, 4), nn.GroupNorm(2, 4), nn.Sequential(nn.LayerNorm(4)))
    wanted = {"1.weight", "1.bias", "2.0.weight", "2.0.bias"}
    assert normalisation_names(module) == wanted


def test_features_are_what_the_last_linear_layer_is_given() -> None:
    module = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 3))
    inputs = torch.randn(5, 2, generator=torch.Generator().manual_seed(0))
    outputs, features = with_features(module, lambda: module(inputs))
    assert torch.equal(features, module[:2](inputs))
    assert torch.equal(outputs, module(inputs))


def test_a_model_without_a_last_layer_has_no_features() -> None:
    from fedapp.errors import ConfigError

    with pytest.raises(ConfigError, match="representation"):
        with_features(nn.Flatten(), lambda: torch.zeros(1))
