"""The least that a round can be in eager PyTorch: for each client load theta, shuffle, step."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from benchmarks.processes import Call, together
from benchmarks.workloads import ROUND
from fedapp.config.federation import participants
from fedapp.config.read import read_config
from fedapp.config.run_config import RunConfig
from fedapp.config.settings import Scalar
from fedapp.data.load import load_transform
from fedapp.data.node_data import NodeData, read_node_data
from fedapp.federation.sampling import distribute, sample_clients
from fedapp.seeds import generator
from fedapp.training.batches import to_device
from fedapp.training.build import DTYPES, make_model, make_module
from fedapp.training.round_plan import RoundPlan


def clients_of(config: RunConfig) -> list[int]:
    """Return the clients of the round that is measured."""
    m = participants(config.fraction_train, config.num_clients)
    rng = partial(generator, config.seed, "sample", ROUND)
    return sample_clients(rng, range(config.num_clients), m)


def bare_loop(config: RunConfig, node_data: NodeData, clients: Sequence[int]) -> Call:
    """Return a function that trains ``clients`` once, all their data in memory beforehand."""
    module, model = make_module(config, node_data.dataset.task), make_model(config)
    theta = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    optimizer = torch.optim.SGD(module.parameters(), lr=config.learning_rate)
    plan = RoundPlan.of(config)
    data = [tensors_of(config, node_data, client) for client in clients]

    def train() -> None:
        for inputs, targets in data:
            module.load_state_dict(theta)
            size, left = plan.batch(len(targets)), plan.num_steps(len(targets))
            while left > 0:
                for index in torch.randperm(len(targets)).split(size)[:left]:
                    optimizer.zero_grad(set_to_none=True)
                    model.loss(module(inputs[index]), targets[index]).backward()
                    optimizer.step()
                    left -= 1

    return train


def tensors_of(config: RunConfig, node_data: NodeData, client: int) -> tuple[Tensor, Tensor]:
    """Return a client's examples as the network takes them."""
    inputs, targets = to_device(node_data.train(client), torch.device("cpu"))
    return load_transform(config).test(inputs, DTYPES[config.precision]), targets


@contextlib.contextmanager
def bare_loops(config: RunConfig, node_data: NodeData, processes: int) -> Iterator[Call]:
    """Share the clients out to processes of one thread each; nothing is sent back."""
    sizes = {client: len(node_data.train(client)) for client in clients_of(config)}
    cohorts = distribute(list(sizes), sizes, processes)
    with together(_loop, [(config.to_run_config(), cohort) for cohort in cohorts]) as train:
        yield train


def _loop(values: dict[str, Scalar], cohort: list[int]) -> Call:
    torch.set_num_threads(1)
    config = read_config(values)
    return bare_loop(config, read_node_data(config, None), cohort)
