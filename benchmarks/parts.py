"""The processes of a federation that this process has started, by what they are."""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from pathlib import Path

from deploy.processes import descendants

PARTS = {
    "flower-superlink": "SuperLink",
    "flower-superexec": "SuperExec",
    "flwr-serverapp": "ServerApp",
    "flwr-simulation": "ServerApp",
    "flower-supernode": "SuperNode",
    "flwr-clientapp": "ClientApp",
    "flwr run": "flwr run",
    "ray::ClientAppActor": "ClientApp",
    "ray": "Ray",
}
"""What a process is called, by the first of these that its command has."""


def parts_now() -> dict[int, str]:
    """Return the part that each descendant of this process is, by the process's id."""
    named = {
        pid: next((name for word, name in PARTS.items() if word in row.command), "")
        for pid, row in descendants(os.getpid()).items()
    }
    return {pid: name for pid, name in named.items() if name and pid != os.getpid()}


def cpu_seconds(pid: int) -> float:
    """Return the processor time of a process so far."""
    ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


class Watch(threading.Thread, ABC):
    """Calls ``look`` at intervals of ``every`` seconds until it is stopped."""

    every: float

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._over = threading.Event()

    def run(self) -> None:
        """Look at intervals."""
        while not self._over.wait(self.every):
            self.look()

    @abstractmethod
    def look(self) -> None:
        """Look at the processes once."""

    def stop(self) -> None:
        """End the thread, if it runs."""
        self._over.set()
        if self.is_alive():
            self.join()
