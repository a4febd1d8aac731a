"""The Ray cluster of the workers: its address, each worker's resources, and their placement."""

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
ADDRESS_HELP = (
    "Give the cluster's HOST:6379 on one of its machines, ray://HOST:10001 from elsewhere, or 'local' "
    "for an instance of this run alone."
)

PLACEMENT_TIMEOUT = 60.0
"""Default wait for the resources of all workers, in seconds."""
CONNECT_TIMEOUT = 10.0
"""Longest wait for a connection to a cluster's head, in seconds."""
LOG_WAIT_AFTER = 2.0
"""Seconds after which the log says that the run waits for resources."""
MAX_LISTED_NODES = 20
"""Largest number of nodes that an error lists."""

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
                f"{cluster}: this is where `ray job submit` sends jobs, not the cluster itself. "
                f"{ADDRESS_HELP}"
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
def connected(cluster: Cluster) -> Iterator[None]:
    """Connect to a Ray cluster; without an address start a local instance.

    An existing connection is used, and stays open.

    Raises
    ------
    RunError
        There is no cluster at the address, or no instance starts here.
    """
    if ray.is_initialized():
        yield
        return
    for key, value in ENVIRONMENT.items():
        os.environ.setdefault(key, value)
    try:
        _check_reachable(cluster.address)
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


def _check_reachable(address: str) -> None:
    """Raise OSError if nothing listens at the address; Ray itself retries for minutes."""
    if ADDRESS.fullmatch(address):
        host, _, port = address.removeprefix("ray://").rpartition(":")
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_TIMEOUT).close()


@dataclass(frozen=True)
class WorkerResources:
    """The CPU cores and GPUs of one worker, or fractions of them."""

    cpus: float
    gpus: float

    @classmethod
    def of(cls, resources: Mapping[str, float], workers: int, *, gpu: bool) -> WorkerResources:
        """Return the most that each of ``workers`` can have of the cluster's ``resources``.

        1 core if there are enough, else 1/2, 1/3 ... so that equally many workers share each core; the
        same for GPUs, if the run may use them.
        """
        gpus = resources.get("GPU", 0.0) if gpu else 0.0
        return cls(
            _per_worker(resources.get("CPU", 1.0), workers),
            _per_worker(gpus, workers) if gpus else 0.0,
        )

    def __str__(self) -> str:
        """Return the amounts as text."""
        return f"{self.cpus:g} CPU and {self.gpus:g} GPU"


def _per_worker(units: float, workers: int) -> float:
    sharing = -(-workers // max(int(units), 1))
    return int(10_000 / sharing) / 10_000  # Ray counts in ten-thousandths


@dataclass(frozen=True)
class WorkerPlacement:
    """Resources that are reserved for each worker, and a line about where they are."""

    group: PlacementGroup
    resources: WorkerResources
    description: str

    @property
    def workers(self) -> int:
        """The number of workers."""
        return int(self.group.bundle_count)


@contextlib.contextmanager
def place_workers(
    cluster: Cluster, resources: WorkerResources, workers: int, seconds: float
) -> Iterator[WorkerPlacement]:
    """Reserve the resources of all workers, spread over the cluster's nodes.

    Raises
    ------
    RunError
        They were not free within ``seconds``.
    """
    bundle = {"CPU": resources.cpus} | ({"GPU": resources.gpus} if resources.gpus else {})
    group = placement_group([bundle] * workers, strategy="SPREAD")
    try:
        if not group.wait(min(LOG_WAIT_AFTER, seconds)):
            log(
                INFO,
                "Waiting up to %g s for the resources of %d workers %s",
                seconds,
                workers,
                cluster.location,
            )
            if not group.wait(max(seconds - LOG_WAIT_AFTER, 0.0)):
                raise RunError(_no_resources(cluster, resources, workers, seconds))
        yield WorkerPlacement(group, resources, _describe_placement(cluster, resources, group))
    finally:
        remove_placement_group(group)


def _describe_placement(cluster: Cluster, resources: WorkerResources, group: PlacementGroup) -> str:
    """Return how many workers are on which node, and each one's resources."""
    counts = Counter(placement_group_table(group)["bundles_to_node_id"].values())
    number = counts.total()
    workers = f"{number} worker{'s' * (number > 1)} {cluster.location}"
    if cluster.address:
        names = node_names()
        workers += ": " + ", ".join(f"{counts[node]} on {names[node]}" for node in sorted(counts))
    return f"{workers}, each with {resources}"


def _no_resources(
    cluster: Cluster, resources: WorkerResources, workers: int, seconds: float
) -> str:
    nodes, free = _nodes(), _free_resources()
    lines = [
        _describe_node(node, free.get(node["NodeID"], {})) for node in nodes[:MAX_LISTED_NODES]
    ]
    if len(nodes) > MAX_LISTED_NODES:
        lines.append(f"and {len(nodes) - MAX_LISTED_NODES} further nodes")
    return (
        f"--workers {workers}: not enough free resources {cluster.location} within {seconds:g} s. "
        f"Each asks for {resources}. The nodes have: {'; '.join(lines)}. Stop what else runs there, "
        "add nodes, ask for fewer with --workers N, or wait longer with --worker-timeout SECONDS."
    )


def _nodes() -> list[Mapping[str, Any]]:
    """Return Ray's description of each node that is alive."""
    return [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]


def node_names() -> dict[str, str]:
    """Return the IP address and the start of the id of each node that is alive, by id."""
    return {str(node["NodeID"]): _node_name(node) for node in _nodes()}


def _free_resources() -> Mapping[str, Mapping[str, float]]:
    """Return the free resources by node id; through ``ray://`` a task has to find out."""
    free: Mapping[str, Mapping[str, float]]
    if ray.util.client.ray.is_connected():  # type: ignore[no-untyped-call]
        free = ray.get(ray.remote(num_cpus=0)(available_resources_per_node).remote())
    else:
        free = available_resources_per_node()  # type: ignore[no-untyped-call]
    return free


def _describe_node(node: Mapping[str, Any], free: Mapping[str, float]) -> str:
    """Return a node's CPUs and GPUs, and how many are free."""
    total = node["Resources"]
    parts = [f"{total.get(k, 0):g} {k} ({free.get(k, 0):g} free)" for k in ("CPU", "GPU")]
    return f"{_node_name(node)} {' and '.join(parts)}"


def _node_name(node: Mapping[str, Any]) -> str:
    """Return a node's IP address and the start of its id; nodes on one machine share the address."""
    return f"{node['NodeManagerAddress']} (node {str(node['NodeID'])[:8]})"
