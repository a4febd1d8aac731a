"""Processes that are started together, write a log each, and all end together, by their ids."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

BIN = Path(sys.executable).parent
STOP_SECONDS = 15.0

SPAWNER = "flower-superexec"
"""What starts a process for each task, and would go on doing so while the others are ended."""


def free_port() -> int:
    """Return a port that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def interruptible() -> None:
    """Let these signals raise KeyboardInterrupt; a second one does not disturb the end."""
    for each in SIGNALS:
        signal.signal(each, _interrupt)


def _interrupt(number: int, frame: object) -> NoReturn:
    for each in SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    raise KeyboardInterrupt


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


def living(processes: Mapping[int, Row]) -> dict[int, Row]:
    """Return those of the processes that are still there."""
    table = _process_table()
    return {p: row for p, row in processes.items() if p in table and table[p].start == row.start}


def kill(processes: Mapping[int, Row]) -> None:
    """End those of the processes that are still there, at once."""
    for pid in living(processes):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


class Processes:
    """Processes with one environment whose logs lie in ``folder``; ``stop`` ends all of them."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder = folder
        self.environment = dict(environment)
        self.started: list[subprocess.Popen[bytes]] = []

    def start(
        self, name: str, *command: str, variables: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a command of this environment in a session of its own, its output in a log."""
        with (self.folder / f"{name}.log").open("ab") as output:
            process = subprocess.Popen(
                [str(BIN / command[0]), *command[1:]],
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                cwd=self.folder,
                env={**self.environment, **(variables or {})},
                start_new_session=True,
            )
        self.started.append(process)
        return process

    def log(self, name: str) -> str:
        """Return what a process has said so far."""
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def logs(self) -> str:
        """Return the ends of all logs."""
        paths = sorted(self.folder.glob("*.log"))
        return "\n".join(f"--- {path.name}\n{self.log(path.stem)[-6000:]}" for path in paths)

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """End a process and its descendants at once, as a power cut does."""
        kill(_freeze([process]))
        process.wait(STOP_SECONDS)

    def stop(self) -> dict[int, Row]:
        """End every process that was started, and its descendants; return what is left of them."""
        started = _freeze(self.started)
        # First the tasks: a SuperLink waits for their connections to close before it ends.
        kill(_tasks(started))
        for process in reversed(self.started):
            process.terminate()
        end = time.monotonic() + STOP_SECONDS
        for process in self.started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(end - time.monotonic(), 0.1))
        kill(started)
        for process in self.started:
            process.wait(STOP_SECONDS)
        end = time.monotonic() + STOP_SECONDS
        while (left := living(started)) and time.monotonic() < end:
            time.sleep(0.1)
        return left


def _freeze(processes: Sequence[subprocess.Popen[bytes]]) -> dict[int, Row]:
    """Return the processes and their descendants; of these, none starts another from now on."""
    for pid, row in _family(processes).items():
        if SPAWNER in row.command:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
    return _family(processes)


def _tasks(family: Mapping[int, Row]) -> dict[int, Row]:
    """Return the spawners of a family and everything that they started."""
    spawners = [pid for pid, row in family.items() if SPAWNER in row.command]
    return {pid: row for spawner in spawners for pid, row in descendants(spawner).items()}


def _family(processes: Sequence[subprocess.Popen[bytes]]) -> dict[int, Row]:
    running = [process.pid for process in processes if process.poll() is None]
    return {pid: row for parent in running for pid, row in descendants(parent).items()}
