"""The placement of workers in a Ray cluster: each one's resources, and the nodes that have them."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from logging import INFO
from typing import Any

import ray
from flwr.common.logger import log
from ray._private.state import available_resources_per_node
from ray.util import placement_group, placement_group_table, remove_placement_group
from ray.util.placement_group import PlacementGroup

from fedapp.engines.ray_cluster import Cluster
from fedapp.errors import ConfigError, RunError

PLACEMENT_TIMEOUT = 60.0
"""Default wait for the resources of all workers, in seconds."""
LOG_WAIT_AFTER = 2.0
"""Seconds after which the log says that the run waits for resources."""
MAX_LISTED_NODES = 20
"""Largest number of nodes that an error lists."""


@dataclass(frozen=True)
class WorkerRequest:
    """How many workers a command asks for, and each one's CPU cores and GPUs (None: a share).

    0 workers are as many as the cluster has room for, one a GPU, or one a core. ``seconds`` is the
    longest wait for them, ``option`` that of their number.

    Raises
    ------
    ConfigError
        A number of GPUs is neither whole nor below 1.
    """

    workers: int
    cpus: float | None = None
    gpus: float | None = None
    seconds: float = PLACEMENT_TIMEOUT
    option: str = "--workers"

    def __post_init__(self) -> None:
        if self.gpus is not None and self.gpus > 1 and self.gpus % 1:
            raise ConfigError(
                f"--gpus-per-worker {self.gpus:g}: Ray gives a worker a part of one GPU, or whole ones. "
                f"Set 0.5, 1 or {round(self.gpus)}, for example."
            )

    def counted(self, available: Mapping[str, float], *, gpu: bool) -> WorkerRequest:
        """Return the request with the number of workers in a cluster with ``available`` resources."""
        if self.workers:
            return self
        cores = int(available.get("CPU", 1.0) / (self.cpus or 1.0))
        gpus = int(available.get("GPU", 0.0) / (self.gpus or 1.0)) if gpu and self.gpus != 0 else 0
        return replace(self, workers=max(gpus or cores, 1))

    def resources(self, available: Mapping[str, float], *, gpu: bool) -> WorkerResources:
        """Return the resources of each worker in a cluster that has ``available`` ones in all.

        What is not asked for is 1 core if there are enough, else 1/2, 1/3 ... so that equally many
        workers share each core; the same for GPUs, if the run may use them.
        """
        cpus = _per_worker(available.get("CPU", 1.0), self.workers)
        units = available.get("GPU", 0.0) if gpu else 0.0
        gpus = _per_worker(units, self.workers) if units else 0.0
        return WorkerResources(
            cpus if self.cpus is None else self.cpus, gpus if self.gpus is None else self.gpus
        )


@dataclass(frozen=True)
class WorkerResources:
    """The CPU cores and GPUs of one worker, or fractions of them."""

    cpus: float
    gpus: float

    def __str__(self) -> str:
        """Return the amounts as text."""
        return f"{self.cpus:g} CPU and {self.gpus:g} GPU"


def _per_worker(units: float, workers: int) -> float:
    sharing = -(-workers // max(int(units), 1))
    return int(10_000 / sharing) / 10_000  # Ray counts in ten-thousandths


@dataclass(frozen=True)
class WorkerPlacement:
    """Resources that are reserved for each worker, a line about where they are, and the option."""

    group: PlacementGroup
    resources: WorkerResources
    description: str
    option: str

    @property
    def workers(self) -> int:
        """The number of workers."""
        return int(self.group.bundle_count)


@contextlib.contextmanager
def place_workers(
    cluster: Cluster, request: WorkerRequest, *, gpu: bool
) -> Iterator[WorkerPlacement]:
    """Reserve the resources of all workers, spread over the cluster's nodes.

    Raises
    ------
    RunError
        They were not free within the time of the request.
    """
    available: dict[str, float] = ray.cluster_resources()
    request = request.counted(available, gpu=gpu)
    resources = request.resources(available, gpu=gpu)
    bundle = {"CPU": resources.cpus} | ({"GPU": resources.gpus} if resources.gpus else {})
    group = placement_group([bundle] * request.workers, strategy="SPREAD")
    try:
        if not group.wait(min(LOG_WAIT_AFTER, request.seconds)):
            log(
                INFO,
                "Waiting up to %g s for the resources of %d workers %s",
                request.seconds,
                request.workers,
                cluster.location,
            )
            if not group.wait(max(request.seconds - LOG_WAIT_AFTER, 0.0)):
                raise RunError(_no_resources(cluster, resources, request))
        described = _describe_placement(cluster, resources, group)
        yield WorkerPlacement(group, resources, described, f"{request.option} {request.workers}")
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


def _no_resources(cluster: Cluster, resources: WorkerResources, request: WorkerRequest) -> str:
    nodes, free = _nodes(), _free_resources()
    lines = [
        _describe_node(node, free.get(node["NodeID"], {})) for node in nodes[:MAX_LISTED_NODES]
    ]
    if len(nodes) > MAX_LISTED_NODES:
        lines.append(f"and {len(nodes) - MAX_LISTED_NODES} further nodes")
    return (
        f"{request.option} {request.workers}: not enough free resources {cluster.location} within "
        f"{request.seconds:g} s. Each asks for {resources}. The nodes have: {'; '.join(lines)}. Stop "
        f"what else runs there, add nodes, ask for less with {request.option} N, --cpus-per-worker or "
        "--gpus-per-worker, or wait longer with --worker-timeout SECONDS."
    )


def _nodes() -> list[Mapping[str, Any]]:
    """Return Ray's description of each node that is alive."""
    return [node for node in ray.nodes() if node["Alive"]]


def node_names() -> dict[str, str]:
    """Return the IP address and the start of the id of each node that is alive, by id."""
    return {str(node["NodeID"]): _node_name(node) for node in _nodes()}


def _free_resources() -> Mapping[str, Mapping[str, float]]:
    """Return the free resources by node id; through ``ray://`` a task has to find out."""
    free: Mapping[str, Mapping[str, float]]
    if ray.util.client.ray.is_connected():
        free = ray.get(ray.remote(num_cpus=0)(available_resources_per_node).remote())
    else:
        free = available_resources_per_node()
    return free


def _describe_node(node: Mapping[str, Any], free: Mapping[str, float]) -> str:
    """Return a node's CPUs and GPUs, and how many are free."""
    total = node["Resources"]
    parts = [f"{total.get(k, 0):g} {k} ({free.get(k, 0):g} free)" for k in ("CPU", "GPU")]
    return f"{_node_name(node)} {' and '.join(parts)}"


def _node_name(node: Mapping[str, Any]) -> str:
    """Return a node's IP address and the start of its id; nodes on one machine share the address."""
    return f"{node['NodeManagerAddress']} (node {str(node['NodeID'])[:8]})"
