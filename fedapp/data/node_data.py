"""Whose data a node can load, and whether two nodes have data of one task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

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
from fedapp.data.dataset import Task
from fedapp.errors import ConfigError, DataError, plain


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


TASK_TYPES: Mapping[str, type] = {
    "kind": str,
    "input-shape": list,
    "num-classes": int,
    "labels": list,
    "num-symbols": int,
    "vocabulary": str,
    "one-label": bool,
}
"""What a node says of its task, by name."""


def describe_task(task: Task) -> dict[str, Any]:
    """Return a task as the plain values of a message; ``read_task`` gives it back."""
    return {
        "kind": task.kind,
        "input-shape": list(task.input_shape),
        "num-classes": task.num_classes,
        "labels": list(task.labels),
        "num-symbols": task.num_symbols,
        "vocabulary": task.vocabulary,
        "one-label": task.one_label,
    }


def read_task(said: Mapping[str, Any]) -> Task:
    """Return the task that ``describe_task`` made these values of, among others.

    Raises
    ------
    DataError
        One of them is missing, or of another type.
    """
    for key, kind in TASK_TYPES.items():
        if type(said.get(key)) is not kind:
            found = f"{key} = {plain(repr(said[key]))}" if key in said else f"no {key}"
            raise DataError(
                f"it says {found} of its data, where a {kind.__name__} is expected; install the "
                "server's version of this package"
            )
    return Task(
        kind=cast("Any", said["kind"]),
        input_shape=tuple(said["input-shape"]),
        num_classes=said["num-classes"],
        labels=tuple(map(str, said["labels"])),
        num_symbols=said["num-symbols"],
        vocabulary=said["vocabulary"],
        one_label=said["one-label"],
    )


def task_differences(expected: Task, found: Task) -> list[str]:
    """Return what keeps data of task ``found`` out of a federation of task ``expected``.

    Each item is a phrase such as "input shape (1, 28, 28) instead of (3, 32, 32)"; there is none
    where they agree. Labels without names agree where there are as many: a network has an output
    for each.
    """
    pairs = {
        "task": (_kind(found), _kind(expected)),
        "input shape": (found.input_shape, expected.input_shape),
        "vocabulary": (found.vocabulary, expected.vocabulary),
        "number of symbols": (found.num_symbols, expected.num_symbols),
    }
    different = [
        f"{name} {plain(repr(a))} instead of {b!r}" for name, (a, b) in pairs.items() if a != b
    ]
    return different + _label_differences(expected, found)


def _kind(task: Task) -> str:
    return f"{task.kind} with one label" if task.one_label else task.kind


def _label_differences(expected: Task, found: Task) -> list[str]:
    if expected.labels and found.labels and expected.labels != found.labels:
        return [f"labels {_names(found.labels)} instead of {_names(expected.labels)}"]
    if found.num_classes != expected.num_classes:
        return [f"{found.num_classes} classes instead of {expected.num_classes}"]
    return []


def _names(labels: tuple[str, ...]) -> str:
    shown = plain(", ".join(labels[:5]))
    return f"({shown}, ... {len(labels)} in all)" if len(labels) > 5 else f"({shown})"
