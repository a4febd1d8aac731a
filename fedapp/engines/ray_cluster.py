"""The Ray cluster of the workers: its address, the connection, and the app that it gets."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import socket
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray._private import ray_constants

import fedapp
from fedapp.config.app_folder import MANIFEST, app_folder
from fedapp.config.own_code import OwnCode
from fedapp.errors import ConfigError, RunError

OPTION, VARIABLE = "--ray-address", "RAY_ADDRESS"
JOB = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""The variable in which `ray job submit` gives a job its runtime environment."""
ADDRESS = re.compile(r"(ray://)?[^/\s]+:\d+")
ADDRESS_HELP = (
    "Give the cluster's HOST:6379 on one of its machines, ray://HOST:10001 from elsewhere, or 'local' "
    "for an instance of this run alone."
)

CONNECT_TIMEOUT = 10.0
"""Longest wait for a connection to a cluster's head, in seconds."""

ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",  # no telemetry
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # Ray's future default; without it, it warns
}


@dataclass(frozen=True)
class Cluster:
    """A Ray cluster, and the option or variable that names it; without an address a local instance."""

    address: str = ""
    named_by: str = OPTION

    @classmethod
    def from_option(cls, option: str) -> Cluster:
        """Return the cluster of ``--ray-address``, else of $RAY_ADDRESS, else a local instance.

        Raises
        ------
        ConfigError
            The address is not that of a Ray cluster.
        """
        variable = os.environ.get(VARIABLE, "")
        address, named_by = (option, OPTION) if option else (variable, VARIABLE)
        cluster = cls("" if address == "local" else address, named_by)
        if address.startswith(("http://", "https://")):
            raise ConfigError(
                f"{cluster}: this is the address for jobs, not that of the cluster itself. Run "
                f"`ray job submit --address {address} -- fedapp run --workers N` (it needs "
                f"`pip install 'fedapp[cluster]'`). {ADDRESS_HELP}"
            )
        if address not in ("", "auto", "local") and not ADDRESS.fullmatch(address):
            raise ConfigError(f"{cluster}: is no address of a Ray cluster. {ADDRESS_HELP}")
        return cluster

    def __str__(self) -> str:
        """Return the option or variable, and the address."""
        return f"{self.named_by} {self.address!r}"

    @property
    def location(self) -> str:
        """The location, as part of a sentence."""
        if not self.address:
            return "on this machine"
        return f"in the Ray cluster at {self.address} ({self.named_by})"


LOCAL = Cluster()
"""A Ray instance of this process, on this machine."""


@contextlib.contextmanager
def connected(cluster: Cluster, own_code: Iterable[OwnCode] = ()) -> Iterator[str]:
    """Connect to a Ray cluster, or without an address start a local instance; yield the app's folder.

    A cluster's workers get this package and ``own_code``, and have them in the folder in which they
    start ("."). An existing connection is used as it is, and stays open.

    Raises
    ------
    RunError
        There is no cluster at the address, or no instance starts here.
    """
    if ray.is_initialized():
        yield str(app_folder())
        return
    for key, value in ENVIRONMENT.items():
        os.environ.setdefault(key, value)
    try:
        _check_reachable(cluster.address)
        loopback = contextlib.nullcontext() if cluster.address else _loopback_alone()
        with _runtime_env(own_code) as brought, loopback:
            ray.init(
                cluster.address or "local",
                include_dashboard=None,
                logging_level=logging.WARNING,
                runtime_env=brought if cluster.address else None,
            )
    except Exception as error:  # Ray has no class of its own for it
        raise RunError(
            f"{cluster}: there is no Ray cluster ({error}). Start one with `ray start --head` and use "
            f"the address that it prints, or for an instance of this run alone set {OPTION} local."
            if cluster.address
            else f"--workers: Ray does not start on this machine ({error}). Leave the option out."
        ) from error
    try:
        yield "." if cluster.address else str(app_folder())
    finally:
        ray.shutdown()


@contextlib.contextmanager
def _loopback_alone() -> Iterator[None]:
    """Let an instance that starts listen on the loopback alone: its ports ask for no key.

    On Linux Ray takes another address of the machine in place of any 127.0.0.1 that it is given.
    """
    before, ray_constants.ENABLE_RAY_CLUSTER = ray_constants.ENABLE_RAY_CLUSTER, False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


@contextlib.contextmanager
def _runtime_env(own_code: Iterable[OwnCode]) -> Iterator[dict[str, Any]]:
    """Yield Ray's runtime environment with this package and the code, which Ray takes from a folder."""
    package = Path(fedapp.__file__).parent
    modules = [str(package), str(package.with_name("strategies"))]
    with tempfile.TemporaryDirectory(prefix="fedapp-app-") as name:
        manifest = app_folder() / MANIFEST
        files = {MANIFEST: manifest.read_bytes()} if manifest.is_file() else {}
        for code in own_code:
            for path, source in {**files, **code.files}.items():
                (Path(name) / path).parent.mkdir(parents=True, exist_ok=True)
                (Path(name) / path).write_bytes(source)
        folder = {"working_dir": name} if any(Path(name).iterdir()) else {}
        brought = {"py_modules": modules, **folder}
        yield {key: value for key, value in brought.items() if key not in _of_the_job()}


def _of_the_job() -> dict[str, Any]:
    """Return the runtime environment of the job in which this process is; its folder is the app's."""
    job: dict[str, Any] = json.loads(os.environ.get(JOB, "{}"))
    return dict(job.get("runtime_env") or {})


def _check_reachable(address: str) -> None:
    """Raise OSError if nothing listens at the address; Ray itself retries for minutes."""
    if ADDRESS.fullmatch(address):
        host, _, port = address.removeprefix("ray://").rpartition(":")
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_TIMEOUT).close()
