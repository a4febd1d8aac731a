"""Whose data a node can load, and whether two nodes have data of one task."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from typing import Any

import fedapp
from fedapp.config.federation import FederationConfig
from fedapp.config.run_config import RunConfig
from fedapp.config.settings import Scalar, kebab
from fedapp.data.coding import coded
from fedapp.data.dataset import Dataset, Examples, Partition, Subset, Task
from fedapp.data.load import load_node_data, load_partition, load_server_data
from fedapp.data.table import Statistics, Summary
from fedapp.errors import ConfigError, DataError, one_line


@dataclass(frozen=True)
class OwnClient:
    """The client that a node is: its id, and its folder or the number of partitions."""

    client: int
    data_path: str = ""
    num_partitions: int = 0


@dataclass(frozen=True)
class NodeData:
    """A data set and its clients.

    ``partition`` is None where the node's whole data set belongs to the one client ``own``. Where nodes
    are clients, a table is not coded: the statistics are those of all nodes (``coded``).
    """

    dataset: Dataset
    partition: Partition | None
    own: OwnClient | None

    def train(self, client: int) -> Examples:
        """Return the training examples of ``client``."""
        self._check(client)
        if self.partition is None:
            return self.dataset.train
        return Subset(self.dataset.train, self.partition.client(client))

    def test(self, client: int) -> Examples:
        """Return the test examples of ``client`` if the partition has them, else all test examples."""
        self._check(client)
        if self.partition is None or self.partition.test is None:
            return self.dataset.test
        return Subset(self.dataset.test, self.partition.test.client(client))

    def describe(self) -> dict[str, Any]:
        """Return the reply of a node to a ``query``."""
        own = self.own
        return {
            "version": fedapp.__version__,
            "client-id": -1 if own is None else own.client,
            "num-partitions": 0 if own is None else own.num_partitions,
            "examples": len(self.dataset.train if own is None else self.train(own.client)),
            # That of a node's own folder would let the server test guesses of its data.
            "fingerprint": "" if own and not own.num_partitions else self.dataset.fingerprint,
            **describe_task(self.dataset.task),
        }

    def describe_table(self) -> dict[str, str]:
        """Return what a node adds to its reply: the statistics of its training examples of a table.

        Nothing where virtual clients share a table.
        """
        table = self.dataset.table
        if table is None or self.own is None:
            return {}
        return {"table": Summary.of(table, self.train(self.own.client).inputs).to_json()}

    def coded(self, statistics: Statistics) -> NodeData:
        """Return the same data with a table coded with ``statistics``."""
        return replace(self, dataset=coded(self.dataset, statistics))

    def _check(self, client: int) -> None:
        if self.own is not None and client != self.own.client:
            raise ConfigError(
                f"this node is client {self.own.client} and trains no other client, but it was sent "
                f"client {client}"
            )


NODE_KEYS = ("data-path", "client-id", "state-path", "num-partitions", "partition-id")
"""Keys of a SuperNode's ``--node-config``; others are the user's own."""


def own_client(config: FederationConfig, node_config: Mapping[str, Scalar]) -> OwnClient | None:
    """Return the client that a node is, or None for a node that trains virtual clients.

    Raises
    ------
    ConfigError
        The node-config contradicts ``num-clients``, lacks a key, or has one that is misspelled.
    """
    for key, value in node_config.items():
        like = get_close_matches(key, NODE_KEYS, 1, 0.8) if key not in NODE_KEYS else []
        if like:
            raise ConfigError(
                f"{key} = {value!r}: a node has no such key. Did you mean {like[0]!r}? Set it in the "
                "SuperNode's --node-config."
            )
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
    if "num-partitions" not in node_config:
        raise ConfigError(
            "data-path = '': with num-clients = 0 a node is one client, and this one has neither data of "
            "its own nor a part of the run's. Start the SuperNode with --node-config "
            "'data-path=\"FOLDER\" client-id=0', or with 'num-partitions=2 partition-id=0'."
        )
    partitions = _number(node_config, "num-partitions", "num-clients = 0 and no data-path")
    client = _number(node_config, "partition-id", "num-clients = 0 and no data-path")
    if not 0 <= client < partitions:
        raise ConfigError(
            f"partition-id = {client}: must be from 0 to num-partitions - 1 = {partitions - 1}. "
            "Set it in the SuperNode's --node-config."
        )
    return OwnClient(client, num_partitions=partitions)


def _number(node_config: Mapping[str, Scalar], key: str, reason: str) -> int:
    value = node_config.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        example = 2 if key == "num-partitions" else 0
        raise ConfigError(
            f"{key} = {value!r}: must be a whole number from 0, because {reason}. "
            f"Start the SuperNode with --node-config '... {key}={example}'."
        )
    return value


def read_node_data(config: RunConfig, own: OwnClient | None) -> NodeData:
    """Return the data of a node (``own``), or of the server and of nodes with virtual clients (None).

    Where nodes are clients (``num-clients = 0``) a table is not coded.
    """
    if own is not None and own.data_path:
        return NodeData(load_node_data(config, own.data_path), None, own)
    dataset = load_server_data(config)
    clients = own.num_partitions if own is not None else config.num_clients
    if not clients:
        return NodeData(dataset, None, None)
    return NodeData(dataset, load_partition(config, dataset, clients), own)


def describe_own_code(config: RunConfig) -> dict[str, list[str]]:
    """Return the digests of a run's own components as values of a message: {} if it has none."""
    components = [
        f"{key} {config.name_of(key)} {code.digest}" for key, code in config.own_code().items()
    ]
    return {"components": components} if components else {}


