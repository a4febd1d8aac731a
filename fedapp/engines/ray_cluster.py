"""The Ray cluster of the workers: its address, what each worker has of it, where they find room."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from logging import INFO
from typing import Any

import ray
from flwr.common.logger import log
from ray._private.state import available_resources_per_node
from ray.util import placement_group, placement_group_table, remove_placement_group
from ray.util.placement_group import PlacementGroup

from fedapp.errors import ConfigError, RunError

OPTION, VARIABLE = "--ray-address", "RAY_ADDRESS"
ADDRESS = re.compile(r"(ray://)?[^/\s]+:\d+")
KINDS = (
    "Give the cluster's HOST:6379 on one of its machines, ray://HOST:10001 from elsewhere, or 'local' "
    "for an instance of this run alone."
)

TIMEOUT = 60.0
"""Seconds that workers wait for room unless told otherwise."""
KNOCK_SECONDS = 10.0
"""Seconds that a cluster's head has to take a connection."""
SAY_AFTER = 2.0
"""Seconds without room after which the log says that the run waits."""
MOST_NODES = 20
"""Nodes that an error lists one by one."""

ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",  # nothing is reported to anybody
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # Ray's future default; without it, it warns
}


@dataclass(frozen=True)
class Cluster:
    """A Ray cluster and what named it; without an address an instance of this process alone."""

    address: str = ""
    named_by: str = OPTION

    @classmethod
    def chosen(cls, option: str) -> Cluster:
        """Return the cluster of ``--ray-address``, else of $RAY_ADDRESS, else one of this process.

        Raises
        ------
        ConfigError
            The address is of a kind that no worker can be started at.
        """
        variable = os.environ.get(VARIABLE, "")
        address, named_by = (option, OPTION) if option else (variable, VARIABLE)
        cluster = cls("" if address == "local" else address, named_by)
        if address.startswith(("http://", "https://")):
            raise ConfigError(
                f"{cluster}: this is where `ray job submit` sends jobs, not the cluster itself. {KINDS}"
            )
        if address not in ("", "auto", "local") and not ADDRESS.fullmatch(address):
            raise ConfigError(f"{cluster}: is no address of a Ray cluster. {KINDS}")
        return cluster

    def __str__(self) -> str:
        """Return what named the address, and the address."""
        return f"{self.named_by} {self.address!r}"

    @property
    def place(self) -> str:
        """Where it is, for a sentence."""
        if not self.address:
            return "on this machine"
        return f"in the Ray cluster at {self.address} ({self.named_by})"


HERE = Cluster()
"""An instance of this process, on this machine."""


