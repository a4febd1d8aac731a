"""The test of a model beside a bare loop: `python -m benchmarks.evaluation`.

The bare loop puts the same examples, in batches of 1,000 as the data set holds them, through the
same network with one thread. The two take turns in one run.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable
from typing import Annotated

import torch
import torch.nn.functional as F
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.turns import conditions, ratio, take_turns
from fedapp.config.read import read_config
from fedapp.config.run_config import RunConfig
from fedapp.data.dataset import Examples, Task
from fedapp.data.load import load_transform
from fedapp.studies.papers.costs import TASKS, random_examples
from fedapp.training.build import (
    initial_parameters,
    make_evaluator,
    make_model,
    make_module,
)

BATCH = 1000
NETWORKS = {
    "2nn": ("mnist", "scale", 2000),
    "mnist-cnn": ("mnist", "scale", 2000),
    "seo-cnn": ("cifar10", "scale", 2000),
    "cifar-tf": ("cifar10", "cifar24", 2000),
    "char-lstm": ("shakespeare", "scale", 400),
}
"""For each network its data, their transform, and how many examples are evaluated."""


def bare_loop(config: RunConfig, task: Task, examples: Examples) -> Callable[[], None]:
    """Return a loop over the batches that sums losses and hits."""
    module, model = make_module(config, task).eval(), make_model(config)
    transform = load_transform(config)
    inputs = torch.from_numpy(examples.inputs).split(BATCH)
    shown = [transform.test(batch, torch.float32) for batch in inputs]
    targets = torch.from_numpy(examples.targets).long().split(BATCH)

    def loop() -> None:
        with torch.no_grad():
            for batch, wanted in zip(shown, targets, strict=True):
                outputs = module(batch)
                F.cross_entropy(outputs, wanted).item()
                model.num_correct(outputs, wanted)

    return loop


def own_evaluation(config: RunConfig, task: Task, examples: Examples) -> Callable[[], object]:
    """Return the project's own evaluation of the initial model."""
    evaluator = make_evaluator(config, task, examples)
    return functools.partial(evaluator.score, initial_parameters(config, task))


def main(turns: Annotated[int, typer.Option(min=1, help="Turns of each.")] = 7) -> None:
    """Print milliseconds for 1,000 examples, and the ratio to the bare loop."""
    torch.set_num_threads(1)
    table = Table("network", "bare loop, ms", "fedapp, ms", "ratio", box=None)
    for name, (data, transform, count) in NETWORKS.items():
        config = read_config({"model": name, "transform": transform})
        examples = random_examples(TASKS[data], count)
        times = take_turns(
            {
                "bare": bare_loop(config, TASKS[data], examples),
                "fedapp": own_evaluation(config, TASKS[data], examples),
            },
            turns,
        )
        ms = [1e6 * statistics.median(taken) / count for taken in times.values()]
        by_bare = ratio(times["fedapp"], times["bare"])
        table.add_row(name, f"{ms[0]:.1f}", f"{ms[1]:.1f}", f"{by_bare:.2f}")
    console = Console()
    console.print(conditions(turns), highlight=False)
    console.print(table)


if __name__ == "__main__":
    typer.run(main)
