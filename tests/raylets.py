"""Ray clusters of several raylets on this machine, and runs on them."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ray.cluster_utils import Cluster as RayCluster

from fedapp.engines.ray_cluster import ENVIRONMENT

NODE = {
    "num_cpus": 1,
    "num_gpus": 0,
    "object_store_memory": 80 * 2**20,
    "include_dashboard": False,
}
"""A node with one CPU."""
QUICK_LOSS = {
    "RAY_health_check_initial_delay_ms": "0",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
}
"""Ray notes that a node is lost within seconds."""


@contextlib.contextmanager
def raylets(cache: Path, nodes: int = 2) -> Iterator[RayCluster]:
    """Yield a Ray cluster of so many nodes with one CPU each; the first is the head."""
    with pytest.MonkeyPatch.context() as patch:
        for key, value in {**ENVIRONMENT, **QUICK_LOSS}.items():
            patch.setenv(key, value)
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        patch.setenv("FEDAPP_CACHE", str(cache))
        started = RayCluster(initialize_head=True, head_node_args=NODE)
        try:
            for number in range(1, nodes):
                add_node(started, number)
            yield started
        finally:
            started.shutdown()


def add_node(cluster: RayCluster, number: int) -> Any:
    """Add a node with an address of its own, so that no process takes it for its own machine."""
    return cluster.add_node(**NODE, node_ip_address=f"127.0.0.{number + 1}")
