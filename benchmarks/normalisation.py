"""Normalisation with the clients, or averaged, on skewed features: `python -m benchmarks.normalisation`.

The averages of Li et al. 2021 (FedBN), section 5, as one bare loop without messages and server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from fedapp.config.read import read_config
from fedapp.config.run_config import RunConfig
from fedapp.data.node_data import read_node_data
from fedapp.training.algorithm import ClientContext, ClientExtras, Tensors
from fedapp.training.build import initial_parameters, make_evaluator, make_trainer
from fedapp.training.round_plan import RoundPlan, client_generator
from fedapp.training.sequential import SequentialTrainer
from fedapp.training.tensors import weighted_mean
from fedapp.training.trainer import ClientTask
from strategies.fedbn import FedBN

SETTINGS: dict[str, Any] = {
    "algorithm": "fedbn",
    "model": "cnn-bn",
    "cnn-bn.width": 8,
    "dataset": "skewed-digits",
    "skewed-digits.clients": 10,
    "partitioner": "natural",
    "num-clients": 10,
    "fraction-train": 1.0,
    "local-epochs": 2,
    "batch-size": 16,
    "learning-rate": 0.1,
    "evaluation": "clients",
    "device": "cpu",
    "trainer": "sequential",
}
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
KEPT: dict[str, Callable[[str], bool]] = {
    "weights and statistics with the clients (FedBN)": lambda name: name.startswith("norm"),
    "statistics with the clients, weights averaged": lambda name: name.endswith(STATISTICS),
    "weights and statistics averaged (FedAvg)": lambda name: False,
}
"""Which tensors of `cnn-bn` a client keeps to itself; the others are averaged by n_k."""


class _All(FedBN):
    """A turn that starts from what it is given, and gives back all tensors."""

    def initial_params(self, context: ClientContext) -> Mapping[str, Any]:
        return context.global_params

    def finalize(
        self, params: Mapping[str, Any], context: ClientContext, steps: Any
    ) -> ClientExtras:
        return ClientExtras(state=dict(params))


def accuracies(config: RunConfig, kept: Callable[[str], bool]) -> Iterator[float]:
    """Yield the accuracy over all clients' own test examples after each round, every client training."""
    node_data = read_node_data(config, None)
    task, clients = node_data.dataset.task, range(config.num_clients)
    trainer = make_trainer(config, task)
    assert isinstance(trainer, SequentialTrainer)
    trainer.algorithm = _All()
    first: Tensors = {**initial_parameters(config, task), **trainer.statistics}
    models = [first for _ in clients]
    plan, weights = (
        RoundPlan.of(config),
        [len(node_data.train(k)) for k in clients],
    )
    evaluator = make_evaluator(config, task, node_data.test(0))
    for round_ in range(1, config.num_server_rounds + 1):
        tasks = [
            ClientTask(
                ClientContext(model), node_data.train(k), client_generator(config.seed, round_, k)
            )
            for k, model in enumerate(models)
        ]
        ended = [outcome.extras.state for outcome in trainer.client_updates(tasks, plan)]
        mean = weighted_mean(ended, weights)
        models = [{n: own[n] if kept(n) else mean[n] for n in mean} for own in ended]
        scores = [evaluator.with_examples(node_data.test(k)).score(models[k]) for k in clients]
        yield sum(s.accuracy * s.count for s in scores) / sum(s.count for s in scores)


def main(rounds: int = 30, seeds: int = 3, skews: str = "0,1,2") -> None:
    """Print the accuracy after the last round, mean and deviation over the seeds."""
    skewed = [float(skew) for skew in skews.split(",")]
    table = Table("batch normalisation", *(f"skew {skew:g}" for skew in skewed))
    for what, kept in KEPT.items():
        cells = []
        for skew in skewed:
            given = {**SETTINGS, "skewed-digits.skew": skew, "num-server-rounds": rounds}
            runs = [read_config({**given, "seed": seed}) for seed in range(seeds)]
            ends = np.array([list(accuracies(config, kept))[-1] for config in runs])
            cells.append(f"{100 * ends.mean():.1f} ± {100 * ends.std():.1f} %")
        table.add_row(what, *cells)
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
