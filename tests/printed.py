"""Code blocks of Markdown pages, run as they are printed, in a copy of the tracked files."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from deploy.federation import environment
from deploy.processes import Processes, free_port

ROOT = Path(__file__).resolve().parent.parent
PORTS = ("8000", "9094", "9095")
"""Ports that the pages print; those that are taken are replaced."""
NUMBER = re.compile(r"-?\d+(?:,\d{3})*(?:\.\d+)?(?:e-?\d+)?")


class Block(NamedTuple):
    """A fenced block: its language, and what it holds."""

    language: str
    code: str


def blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page, in order."""
    found = re.findall(r"^```(\w+)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    return [Block(language, code) for language, code in found]


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
        self.ports = {port: port if is_free(int(port)) else str(free_port()) for port in PORTS}

    def start_local_superlink(self) -> None:
        """Start what `flwr run` would start and leave behind: a SuperLink that simulates nodes."""
        port = self.environment["FLWR_LOCAL_SUPERLINK_HTTP_API_PORT"]
        options = ["--insecure", "--simulation", "--host", "127.0.0.1", "--port", port]
        self.start("superlink", "flower-superlink", *options)

    def run(self, code: str, seconds: float = 1200) -> str:
        """Run a script up to its first failing command; return what it says.

        Raises
        ------
        RuntimeError
            A command failed, or it took longer; the message holds the logs.
        """
        for printed, port in self.ports.items():
            code = re.sub(rf"\b{printed}\b", port, code)
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


def numbers(text: str) -> Iterator[float]:
    """Yield the numbers of a text."""
    for found in NUMBER.findall(text):
        yield float(found.replace(",", ""))


__all__ = ["ROOT", "Block", "Shell", "blocks", "numbers"]
