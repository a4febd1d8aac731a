"""From the first command to the end of round 1, by process: ``python -m benchmarks.startup``.

    python -m benchmarks.startup                # Flower's simulation, then a SuperLink and two SuperNodes
    python -m benchmarks.startup --app FOLDER   # the same of another checkout

Nothing is running before, and the run is the app's default, cut to one round. A process's CPU seconds
are those until the end of the round; what it waits for is in none of them.
"""

from __future__ import annotations

import statistics
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.parts import Watch, cpu_seconds, parts_now
from deploy.federation import ROOT, Federation
from deploy.latency import write_bare_app
from fedapp.config.settings import Scalar


class Part(NamedTuple):
    """When the first process of a part was seen, and CPU seconds of all, both in seconds."""

    began: float
    cpu: float


class Parts(Watch):
    """Keeps when each part began, and what CPU time its processes took."""

    every = 0.25

    def __init__(self) -> None:
        super().__init__()
        self.start_time = time.perf_counter()
        self._began: dict[str, float] = {}
        self._cpu: dict[tuple[str, int], float] = {}

    def look(self) -> None:
        """Read the processes' times; one that has ended keeps its last."""
        now = self.seconds
        for pid, name in parts_now().items():
            self._began.setdefault(name, now)
            try:
                self._cpu[name, pid] = cpu_seconds(pid)
            except OSError:
                continue

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self.start_time

    def found(self) -> dict[str, Part]:
        """Return each part."""
        cpu: dict[str, float] = defaultdict(float)
        for (name, _), seconds in self._cpu.items():
            cpu[name] += seconds
        return {name: Part(began, cpu[name]) for name, began in self._began.items()}


def begin(
    started: Federation, app: Path | None
) -> tuple[subprocess.Popen[bytes], Callable[[], bool]]:
    """Begin a run of one round; return it, and whether the round has ended."""
    if app is None:
        done, settings = started.folder / "done.json", started.folder / "bare.toml"
        settings.write_text(f"rounds = 1\nnodes = 2\nresult = '{done}'\n")
        bare = write_bare_app(started.folder / "bare")
        return started.begin(settings, "bare", app=bare), done.exists
    values: dict[str, Scalar] = {"num-server-rounds": 1, "min-nodes": 2}
    values |= {"data-cache": str(started.folder / "cache")}
    metrics = started.folder / "run" / "metrics.jsonl"
    run = started.begin(started.write_settings(values, "run"), "run", app=app)
    return run, lambda: metrics.exists() and metrics.read_text().count("\n") > 1  # after round 0's


def first_round(app: Path | None, *, simulation: bool) -> tuple[float, dict[str, Part]]:
    """Start everything, run to the end of round 1, and return its seconds and the parts.

    Without ``app`` it is an app of a few lines: a message to two nodes, which import PyTorch.
    """
    with tempfile.TemporaryDirectory() as folder:
        started, parts = Federation(Path(folder), simulation=simulation), Parts()
        parts.start()
        try:
            started.start_superlink()
            for name in () if simulation else ("first", "second"):
                started.start_node(name)
            run, is_over = begin(started, app)
            while not is_over():
                if run.poll() is not None:
                    raise RuntimeError(f"the run ended without a round:\n{started.logs()}")
                time.sleep(0.05)
            end = parts.seconds
            parts.stop()
            return end, parts.found()
        finally:
            parts.stop()
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
