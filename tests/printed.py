"""Code blocks of Markdown pages, run as they are printed, in a copy of the tracked files."""

from __future__ import annotations

import contextlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from deploy.federation import environment
from deploy.processes import Processes, Row, free_port

ROOT = Path(__file__).resolve().parent.parent
FENCE = re.compile(r"^```(\w+)\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
PORTS = (8000, 9094, 9095)
"""Ports that the pages print; those that are taken are replaced."""


def pieces(page: Path) -> Iterator[tuple[str, str]]:
    """Yield a page in order, as language and text; prose has the language ``markdown``."""
    text, end = page.read_text(), 0
    for found in FENCE.finditer(text):
        yield "markdown", text[end : found.start()]
        yield found[1], found[2]
        end = found.end()
    yield "markdown", text[end:]


def checkout(folder: Path) -> Path:
    """Copy the tracked files to a folder, with this environment as its `.venv`; return it."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    (folder / ".venv").mkdir()
    for path in Path(sys.prefix).iterdir():
        if path.name not in (".installed", ".developer"):
            (folder / ".venv" / path.name).symlink_to(path)
    for mark in (".installed", ".developer"):
        (folder / ".venv" / mark).touch()
    return folder


class Shell(Processes):
    """Bash in a checkout, with homes of Flower and of the data cache of its own."""

    def __init__(self, folder: Path) -> None:
        self.checkout = checkout(folder / "checkout")
        own = {
            **environment(folder / "flwr"),
            "PYTHONPATH": str(self.checkout),
            "FEDAPP_RUNS": str(self.checkout / "runs"),
            "FEDAPP_CACHE": str(folder / "cache"),
            "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(free_port()),
            "NO_COLOR": "1",
            "COLUMNS": "120",
        }
        super().__init__(folder, own)
        # Of two tests at a time one has the printed ports.
        self.lock = FileLock(Path(tempfile.gettempdir()) / "fedapp-printed-ports.lock", timeout=0)
        with contextlib.suppress(Timeout):
            self.lock.acquire()
        mine = self.lock.is_locked and all(map(is_free, PORTS))
        self.ports = {port: port if mine else free_port() for port in PORTS}

    def start_local_superlink(self) -> None:
        """Start what `flwr run` would start and leave behind: a SuperLink that simulates nodes."""
        port = self.environment["FLWR_LOCAL_SUPERLINK_HTTP_API_PORT"]
        options = ["--insecure", "--simulation", "--host", "127.0.0.1", "--port", port]
        self.start("superlink", "flower-superlink", *options)

    def stop(self) -> dict[int, Row]:
        """End what was started, and leave the ports to others."""
        left = super().stop()
        self.lock.release()
        return left

    def run(self, code: str, seconds: float = 1200) -> str:
        """Run a script up to its first failing command; return what it says.

        Raises
        ------
        RuntimeError
            A command failed, or it took longer; the message holds the logs.
        """
        for printed, port in self.ports.items():
            code = re.sub(rf"\b{printed}\b", str(port), code)
        script = f"set -eo pipefail\ncd {self.checkout}\n{code}\nwait\n"
        (self.folder / "script.sh").write_text(script)
        with (self.folder / "script.log").open("wb") as log:
            process = subprocess.Popen(
                ["bash", str(self.folder / "script.sh")],
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=self.environment,
                start_new_session=True,
            )
        self.started.append(process)
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            status = None
        if status != 0:
            raise RuntimeError(f"the script ended with {status}:\n{self.logs()}")
        return self.log("script")


def is_free(port: int) -> bool:
    """Return whether nothing listens on a port of this machine."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0
