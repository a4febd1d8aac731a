"""Messages between server and nodes: sent, waited for until a deadline, remembered if unanswered."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from logging import WARNING
from threading import Thread
from typing import Protocol, runtime_checkable

from flwr.app import Message
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.supercore.run import RunNotRunningException

from fedapp.errors import plain
from fedapp.federation.faults import IN_PART, Fault

DEPLOYED = "HttpGrid"
"""Flower's grid of a deployment, by name: to import it is to import a web server."""

LONGEST_PAUSE = 0.5
"""Seconds between two looks for replies at most: a slow device costs two requests a second."""

AT_ONCE = 16
"""Replies that are looked for at the same time, where each has a thread of its own."""

LOOK_SECONDS = 0.5
"""Seconds for which a look waits for them: one that is not whole by then is left to its thread."""

Pulled = list[tuple[str, Message]] | Fault
"""The replies that were there, by the ids of their messages, or why they cannot be read."""


@runtime_checkable
class Waits(Protocol):
    """A grid that knows when a reply is there, so that nobody has to poll it."""

    def wait_for_replies(self, message_ids: Collection[str], seconds: float) -> None:
        """Return when one of the messages has its reply, or after ``seconds``."""


@runtime_checkable
class TakesBack(Protocol):
    """A grid whose nodes begin to work on a message when its reply is pulled, and not before."""

    def take_back(self, message_ids: Collection[str]) -> list[str]:
        """Forget those of the messages that no node has begun, and return which they are."""


@dataclass
class Sent:
    """A message that is not answered yet; ``expires`` is on the clock of ``time.monotonic``.

    ``pulled`` is what a thread fetches, where one does. What it has begun to fetch no other pull
    can have, so it stays until the reply is taken, or no longer wanted.
    """

    node: int
    expires: float
    seconds: float
    pulled: Future[Pulled] | None = None


def grace_period(seconds: float) -> float:
    """Return for how long after a deadline of ``seconds`` what was there in time is fetched."""
    return min(0.05 * seconds, 5.0)


