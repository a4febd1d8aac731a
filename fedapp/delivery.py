"""Messages between server and nodes: sent, waited for until a deadline, remembered if unanswered."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from logging import WARNING
from typing import Protocol, runtime_checkable

from flwr.app import Message
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.supercore.run import RunNotRunningException

from fedapp.faults import Fault, plain

DEPLOYED = "HttpGrid"
"""Flower's grid of a deployment, by name: to import it is to import a web server."""

LONGEST_PAUSE = 0.5
"""Seconds between two looks for replies at most: a slow device costs two requests a second."""


@runtime_checkable
class Waits(Protocol):
    """A grid that knows when a reply is there, so that nobody has to poll it."""

    def wait_for_replies(self, message_ids: Collection[str], seconds: float) -> None:
        """Return when one of the messages has its reply, or after ``seconds``."""


@dataclass(frozen=True)
class Sent:
    """A message that is not answered yet; ``expires`` is on the clock of ``time.monotonic``."""

    node: int
    expires: float
    seconds: float


class Delivery:
    """Sends messages, yields their replies, and knows which nodes still owe one.

    A reply to a message of an earlier exchange is counted in ``late`` and dropped. ``transfer`` is
    the time spent sending messages and fetching replies since ``begin``, where they travel: other
    grids than that of a deployment may well train while a reply is fetched.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.late = 0
        self.transfer = 0.0
        self._clock = clock
        self._open: dict[str, Sent] = {}
        self._singly = False

    def begin(self, grid: Grid) -> None:
        """Begin a round: count afresh, and drop what came in too late for the one before."""
        self.late, self.transfer = 0, 0.0
        self.drop_late(grid)

    def drop_late(self, grid: Grid) -> None:
        """Count and drop replies to earlier exchanges; their nodes are no longer busy."""
        for _, reply in self.collect(grid):
            self.late += isinstance(reply, Message) and not reply.has_error()

    def collect(self, grid: Grid) -> list[tuple[int, Message | Fault]]:
        """Return (node, reply) for those replies to earlier exchanges that are there now."""
        living = [key for key, sent in self._open.items() if sent.expires > self._clock()]
        return [(self._open.pop(key).node, reply) for key, reply in self._pull(grid, living)]

    def busy(self, connected: Iterable[int]) -> set[int]:
        """Return the nodes that are still at work on an earlier message.

        A node that has not answered is left alone until it does, until it has been away, or until
        its message has been dead for as long as it lived: Flower drops the reply to a dead one.
        """
        now, there = self._clock(), set(connected)
        self._open = {
            key: sent
            for key, sent in self._open.items()
            if sent.node in there and sent.expires + sent.seconds > now
        }
        return {sent.node for sent in self._open.values()}

    def exchange(
        self,
        grid: Grid,
        messages: Sequence[Message],
        seconds: float,
        patience: float | None = None,
    ) -> Iterator[tuple[int, Message | Fault]]:
        """Send the messages and yield (index, reply) as replies come, for at most ``seconds``.

        Replies that are there at the same time come in the order of their messages; a Fault stands
        for one that there can be none to read. Polls Flower's own grids, and so finds a reply late
        by 5 % of the time that it took, but by at least 0.01 and at most 0.5 s. What is unanswered
        when the caller stops, or time is over, stays open. With less ``patience`` than ``seconds``,
        what comes later than that is there for ``collect``.
        """
        most = seconds if patience is None else min(patience, seconds)
        began = self._clock()
        index_of = self._push(grid, messages, began + seconds, seconds)
        for index in set(range(len(messages))) - set(index_of.values()):
            yield index, Fault("lost", "the message to its node was not taken")
        while index_of and (spent := self._clock() - began) < most:
            if isinstance(grid, Waits):
                grid.wait_for_replies(list(index_of), most - spent)
            replies = self._pull(grid, list(index_of))
            for key, reply in sorted(replies, key=lambda pair: index_of[pair[0]]):
                del self._open[key]
                yield index_of.pop(key), reply
            if not replies and not isinstance(grid, Waits):
                time.sleep(min(max(0.05 * spent, 0.01), LONGEST_PAUSE, most - spent))

    def _push(
        self, grid: Grid, messages: Sequence[Message], end: float, seconds: float
    ) -> dict[str, int]:
        """Send; return the index of each message that was taken, by its id."""
        began = self._clock()
        taken = set(grid.push_messages(messages))
        self._count(grid, began)
        index_of = {}
        for index, message in enumerate(messages):
            key = message.metadata.message_id
            if key in taken:
                index_of[key] = index
                self._open[key] = Sent(message.metadata.dst_node_id, end, seconds)
        return index_of

    def _pull(self, grid: Grid, keys: Sequence[str]) -> list[tuple[str, Message | Fault]]:
        """Fetch the replies that are there; only time that brought some counts as transfer."""
        began = self._clock()
        parts = [[key] for key in keys] if self._singly else [list(keys)]
        replies = [pair for part in parts if part for pair in self._fetch(grid, part)]
        if replies:
            self._count(grid, began)
        return replies

    def _count(self, grid: Grid, began: float) -> None:
        if type(grid).__name__ == DEPLOYED:
            self.transfer += self._clock() - began

    def _fetch(self, grid: Grid, keys: list[str]) -> list[tuple[str, Message | Fault]]:
        """Fetch, and survive a reply so damaged that Flower itself cannot build it.

        Such a reply takes those fetched with it down, so from then on each is fetched by itself.
        """
        try:
            found = {m.metadata.reply_to_message_id: m for m in grid.pull_messages(keys)}
            return [(key, found[key]) for key in keys if key in found]
        except RunNotRunningException:
            raise
        except Exception as error:
            log(WARNING, "A reply cannot be read: %r", error)
            self._singly = True
            fault = Fault("malformed", f"its reply cannot be read: {plain(repr(error))}")
            return [(key, fault) for key in keys if len(keys) == 1]
