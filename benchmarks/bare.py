"""The least that a round can be in eager PyTorch: for each client load theta, shuffle, step."""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection

import torch
from torch import Tensor

from benchmarks.workloads import ROUND
from fedapp.config import RunConfig
from fedapp.data import load_transform
from fedapp.holdings import Holdings, read_holdings
from fedapp.training.batches import to_device
from fedapp.training.cohorts import sample_clients, spread
from fedapp.training.plan import LocalPlan
from fedapp.training.setup import DTYPES, make_model, make_module

PROCESSES = multiprocessing.get_context("spawn")


def clients_of(config: RunConfig) -> list[int]:
    """Return the clients of the round that is measured."""
    return sample_clients(config.seed, ROUND, range(config.num_clients), config.fraction_train)


def bare_loop(config: RunConfig, holdings: Holdings, clients: Sequence[int]) -> Callable[[], None]:
    """Return a function that trains ``clients`` once, all their data in memory beforehand."""
    module, model = make_module(config, holdings.dataset.task), make_model(config)
    theta = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    optimizer = torch.optim.SGD(module.parameters(), lr=config.learning_rate)
    plan = LocalPlan.of(config, config.learning_rate)
    data = [_tensors(config, holdings, client) for client in clients]

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


def _tensors(config: RunConfig, holdings: Holdings, client: int) -> tuple[Tensor, Tensor]:
    inputs, targets = to_device(holdings.train(client), torch.device("cpu"))
    return load_transform(config).test(inputs, DTYPES[config.precision]), targets


@contextlib.contextmanager
def bare_loops(
    config: RunConfig, holdings: Holdings, processes: int
) -> Iterator[Callable[[], None]]:
    """Share the clients out to processes of one thread each; nothing is sent back."""
    sizes = {client: len(holdings.train(client)) for client in clients_of(config)}
    pairs = [PROCESSES.Pipe() for _ in range(processes)]
    started = [
        PROCESSES.Process(target=_serve, args=(config.to_run_config(), cohort, theirs), daemon=True)
        for cohort, (_, theirs) in zip(spread(list(sizes), sizes, processes), pairs, strict=True)
    ]
    for process in started:
        process.start()
    for ours, _ in pairs:
        ours.recv()

    def train() -> None:
        for ours, _ in pairs:
            ours.send(True)
        for ours, _ in pairs:
            ours.recv()

    try:
        yield train
    finally:
        for (ours, _), process in zip(pairs, started, strict=True):
            ours.send(False)
            process.join()


def _serve(
    values: dict[str, bool | int | float | str], cohort: list[int], pipe: Connection
) -> None:
    from fedapp.config import read_config

    torch.set_num_threads(1)
    config = read_config(values)
    train = bare_loop(config, read_holdings(config, None), cohort)
    pipe.send(True)
    while pipe.recv():
        train()
        pipe.send(True)
