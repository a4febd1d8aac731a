"""The trainer and the CPU threads of a run whose configuration leaves them open: ``auto`` and 0."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike

from fedapp.config.federation import participants
from fedapp.config.run import TrainerName
from fedapp.config.run_config import RunConfig
from fedapp.data.dataset import Task
from fedapp.data.node_data import NodeData
from fedapp.machine import cores
from fedapp.training.build import (
    choose_program,
    example_inputs,
    initial_parameters,
    make_algorithm,
    make_model,
    make_module,
    make_trainer,
)
from fedapp.training.client import TrainRequest, train_cohort
from fedapp.training.device import choose_device
from fedapp.training.networks import unbatchable_layer
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


LONG_COMPILED, LONG = 50_000, 5_000
"""Local steps of a run that pay for compiling a step, and for recording one or measuring threads."""


def local_steps(config: RunConfig, sizes: ArrayLike) -> float:
    """Return T * m times the mean local steps of clients of these sizes."""
    plan, sizes = RoundPlan.of(config), np.asarray(sizes)
    a_client = sum(plan.num_steps(int(size)) for size in sizes) / max(len(sizes), 1)
    m = participants(config.fraction_train, len(sizes))
    return config.num_server_rounds * m * a_client


def chosen_trainer(config: RunConfig, task: Task, sizes: ArrayLike) -> TrainerName:
    """Return the trainer of a run whose clients have these sizes, "batched" if ``auto`` is so on a CPU.

    It is in a run of enough local steps, if a step of the network is compiled or has convolutions.
    One's own algorithms and models may do what cannot be traced, so they are left with "auto".
    """
    if config.trainer != "auto" or choose_device(config).type != "cpu":
        return config.trainer
    own = {"algorithm", "model"} & config.own_code().keys()
    compiled = choose_program(config, torch.device("cpu")) == "compile"
    pays = compiled or (task.kind == "image" and not make_model(config).light)
    enough = LONG_COMPILED if compiled else LONG
    if not pays or own or local_steps(config, sizes) < enough:
        return "auto"
    module = make_module(config, task)
    return "auto" if unbatchable_layer(module, example_inputs(config, task)) else "batched"


def chosen_threads(
    config: RunConfig, node_data: NodeData, sizes: ArrayLike, processes: int = 1
) -> int:
    """Return the threads of a run with ``threads = 0``: measured if it has many local steps, else 1.

    Where nodes have data of their own, the server has none to measure with, and the result is 1.
    """
    if node_data.partition is None or local_steps(config, sizes) < LONG:
        return 1
    return measured_threads(config, node_data, processes)


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


def executed_config(
    config: RunConfig,
    node_data: NodeData,
    sizes: ArrayLike,
    run_info: dict[str, Any],
    *,
    by_length: bool = True,
) -> RunConfig:
    """Return the configuration with what ``trainer = "auto"`` and ``threads = 0`` stand for.

    Both are chosen once, and the same on resume.
    """
    if config.trainer == "auto":
        if by_length and not config.resume:
            run_info["trainer"] = chosen_trainer(config, node_data.dataset.task, sizes)
        config = config.model_copy(update={"trainer": run_info.get("trainer", "auto")})
    if config.threads == 0:
        if "threads" not in run_info:
            parallel_nodes = run_info["nodes"] if run_info["engine"] != "inline" else 1
            run_info["threads"] = chosen_threads(config, node_data, sizes, parallel_nodes)
        config = config.model_copy(update={"threads": int(run_info["threads"])})
    return config
