"""The nodes of the federation: waited for, asked what they hold, and refused by name if unfit."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from logging import INFO, WARNING
from typing import Any, cast

import numpy as np
from flwr.app import Message, MessageType, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid
from numpy.typing import NDArray

import fedapp
from fedapp.config import RunConfig
from fedapp.data import Task
from fedapp.errors import RunError
from fedapp.messages import exchange

QUERY_SECONDS = 120.0
"""Longest wait for a node's answer to a query: a device may have to start Python and PyTorch."""

SILENCE_SECONDS = 900.0
"""How long a node that did not answer is left alone, so that it does not hold up every round."""


class Nodes:
    """Which nodes are fit for this run, and which clients they are.

    With virtual clients (K > 0) every fit node trains whatever it is sent, and ``clients`` is
    range(K) from the start, with the ``sizes`` n_k [K]. With ``num-clients = 0`` the clients are
    what the nodes say they are.
    """

    def __init__(
        self,
        config: RunConfig,
        task: Task,
        fingerprint: str,
        sizes: NDArray[np.int64] | None,
    ) -> None:
        self.config = config
        self.task = task
        self.fingerprint = fingerprint
        self.refused: dict[int, str] = {}
        self._virtual_sizes = sizes
        self._virtual_total = 0 if sizes is None else int(sizes.sum())
        self._sizes: dict[int, int] = {}
        self._node_of: dict[int, int] = {}
        self._fit: set[int] = set()
        self._ask_again: dict[int, float] = {}

    @property
    def virtual(self) -> bool:
        """Whether the clients are virtual: any node can train any of them."""
        return self._virtual_sizes is not None

    @property
    def clients(self) -> Sequence[int]:
        """The ids of all clients known, in ascending order."""
        if self._virtual_sizes is not None:
            return range(len(self._virtual_sizes))
        return sorted(self._node_of)

    def sizes(self, clients: Sequence[int]) -> dict[int, int]:
        """Return n_k of each of ``clients``."""
        if self._virtual_sizes is None:
            return {client: self._sizes[client] for client in clients}
        drawn = self._virtual_sizes[np.asarray(clients, dtype=np.int64)]
        return dict(zip(clients, drawn.tolist(), strict=True))

    @property
    def total_weight(self) -> float:
        """Weight of all clients known: n with weighting by examples, K if it is uniform."""
        if self.config.weighting == "uniform":
            return float(len(self.clients))
        return float(self._virtual_total if self.virtual else sum(self._sizes.values()))

    def node_of(self, client: int) -> int:
        """Return the node that is ``client`` (``num-clients = 0`` only)."""
        return self._node_of[client]

    def wait(self, grid: Grid) -> list[int]:
        """Wait until ``min-nodes`` fit nodes are there and return them.

        Raises
        ------
        RunError
            They are not there within ``node-timeout``; the message says who was refused and why.
        """
        end = time.monotonic() + self.config.node_timeout
        said = -1
        while len(fit := self.present(grid)) < self.config.min_nodes:
            if len(fit) != said:
                log(
                    INFO, "Waiting for nodes: %d of min-nodes = %d", len(fit), self.config.min_nodes
                )
                said = len(fit)
            if time.monotonic() > end:
                raise RunError(self._too_few(len(fit)))
            time.sleep(0.5)
        return fit

    def present(self, grid: Grid) -> list[int]:
        """Return the fit nodes that are connected now, in ascending order; asks newcomers."""
        connected = set(grid.get_node_ids())
        for client in [k for k, node in self._node_of.items() if node not in connected]:
            del self._node_of[client], self._sizes[client]
        self._fit &= connected
        known = self._fit | self.refused.keys()
        now = time.monotonic()
        newcomers = sorted(n for n in connected - known if self._ask_again.get(n, now) <= now)
        if newcomers:
            self._ask(grid, newcomers)
        return sorted(self._fit)

    def _ask(self, grid: Grid, nodes: list[int]) -> None:
        messages = [
            Message(RecordDict(), node, MessageType.QUERY, ttl=QUERY_SECONDS) for node in nodes
        ]
        self._ask_again |= dict.fromkeys(nodes, time.monotonic() + SILENCE_SECONDS)
        for reply in exchange(grid, messages, QUERY_SECONDS):
            node = reply.metadata.src_node_id
            problem = self._admit(node, reply)
            if problem:
                self.refused[node] = problem
                log(WARNING, "Node %d is refused: %s", node, problem)

    def _admit(self, node: int, reply: Message) -> str:
        """Take the node in, or return why not."""
        if reply.has_error():
            return f"it failed: {(reply.error.reason or 'no reason').strip().splitlines()[-1]}"
        records = reply.content.config_records
        if "holdings" not in records:
            return "its answer has no record 'holdings'; it runs another app"
        answer = cast("Mapping[str, Any]", records["holdings"])
        problem = next(filter(None, self._mismatches(answer)), "")
        client = int(answer.get("client-id", -1))
        if not problem and not self.virtual:
            problem = self._admit_client(node, client, int(answer.get("examples", 0)))
        if not problem:
            self._fit.add(node)
        return problem

    def _admit_client(self, node: int, client: int, examples: int) -> str:
        if client < 0:
            return "it has no data of its own, but num-clients = 0; set its data-path and client-id"
        if client in self._node_of:
            return f"client-id = {client}: node {self._node_of[client]} is that client already"
        self._node_of[client], self._sizes[client] = node, examples
        return ""

    def _mismatches(self, answer: Mapping[str, Any]) -> list[str]:
        def differs(key: str, mine: object, mend: str) -> str:
            theirs = answer.get(key)
            theirs = tuple(theirs) if isinstance(theirs, list) else theirs
            return (
                "" if theirs == mine else f"{key} = {theirs!r}, but the server has {mine!r}; {mend}"
            )

        task = self.task
        labels = "\n".join(task.labels)
        same_data = "give both the same data set and keys"
        found = [
            differs("version", fedapp.__version__, "install the same version"),
            differs("kind", task.kind, same_data),
            differs("input-shape", task.input_shape, same_data),
            differs("num-classes", task.num_classes, same_data),
            differs("labels", labels, same_data),
        ]
        if self.virtual:
            found.append(
                differs("fingerprint", self.fingerprint, "its copy of the data is another")
            )
        if not int(answer.get("examples", 0)):
            found.append("it has no training examples; point its data-path to a folder that has")
        return found

    def _too_few(self, fit: int) -> str:
        refused = "".join(f"\n  node {node}: {why}" for node, why in self.refused.items())
        return (
            f"min-nodes = {self.config.min_nodes}: only {fit} fit nodes within node-timeout = "
            f"{self.config.node_timeout:g} s. Start more SuperNodes, lower min-nodes or raise "
            f"node-timeout." + (f" Refused:{refused}" if refused else "")
        )
