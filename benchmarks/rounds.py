"""A round beside a bare PyTorch loop over the same clients: `python -m benchmarks.rounds`.

W1 is McMahan's 2NN with K = 100, C = 0.1, E = 1, B = 10. The bare loop, the sequential trainer and
a whole in-process round (messages, checks, folding, no evaluation) take turns in one run; ratios
are medians over the turns. Without FEDAPP_DATA the digits stand in for MNIST.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table

from fedapp.arrays import to_arrays
from fedapp.client_app import app as client_app
from fedapp.config import RunConfig, read_config
from fedapp.engines.inline import InlineGrid
from fedapp.holdings import Holdings, read_holdings
from fedapp.nodes import Nodes
from fedapp.training.cohorts import TrainOrder, sample_clients, train_cohort
from fedapp.training.setup import initial_parameters, make_algorithm, make_module, make_trainer
from strategies.strategy import FederatedStrategy

TURNS = 7


def workload(threads: int, run_dir: str) -> RunConfig:
    """Return W1's configuration."""
    data = os.environ.get("FEDAPP_DATA")
    return read_config(
        {
            "dataset": str(Path(data) / "mnist") if data else "digits",
            "num-clients": 100,
            "fraction-train": 0.1,
            "local-epochs": 1,
            "batch-size": 10,
            "learning-rate": 0.1,
            "eval-every": 0,
            "evaluation": "server",
            "threads": threads,
            "run-dir": run_dir,
        }
    )


def bare_loop(config: RunConfig, holdings: Holdings) -> Callable[[], None]:
    """Return the least that a round can be in eager PyTorch: load theta, shuffle, step."""
    module = make_module(config, holdings.dataset.task)
    theta = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    optimizer = torch.optim.SGD(module.parameters(), lr=config.learning_rate)
    clients = sample_clients(config.seed, 1, range(config.num_clients), config.fraction_train)
    data = []
    for client in clients:
        examples = holdings.train(client)
        inputs = torch.tensor(examples.inputs)
        scaled = inputs.float() / 255 if inputs.dtype == torch.uint8 else inputs
        data.append((scaled, torch.tensor(examples.targets).long()))

    def round_() -> None:
        for inputs, targets in data:
            module.load_state_dict(theta)
            order = torch.randperm(len(targets))
            for index in order.split(config.batch_size):
                optimizer.zero_grad(set_to_none=True)
                F.cross_entropy(module(inputs[index]), targets[index]).backward()
                optimizer.step()

    return round_


def trainer_round(config: RunConfig, holdings: Holdings) -> Callable[[], None]:
    """Return the sequential trainer's work for the same clients."""
    trainer = make_trainer(config, holdings.dataset.task)
    theta = initial_parameters(config, holdings.dataset.task)
    clients = sample_clients(config.seed, 1, range(config.num_clients), config.fraction_train)
    order = TrainOrder(1, tuple(clients), config.learning_rate, "mean")

    def round_() -> None:
        train_cohort(config, trainer, order, theta, {}, holdings.train)

    return round_


def whole_round(config: RunConfig, holdings: Holdings) -> Callable[[], None]:
    """Return a round through the strategy, the messages and the ClientApp, in this process."""
    partition = holdings.partition
    sizes = None if partition is None else partition.sizes
    nodes = Nodes(config, holdings.dataset.task, holdings.dataset.fingerprint, sizes)
    strategy = FederatedStrategy(config, make_algorithm(config), nodes, None)
    grid = InlineGrid(client_app, config.to_run_config(), [{}])
    theta = to_arrays(initial_parameters(config, holdings.dataset.task))
    nodes.wait(grid)

    def round_() -> None:
        strategy.start(grid, theta, strategy.state.round + 1)

    return round_


def main() -> None:
    """Print seconds a round and their ratio to the bare loop."""
    console = Console()
    for threads in (1, 2):
        torch.set_num_threads(threads)
        with tempfile.TemporaryDirectory() as folder:
            config = workload(threads, folder)
            holdings = read_holdings(config, None)
            rounds = {
                "bare PyTorch loop": bare_loop(config, holdings),
                "sequential trainer": trainer_round(config, holdings),
                "whole in-process round": whole_round(config, holdings),
            }
            console.print(_table(f"W1 on {Path(config.dataset).name}, threads = {threads}", rounds))


def _table(title: str, rounds: dict[str, Callable[[], None]]) -> Table:
    times: dict[str, list[float]] = {name: [] for name in rounds}
    for turn in range(TURNS + 1):
        for name, round_ in rounds.items():
            began = time.perf_counter()
            round_()
            if turn:  # the first turn warms up
                times[name].append(time.perf_counter() - began)
    bare = times[next(iter(rounds))]
    table = Table("what", "seconds a round", "ratio", title=title)
    for name, taken in times.items():
        ratios = [mine / base for mine, base in zip(taken, bare, strict=True)]
        table.add_row(name, f"{statistics.median(taken):.4f}", f"{statistics.median(ratios):.2f}")
    return table


if __name__ == "__main__":
    main()
