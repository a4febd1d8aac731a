"""Runs of a sweep in one compiled step, and one after another: ``python -m benchmarks.stacked [W1]``.

Each run has a learning rate of its own; its clients train a round of the workload, without messages and
server. Printed are the CPU seconds of all runs, and the ratio in the same turn with its quartiles.
"""

from __future__ import annotations

import statistics
import tempfile
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated

import click
import torch
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.rewrites import cpu_seconds, quartiles
from benchmarks.trainers import Round, trainer_round
from benchmarks.turns import conditions, ratio
from benchmarks.workloads import WORKLOADS
from fedapp.config.read import read_config
from fedapp.data.node_data import read_node_data
from fedapp.training.batched.run_batching import RunBatch

console = Console()


def stacked(runs: list[Round]) -> Round:
    """Return a round of all runs, each in a thread, whose clients train together."""

    def run_in(run_batch: RunBatch, run: Round) -> None:
        with run_batch.taking_part():
            run()

    def call() -> None:
        run_batch = RunBatch(len(runs))
        with ThreadPoolExecutor(len(runs)) as pool:
            for done in [pool.submit(run_in, run_batch, run) for run in runs]:
                done.result()

    return call


def main(
    name: Annotated[str, typer.Argument(click_type=click.Choice(list(WORKLOADS)))] = "W1",
    count: Annotated[int, typer.Option("--runs", min=2)] = 11,
    turns: Annotated[int, typer.Option(min=2)] = 10,
    steps: Annotated[int, typer.Option(help="Local steps of a client at most.")] = 0,
) -> None:
    """Print a row for each way."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        config = WORKLOADS[name].config(folder, 1, steps)
        if config is None:
            raise typer.BadParameter(f"{name} needs its data set: FEDAPP_DATA=FOLDER")
        node_data, values = read_node_data(config, None), config.to_run_config()
        rates = [{"learning-rate": config.learning_rate * 0.8**i} for i in range(count)]
        runs = [
            trainer_round(read_config({**values, "trainer": "batched", **rate}), node_data)
            for rate in rates
        ]

        def one_after_another() -> None:
            for run in runs:
                run()

        found = {"one after another": one_after_another, "in one step": stacked(runs)}
        for call in found.values():
            call()
        times = cpu_seconds(found, turns)
    base = times["one after another"]
    table = Table("runs", "CPU s", "ratio", "quartiles", title=f"{name}, {count} learning rates")
    for row, mine in times.items():
        table.add_row(
            row, f"{statistics.median(mine):.3f}", f"{ratio(mine, base):.3f}", quartiles(mine, base)
        )
    console.print(conditions(turns), highlight=False)
    console.print(table)


if __name__ == "__main__":
    typer.run(main)
