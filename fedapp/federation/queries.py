"""The queries in which nodes describe their data: sent, waited for, and collected when they are late."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedapp.federation.delivery import Delivery
from fedapp.federation.faults import Fault

QUERY_TIMEOUT = 120.0
"""Longest wait for a node's answer to a query: a device may have to start Python and PyTorch."""


class Connection(NamedTuple):
    """A node's connection as Flower lists it; ``since`` changes when the node's process is restarted."""

    name: str
    since: str


def connections(grid: Grid) -> dict[int, Connection]:
    """Return the connections that there are now, by node."""
    return {n.node_id: Connection(n.name, n.last_activated_at) for n in grid.get_nodes()}


class Queries:
    """Sends queries and yields (node, answer).

    ``ahead`` has the connections over which queries were sent ahead of the first ``exchange``.
    """

    def __init__(self) -> None:
        self.ahead: dict[int, Connection] = {}
        self._sent: dict[str, int] = {}
        self._delivery = Delivery()

    def send_ahead(self, grid: Grid) -> None:
        """Query all nodes, without waiting for an answer."""
        self.ahead = connections(grid)
        nodes = list(self.ahead)
        sent = self._delivery.send(grid, _messages(nodes), QUERY_TIMEOUT)
        self._sent = {key: nodes[index] for key, index in sent.items()}

    def forget(self, nodes: Collection[int]) -> None:
        """Take no answer of these nodes to what was sent ahead, but query them again."""
        self._sent = {key: node for key, node in self._sent.items() if node not in nodes}

    def exchange(
        self, grid: Grid, nodes: Sequence[int], max_wait: float
    ) -> Iterator[tuple[int, Message | Fault]]:
        """Query the nodes that were not queried ahead; yield answers of all for ``max_wait`` seconds."""
        pending = self._delivery.unexpired()
        sent = {key: n for key, n in self._sent.items() if n in nodes and key in pending}
        new = [node for node in nodes if node not in sent.values()]
        order = [*new, *sent.values()]
        index_of = {key: index for index, key in enumerate(sent, start=len(new))}
        for index, answer in self._delivery.exchange(
            grid, _messages(new), QUERY_TIMEOUT, max_wait, index_of
        ):
            yield order[index], answer
        self.forget(nodes)

    def collect_late(self, grid: Grid) -> list[tuple[int, Message | Fault]]:
        """Return the answers to earlier queries that have arrived."""
        return self._delivery.collect_late(grid)


def _messages(nodes: Sequence[int]) -> list[Message]:
    return [Message(RecordDict(), n, MessageType.QUERY, ttl=QUERY_TIMEOUT) for n in nodes]
