"""Real SuperNodes on this machine, with TLS and authentication: seconds a round and memory.

    python -m benchmarks.devices                        # 10 and 20 of them
    python -m benchmarks.devices --nodes 50 --rounds 0  # idle ones, without a run

A SuperLink and the SuperNodes are processes as in ``docs/deploy.md``, each node with a part of the
handwritten digits as its own data. All share this machine's cores, so the seconds are those of so
many devices on it. "idle" is the share of a core that the SuperLink takes for the polls and heartbeats
of nodes without work. The memory of a process is its share (PSS), shared pages divided.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Annotated, NamedTuple

import datasets
import typer

from benchmarks.parts import Watch, cpu_seconds, parts_now
from deploy.credentials import make_credentials
from deploy.demo import write_devices
from deploy.federation import Federation
from deploy.processes import BIN
from fedapp.config.settings import Scalar
from fedapp.runs.metrics import read_metrics

NODES = (10, 20)
IDLE_SECONDS = 60
NICE = 10
"""Of the nodes: the SuperLink goes before them, as on a machine of its own."""
COLUMNS = ("SuperLink", "SuperExec", "ServerApp", "SuperNode", "ClientApp")
"""The parts whose memory is shown; of SuperNode and ClientApp there is one a node."""


class Memory(Watch):
    """Keeps the largest memory of each part, in megabytes, until it is stopped."""

    every = 2.0

    def __init__(self) -> None:
        super().__init__()
        self.largest: dict[str, float] = defaultdict(float)

    def look(self) -> None:
        """Add up each part's processes."""
        now: dict[str, float] = defaultdict(float)
        for pid, part in parts_now().items():
            now[part] += proportional(pid)
        for part, megabytes in now.items():
            self.largest[part] = max(self.largest[part], megabytes)


def proportional(pid: int) -> float:
    """Return the memory of a process in megabytes, shared pages divided by those that share them."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:")), 0.0)


class Measured(NamedTuple):
    """Share of a core that the SuperLink takes for the idle nodes, seconds, and megabytes by part."""

    idle: float
    start: float
    rounds: list[float]
    memory: dict[str, float]


def idle_share(pid: int) -> float:
    """Return the share of a core that a process takes now."""
    before = cpu_seconds(pid)
    time.sleep(IDLE_SECONDS)
    return (cpu_seconds(pid) - before) / IDLE_SECONDS


def _connected(started: Federation) -> int:
    command = [str(BIN / "flwr"), "supernode", "list", "here", "--format", "json"]
    listed = subprocess.run(
        command, env=started.environment, capture_output=True, text=True, check=True
    )
    return sum(node["status"] == "online" for node in json.loads(listed.stdout)["nodes"])


def run(started: Federation, nodes: int, rounds: int, dataset: str) -> list[float]:
    """Run on all nodes and return the seconds of each round."""
    settings: dict[str, Scalar] = {
        "num-clients": 0,
        "fraction-train": 1.0,
        "min-nodes": nodes,
        "node-timeout": 3600.0,
        "num-server-rounds": rounds,
        "local-epochs": 1,
        "dataset": dataset,
        "eval-every": 0,
        "data-cache": str(started.folder / "cache"),
    }
    process = started.begin(started.write_settings(settings, "run"), "run")
    started.wait_for(process, "run", seconds=None)
    records = read_metrics(started.folder / "run" / "metrics.jsonl")
    return [record["seconds"]["round"] for record in records[1:]]


def measure(nodes: int, rounds: int, folder: Path) -> Measured:
    """Start a federation, let it idle, and run rounds on it, if any."""
    devices = [f"device-{number}" for number in range(nodes)]
    started = Federation(
        folder, credentials=make_credentials(folder / "keys", ["127.0.0.1"], devices)
    )
    memory = Memory()
    try:
        started.start_superlink()
        dataset = write_devices(folder, devices=devices)
        memory.start()
        began = time.perf_counter()
        for number, device in enumerate(devices):
            started.register(device)
            data = str(folder / device / "data")
            node = started.start_node(device, data_path=data, client_id=number)
            os.setpriority(os.PRIO_PROCESS, node.pid, NICE)
        while _connected(started) < nodes:
            time.sleep(2)
        start = time.perf_counter() - began
        idle = idle_share(started.superlink.pid)
        spent = run(started, nodes, rounds, dataset) if rounds else []
        return Measured(idle, start, spent, dict(memory.largest))
    finally:
        memory.stop()
        started.stop()


def main(
    nodes: Annotated[list[int] | None, typer.Option(help="SuperNodes.")] = None,
    rounds: Annotated[int, typer.Option(help="Rounds. 0: no run.")] = 5,
) -> None:
    """Print a row for every number of nodes."""
    datasets.disable_progress_bars()
    print(
        f"{'nodes':>6}{'start, s':>10}{'idle, %':>11}{'first round, s':>16}{'others, s':>11}",
        end="",
    )
    print("".join(f"{part + ', MiB':>15}" for part in COLUMNS))
    for count in nodes or NODES:
        with tempfile.TemporaryDirectory() as folder:
            found = measure(count, rounds, Path(folder))
        first, *others = found.rounds or [math.nan]
        print(f"{count:6}{found.start:10.1f}{100 * found.idle:11.1f}{first:16.1f}", end="")
        print(f"{statistics.median(others or [math.nan]):11.1f}", end="")
        print("".join(f"{found.memory.get(part, 0.0):15,.0f}" for part in COLUMNS), flush=True)


if __name__ == "__main__":
    typer.run(main)
