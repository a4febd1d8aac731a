"""A federation on hosts of their own, on this machine, whose cables can be pulled or be slow.

A host is a network namespace with an address, a home and a folder that no other host sees; a cable joins
each device to the server. They share this project, its environment, the processor and the memory.
Linux's ``ip`` and ``tc`` are needed, and root.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from deploy.credentials import make_credentials
from deploy.federation import Federation, environment
from deploy.processes import BIN, Row, interruptible

SERVER = "server"
ADDRESS = "10.213.0.{}"
SWITCH = "switch"

SLOW = ("netem delay 100ms rate 1mbit", "tbf rate 1mbit burst 4kb latency 400ms")
"""A slow cable, each way: with a delay, or, in a kernel that has none, with a queue."""

ENTER = """
mount --bind "$0" /mnt && mount -t tmpfs hosts "$1" && mkdir "$0" && mount --move /mnt "$0" &&
cd "$0" && shift && exec "$@"
"""
"""Runs a command in the folder $0, which is the only one that it sees in $1."""


def missing() -> str:
    """Return what hosts need and this machine lacks, or nothing."""
    if not (shutil.which("ip") and shutil.which("tc")):
        return "ip and tc"
    return "" if os.geteuid() == 0 else "root"


class Hosts(Federation):
    """A SuperLink on one host, and a host for each device; ``stop`` also removes the hosts.

    The folder of a host has its name. A device's name has 15 characters at most: its cable has it too.
    """

    def __init__(self, folder: Path, devices: Sequence[str]) -> None:
        self.hosts, self.names = folder, (SERVER, *devices)
        for name in self.names:
            (folder / name / "tmp").mkdir(parents=True)
        address = ADDRESS.format(1)
        made = make_credentials(folder / SERVER / "credentials", [address], devices)
        super().__init__(folder / SERVER, credentials=made, host=address)
        self.environment = {}
        for name in devices:
            self.credentials_of(name).mkdir()
            shutil.copy(made.ca, self.credentials_of(name))
            made.node_key(name).rename(self.credentials_of(name) / "key")

    def credentials_of(self, name: str) -> Path:
        """Return the folder of a device's credentials, in its own."""
        return self.hosts / name / "credentials"

    def start(
        self, name: str, *command: str, variables: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a command on the host of this name, or on the server."""
        host = name if name in self.names else SERVER
        folder = self.hosts / host
        own = {"PATH": os.environ["PATH"], "HOME": str(folder), "TMPDIR": str(folder / "tmp")}
        enter = ["netns", "exec", _namespace(host), "sh", "-c", ENTER, str(folder), str(self.hosts)]
        return super().start(
            name,
            shutil.which("ip") or "ip",
            *enter,
            str(BIN / command[0]),
            *command[1:],
            variables={**environment(folder / "flwr", own), **(variables or {})},
        )

    def stop(self) -> dict[int, Row]:
        """End every process and remove the hosts; return what is left of the processes."""
        try:
            return super().stop()
        finally:
            for name in self.names:
                subprocess.run(["ip", "netns", "delete", _namespace(name)], check=False)

    # ------------------------------------------------------------------ the network

    def connect(self) -> None:
        """Make the hosts, and a cable from each device's eth0 to a switch at the server."""
        for name in self.names:
            _run("ip", "netns", "add", _namespace(name))
            _run_ip(name, "link set lo up")
        _run_ip(SERVER, f"link add {SWITCH} type bridge")
        for number, name in enumerate(self.names, start=1):
            interface = SWITCH
            if name != SERVER:
                ends = f"{name} type veth peer name eth0 netns {_namespace(name)}"
                _run_ip(SERVER, f"link add {ends}")
                _run_ip(SERVER, f"link set {name} master {SWITCH} up")
                interface = "eth0"
            _run_ip(name, f"address add {ADDRESS.format(number)}/24 dev {interface}")
            _run_ip(name, f"link set {interface} up")

    def pull_cable(self, name: str) -> None:
        """Pull a device's cable."""
        _run_ip(SERVER, f"link set {name} down")

    def plug_in(self, name: str) -> None:
        """Plug a device's cable in again."""
        _run_ip(SERVER, f"link set {name} up")

    def slow_down(self, name: str) -> str:
        """Let a device's cable be slow in both directions, and return in which way."""
        for way in SLOW:
            ends = ((name, "eth0"), (SERVER, name))
            try:
                for host, interface in ends:
                    words = f"qdisc replace dev {interface} root {way}".split()
                    _run("tc", "-n", _namespace(host), *words)
            except subprocess.CalledProcessError:
                continue
            return way
        raise RuntimeError("this kernel has neither of tc's netem and tbf")


def _namespace(host: str) -> str:
    return f"fedapp-{os.getpid()}-{host}"


def _run_ip(host: str, words: str) -> None:
    _run("ip", "-n", _namespace(host), *words.split())


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


@contextlib.contextmanager
def hosts(folder: Path, devices: Sequence[str]) -> Iterator[Hosts]:
    """Start a SuperLink on a host of its own, with hosts for the devices, and remove all at the end.

    Also after a failure, and after SIGINT, SIGTERM or SIGHUP, which raise KeyboardInterrupt from then on.
    """
    interruptible()
    started = Hosts(folder, devices)
    try:
        started.connect()
        started.start_superlink()
        yield started
    finally:
        started.stop()
