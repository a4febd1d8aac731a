"""A trainer's round, as a function that can be called again: no messages, no server, no Flower."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from benchmarks.bare import clients_of
from benchmarks.workloads import ROUND
from fedapp.config.run_config import RunConfig
from fedapp.data.node_data import NodeData
from fedapp.training.build import initial_parameters, make_trainer
from fedapp.training.client import TrainRequest, train_cohort
from fedapp.training.round_plan import RoundPlan

Round = Callable[[], None]


def trainer_round(config: RunConfig, node_data: NodeData) -> Round:
    """Return a trainer's work for the clients of the round, without messages and server."""
    task = node_data.dataset.task
    trainer, theta = make_trainer(config, task), initial_parameters(config, task)
    plan = replace(RoundPlan.of(config), round=ROUND, reply="mean")
    request = TrainRequest(plan, tuple(clients_of(config)))

    def train() -> None:
        reply = train_cohort(trainer, request, theta, {}, node_data.train)
        if reply.failures:
            raise RuntimeError(f"clients failed: {reply.failures}")

    return train
