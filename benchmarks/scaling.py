"""W1, W2 and an evaluation of 10,000 images on one and two Ray workers: ``python -m benchmarks.scaling``.

Each row is a ``fedapp run``: without Ray, on a raylet of two cores, or on two raylets of one core each.
The bare loop over the same clients, in one process of one thread, runs before and after every row; a
row's ratio is to the median of its neighbours. Bytes are those put into the object stores, by node and
round.
"""

from __future__ import annotations

import contextlib
import logging
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import click
import ray
import torch
import typer
from ray._private.internal_api import node_stats
from ray.cluster_utils import Cluster
from rich.console import Console
from rich.table import Table

from benchmarks.bare import bare_loop, clients_of
from benchmarks.turns import conditions, median_seconds
from benchmarks.workloads import WORKLOADS
from fedapp.data.node_data import read_node_data
from fedapp.engines.ray_cluster import ENVIRONMENT
from fedapp.runs.metrics import read_metrics

ROUNDS = {"W1": 40, "W2": 8}
UNTIMED = 2
"""First rounds of a run that do not count."""
PLACES = {
    "in process": (),
    "1 worker": (2,),
    "2 workers, one raylet": (2,),
    "1 + 1 workers, two raylets": (1, 1),
}
"""For each row the cores of each raylet."""


class Measured(NamedTuple):
    """Seconds of a round's training and of an evaluation, and megabytes a round by node."""

    train: float
    evaluate: float
    megabytes: list[float]
    """The most first."""


@contextlib.contextmanager
def raylets(cores: Sequence[int]) -> Iterator[str]:
    """Yield the address of a cluster of raylets with so many cores each, or "" of none."""
    if not cores:
        yield ""
        return
    node: dict[str, Any] = {"object_store_memory": 200 * 2**20, "include_dashboard": False}
    started: Any = Cluster(initialize_head=True, head_node_args={**node, "num_cpus": cores[0]})
    try:
        for number, num_cpus in enumerate(cores[1:], start=2):
            started.add_node(**node, num_cpus=num_cpus, node_ip_address=f"127.0.0.{number}")
        yield str(started.address)
    finally:
        started.shutdown()


def bytes_stored(address: str) -> dict[str, int]:
    """Return the bytes that were ever put into each node's object store, by the node's id."""
    ray.init(address, logging_level=logging.ERROR)
    try:
        stored = {}
        for node in ray.nodes():
            place = node["NodeManagerAddress"], node["NodeManagerPort"]
            stats = node_stats(*place, include_memory_info=False).store_stats
            stored[node["NodeID"]] = stats.cumulative_created_bytes
        return stored
    finally:
        ray.shutdown()


def measure(name: str, workers: int, address: str, folder: Path) -> Measured:
    """Run one workload and return its medians."""
    values = WORKLOADS[name].values(str(folder), 1)
    assert values is not None
    rounds = ROUNDS[name]
    values |= {"eval-every": 1, "num-server-rounds": rounds, "trainer": "sequential"}
    options = ["--workers", str(workers), "--ray-address", address] if workers else []
    settings = [f"{key}={value}" for key, value in values.items()]
    before = bytes_stored(address) if address else {}
    command = [sys.executable, "-m", "fedapp.cli.main", "run", *options, *settings]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    after = bytes_stored(address) if address else {}
    seconds = [row["seconds"] for row in read_metrics(folder / "metrics.jsonl")][UNTIMED + 1 :]
    train, evaluate = (
        statistics.median(row[part] for row in seconds) for part in ("exchange", "evaluate")
    )
    megabytes = [(after[node] - before[node]) / rounds / 1e6 for node in after]
    return Measured(train, evaluate, sorted(megabytes, reverse=True))


def seconds_bare(name: str, folder: str) -> float:
    """Return the median seconds of the bare loop over one round's clients."""
    config = WORKLOADS[name].config(folder, 1)
    assert config is not None
    train = bare_loop(config, read_node_data(config, None), clients_of(config))
    return median_seconds(train, torch.device("cpu"), 5)


def main(
    names: Annotated[
        list[str] | None, typer.Argument(click_type=click.Choice(list(ROUNDS)))
    ] = None,
) -> None:
    """Print a table a workload."""
    names = names or list(ROUNDS)
    for name in names:
        if WORKLOADS[name].values("", 1) is None:
            raise SystemExit(f"{name} needs FEDAPP_DATA with {WORKLOADS[name].data}")
    os.environ.update(ENVIRONMENT, OMP_NUM_THREADS="1", PYTHONPATH=os.pathsep.join(sys.path))
    torch.set_num_threads(1)
    console = Console()
    console.print(conditions(), highlight=False)
    for name in names:
        table = Table("what", "round, s", "of bare", "evaluation, s", "MB a round", title=name)
        with tempfile.TemporaryDirectory() as folder:
            bare = [seconds_bare(name, folder)]
            found = {}
            for place, cores in PLACES.items():
                workers = {"in process": 0, "1 worker": 1}.get(place, 2)
                with raylets(cores) as address:
                    found[place] = measure(name, workers, address, Path(folder) / place)
                bare.append(seconds_bare(name, folder))
        table.add_row("bare loop", f"{statistics.median(bare):.3f}", "1.00", "", "")
        for number, (place, row) in enumerate(found.items()):
            beside = statistics.median(bare[number : number + 2])
            size = " + ".join(f"{each:.1f}" for each in row.megabytes)
            ratio, evaluation = f"{row.train / beside:.2f}", f"{row.evaluate:.3f}"
            table.add_row(place, f"{row.train:.3f}", ratio, evaluation, size)
        console.print(table)


if __name__ == "__main__":
    typer.run(main)
