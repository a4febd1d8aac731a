"""Flower's simulation on W1: this app's cohorts beside one SuperNode a client.

    python -m benchmarks.simulation

Starts a SuperLink on a free port and runs all on it, with one Ray actor a core, or one for all cores.
Without FEDAPP_DATA the digits stand in for MNIST. "training" is the longest that one node's clients
trained in a round; with one SuperNode a client several nodes share an actor, so there it says nothing of
a round.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.workloads import WORKLOADS
from deploy.federation import federation

WARM_UP = 3
"""Rounds that do not count: Ray's actors read the data in their first."""


def main(
    rounds: Annotated[int, typer.Option(min=8, help="Rounds of each run.")] = 23,
    actors: Annotated[int, typer.Option(min=1, help="Ray actors.")] = os.cpu_count() or 1,
    trainer: Annotated[str, typer.Option(help="The trainer of all rows.")] = "sequential",
) -> None:
    """Print the medians of the rounds of each run."""
    values = WORKLOADS["W1"].values("", 1)
    if values is None:
        raise RuntimeError("W1 has a stand-in")
    values = {k: v for k, v in values.items() if k != "run-dir"} | {
        "num-server-rounds": rounds,
        "trainer": trainer,
    }
    clients = int(values["num-clients"])
    own = values | {"num-clients": 0, "min-nodes": clients}
    table = Table(
        "what", "round, s", "training, s", "the rest, s", title=f"W1 on {actors} actors, {trainer}"
    )
    with tempfile.TemporaryDirectory() as folder, federation(Path(folder), simulation=True) as here:
        threaded = values | {"threads": actors}
        for row, (what, settings, nodes, cpus) in enumerate(
            (
                (f"cohorts: {actors} SuperNodes, {clients} clients", values, actors, 1),
                (f"cohorts: one SuperNode of {actors} threads", threaded, 1, actors),
                (f"one SuperNode a client: {clients}", own, clients, 1),
            )
        ):
            resources = f"num-supernodes={nodes} client-resources-num-cpus={cpus}"
            done = here.run(settings, f"row-{row}", federation_config=resources)
            medians = _medians(done)
            table.add_row(what, *(f"{seconds:.3f}" for seconds in medians))
    Console().print(table)


def _medians(folder: Path) -> tuple[float, float, float]:
    """Return the median seconds of a run's round, of its training, and of the rest."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()[1 + WARM_UP :]
    seconds = [json.loads(line)["seconds"] for line in lines]
    return (
        statistics.median(s["round"] for s in seconds),
        statistics.median(s["train"] for s in seconds),
        statistics.median(s["round"] - s["train"] for s in seconds),
    )


if __name__ == "__main__":
    typer.run(main)
