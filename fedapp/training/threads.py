"""How many CPU threads a process trains with, where that is to be found out: ``threads = 0``."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

from fedapp.config.run_config import RunConfig, participants
from fedapp.data.node_data import NodeData
from fedapp.machine import cores
from fedapp.training.build import initial_parameters, make_algorithm, make_trainer
from fedapp.training.client import TrainRequest, train_cohort
from fedapp.training.device import choose_device

STEPS = 5
"""Local steps of one client that are timed."""
TURNS = 3
GAIN = 0.95
"""A further doubling of the threads must bring the time to this share of what it was."""


def quickest(seconds: Callable[[int], float], most: int) -> int:
    """Return the number of threads, 1, 2, 4 ... up to ``most``, beyond which no more is gained.

    ``seconds`` measures the work with so many threads.
    """
    chosen, best = 1, seconds(1)
    while 2 * chosen <= most:
        taken = seconds(2 * chosen)
        if taken > GAIN * best:
            break
        chosen, best = 2 * chosen, taken
    return chosen


def measured_threads(config: RunConfig, node_data: NodeData, processes: int = 1) -> int:
    """Return with how many threads a few local steps of the run's own training are quickest.

    ``processes`` train side by side, as if all were on this machine: it is what is measured. On a GPU
    it is one thread.
    """
    most = cores() // max(processes, 1)
    if most < 2 or choose_device(config).type != "cpu":
        return 1
    before = torch.get_num_threads()
    try:
        return quickest(_stopwatch(config, node_data), most)
    finally:
        torch.set_num_threads(before)


def _stopwatch(config: RunConfig, node_data: NodeData) -> Callable[[int], float]:
    """Return what times a client's local steps, with so many threads and the others beside it.

    As many clients of a round train as do in one program; they are those with most examples.
    """
    config = config.model_copy(update={"local_steps": STEPS})
    task, partition = node_data.dataset.task, node_data.partition
    sizes = np.zeros(1) if partition is None else partition.sizes
    clients = np.argsort(-sizes, kind="stable")[: participants(config.fraction_train, len(sizes))]
    algorithm, theta = make_algorithm(config, task), initial_parameters(config, task)
    extras = algorithm.broadcast(algorithm.start(theta))

    def seconds(threads: int) -> float:
        torch.set_num_threads(threads)
        trainer = make_trainer(config.model_copy(update={"threads": threads}), task)
        some = tuple(map(int, clients[: trainer.clients_together]))
        request = TrainRequest(1, some, config.learning_rate, "mean")
        taken = []
        for context in range(TURNS + 1):
            began = time.perf_counter()
            train_cohort(config, trainer, request, theta, extras, node_data.train)
            if context:  # the first one records or compiles
                taken.append(time.perf_counter() - began)
        return statistics.median(taken) / len(some)

    return seconds
