"""The number of CPU threads of a process, measured where ``threads = 0``."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from fedapp.config.run_config import RunConfig, participants
from fedapp.data.node_data import NodeData
from fedapp.machine import cores
from fedapp.training.build import initial_parameters, make_algorithm, make_trainer
from fedapp.training.client import TrainRequest, train_cohort
from fedapp.training.device import choose_device
from fedapp.training.round_plan import RoundPlan

STEPS = 5
"""Local steps of one client that are timed."""
REPEATS = 3
"""Timed repetitions, of which the median counts."""
MAX_TIME_RATIO = 0.95
"""Doubling the threads must reduce the time to this share."""


def fastest_num_threads(seconds: Callable[[int], float], most: int) -> int:
    """Return the number of threads, 1, 2, 4 ... up to ``most``, beyond which doubling does not pay.

    ``seconds`` is the time of the work as a function of the number of threads.
    """
    threads, best = 1, seconds(1)
    while 2 * threads <= most:
        time_doubled = seconds(2 * threads)
        if time_doubled > MAX_TIME_RATIO * best:
            break
        threads, best = 2 * threads, time_doubled
    return threads


def measured_threads(config: RunConfig, node_data: NodeData, processes: int = 1) -> int:
    """Return the number of threads with which a few local steps of the run are fastest.

    ``processes`` share the cores of this machine, where the time is measured. On a GPU the result is 1.
    """
    most = cores() // max(processes, 1)
    if most < 2 or choose_device(config).type != "cpu":
        return 1
    before = torch.get_num_threads()
    try:
        return fastest_num_threads(_timer(config, node_data), most)
    finally:
        torch.set_num_threads(before)


def _timer(config: RunConfig, node_data: NodeData) -> Callable[[int], float]:
    """Return the function from a number of threads to the seconds a client.

    It trains as many clients as share a compiled step, those with most examples.
    """
    config = config.model_copy(update={"local_steps": STEPS})
    task, partition = node_data.dataset.task, node_data.partition
    sizes = np.zeros(1) if partition is None else partition.sizes
    clients = np.argsort(-sizes, kind="stable")[: participants(config.fraction_train, len(sizes))]
    algorithm, theta = make_algorithm(config, task), initial_parameters(config, task)
    plan = replace(RoundPlan.of(config), reply="mean")
    extras = algorithm.broadcast(algorithm.start(theta))

    def seconds(threads: int) -> float:
        torch.set_num_threads(threads)
        trainer = make_trainer(config.model_copy(update={"threads": threads}), task)
        sample = tuple(map(int, clients[: trainer.clients_together]))
        request = TrainRequest(plan, sample)
        times = []
        for repeat in range(REPEATS + 1):
            began = time.perf_counter()
            train_cohort(trainer, request, theta, extras, node_data.train)
            if repeat:  # the first one traces or compiles
                times.append(time.perf_counter() - began)
        return statistics.median(times) / len(sample)

    return seconds
