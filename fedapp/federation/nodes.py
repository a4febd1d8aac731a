"""The nodes of the federation: waited for, asked what they hold, and refused by name if unfit."""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from logging import INFO, WARNING
from typing import Any, NamedTuple, cast

import numpy as np
from flwr.app import Message, MessageType, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid
from numpy.typing import NDArray

import fedapp
from fedapp.config.run_config import RunConfig
from fedapp.data import Task
from fedapp.data.node_data import read_task, task_differences
from fedapp.errors import DataError, RunError, one_line
from fedapp.federation.delivery import Delivery
from fedapp.federation.faults import Fault
from fedapp.federation.validation import missing
from fedapp.training.build import choose_device
from fedapp.training.client import spread

MIXED = (
    "Node %s trains on '%s', and not all nodes and the server (on '%s') do: rounds take as long as the "
    "slowest. In Flower's simulation an actor sees a GPU only if it has a share of it: `fedapp doctor` "
    "prints the command. device='cpu' keeps all of them on the CPU."
)
QUERY_SECONDS = 120.0
"""Longest wait for a node's answer to a query: a device may have to start Python and PyTorch."""

NEWCOMER_SECONDS = 15.0
"""Longest that a round waits for such an answer; one that comes later counts for the next round."""

SILENCE_SECONDS = 900.0
"""How long a node that did not answer is left alone, so that it does not hold up every round."""

SILENT = "it has not answered yet: its device starts Python and PyTorch first"

REFUSED_SECONDS = 180.0
"""How long after a refusal a node is asked again: somebody may have mended it where it stands."""

RAISED = re.compile(r"<class '(?:\w+\.)*(\w+)'>:<'(.*)'>")
"""How Flower quotes what a ClientApp raised."""

Cohort = tuple[int, list[int]]
"""A node and the clients that it is to train."""