@contextlib.contextmanager
def connected(cluster: Cluster) -> Iterator[None]:
    """Be connected to a Ray cluster; without an address it is one of this process.

    A connection that is there already is used, and left as it is.

    Raises
    ------
    RunError
        There is no cluster at the address, or none starts here.
    """
    if ray.is_initialized():
        yield
        return
    for key, value in ENVIRONMENT.items():
        os.environ.setdefault(key, value)
    try:
        _knock(cluster.address)
        address = cluster.address or "local"
        ray.init(address, include_dashboard=None, logging_level=logging.WARNING)
    except Exception as error:  # Ray has no class of its own for it
        raise RunError(
            f"{cluster}: there is no Ray cluster ({error}). Start one with `ray start --head` and use "
            f"the address that it prints, or for an instance of this run alone set {OPTION} local."
            if cluster.address
            else f"--workers: Ray does not start on this machine ({error}). Leave the option out."
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


def _knock(address: str) -> None:
    """Raise OSError if nothing listens at the address; Ray itself tries for minutes."""
    if ADDRESS.fullmatch(address):
        host, _, port = address.removeprefix("ray://").rpartition(":")
        socket.create_connection((host.strip("[]"), int(port)), timeout=KNOCK_SECONDS).close()


@dataclass(frozen=True)
class Share:
    """What a worker has of a machine: cores and GPUs, or parts of one."""

    cpus: float
    gpus: float

    @classmethod
    def of(cls, resources: Mapping[str, float], workers: int, *, gpu: bool) -> Share:
        """Return the largest share with which all ``workers`` find a place in the cluster.

        A whole core if there is one for each, else a half, a third ... so that as many share each
        core; of the GPUs, where the run may use them, the same.
        """
        gpus = resources.get("GPU", 0.0) if gpu else 0.0
        return cls(_part(resources.get("CPU", 1.0), workers), _part(gpus, workers) if gpus else 0.0)

    def __str__(self) -> str:
        """Return what it is, in words."""
        return f"{self.cpus:g} CPU and {self.gpus:g} GPU"


def _part(units: float, workers: int) -> float:
    sharing = -(-workers // max(int(units), 1))
    return int(10_000 / sharing) / 10_000  # Ray counts in ten-thousandths


@dataclass(frozen=True)
class Room:
    """Places that are reserved for workers, one a worker, and where they are, in words."""

    group: PlacementGroup
    share: Share
    where: str


@contextlib.contextmanager
def room(cluster: Cluster, share: Share, workers: int, seconds: float) -> Iterator[Room]:
    """Reserve a place for each of the workers, all or none, spread over the cluster's nodes.

    Raises
    ------
    RunError
        There was no room for all of them within ``seconds``.
    """
    resources = {"CPU": share.cpus} | ({"GPU": share.gpus} if share.gpus else {})
    group = placement_group([resources] * workers, strategy="SPREAD")
    try:
        if not group.wait(min(SAY_AFTER, seconds)):
            log(
                INFO,
                "Waiting up to %g s for room for %d workers %s",
                seconds,
                workers,
                cluster.place,
            )
            if not group.wait(max(seconds - SAY_AFTER, 0.0)):
                raise RunError(_no_room(cluster, share, workers, seconds))
        yield Room(group, share, _where(cluster, share, group))
    finally:
        remove_placement_group(group)


def _where(cluster: Cluster, share: Share, group: PlacementGroup) -> str:
    """Say how many workers are on which node, and what each has of it."""
    spread = Counter(placement_group_table(group)["bundles_to_node_id"].values())
    number = spread.total()
    workers = f"{number} worker{'s' * (number > 1)} {cluster.place}"
    if cluster.address:
        names = {node["NodeID"]: _name(node) for node in _nodes()}
        workers += ": " + ", ".join(f"{spread[node]} on {names[node]}" for node in sorted(spread))
    return f"{workers}, each with {share}"


def _no_room(cluster: Cluster, share: Share, workers: int, seconds: float) -> str:
    nodes, free = _nodes(), _free()
    lines = [_line(node, free.get(node["NodeID"], {})) for node in nodes[:MOST_NODES]]
    if len(nodes) > MOST_NODES:
        lines.append(f"and {len(nodes) - MOST_NODES} further nodes")
    return (
        f"--workers {workers}: no room {cluster.place} within {seconds:g} s. Each asks for {share}. "
        f"The nodes have: {'; '.join(lines)}. Stop what else runs there, add nodes, ask for fewer with "
        "--workers N, or wait longer with --worker-timeout SECONDS."
    )


def _nodes() -> list[Mapping[str, Any]]:
    """Return what Ray says of each node that is alive."""
    return [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]


def _free() -> Mapping[str, Mapping[str, float]]:
    """Return what is free of each node, by its id; through ``ray://`` a node has to be asked."""
    free: Mapping[str, Mapping[str, float]]
    if ray.util.client.ray.is_connected():  # type: ignore[no-untyped-call]
        free = ray.get(ray.remote(num_cpus=0)(available_resources_per_node).remote())
    else:
        free = available_resources_per_node()  # type: ignore[no-untyped-call]
    return free


def _line(node: Mapping[str, Any], free: Mapping[str, float]) -> str:
    """Return what a node has, and what of it is free."""
    total = node["Resources"]
    parts = [f"{total.get(k, 0):g} {k} ({free.get(k, 0):g} free)" for k in ("CPU", "GPU")]
    return f"{_name(node)} {' and '.join(parts)}"


def _name(node: Mapping[str, Any]) -> str:
    """Return a node's IP address, and the start of its id: nodes of one machine share the first."""
    return f"{node['NodeManagerAddress']} (node {str(node['NodeID'])[:8]})"
