"""The nodes of the federation: queried for their data, and accepted or rejected with a reason."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from logging import INFO, WARNING
from typing import Any, cast

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid
from numpy.typing import NDArray

import fedapp
from fedapp.config.run_config import RunConfig
from fedapp.data.dataset import Task
from fedapp.data.node_data import describe_task, own_code_differences, read_task, task_problem
from fedapp.data.table import MAX_COUNT, Table
from fedapp.errors import ConfigError, DataError, RunError, one_line
from fedapp.federation.faults import Fault, is_missing
from fedapp.federation.queries import Connection, Queries, connections
from fedapp.federation.table_statistics import TableStatistics
from fedapp.training.algorithm import algorithm_of
from fedapp.training.build import require_batches
from fedapp.training.device import choose_device

MIXED_DEVICES = (
    "Node %s trains on '%s', and not all nodes and the server (on '%s') do: rounds take as long as the "
    "slowest. In Flower's simulation an actor sees a GPU only if it has a share of it: `fedapp doctor` "
    "prints the command. device='cpu' keeps all of them on the CPU."
)
NEW_NODE_WAIT = 15.0
"""Longest wait for a new node's answer before a round, or before the next look for new nodes."""

UNANSWERED_PAUSE = 900.0
"""Pause before a node that did not answer is waited for again, so that it does not delay every round."""

UNANSWERED = (
    "it has not answered yet: its device starts Python and PyTorch first, and ends what it trains for "
    "another run, also for one that was stopped"
)

REJECTED_PAUSE = 180.0
"""Pause before a rejected node is queried again: its data may have been fixed in the meantime."""

MAX_CLIENT = 2**63 - 1
"""Largest id of a client: a checkpoint has them as int64, where a message has room for larger ones."""

RAISED_BY_APP = re.compile(r"<class '(?:\w+\.)*(\w+)'>:<'(.*)'>")
"""Flower's text for an exception of a ClientApp."""

Cohort = tuple[int, list[int]]
"""A node and the clients that it trains or evaluates."""


