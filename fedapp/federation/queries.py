"""The queries in which nodes describe their data: sent, waited for, and collected when they are late."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedapp.federation.delivery import Delivery
from fedapp.federation.faults import Fault

QUERY_TIMEOUT = 3600.0
"""Longest wait for a node's answer to a query: as long as for a round's replies by default.

A device has to start Python and PyTorch and may have to decode its data.
"""

QUERY_AGAIN = 240.0
"""Pause before a node without an answer is queried again: its query or its answer may have been lost."""


class Connection(NamedTuple):
    """A node's connection as Flower lists it.

    ``since`` changes when the node's process is restarted, or comes back after an outage.
    """

    name: str
    since: str


def connections(grid: Grid) -> dict[int, Connection]:
    """Return the connections that there are now, by node."""
    return {n.node_id: Connection(n.name, n.last_activated_at) for n in grid.get_nodes()}


class Queries:
    """Sends queries and yields (node, answer); a node is sent one every ``QUERY_AGAIN`` seconds.

    An answer to any of them counts. Who takes it may ``forget`` the node's others.

    ``ahead`` has the connections over which queries were sent ahead of the first ``exchange``.
    """

    def __init__(self) -> None:
        self.ahead: dict[int, Connection] = {}
        self._delivery = Delivery()

    def send_ahead(self, grid: Grid) -> None:
        """Query all nodes, without waiting for an answer."""
        self.ahead = connections(grid)
        self._delivery.send(grid, _messages(list(self.ahead)), QUERY_TIMEOUT)

    def forget(self, nodes: Collection[int]) -> None:
        """Take no answer of these nodes to what was sent before, but query them again."""
        self._delivery.forget(nodes)

    def exchange(
        self, grid: Grid, nodes: Sequence[int], max_wait: float
    ) -> Iterator[tuple[int, Message | Fault]]:
        """Query the nodes without a recent query; yield answers of all for ``max_wait`` seconds."""
        sent = {key: n for key, n in self._delivery.unexpired().items() if n in nodes}
        recent = set(self._delivery.unexpired(QUERY_AGAIN).values())
        new = [node for node in nodes if node not in recent]
        order = [*new, *sent.values()]
        index_of = {key: index for index, key in enumerate(sent, start=len(new))}
        for index, answer in self._delivery.exchange(
            grid, _messages(new), QUERY_TIMEOUT, max_wait, index_of
        ):
            yield order[index], answer

    def collect_late(self, grid: Grid) -> list[tuple[int, Message | Fault]]:
        """Return the answers to earlier queries that have arrived."""
        return self._delivery.collect_late(grid)


def _messages(nodes: Sequence[int]) -> list[Message]:
    return [Message(RecordDict(), n, MessageType.QUERY, ttl=QUERY_TIMEOUT) for n in nodes]
