"""Seconds a round of every trainer and engine beside a bare PyTorch loop over the same clients.

    python -m benchmarks              all workloads; FEDAPP_DATA names the folder with the data sets
    python -m benchmarks W0 W1        some
    python -m benchmarks W2 --steps 5 clients cut to five local steps, for a quick look

Every row has its turn after every other, and a ratio is the median over the turns of the row's time
over that of a bare loop (of one process, of several) in the same turn, so that a machine that is
slow for a while is slow for all.
"""

from __future__ import annotations

import contextlib
import logging
import statistics
import tempfile
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table

from benchmarks import idle as idle_app
from benchmarks.rows import inline_round, rows, workers_round
from benchmarks.turns import conditions, ratio, take_turns
from benchmarks.workloads import WORKLOADS, Workload, idle
from fedapp.config.run_config import RunConfig
from fedapp.data.node_data import read_node_data

OTHERS = (
    *("simulation", "peers", "memory", "gpu", "lstm", "data_cache FOLDER", "partitions FOLDER"),
    *("stacked", "defaults", "same_speed OLD [NEW]", "same_numbers OLD [NEW]", "devices", "load"),
    *("evaluation", "rewrites", "startup", "scaling", "normalisation", "house", "round_picture"),
)
IDLE_ROUNDS = 100
"""Rounds of a millisecond that make one measurement."""

console = Console()


def main(
    names: Annotated[list[str] | None, typer.Argument(metavar="[W0 .. W5]...")] = None,
    turns: Annotated[int, typer.Option(min=5, help="Turns of which the medians are taken.")] = 5,
    workers: Annotated[int, typer.Option(min=1, help="Processes of the rows with several.")] = 2,
    steps: Annotated[int, typer.Option(min=0, help="Local steps a client. 0: all.")] = 0,
) -> None:
    """Print a table a workload; end with 1 where one that is named has no data."""
    if unknown := [name for name in names or [] if name not in ("W0", *WORKLOADS)]:
        raise SystemExit(f"{', '.join(unknown)}: must be of W0, {', '.join(WORKLOADS)}.")
    logging.getLogger("flwr").setLevel(logging.WARNING)
    torch.set_num_threads(1)
    console.print(conditions(turns), highlight=False)
    left_out = []
    for name in names or ["W0", *WORKLOADS]:
        if name == "W0":
            measure_idle(turns, workers)
        elif not measure(name, WORKLOADS[name], turns, workers, steps):
            left_out.append(f"{name} is left out: it needs FEDAPP_DATA with {WORKLOADS[name].data}")
    console.print("Others: " + ", ".join(f"python -m benchmarks.{other}" for other in OTHERS))
    for why in left_out:
        console.print(why, highlight=False)
    if left_out and names:
        raise typer.Exit(1)


def measure(name: str, workload: Workload, turns: int, workers: int, steps: int) -> bool:
    """Print the rows of one workload as ratios to its bare loop; return whether its data are there."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        config = workload.config(folder, 1, steps)
        if config is None:
            return False
        node_data = read_node_data(config, None)
        times = take_turns(dict(rows(config, node_data, workers, stack)), turns)
    cut = f", {steps} local steps" if steps else ""
    title = f"{name}: {workload.title}{cut}; {Path(config.dataset).name}"
    columns = ("what", "seconds a round", "of one process", f"of {workers} processes")
    table = Table(*columns, title=title, title_justify="left")
    bare = list(times.values())[:2]
    for row, taken in times.items():
        ratios = (f"{ratio(taken, base):.2f}" for base in bare)
        table.add_row(row, f"{statistics.median(taken):.4f}", *ratios)
    console.print(table)
    return True


def measure_idle(turns: int, workers: int) -> None:
    """Print milliseconds a round of W0: there is no work to compare with."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        found = {}
        for clients in (100, 1_000_000):
            config = _idle_config(clients, folder)
            node_data = read_node_data(config, None)
            found[f"in-process, K = {clients:,}"] = inline_round(config, node_data, idle_app.app)
            for every in (0, 1) if clients == 100 else ():
                written = config.model_copy(
                    update={"run_dir": f"{folder}/{every}", "checkpoint_every": every}
                )
                title = " + metrics, TensorBoard" + (", a checkpoint every round" if every else "")
                found[title] = inline_round(written, node_data, idle_app.app, callbacks=True)
            if clients == 100:
                found[f"Ray workers, {workers}"] = stack.enter_context(
                    workers_round(config, node_data, workers, "benchmarks.idle:app")
                )
        times = take_turns(found, turns, IDLE_ROUNDS)
    table = Table("what", "ms a round", title="W0: ten clients that do nothing")
    for row, taken in times.items():
        table.add_row(row, f"{1e3 * statistics.median(taken):.2f}")
    console.print(table)


def _idle_config(clients: int, folder: str) -> RunConfig:
    config = idle(clients).config(f"{folder}/{clients}", 1)
    if config is None:
        raise RuntimeError("W0 needs no data")
    return config


if __name__ == "__main__":
    app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
    app.command()(main)
    app()