class Nodes:
    """The accepted nodes of a run, and their clients.

    With virtual clients (K > 0) every accepted node trains the clients that it is sent, and ``clients``
    is range(K) from the start, with the ``sizes`` n_k [K]. With ``num-clients = 0`` each node is one
    client, with the id and size that it reports. ``rejected`` has the reason by node. ``state_sizes`` has
    n_k of the clients with which the server's state counts. ``tables`` has the statistics of a ``table``
    that these clients hold, and ``coded_task`` is that of a coded table. ``queries`` may have been sent
    ahead. ``forget_messages`` is called with the nodes that have disconnected.
    """

    def __init__(
        self,
        config: RunConfig,
        task: Task,
        fingerprint: str,
        sizes: NDArray[np.int64] | None,
        table: Table | None = None,
        queries: Queries | None = None,
    ) -> None:
        self.config = config
        self.task = self.coded_task = task
        self.fingerprint = fingerprint
        self.tables = TableStatistics(table)
        self.rejected: dict[int, str] = {}
        self.forget_messages: Callable[[Collection[int]], None] = lambda nodes: None
        self.state_sizes: Mapping[int, int] = {}
        self._virtual_sizes = sizes
        self._virtual_examples = 0 if sizes is None else int(sizes.sum())
        self._sizes: dict[int, int] = {}
        self._known: dict[int, int] = {}
        self._node_of: dict[int, int] = {}
        self._accepted: set[int] = set()
        self._next_query: dict[int, float] = {}
        self._queries = queries or Queries()
        self._connections: dict[int, Connection] = self._queries.ahead
        self._device_types: set[str] = set()
        self._splits: dict[int, Mapping[str, Any]] = {}

    @property
    def virtual(self) -> bool:
        """Whether the clients are virtual: any node can train any of them."""
        return self._virtual_sizes is not None

    @property
    def clients(self) -> Sequence[int]:
        """The ids of all known clients, in ascending order."""
        if self._virtual_sizes is not None:
            return range(len(self._virtual_sizes))
        return sorted(self._node_of)

    def sizes(self, clients: Sequence[int]) -> dict[int, int]:
        """Return n_k of each of ``clients``."""
        if self._virtual_sizes is None:
            return {client: self._sizes[client] for client in clients}
        sizes = self._virtual_sizes[np.asarray(clients, dtype=np.int64)]
        return dict(zip(clients, sizes.tolist(), strict=True))

    @property
    def total_weight(self) -> float:
        """Total weight of all clients: n with weighting by examples, K with uniform weighting.

        If nodes are clients, of those that have been accepted since the run began, connected or not.
        """
        if self.virtual and self.config.weighting != "uniform":
            return float(self._virtual_examples)
        return float(len(self.clients)) if self.virtual else self.weight_of(self._known)

    def weight_of(self, sizes: Mapping[int, int]) -> float:
        """Return the total weight of clients with these n_k."""
        return float(len(sizes) if self.config.weighting == "uniform" else sum(sizes.values()))

    @property
    def known(self) -> dict[int, int]:
        """n_k of the clients that have been accepted since the run began, if nodes are clients."""
        return dict(self._known)

    def add_known(self, sizes: Mapping[int, int]) -> None:
        """Add clients that were accepted before the run was resumed, with their n_k."""
        self._known, self.state_sizes = {**sizes, **self._known}, sizes

    def node_of(self, client: int) -> int:
        """Return the node that is ``client`` (``num-clients = 0`` only)."""
        return self._node_of[client]

    def wait(self, grid: Grid, least: int) -> list[int]:
        """Wait until ``least`` nodes are accepted, and all connected ones have answered; return them.

        Raises
        ------
        RunError
            There are fewer after ``node-timeout``; the message says which nodes were rejected and why.
        """
        end = time.monotonic() + self.config.node_timeout
        logged = (0, 0, 0)
        while True:
            accepted = self.connected(grid, min(end - time.monotonic(), NEW_NODE_WAIT))
            is_late, unanswered = time.monotonic() > end, self._unanswered
            if len(accepted) >= least and (is_late or not unanswered):
                return accepted
            if is_late:
                raise RunError(self._too_few_nodes(len(accepted), least))
            found = (len(accepted), least, len(unanswered))
            if found != logged:
                log(INFO, "Waiting for nodes: %d of %d, %d to answer", *found)
                logged = found
            time.sleep(0.5)
            # Wait for those without an answer again at once: without them there is no round.
            self._next_query = {
                n: time_ for n, time_ in self._next_query.items() if n in self.rejected
            }

    def available(self, grid: Grid) -> list[int]:
        """Return the accepted nodes that are connected now; without any, ``wait`` for one."""
        connected = self.connected(grid, NEW_NODE_WAIT)
        if not connected or not len(self.clients):
            log(WARNING, "No accepted node is connected; waiting")
            connected = self.wait(grid, 1)
        return connected

    def add_to(self, content: RecordDict) -> RecordDict:
        """Return the content of a request with what a node's own data have to fit.

        That is the task, or a table's statistics.
        """
        if not self.virtual and self.tables.pooled is None:
            content["task"] = ConfigRecord(describe_task(self.task))
        return self.tables.add_to(content)

    def connected(self, grid: Grid, max_wait: float) -> list[int]:
        """Return the accepted nodes that are connected now, in ascending order.

        Queries new nodes, and waits at most ``max_wait`` seconds for their answers.
        """
        self._update_connections(grid)
        connected = set(self._connections)
        for node, reply in self._queries.collect_late(grid):
            self._handle_answer(node, reply)
        now = time.monotonic()
        due = sorted(n for n in connected - self._accepted if self._next_query.get(n, now) <= now)
        self._query(grid, [node for node in due if node in self.rejected], 0.0)
        self._query(grid, [node for node in due if node not in self.rejected], max_wait)
        return sorted(self._accepted)

    def _update_connections(self, grid: Grid) -> None:
        """Forget the nodes that have disconnected since the last call.

        A node that has reconnected is among them: with node authentication it keeps its id, but its data
        may have changed.
        """
        previous = self._connections
        current = connections(grid)
        for node in sorted(self._accepted - current.keys()):
            log(WARNING, "Node %s is no longer connected", self.name_of(node))
        self._connections = current
        gone = {
            node
            for node, connection in previous.items()
            if self._connections.get(node) != connection
        }
        self._queries.forget(gone)
        self.forget_messages(gone)
        clients = [client for client, node in self._node_of.items() if node in gone]
        for client in clients:
            del self._node_of[client], self._sizes[client]
        self._accepted -= gone
        self._splits = {node: own for node, own in self._splits.items() if node not in gone}
        # A node that was rejected for a duplicate client-id may be accepted when the other one is gone.
        for node in [*self.rejected] if clients else gone:
            self.rejected.pop(node, None)
        for node in [*self._next_query] if clients else gone:
            self._next_query.pop(node, None)

    def _query(self, grid: Grid, nodes: list[int], max_wait: float) -> None:
        if not nodes:
            return
        self._next_query |= dict.fromkeys(nodes, time.monotonic() + UNANSWERED_PAUSE)
        for node, reply in self._queries.exchange(grid, nodes, max_wait):
            self._handle_answer(node, reply)

    def _handle_answer(self, node: int, reply: Message | Fault) -> None:
        """Accept or reject the node; a reason is logged once.

        A late or incomplete answer is no reason to reject it. After a query that the SuperLink did not
        take, the node is queried again at the next look. An accepted node has answered already.
        """
        if isinstance(reply, Fault) and reply.kind == "lost":
            self._next_query.pop(node, None)
            return
        if node in self._accepted or (isinstance(reply, Message) and is_missing(reply)):
            return
        self._queries.forget([node])
        logged = self.rejected.pop(node, "")
        problem = self._accept(node, reply)
        if problem:
            self.rejected[node] = problem
            self._next_query[node] = time.monotonic() + REJECTED_PAUSE
            if problem != logged:
                log(WARNING, "Node %s is rejected: %s", self.name_of(node), problem)

    def name_of(self, node: int) -> str:
        """Return a node's id, with the name that it was registered with, if any."""
        name = self._connections[node].name if node in self._connections else ""
        return f"{node} ({one_line(name)})" if name else str(node)

    def query_again(self, client: int) -> None:
        """Query the node that is ``client`` again before the next round."""
        node = self._node_of.pop(client)
        del self._sizes[client]
        self._accepted.discard(node)
        self._next_query.pop(node, None)

    def query_again_after(self, faults: Mapping[int, Fault]) -> None:
        """Query again each node whose client claimed another weight than its n_k allows."""
        if not self.virtual:
            for client, fault in faults.items():
                if fault.kind == "weight":
                    self.query_again(client)

    def _accept(self, node: int, reply: Message | Fault) -> str:
        """Accept the node, or return why not; the content of its answer is not trusted."""
        if isinstance(reply, Fault):
            return reply.reason
        if reply.has_error():
            lines = (reply.error.reason or "").strip().splitlines() or [""]
            return "it failed: " + one_line(RAISED_BY_APP.sub(r"\1: \2", lines[-1]))
        records = reply.content.config_records
        answer = cast("Mapping[str, Any] | None", records.get("node-data"))
        if answer is None:
            return "its answer has no record 'node-data'; it runs another app"
        examples, client = answer.get("examples", 0), answer.get("client-id", -1)
        if not isinstance(examples, int) or not isinstance(client, int):
            return (
                f"examples = {one_line(examples)} and client-id = {one_line(client)} are no numbers"
            )
        if examples > MAX_COUNT or client > MAX_CLIENT:
            return (
                f"examples = {examples} and client-id = {client}, and at most {MAX_COUNT} and "
                f"{MAX_CLIENT} are possible"
            )
        problem = next(self._mismatches(node, answer), "")
        if not problem and not self.virtual:
            problem = self._split_mismatch(node, answer)
            problem = problem or self._register_client(node, client, examples)
        if not problem:
            self._accepted.add(node)
            log(INFO, "Node %s is accepted: %s", self.name_of(node), _describe(answer))
            self._warn_of_mixed_devices(node, re.split(r"\W", str(answer.get("device", "")))[0])
        return problem

    def _warn_of_mixed_devices(self, node: int, kind: str) -> None:
        """Log once that some nodes train virtual clients on a GPU and others on the CPU."""
        if not self.virtual or kind not in {"cpu", "cuda"} - self._device_types:
            return
        self._device_types.add(kind)
        here = choose_device(self.config).type
        if len(self._device_types) > 1 or (kind, here) == ("cpu", "cuda"):
            log(WARNING, MIXED_DEVICES, self.name_of(node), kind, here)

    def _split_mismatch(self, node: int, answer: Mapping[str, Any]) -> str:
        """Return why the partitions overlap with those of an accepted node, or nothing."""
        own = {key: answer.get(key) for key in ("num-partitions", "fingerprint")}
        self._splits.pop(node, None)
        if not own["num-partitions"]:
            return ""
        # All accepted ones with partitions have the same, so one of them will do.
        other = next((other for other in self._splits if other in self._accepted), node)
        self._splits[node] = own
        for key, theirs in self._splits[other].items():
            if own[key] != theirs:
                fix = "start all with the same" if key == "num-partitions" else "copy the data anew"
                return (
                    f"{key} = {one_line(repr(own[key]))}, but node {self.name_of(other)} has "
                    f"{one_line(repr(theirs))}: their examples would overlap; {fix}"
                )
        return ""

    def _register_client(self, node: int, client: int, examples: int) -> str:
        if client < 0:
            return "it has no data of its own, but num-clients = 0; set its data-path and client-id"
        if client in self._node_of:
            other = self.name_of(self._node_of[client])
            return f"client-id = {client}: node {other} is that client already"
        if self.config.batch_size > 1:  # one of 1 is no node's fault, and ends the run
            try:
                require_batches(self.config, self.coded_task, [examples])
            except ConfigError as error:
                return str(error)
        before = self.state_sizes.get(client, examples)
        if examples != before and weights_are_fixed(self.config):
            return (
                f"examples = {examples}, but client {client} had {before}, by which algorithm = "
                f"{self.config.algorithm!r} has weighted it; give it the data as they were, or start "
                "another run, with weighting='uniform' if they change again"
            )
        self._node_of[client], self._sizes[client] = node, examples
        self._known[client] = examples
        return ""

    def _mismatches(self, node: int, answer: Mapping[str, Any]) -> Iterator[str]:
        """Yield why a node with this answer is rejected, the most likely cause first."""

        def differs(key: str, expected: str, fix: str) -> Iterator[str]:
            if (reported := answer.get(key)) != expected:
                yield f"{key} = {one_line(repr(reported))}, but the server has {expected!r}; {fix}"

        yield from differs("version", fedapp.__version__, "install the same version")
        yield from own_code_differences(self.config, answer)
        try:
            if problem := task_problem(self.task, read_task(answer)):
                yield problem
            else:
                yield from self.tables.mismatches(node, answer)
        except DataError as error:
            yield str(error)
        if self.virtual:
            yield from differs("fingerprint", self.fingerprint, "its copy of the data differs")
        if answer.get("examples", 0) <= 0:
            yield "it has no training examples; point its data-path to a folder that has"

    @property
    def _unanswered(self) -> set[int]:
        return self._connections.keys() - self._accepted - self.rejected.keys()

    def _too_few_nodes(self, accepted: int, least: int) -> str:
        unanswered = dict.fromkeys(self._unanswered, UNANSWERED)
        rejected = "".join(
            f"\n  node {self.name_of(node)}: {why}"
            for node, why in (self.rejected | unanswered).items()
        )
        least_now = " (after the first round 1)" if least < self.config.min_nodes else ""
        return (
            f"min-nodes = {self.config.min_nodes}{least_now}: only {accepted} accepted nodes within "
            f"node-timeout = "
            f"{self.config.node_timeout:g} s. Start more SuperNodes, lower min-nodes or raise "
            f"node-timeout." + (f" Connected, but not accepted:{rejected}" if rejected else "")
        )


def weights_are_fixed(config: RunConfig) -> bool:
    """Return whether n_k may not change: the server keeps a mean of the clients, weighted by it."""
    algorithm = algorithm_of(config)
    return algorithm.keeps_mean and config.weighting == "examples"


def _describe(answer: Mapping[str, Any]) -> str:
    """Return a line about an accepted node's data, device and software."""
    parts = [f"client {answer['client-id']}"] if answer.get("client-id", -1) >= 0 else []
    parts.append(f"{answer['examples']} examples")
    parts += [one_line(answer[key]) for key in ("device", "software") if key in answer]
    return ", ".join(parts)
