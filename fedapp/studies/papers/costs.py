"""Estimates of what experiments cost on this machine, from measured local steps."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from rich.table import Table

from fedapp.config.federation import participants
from fedapp.config.read import read_config
from fedapp.config.run_config import RunConfig
from fedapp.config.settings import Scalar
from fedapp.data.dataset import Examples, Task
from fedapp.errors import ConfigError
from fedapp.machine import keep_memory
from fedapp.runs.formatting import duration
from fedapp.studies.papers.catalogue import Experiment
from fedapp.studies.papers.cells import cells_without_data, is_among
from fedapp.studies.papers.schema import Picture, Scale, ScaleName
from fedapp.studies.papers.schema import Table as TableItem
from fedapp.studies.sweep.identity import Request
from fedapp.studies.sweep.search import Cell
from fedapp.training.build import initial_parameters, make_trainer
from fedapp.training.client import TrainRequest, train_cohort
from fedapp.training.device import choose_device
from fedapp.training.round_plan import RoundPlan

TASKS = {
    "digits": Task("image", (1, 8, 8), 10),
    "mnist": Task("image", (1, 28, 28), 10),
    "cifar10": Task("image", (3, 32, 32), 10),
    "shakespeare": Task("tokens", (80,), 258, num_symbols=258, vocabulary="bytes"),
    "shakespeare in words": Task("tokens", (10,), 10_000, num_symbols=10_000, vocabulary="words"),
}
SIZES = {
    "digits": (1440, 357),
    "mnist": (60_000, 10_000),
    "cifar10": (50_000, 10_000),
    "shakespeare": (87_000, 21_000),
    "shakespeare in words": (65_000, 16_000),
}
"""Approximate numbers of training and test examples (of text: sequences)."""
LEAST_SECONDS = 0.3
MOST_EXAMPLES = 500
"""Examples of a local step that is measured."""
FORWARD = 1 / 3
"""Approximate cost of evaluating an example, relative to training on it."""


@dataclass(frozen=True)
class Cost:
    """Number of runs and rounds, and the seconds that they take on one core.

    ``seed_seconds`` are those of one seed at the chosen rate, without the search.
    """

    runs: int
    rounds: int
    seconds: float
    seed_seconds: float


def _sum(costs: Iterable[Cost]) -> Cost:
    each = list(costs)
    return Cost(
        sum(cost.runs for cost in each),
        sum(cost.rounds for cost in each),
        sum(cost.seconds for cost in each),
        sum(cost.seed_seconds for cost in each),
    )


def _runs_of(
    name: str,
    experiment: Experiment,
    scale: ScaleName,
    overrides: Mapping[str, Scalar],
    only: Sequence[str],
) -> dict[Hashable, Cost]:
    """Return the cost of each run; a search, whose runs are not known in advance, counts as one."""
    cells, costs = cells_without_data(experiment, scale, overrides), dict[Hashable, Cost]()
    for label, cost in costs_of_cells(experiment, scale, overrides).items():
        cell = cells[label]
        if cell is None or (only and not is_among(label, only)):
            continue
        if cell.rates or cell.options:
            costs[name, label] = cost
            continue
        count = len(cell.seeds)
        each = Cost(1, cost.rounds // count, cost.seconds / count, cost.seed_seconds)
        runs = (Request.of({**cell.settings, "seed": seed}, 0) for seed in cell.seeds)
        costs = _longest(costs, dict.fromkeys(runs, each))
    return costs


def _longest(first: dict[Hashable, Cost], second: dict[Hashable, Cost]) -> dict[Hashable, Cost]:
    """Merge two sets of runs; of a run that is in both, the longer contains the shorter.

    A run that records its updates is also the one that does not.
    """
    both, runs = [first, second], {**first, **second}
    return {
        run: max((each[run] for each in both if run in each), key=lambda cost: cost.rounds)
        for run in runs
        if not isinstance(run, Request) or run.with_updates == run or run.with_updates not in runs
    }


def costs_of_cells(
    experiment: Experiment, scale: ScaleName, overrides: Mapping[str, Scalar]
) -> dict[str, Cost]:
    """Estimate the cost of each cell that a scale runs.

    A table cell with a search is assumed to need its published rounds at the best rate, and
    ``patience`` times as many at each other rate of the initial grid.
    """
    own = experiment.at(scale)
    cells = cells_without_data(experiment, scale, overrides)
    return {
        label: _cell_cost(cell, experiment, own)
        for label, cell in cells.items()
        if cell is not None
    }


def _cell_cost(cell: Cell, experiment: Experiment, scale: Scale) -> Cost:
    allowed = (
        experiment.allowed if isinstance(experiment, TableItem) and scale.allowed is None else 0.0
    )
    expected = cell.rounds / allowed if allowed else cell.rounds
    options = int(np.prod([len(values) for values in cell.options.values()])) if cell.options else 1
    others = options * (2 * cell.rates.width + 1) - 1 if cell.rates else options - 1
    cut = cell.rates.patience if cell.rates and cell.measure == "rounds" and allowed else 1.0
    seeds, of_seed = len(cell.seeds), max(expected, cell.draw)
    rounds, seconds = seeds * of_seed + expected * others * cut, _round_seconds(cell)
    return Cost(others + seeds, round(rounds), rounds * seconds, of_seed * seconds)


def _round_seconds(cell: Cell) -> float:
    dataset, *cut = str(cell.settings["dataset"]).split(":")
    config = read_config({**cell.settings, "dataset": dataset})
    data = _data(config)
    train, test = map(int, cut) if cut else SIZES[data]
    clients = participants(config.fraction_train, config.num_clients)
    local = train / config.num_clients
    batch = max(min(config.batch_size or round(local), round(local)), 1)
    examples = config.local_steps * batch if config.local_steps else _epochs(cell, config) * local
    options = tuple((k, v) for k, v in cell.settings.items() if k.startswith(f"{config.model}."))
    kind = (config.model, options, config.transform, config.trainer)
    steps = math.ceil(examples / batch)
    each = _example_seconds(data, clients, steps, batch, *kind)
    evaluations = test * FORWARD / (config.eval_every or 1)
    evaluated = _example_seconds(data, 1, 10, min(100, test), *kind)
    return clients * examples * each + evaluations * evaluated


def _epochs(cell: Cell, config: RunConfig) -> float:
    """Return E, averaged over the rounds if it decays."""
    if config.local_epochs_decay == 1:
        return config.local_epochs
    return float(np.mean([RoundPlan.of(config, t).epochs for t in range(1, cell.rounds + 1)]))


def _data(config: RunConfig) -> str:
    words = f"{config.dataset} in words"
    data = words if config.text_unit == "words" and words in SIZES else config.dataset
    if data not in SIZES:
        raise ConfigError(
            f"--set dataset={config.dataset}: what a run costs is known of {', '.join(SIZES)} alone. "
            "Leave out --list, --hours and --queue."
        )
    return data


@functools.cache
def _example_seconds(
    data: str,
    clients: int,
    steps: int,
    batch: int,
    model: str,
    options: tuple[tuple[str, Scalar], ...],
    transform: str,
    trainer_name: str,
) -> float:
    """Measure the seconds of local training per example, in processor time of one thread.

    Of ``steps`` by a cohort of ``clients``, or of so many that they take ``LEAST_SECONDS``: a cohort
    has a cost of its own, and a trainer may work on several clients at once.
    """
    task, batch = TASKS[data], min(batch, MOST_EXAMPLES)
    clients = min(clients, MOST_EXAMPLES // batch)
    config = read_config(
        {
            "model": model,
            **dict(options),
            "transform": transform,
            "trainer": trainer_name,
            "local-epochs": 1,
            "batch-size": batch,
            "learning-rate": 1e-6,
            "partitioner": "iid",
        }
    )
    trainer, theta = make_trainer(config, task), initial_parameters(config, task)
    request = TrainRequest(replace(RoundPlan.of(config), reply="mean"), tuple(range(clients)))
    keep_memory()
    torch.set_num_threads(1)

    def measured(steps: int) -> float:
        examples = random_examples(task, steps * batch)
        began = time.process_time()
        reply = train_cohort(trainer, request, theta, {}, lambda _: examples)
        if reply.failures:
            problem = next(iter(reply.failures.values()))
            raise RuntimeError(f"local training of {model} on {data} failed: {problem}")
        return time.process_time() - began

    measured(1)  # warms up
    number = 1
    while (seconds := measured(number)) < LEAST_SECONDS and number < steps:
        number = min(2 * number, steps)
    return seconds / (clients * number * batch)


def random_examples(task: Task, count: int) -> Examples:
    """Return ``count`` random examples of a task, the same in every call."""
    rng = np.random.default_rng(0)
    if task.kind == "image":
        pixels = rng.integers(0, 256, (count, *task.input_shape), dtype=np.uint8)
        return Examples(pixels, rng.integers(0, task.num_classes, count))
    tokens = rng.integers(0, task.num_symbols, (count, task.input_shape[0] + 1))
    return Examples(tokens[:, :-1].copy(), tokens[:, 1:].copy())


def list_experiments(
    experiments: Mapping[str, Experiment],
    scale: ScaleName,
    jobs: int,
    overrides: Mapping[str, Scalar],
    only: Sequence[str] = (),
) -> Table:
    """Return the table of ``fedapp reproduce --list``."""
    table = Table("experiment", "what", "runs", "rounds", "time", box=None)
    all_runs: dict[Hashable, Cost] = {}
    for name, experiment in experiments.items():
        runs = _runs_of(name, experiment, scale, overrides, only)
        all_runs = _longest(all_runs, runs)
        idle = "seconds" if isinstance(experiment, Picture) else "not run"
        table.add_row(name, experiment.title, *_cost_cells(_sum(runs.values()), jobs, idle))
    if len(experiments) > 1:
        table.add_row(
            "total", "each run once", *_cost_cells(_sum(all_runs.values()), jobs, "not run")
        )
    device = choose_device(read_config({}))
    table.caption = (
        f"At --scale {scale}, {jobs} runs in parallel. Estimated from steps measured on {device} with "
        "one thread. A run shared by several experiments counts for each of them, and once in the total."
    )
    return table


def _cost_cells(cost: Cost, jobs: int, idle: str) -> tuple[str, str, str]:
    """Format runs, rounds and time."""
    if not cost.runs:
        return "-", "-", idle
    return f"{cost.runs:,}", f"{cost.rounds:,}", duration(cost.seconds / jobs)