def own_code_differences(config: RunConfig, answer: Mapping[str, Any]) -> Iterator[str]:
    """Yield for each of the run's own components that a node's answer says to have other code."""
    reported = answer.get("components", [])
    lines = [str(each).split() for each in reported] if isinstance(reported, list) else []
    digests = {words[0]: words[-1] for words in lines if words}
    for key, code in config.own_code().items():
        if (digest := digests.get(key, "")) != code.digest:
            yield (
                f"its code of {key} = {config.name_of(key)!r} has SHA-256 "
                f"{one_line(digest) if digest else 'unknown'}, but the server's has {code.digest}; give "
                f"it the server's files ({', '.join(code.files)})"
            )


OF_TABLES: dict[str, Any] = {"columns": [], "regression": False}
"""Fields of a task that only tables have, and their values elsewhere."""


def describe_task(task: Task) -> dict[str, Any]:
    """Return a task as values of a message, which ``read_task`` reads."""
    values = {kebab(field.name): getattr(task, field.name) for field in fields(task)}
    return {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in values.items()
        if value or key not in OF_TABLES
    }


def read_task(answer: Mapping[str, Any]) -> Task:
    """Return the task in a reply to a ``query``: the inverse of ``describe_task``.

    Raises
    ------
    DataError
        A field is missing, or of another type.
    """
    values: dict[str, Any] = {}
    like = Task("vector", (2,), 10, columns=("height", "weight"), regression=True)
    for key, example in describe_task(like).items():
        value = answer.get(key, OF_TABLES.get(key))
        if type(value) is not type(example):
            actual = f"{key} = {one_line(repr(value))}" if key in answer else f"no {key}"
            raise DataError(
                f"it reports {actual} for its data, where a {type(example).__name__} is expected; "
                "install the server's version of this package"
            )
        values[key.replace("-", "_")] = tuple(value) if isinstance(value, list) else value
    return Task(**{**values, **_texts(values)})


def _texts(values: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    return {key: tuple(map(str, values[key])) for key in ("labels", "columns")}


def task_problem(expected: Task, actual: Task) -> str:
    """Return why data of task ``actual`` are no data of a federation of ``expected``, or "".

    It has phrases such as "input shape (1, 28, 28) instead of (3, 32, 32)". Labels without names are
    equal if there are as many of them, because a network has one output for each.
    """
    pairs = {
        "task": (_kind(actual), _kind(expected)),
        "columns": (actual.columns, expected.columns),
        "input shape": (actual.input_shape, expected.input_shape),
        "vocabulary": (actual.vocabulary, expected.vocabulary),
        "number of symbols": (actual.num_symbols, expected.num_symbols),
    }
    different = [
        f"{name} {one_line(repr(a))} instead of {b!r}" for name, (a, b) in pairs.items() if a != b
    ]
    different += _label_differences(expected, actual)
    return f"{'; '.join(different)}; give it the server's data set and keys" if different else ""


def _kind(task: Task) -> str:
    return f"{task.kind} with one label" if task.one_label else task.kind


def _label_differences(expected: Task, actual: Task) -> list[str]:
    if expected.labels and actual.labels and expected.labels != actual.labels:
        return [f"labels {_names(actual.labels)} instead of {_names(expected.labels)}"]
    if actual.num_classes != expected.num_classes:
        return [f"{actual.num_classes} classes instead of {expected.num_classes}"]
    return []


def _names(labels: tuple[str, ...]) -> str:
    shown = one_line(", ".join(labels[:5]))
    return f"({shown}, ... {len(labels)} in all)" if len(labels) > 5 else f"({shown})"
