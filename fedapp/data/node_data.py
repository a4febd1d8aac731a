"""Whose data a node can reach: the partition of virtual clients, or data of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import fedapp
from fedapp.config.run_config import RunConfig, Scalar
from fedapp.data import (
    Chosen,
    Dataset,
    Examples,
    Partition,
    load_dataset,
    load_node_data,
    load_partition,
)
from fedapp.data.task_schema import describe_task
from fedapp.errors import ConfigError


@dataclass(frozen=True)
class OwnClient:
    """The one client that a node is: its id, and its folder or its place among the partitions."""

    client: int
    data_path: str = ""
    num_partitions: int = 0


@dataclass(frozen=True)
class NodeData:
    """The data set and the clients whose examples this process can load.

    ``partition`` is None where the node's whole data set belongs to the one client ``own``.
    """

    dataset: Dataset
    partition: Partition | None
    own: OwnClient | None

    def train(self, client: int) -> Examples:
        """Return the training examples of ``client``."""
        self._check(client)
        if self.partition is None:
            return self.dataset.train
        return Chosen(self.dataset.train, self.partition.client(client))

    def test(self, client: int) -> Examples:
        """Return the test examples of ``client``: its own where the scheme has them, else all."""
        self._check(client)
        if self.partition is None or self.partition.test is None:
            return self.dataset.test
        return Chosen(self.dataset.test, self.partition.test.client(client))

    def describe(self) -> dict[str, Any]:
        """Return what a node answers to a ``query``."""
        task, own = self.dataset.task, self.own
        sizes = [] if own is None else [len(self.train(own.client))]
        return {
            "version": fedapp.__version__,
            "client-id": -1 if own is None else own.client,
            "num-partitions": 0 if own is None else own.num_partitions,
            "examples": len(self.dataset.train) if own is None else sizes[0],
            "fingerprint": self.dataset.fingerprint,
            **describe_task(task),
        }

    def _check(self, client: int) -> None:
        if self.own is not None and client != self.own.client:
            raise ConfigError(
                f"this node is client {self.own.client} and trains no other; it was sent client {client}"
            )


def own_client(config: RunConfig, node_config: Mapping[str, Scalar]) -> OwnClient | None:
    """Return which client a node is, or None for a node that trains virtual clients.

    Raises
    ------
    ConfigError
        The node-config does not fit ``num-clients``.
    """
    path = str(node_config.get("data-path", ""))
    if path:
        if config.num_clients:
            raise ConfigError(
                f"num-clients = {config.num_clients}: this node has data of its own (data-path = "
                f"{path!r}) and trains nothing else. Set num-clients=0."
            )
        return OwnClient(_number(node_config, "client-id", f"data-path = {path!r}"), data_path=path)
    if config.num_clients:
        return None
    partitions = _number(node_config, "num-partitions", "num-clients = 0 and no data-path")
    client = _number(node_config, "partition-id", "num-clients = 0 and no data-path")
    if not 0 <= client < partitions:
        raise ConfigError(
            f"partition-id = {client}: must be from 0 to num-partitions - 1 = {partitions - 1}. "
            "Set it in the SuperNode's --node-config."
        )
    return OwnClient(client, num_partitions=partitions)


def _number(node_config: Mapping[str, Scalar], key: str, why: str) -> int:
    value = node_config.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        example = 2 if key == "num-partitions" else 0
        raise ConfigError(
            f"{key} = {value!r}: must be a whole number from 0, because {why}. "
            f"Start the SuperNode with --node-config '... {key}={example}'."
        )
    return value


def read_node_data(config: RunConfig, own: OwnClient | None) -> NodeData:
    """Load the data that a node (``own``) or the server (None) works with."""
    if own is not None and own.data_path:
        return NodeData(load_node_data(config, own.data_path), None, own)
    dataset = load_dataset(config)
    clients = own.num_partitions if own is not None else config.num_clients
    if not clients:
        return NodeData(dataset, None, None)
    return NodeData(dataset, load_partition(config, dataset, clients), own)