def deployed(grid: Grid) -> bool:
    """Return whether replies travel to the grid, and so may be there in part."""
    return type(grid).__name__ == DEPLOYED


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
        now = self._clock()
        living = [key for key, sent in self._open.items() if sent.expires > now or sent.pulled]
        return [(self._open.pop(key).node, reply) for key, reply in self._pull(grid, living)]

    def busy(self, connected: Iterable[int]) -> set[int]:
        """Return the nodes that are still at work on an earlier message.

        A node that has not answered is left alone until it does, until it has been away, or until
        its message has been dead for as long as it lived: Flower drops the reply to a dead one. One
        whose reply is there in part is left alone until that is whole, or Flower gives it up.
        """
        now, there = self._clock(), set(connected)
        self._open = {
            key: sent
            for key, sent in self._open.items()
            if sent.node in there and (sent.expires + sent.seconds > now or sent.pulled)
        }
        return {sent.node for sent in self._open.values()}

    def exchange(
        self,
        grid: Grid,
        messages: Sequence[Message],
        seconds: float,
        max_wait: float | None = None,
    ) -> Generator[tuple[int, Message | Fault], None, None]:
        """Send the messages and yield (index, reply) as replies come, for at most ``seconds``.

        Replies that are there at the same time come in the order of their messages; a Fault stands
        for one that there can be none to read. Polls Flower's own grids, and so finds a reply late
        by 5 % of the time that it took, but by at least 0.01 and at most 0.5 s. What is unanswered
        when the caller stops, or time is over, stays open. With ``max_wait``, what comes later than
        that is there for ``collect``; without, a deployment is given ``grace_period`` to fetch what is
        there in time, and a Fault stands for what is there in part; and what nobody has begun to
        work on is taken back, so that no node is busy with it.
        """
        most = seconds if max_wait is None else min(max_wait, seconds)
        began = self._clock()
        index_of = self._push(grid, messages, began + seconds, seconds)
        for index in set(range(len(messages))) - set(index_of.values()):
            yield index, Fault("lost", "the message to its node was not taken")
        try:
            while index_of and (spent := self._clock() - began) < most:
                if isinstance(grid, Waits):
                    grid.wait_for_replies(list(index_of), most - spent)
                replies = self._pull(grid, list(index_of))
                for key, reply in sorted(replies, key=lambda pair: index_of[pair[0]]):
                    del self._open[key]
                    yield index_of.pop(key), reply
                if not replies and not isinstance(grid, Waits):
                    time.sleep(min(max(0.05 * spent, 0.01), LONGEST_PAUSE, most - spent))
            if max_wait is None and deployed(grid):
                yield from self._last_look(grid, index_of, seconds)
        finally:
            if max_wait is None and isinstance(grid, TakesBack):
                for key in grid.take_back(index_of):
                    del self._open[key]

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

    def _last_look(
        self, grid: Grid, index_of: Mapping[str, int], seconds: float
    ) -> Iterator[tuple[int, Message | Fault]]:
        """Yield what was there in time, then a Fault for each reply that is there in part."""
        end = self._clock() + grace_period(seconds)
        self._pull(grid, list(index_of))
        under_way = {key: pulled for key in index_of if (pulled := self._open[key].pulled)}
        wait(under_way.values(), max(end - self._clock(), 0.0))
        for key, reply in self._whole(under_way):
            del self._open[key], under_way[key]
            yield index_of[key], reply
        in_part = Fault("lost", f"{IN_PART} within round-deadline = {seconds:g} s")
        yield from ((index_of[key], in_part) for key in under_way if self._open[key].pulled)

    def _pull(self, grid: Grid, keys: Sequence[str]) -> list[tuple[str, Message | Fault]]:
        """Fetch the replies that are there; only time that brought some counts as transfer."""
        began = self._clock()
        replies = self._look(grid, keys) if deployed(grid) else self._fetch(grid, keys)
        if replies:
            self._count(grid, began)
        return replies

    def _fetch(self, grid: Grid, keys: Sequence[str]) -> list[tuple[str, Message | Fault]]:
        """Fetch all at once, until a reply takes the others down: from then on one by one."""
        replies: list[tuple[str, Message | Fault]] = []
        for part in [[key] for key in keys] if self._singly else [keys]:
            found = fetch(grid, part) if part else []
            if isinstance(found, Fault):
                self._singly = True
                replies += [(key, found) for key in part if len(part) == 1]
            else:
                replies += found
        return replies

    def _look(self, grid: Grid, keys: Sequence[str]) -> list[tuple[str, Message | Fault]]:
        """Fetch each in a thread, so that a reply whose parts are on their way holds up no other."""
        idle = [key for key in keys if self._open[key].pulled is None]
        for first in range(0, len(idle), AT_ONCE):
            begun = {key: begin_fetch(grid, key) for key in idle[first : first + AT_ONCE]}
            for key, pulled in begun.items():
                self._open[key].pulled = pulled
            wait(begun.values(), LOOK_SECONDS)
        return self._whole(keys)

    def _whole(self, keys: Iterable[str]) -> list[tuple[str, Message | Fault]]:
        """Return the replies that threads have fetched by now."""
        replies: list[tuple[str, Message | Fault]] = []
        for key in keys:
            pulled = self._open[key].pulled
            if pulled and pulled.done():
                found = pulled.result()
                replies += [(key, found)] if isinstance(found, Fault) else found
                if not found:
                    self._open[key].pulled = None
        return replies

    def _count(self, grid: Grid, began: float) -> None:
        if deployed(grid):
            self.transfer += self._clock() - began


def fetch(grid: Grid, keys: Sequence[str]) -> Pulled:
    """Fetch the replies that are there; one that Flower itself cannot build takes the others down."""
    try:
        found = {m.metadata.reply_to_message_id: m for m in grid.pull_messages(keys)}
    except RunNotRunningException:
        raise
    except Exception as error:
        log(WARNING, "A reply cannot be read: %r", error)
        return Fault("malformed", f"its reply cannot be read: {plain(repr(error))}")
    return [(key, found[key]) for key in keys if key in found]


def begin_fetch(grid: Grid, key: str) -> Future[Pulled]:
    """Fetch one reply in a thread that nobody has to wait for, not even the process to end."""
    pulled: Future[Pulled] = Future()

    def work() -> None:
        try:
            pulled.set_result(fetch(grid, [key]))
        except BaseException as error:  # whoever asks for the result raises it
            pulled.set_exception(error)

    Thread(target=work, name=f"pull {key}", daemon=True).start()
    return pulled
