"""What each graph rewrite of the batched trainer saves: ``python -m benchmarks.rewrites [W1 ... W5]``.

A trainer with all rewrites, trainers that each lack one, and one that lacks all take turns in one
process of one thread, each with a round of the workload, without messages and server. Printed are the
seconds with all, and for each other trainer the median over the turns of its time over that in the same
turn, with the quartiles. Times are CPU seconds, which other processes change less than seconds.
"""

from __future__ import annotations

import contextlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any
from unittest.mock import patch

import click
import torch
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.trainers import Round, trainer_round
from benchmarks.turns import conditions, ratio
from benchmarks.workloads import WORKLOADS
from fedapp.config.read import read_config
from fedapp.data.node_data import read_node_data
from fedapp.training import build

BATCHED = "fedapp.training.batched"
LIMITS = {"W1": (10, 0), "W2": (2, 15), "W3": (1, 8), "W4": (5, 0), "W5": (1, 2)}
"""Clients a round, and local steps of each at most (0: all), so that a turn takes seconds."""

console = Console()


def _none(*_: object) -> None:
    """Stand in for a rewrite that finds nothing to do."""


REWRITES: Mapping[str, Mapping[str, Callable[..., Any]]] = {
    "views of the same shape removed": {"graph_updates._remove_no_op_views": _none},
    "matmuls added into the weights": {"graph_updates._as_matmul": _none},
    "other terms added into the weights": {"graph_updates._same_shape": lambda *_: False},
    "matmuls by oneDNN": {"graph_matmul._replace_matmul": _none},
    "updates by oneDNN": {"graph_matmul._replace_addmm": _none},
    "compiled around the matmuls": {"compiled_step.compile_around_matmuls": _none},
}
"""What stands in for functions of the batched trainer where a rewrite is left out."""


@contextlib.contextmanager
def without(rewrites: Sequence[str]) -> Iterator[None]:
    """Trace steps without some of the rewrites."""
    with contextlib.ExitStack() as stack:
        for name in rewrites:
            for target, stand_in in REWRITES[name].items():
                stack.enter_context(patch(f"{BATCHED}.{target}", stand_in))
        yield


def rounds(name: str, folder: str, clients: int, steps: int) -> dict[str, Round]:
    """Return a round of a workload with all rewrites, without each, and without any, traced."""
    config = WORKLOADS[name].config(folder, 1, steps)
    if config is None:
        raise typer.BadParameter(f"{name} needs its data set: FEDAPP_DATA=FOLDER")
    limited = {"trainer": "batched", "fraction-train": clients / config.num_clients}
    config = read_config({**config.to_run_config(), **limited})
    node_data, found = read_node_data(config, None), dict[str, Round]()
    mode = build.choose_program(config, torch.device("cpu"))
    left_out = {"all rewrites": list[str]()} | {name: [name] for name in REWRITES}
    if mode != "compile":
        del left_out["compiled around the matmuls"]
    for row, rewrites in {**left_out, "none": [*REWRITES]}.items():
        build._batched.cache_clear()
        with without(rewrites):
            found[row] = trainer_round(config, node_data)
            found[row]()
    return found


def cpu_seconds(found: Mapping[str, Round], turns: int) -> dict[str, list[float]]:
    """Return the CPU seconds of each row in each turn; every turn begins with another row."""
    times: dict[str, list[float]] = {row: [] for row in found}
    order = list(found)
    for _ in range(turns):
        for row in order:
            began = time.process_time()
            found[row]()
            times[row].append(time.process_time() - began)
        order = [*order[1:], order[0]]
    return times


def quartiles(times: Sequence[float], base: Sequence[float]) -> str:
    """Return the quartiles of the turns' ratios."""
    first, _, third = statistics.quantiles(
        (mine / other for mine, other in zip(times, base, strict=True)), n=4
    )
    return f"{first:.3f} to {third:.3f}"


def main(
    names: Annotated[
        list[str] | None, typer.Argument(click_type=click.Choice(list(LIMITS)))
    ] = None,
    turns: Annotated[int, typer.Option(min=2)] = 10,
) -> None:
    """Print a table a workload."""
    torch.set_num_threads(1)
    console.print(conditions(turns), highlight=False)
    for name in names or list(WORKLOADS):
        clients, steps = LIMITS[name]
        with tempfile.TemporaryDirectory() as folder:
            times = cpu_seconds(rounds(name, folder, clients, steps), turns)
        base = times["all rewrites"]
        limit = f"{clients} clients" + (f", at most {steps} steps each" if steps else "")
        title = f"{name}, {limit}: {statistics.median(base):.3f} s with all"
        table = Table("without", "of the time with all", "quartiles", title=title)
        for row, mine in times.items():
            table.add_row(row, f"{ratio(mine, base):.3f}", quartiles(mine, base))
        console.print(table)


if __name__ == "__main__":
    typer.run(main)
