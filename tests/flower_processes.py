"""Flower's own processes on free ports of the loopback: a SuperLink, SuperNodes, `flwr run`."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from fedapp.config import Scalar

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
START_SECONDS, RUN_SECONDS, STOP_SECONDS = 120.0, 600.0, 15.0


def free_port() -> int:
    """Return a port that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def environment(home: Path) -> dict[str, str]:
    """Return an environment in which Flower keeps to `home` and to this machine."""
    return {
        **os.environ,
        "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}",
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
    }


class Row(NamedTuple):
    """A process as `ps` shows it; its time of start tells it from a later one of its number."""

    parent: int
    start: str
    command: str


def _process_table() -> dict[int, Row]:
    """Return every process by its id."""
    lines = subprocess.run(
        ["ps", "-axww", "-o", "pid=,ppid=,lstart=,command="],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    words = (line.split(None, 7) for line in lines)
    return {int(w[0]): Row(int(w[1]), " ".join(w[2:7]), " ".join(w[7:])) for w in words}


def descendants(pid: int) -> dict[int, Row]:
    """Return a process and all its descendants."""
    table = _process_table()
    found = {pid: table[pid]} if pid in table else {}
    grown = True
    while grown:
        more = {p: row for p, row in table.items() if row.parent in found and p not in found}
        found |= more
        grown = bool(more)
    return found


def kill(processes: Mapping[int, Row]) -> None:
    """End those of the processes that are still there, at once."""
    table = _process_table()
    for pid, row in processes.items():
        if pid in table and table[pid].start == row.start:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


class Federation:
    """A SuperLink and what was started beside it; `stop` ends all of it, by pid."""

    def __init__(self, folder: Path, *, simulation: bool) -> None:
        self.folder = folder
        self.port = free_port()
        self._processes: list[subprocess.Popen[bytes]] = []
        home = folder / "flwr"
        home.mkdir(parents=True)
        self._environment = environment(home)
        (home / "config.toml").write_text(
            '[superlink]\ndefault = "here"\n\n'
            f'[superlink.here]\naddress = "127.0.0.1:{self.port}"\ninsecure = true\n'
        )
        superlink = ["flower-superlink", "--insecure", "--host", "127.0.0.1"]
        superlink += ["--port", str(self.port), "--disable-runtime-dependency-installation"]
        self.start("superlink", *superlink, *(["--simulation"] if simulation else []))
        self._wait_for_health()

    def start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        """Start a process in a session of its own, its output in `<name>.log`."""
        with (self.folder / f"{name}.log").open("ab") as output:
            process = subprocess.Popen(
                [str(BIN / command[0]), *command[1:]],
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                cwd=self.folder,
                env=self._environment,
                start_new_session=True,
            )
        self._processes.append(process)
        return process

    def start_node(self, name: str, **node_config: Scalar) -> None:
        """Start a SuperNode; its node-config has underscores for hyphens."""
        pairs = (f"{k.replace('_', '-')}={json.dumps(v)}" for k, v in node_config.items())
        options = ["--node-config", " ".join(pairs)] if node_config else []
        superlink = ["--insecure", "--superlink", f"127.0.0.1:{self.port}"]
        ports = ["--host", "127.0.0.1", "--port", str(free_port())]
        self.start(name, "flower-supernode", *superlink, *ports, *options)

    def run(self, settings: Mapping[str, Scalar], name: str, federation_config: str = "") -> Path:
        """Run the app to its end, its log in `<name>.log`, and return the run's folder.

        A run of a name is done once: tests that look at the same run share it.
        """
        folder = self.folder / name
        if not (folder / "summary.json").exists():
            file = self.write_settings(settings, name)
            self.wait_for(self.begin(file, name, federation_config), name)
        return folder

    def write_settings(self, settings: Mapping[str, Scalar], name: str) -> Path:
        """Write the settings of a run in the folder `<name>` as a --run-config file."""
        values = {"run-dir": str(self.folder / name), **settings}
        path = self.folder / f"{name}.toml"
        path.write_text("".join(f"{key} = {json.dumps(v)}\n" for key, v in values.items()))
        return path

    def begin(
        self, settings: Path, name: str, federation_config: str = ""
    ) -> subprocess.Popen[bytes]:
        """Begin a run with a --run-config file."""
        chosen = ["--federation-config", federation_config] if federation_config else []
        command = ["flwr", "run", str(ROOT), "here", "--run-config", str(settings), "--stream"]
        return self.start(name, *command, *chosen)

    def wait_for(self, process: subprocess.Popen[bytes], name: str) -> None:
        """Wait for the end of the run in the folder `<name>`."""
        process.wait(RUN_SECONDS)
        if not (self.folder / name / "summary.json").exists():
            raise AssertionError(f"the run {name!r} did not end well:\n{self.logs()}")

    def kill_simulation(self) -> None:
        """Kill the process in which the ServerApp of a simulation runs, as `kill -9` does."""
        rows = descendants(self._processes[0].pid).items()
        kill({pid: row for pid, row in rows if "flwr-simulation" in row.command})

    def logs(self) -> str:
        """Return the ends of all logs."""
        return "\n".join(
            f"--- {path.name}\n{path.read_text(errors='replace')[-6000:]}"
            for path in sorted(self.folder.glob("*.log"))
        )

    def stop(self) -> None:
        """End every process that was started, and its descendants."""
        started = {pid: r for p in self._processes for pid, r in descendants(p.pid).items()}
        for process in reversed(self._processes):
            process.terminate()
        end = time.monotonic() + STOP_SECONDS
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(end - time.monotonic(), 0.1))
        kill(started)
        for process in self._processes:
            process.wait(STOP_SECONDS)

    def _wait_for_health(self) -> None:
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end and self._processes[0].poll() is None:
            with contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError):
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=2).close()
                return
            time.sleep(0.2)
        logs = self.logs()
        self.stop()
        raise AssertionError(f"the SuperLink did not start:\n{logs}")


@contextlib.contextmanager
def federation(folder: Path, *, simulation: bool) -> Iterator[Federation]:
    """Start a SuperLink in `folder` and stop everything at the end, also after a failure."""
    started = Federation(folder, simulation=simulation)
    try:
        yield started
    finally:
        started.stop()
