"""From the first command to the end of round 1, by process: ``python -m benchmarks.startup``.

    python -m benchmarks.startup                # Flower's simulation, then a SuperLink and two SuperNodes
    python -m benchmarks.startup --app FOLDER   # the same of another checkout

Nothing is running before, and the run is the app's default, cut to one round. A process's CPU seconds
are those until the end of the round; what it waits for is in none of them.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.devices import cpu_seconds
from deploy.federation import ROOT, Federation
from deploy.latency import write_bare_app
from deploy.processes import descendants
from fedapp.config.run_config import Scalar

PARTS = {
    "flower-superlink": "SuperLink",
    "flower-superexec": "SuperExec",
    "flwr-serverapp": "ServerApp",
    "flwr-simulation": "ServerApp and simulation",
    "flower-supernode": "SuperNodes",
    "flwr-clientapp": "ClientApps",
    "ray::ClientAppActor": "Ray's actors",
    "ray": "Ray",
    "flwr run": "flwr run",
}
"""What a process is called, by the first of these that its command has."""
EVERY = 0.1


class Part(NamedTuple):
    """When the first process of a part began, and CPU seconds of all, both in seconds."""

    began: float
    cpu: float


class Watch(threading.Thread):
    """Looks at this process's descendants until it is stopped."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.start_time, self.over = time.perf_counter(), threading.Event()
        self._part: dict[int, str] = {}
        self._began: dict[str, float] = {}
        self._cpu: dict[int, float] = {}

    def run(self) -> None:
        """Look at intervals."""
        while not self.over.wait(EVERY):
            self._look()

    def _look(self) -> None:
        now = time.perf_counter() - self.start_time
        for pid, row in descendants(os.getpid()).items():
            name = next((name for word, name in PARTS.items() if word in row.command), "")
            if name and pid != os.getpid():
                self._part[pid] = name
                self._began.setdefault(name, now)
                try:
                    self._cpu[pid] = cpu_seconds(pid)
                except OSError:
                    continue

    def stop(self) -> tuple[float, dict[str, Part]]:
        """Return the seconds until now, and each part."""
        end = time.perf_counter() - self.start_time
        self.over.set()
        self.join()
        cpu: dict[str, float] = defaultdict(float)
        for pid, seconds in self._cpu.items():
            cpu[self._part[pid]] += seconds
        return end, {name: Part(began, cpu[name]) for name, began in self._began.items()}


def first_round(app: Path | None, *, simulation: bool) -> tuple[float, dict[str, Part]]:
    """Start everything, run to the end of round 1, and return its seconds and the parts.

    Without ``app`` it is an app of a few lines, whose client imports PyTorch.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        started = Federation(folder, simulation=simulation)
        watch = Watch()
        watch.start()
        try:
            started.start_superlink()
            if not simulation:
                started.start_node("first")
                started.start_node("second")
            if app is None:
                done = folder / "done.json"
                settings = folder / "bare.toml"
                settings.write_text(f"rounds = 1\nresult = '{done}'\n")
                run = started.begin(settings, "bare", app=write_bare_app(folder / "bare"))
            else:
                done = folder / "run" / "metrics.jsonl"
                values: dict[str, Scalar] = {"num-server-rounds": 1, "min-nodes": 2}
                values |= {"data-cache": f"{folder}/cache"}
                run = started.begin(started.write_settings(values, "run"), "run", app=app)
            lines = 2 if app else 0  # of metrics.jsonl: round 0, and round 1
            while not (done.exists() and done.read_text().count("\n") >= lines):
                if run.poll() is not None:
                    raise RuntimeError(f"the run ended without a round:\n{started.logs()}")
                time.sleep(0.05)
            return watch.stop()
        finally:
            watch.over.set()
            started.stop()


def main(
    app: Annotated[Path, typer.Option(help="The app's folder.")] = ROOT,
    turns: Annotated[int, typer.Option(min=1, help="Turns of which the medians are taken.")] = 3,
) -> None:
    """Print a table for each engine and app."""
    apps = {"an app of a few lines": None, "this app": app.resolve()}
    for engine, simulation in (("flwr run .", True), ("SuperLink, two SuperNodes", False)):
        for what, folder in apps.items():
            found = [first_round(folder, simulation=simulation) for _ in range(turns)]
            end = statistics.median(seconds for seconds, _ in found)
            title = f"{engine}, {what}: round 1 ends after {end:.1f} s"
            table = Table("part", "begins, s", "CPU s", title=title)
            parts = [part for _, part in found]
            for name in sorted(parts[0], key=lambda name: parts[0][name].began):
                rows = [part[name] for part in parts if name in part]
                began, cpu = (statistics.median(row[column] for row in rows) for column in (0, 1))
                table.add_row(name, f"{began:.1f}", f"{cpu:.1f}")
            Console().print(table)


if __name__ == "__main__":
    typer.run(main)