class Seen(NamedTuple):
    """What Flower says of a connected node; ``since`` is another time when it is another process."""

    name: str
    since: str


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
        self.rejected: dict[int, str] = {}
        self._virtual_sizes = sizes
        self._virtual_total = 0 if sizes is None else int(sizes.sum())
        self._sizes: dict[int, int] = {}
        self._node_of: dict[int, int] = {}
        self._accepted: set[int] = set()
        self._ask_again: dict[int, float] = {}
        self._seen: dict[int, Seen] = {}
        self._queries = Delivery()
        self._kinds: set[str] = set()
        self._partitions: dict[int, int] = {}

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
        """Wait until ``min-nodes`` fit nodes are there, and what is connected has answered; return them.

        Raises
        ------
        RunError
            They are not there within ``node-timeout``; the message says who was refused and why.
        """
        end = time.monotonic() + self.config.node_timeout
        said = -1
        while len(accepted := self.connected(grid, end - time.monotonic())) < self.config.min_nodes:
            if len(accepted) != said:
                log(
                    INFO,
                    "Waiting for nodes: %d of min-nodes = %d",
                    len(accepted),
                    self.config.min_nodes,
                )
                said = len(accepted)
            if time.monotonic() > end:
                raise RunError(self._too_few(len(accepted)))
            time.sleep(0.5)
            # Without the silent ones there is no round: a message may have been lost.
            self._ask_again = {n: at for n, at in self._ask_again.items() if n in self.rejected}
        return accepted

    def available(self, grid: Grid) -> list[int]:
        """Return the fit nodes that are connected now; waits as at the start if there are none."""
        connected = self.connected(grid, NEWCOMER_SECONDS)
        if not connected or not len(self.clients):
            log(WARNING, "No fit node is connected; waiting")
            connected = self.wait(grid)
        return connected

    def cohorts(
        self, clients: Sequence[int], connected: Sequence[int], busy: Collection[int] = ()
    ) -> list[Cohort]:
        """Return (node, its clients), without busy nodes: virtual clients go to the others."""
        if not self.virtual:
            pairs = [(self.node_of(client), [client]) for client in clients]
            return [(node, cohort) for node, cohort in pairs if node not in busy]
        free = [node for node in connected if node not in busy]
        cohorts = spread(clients, self.sizes(clients), len(free)) if free else []
        return list(zip(free, cohorts, strict=False))

    def connected(self, grid: Grid, max_wait: float) -> list[int]:
        """Return the fit nodes that are connected now, in ascending order.

        Asks newcomers, and waits for their answers for at most ``max_wait`` seconds.
        """
        gone = self._look(grid)
        connected = set(self._seen)
        for node, reply in self._queries.collect(grid):
            if node in connected - self._accepted - gone:  # one that went answered as it was
                self._hear(node, reply)
        now = time.monotonic()
        due = sorted(n for n in connected - self._accepted if self._ask_again.get(n, now) <= now)
        self._ask(grid, [node for node in due if node in self.rejected], 0.0)
        self._ask(grid, [node for node in due if node not in self.rejected], max_wait)
        return sorted(self._accepted)

    def _look(self, grid: Grid) -> set[int]:
        """Return, and forget, the nodes that went since the last look, also if they are back.

        With node authentication a node keeps its id, and what it holds now may be something else.
        """
        before = self._seen
        self._seen = {n.node_id: Seen(n.name, n.last_activated_at) for n in grid.get_nodes()}
        gone = {node for node, seen in before.items() if self._seen.get(node) != seen}
        clients = [client for client, node in self._node_of.items() if node in gone]
        for client in clients:
            del self._node_of[client], self._sizes[client]
        self._accepted -= gone
        self._partitions = {n: of for n, of in self._partitions.items() if n not in gone}
        # One that was refused for another's client-id may have it when that one is gone.
        for node in [*self.rejected] if clients else gone:
            self.rejected.pop(node, None)
        for node in [*self._ask_again] if clients else gone:
            self._ask_again.pop(node, None)
        return gone

    def _ask(self, grid: Grid, nodes: list[int], max_wait: float) -> None:
        if not nodes:
            return
        messages = [
            Message(RecordDict(), node, MessageType.QUERY, ttl=QUERY_SECONDS) for node in nodes
        ]
        self._ask_again |= dict.fromkeys(nodes, time.monotonic() + SILENCE_SECONDS)
        for index, reply in self._queries.exchange(grid, messages, QUERY_SECONDS, max_wait):
            self._hear(nodes[index], reply)

    def _hear(self, node: int, reply: Message | Fault) -> None:
        """Take the node in, or refuse it and say why, unless that is said already.

        That its answer did not come in time is silence: no reason to refuse it.
        """
        if isinstance(reply, Message) and missing(reply):
            return
        said = self.rejected.pop(node, "")
        problem = self._admit(node, reply)
        if problem:
            self.rejected[node] = problem
            self._ask_again[node] = time.monotonic() + REFUSED_SECONDS
            if problem != said:
                log(WARNING, "Node %s is refused: %s", self.called(node), problem)

    def called(self, node: int) -> str:
        """Return a node's id, and the name that it was registered with, if it was."""
        name = self._seen[node].name if node in self._seen else ""
        return f"{node} ({one_line(name)})" if name else str(node)

    def ask_again(self, client: int) -> None:
        """Ask the node that is ``client`` anew what it holds, before the next round."""
        node = self._node_of.pop(client)
        del self._sizes[client]
        self._accepted.discard(node)
        self._ask_again.pop(node, None)

    def _admit(self, node: int, reply: Message | Fault) -> str:
        """Take the node in, or return why not; an answer of any kind does no harm."""
        if isinstance(reply, Fault):
            return reply.reason
        if reply.has_error():
            lines = (reply.error.reason or "").strip().splitlines() or [""]
            return "it failed: " + one_line(RAISED.sub(r"\1: \2", lines[-1]))
        records = reply.content.config_records
        answer = cast("Mapping[str, Any] | None", records.get("holdings"))
        if answer is None:
            return "its answer has no record 'holdings'; it runs another app"
        examples, client = answer.get("examples", 0), answer.get("client-id", -1)
        if not isinstance(examples, int) or not isinstance(client, int):
            return (
                f"examples = {one_line(examples)} and client-id = {one_line(client)} are no numbers"
            )
        problem = next(self._mismatches(answer), "")
        if not problem and not self.virtual:
            parts = answer.get("num-partitions", 0)
            problem = self._other_split(node, parts) or self._admit_client(node, client, examples)
        if not problem:
            self._accepted.add(node)
            log(INFO, "Node %s is fit: %s", self.called(node), _describe(answer))
            self._compare_device(node, str(answer.get("device", "")).partition(":")[0])
        return problem

    def _compare_device(self, node: int, kind: str) -> None:
        """Say once that not all train virtual clients on a GPU though there is one."""
        if not self.virtual or kind not in {"cpu", "cuda"} - self._kinds:
            return
        self._kinds.add(kind)
        here = choose_device(self.config).type
        if len(self._kinds) > 1 or (kind, here) == ("cpu", "cuda"):
            log(WARNING, MIXED, self.called(node), kind, here)

    def _other_split(self, node: int, partitions: Any) -> str:
        """Return whose partitions, if anybody's, are of another number, and so share examples."""
        self._partitions[node] = partitions
        for accepted in sorted(self._accepted):
            if partitions and self._partitions[accepted] not in (0, partitions):
                return (
                    f"num-partitions = {one_line(repr(partitions))}, but node {self.called(accepted)} "
                    f"has {self._partitions[accepted]}: their examples would overlap; start all with "
                    "the same"
                )
        return ""

    def _admit_client(self, node: int, client: int, examples: int) -> str:
        if client < 0:
            return "it has no data of its own, but num-clients = 0; set its data-path and client-id"
        if client in self._node_of:
            other = self.called(self._node_of[client])
            return f"client-id = {client}: node {other} is that client already"
        self._node_of[client], self._sizes[client] = node, examples
        return ""

    def _mismatches(self, answer: Mapping[str, Any]) -> Iterator[str]:
        """Yield why a node with this answer is not fit, what explains most first."""

        def differs(key: str, mine: str, fix: str) -> Iterator[str]:
            if (theirs := answer.get(key)) != mine:
                yield f"{key} = {one_line(repr(theirs))}, but the server has {mine!r}; {fix}"

        yield from differs("version", fedapp.__version__, "install the same version")
        try:
            different = task_differences(self.task, read_task(answer))
            if different:
                yield f"{'; '.join(different)}; give it the server's data set and keys"
        except DataError as error:
            yield str(error)
        if self.virtual:
            yield from differs("fingerprint", self.fingerprint, "its copy of the data is another")
        if answer.get("examples", 0) <= 0:
            yield "it has no training examples; point its data-path to a folder that has"

    def _too_few(self, accepted: int) -> str:
        silent = dict.fromkeys(self._seen.keys() - self._accepted - self.rejected.keys(), SILENT)
        rejected = "".join(
            f"\n  node {self.called(node)}: {why}" for node, why in (self.rejected | silent).items()
        )
        return (
            f"min-nodes = {self.config.min_nodes}: only {accepted} fit nodes within node-timeout = "
            f"{self.config.node_timeout:g} s. Start more SuperNodes, lower min-nodes or raise "
            f"node-timeout." + (f" Connected, but not fit:{rejected}" if rejected else "")
        )


def _describe(answer: Mapping[str, Any]) -> str:
    """Say what a fit node holds and runs on."""
    said = [f"client {answer['client-id']}"] if answer.get("client-id", -1) >= 0 else []
    said.append(f"{answer['examples']} examples")
    said += [one_line(answer[key]) for key in ("device", "software") if key in answer]
    return ", ".join(said)
