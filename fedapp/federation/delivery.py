"""Delivery of messages: sent, waited for until a deadline, and tracked while they are unanswered.

Flower's grid of a deployment takes a reply from the SuperLink as soon as its head is there, and then
waits for its parts until all have arrived, for 180 s after the last one and at most two hours. A device
that fails or is slow while it uploads would therefore block all replies that are fetched in the same
call. So each reply of a deployment is fetched in a thread of its own.

Threads may share that grid: its client is thread-safe (Flower fetches a reply's parts in several
threads), and what else it changes during a fetch belongs to the thread. Flower's own threads end with
the grid's client, or are killed 5 s after the process should have ended.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from logging import WARNING
from operator import itemgetter
from threading import Thread
from typing import Any, Protocol, cast, runtime_checkable

import httpx
from flwr.app import Message, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.supercore.run import RunNotRunningException

from fedapp.errors import one_line
from fedapp.federation.faults import PARTIAL_REPLY, Fault

DEPLOYMENT_GRID = "HttpGrid"
"""Class name of Flower's grid of a deployment, whose import would import a web server."""

MAX_POLL_SECONDS = 0.5
"""Longest pause between two polls: a slow device costs two requests a second."""

MAX_FETCHES = 16
"""Number of replies of a deployment that are fetched at the same time."""

FETCH_SECONDS = 0.5
"""Wait for a batch of fetches; those that take longer go on in their threads."""

REPEATABLE = ("/get-nodes", "/pull-object", "/confirm-message-received")
"""How the addresses end that may be asked twice, and are asked every round or for each reply."""

Fetched = list[tuple[str, Message]] | Fault
"""The replies that have arrived, by the ids of their messages, or why they cannot be read."""


@runtime_checkable
class SupportsWait(Protocol):
    """A grid that can wait for replies, so that it is not polled."""

    def wait_for_replies(self, message_ids: Collection[str], seconds: float) -> None:
        """Return when one of the messages has its reply, or after ``seconds``."""


@runtime_checkable
class SupportsCancel(Protocol):
    """A grid whose nodes start on a message only when its reply is pulled."""

    def cancel_messages(self, message_ids: Collection[str]) -> list[str]:
        """Drop the messages that no node has started on, and return their ids."""


@dataclass
class PendingMessage:
    """A message without an answer yet; it ``expires`` at that time of ``time.monotonic``.

    ``future`` is the running fetch of a deployment's reply, if any. No second fetch can get the same
    reply, so it is kept until the reply is taken or no longer needed.
    """

    node: int
    expires: float
    seconds: float
    future: Future[Fetched] | None = None


def grace_period(seconds: float) -> float:
    """Return for how long after a deadline of ``seconds`` replies that arrived in time are fetched."""
    return min(0.05 * seconds, 5.0)


def messages_to(
    nodes: Sequence[int], contents: Sequence[RecordDict], kind: str, round_: int, seconds: float
) -> list[Message]:
    """Return one message a node, which expires ``grace_period`` after a deadline of ``seconds``."""
    ttl, group = seconds + grace_period(seconds), str(round_)
    pairs = zip(nodes, contents, strict=True)
    return [Message(content, node, kind, ttl=ttl, group_id=group) for node, content in pairs]


def is_deployment(grid: Grid) -> bool:
    """Return whether the grid is a deployment's, where replies may have arrived in part."""
    return type(grid).__name__ == DEPLOYMENT_GRID


def repeat_failed_requests(grid: Grid) -> None:
    """Let a deployment's grid repeat requests in which the SuperLink fails: its database is locked, say.

    Flower gives a reply out once, so one whose parts or confirmation fail would be lost.
    """
    if not is_deployment(grid):
        return
    invoker = cast("Any", grid)._retry_invoker
    gives_up = invoker.should_giveup

    def should_give_up(error: Exception) -> bool:
        if not isinstance(error, httpx.HTTPStatusError) or not error.response.is_server_error:
            return bool(gives_up(error))
        return not error.request.url.path.endswith(REPEATABLE) and bool(gives_up(error))

    invoker.should_giveup = should_give_up


class Delivery:
    """Sends messages, yields their replies, and tracks which nodes have not answered.

    ``late`` counts the dropped replies to messages of earlier exchanges. ``transfer`` is the time spent
    sending messages and fetching replies since ``begin_round``, for a deployment's grid only: others may
    train while a reply is fetched.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.late = 0
        self.transfer = 0.0
        self._clock = clock
        self._pending: dict[str, PendingMessage] = {}
        self._one_by_one = False

    def begin_round(self, grid: Grid) -> None:
        """Reset the counters, and drop the replies that came too late for the previous round."""
        self.late, self.transfer = 0, 0.0
        self.drop_late(grid)

    def drop_late(self, grid: Grid) -> None:
        """Count and drop replies to earlier exchanges; their nodes are no longer busy."""
        for _, reply in self.collect_late(grid):
            self.late += isinstance(reply, Message) and not reply.has_error()

    def collect_late(self, grid: Grid) -> list[tuple[int, Message | Fault]]:
        """Return (node, reply) for the replies to earlier exchanges that have arrived."""
        replies = self._pull(grid, list(self.unexpired()))
        return [(self._pending.pop(key).node, reply) for key, reply in replies]

    def unexpired(self, max_age: float = math.inf) -> dict[str, int]:
        """Return the nodes of the messages whose replies may still come, by id.

        Only of those that were sent in the last ``max_age`` seconds.
        """
        now, pending = self._clock(), self._pending.items()
        return {
            key: each.node
            for key, each in pending
            if (each.expires > now or each.future) and each.expires - each.seconds + max_age > now
        }

    def forget(self, nodes: Collection[int]) -> None:
        """Drop the messages to these nodes: no reply of theirs to one is taken."""
        self._pending = {k: each for k, each in self._pending.items() if each.node not in nodes}

    def busy(self, connected: Iterable[int]) -> set[int]:
        """Return the nodes that still work on an earlier message.

        A node without an answer is busy until it answers, disconnects, or its message has been expired
        for as long as it was valid: Flower drops the reply to an expired message. A node whose reply has
        arrived in part is busy until the rest arrives or Flower gives up.
        """
        now, nodes = self._clock(), set(connected)
        self._pending = {
            key: pending
            for key, pending in self._pending.items()
            if pending.node in nodes and (pending.expires + pending.seconds > now or pending.future)
        }
        return {pending.node for pending in self._pending.values()}

    def exchange(
        self,
        grid: Grid,
        messages: Sequence[Message],
        seconds: float,
        max_wait: float | None = None,
        sent: Mapping[str, int] | None = None,
    ) -> Generator[tuple[int, Message | Fault], None, None]:
        """Send the messages and yield (index, reply) as replies come, for at most ``seconds``.

        ``sent`` has the indices of messages that were sent before, by id.
        Replies that have arrived at the same time come in the order of their messages. A Fault replaces
        a reply that cannot be read. Flower's own grids are polled, so a reply is seen late by 5 % of the
        time that it took, between 0.01 and 0.5 s. Messages that are unanswered when the caller stops, or
        the time is over, stay pending. With ``max_wait``, replies that come after it are left to
        ``collect_late``. Without it, a deployment has the ``grace_period`` to finish fetching, after
        which a Fault replaces a reply that has arrived in part; and messages that no node has started on
        are cancelled.
        """
        limit = seconds if max_wait is None else min(max_wait, seconds)
        began = self._clock()
        index_of = self.send(grid, messages, seconds)
        for index in set(range(len(messages))) - set(index_of.values()):
            yield index, Fault("lost", "the message to its node was not taken")
        index_of |= sent or {}
        try:
            while index_of and (spent := self._clock() - began) < limit:
                if isinstance(grid, SupportsWait):
                    grid.wait_for_replies(list(index_of), limit - spent)
                replies = self._take(grid, index_of)
                yield from replies
                # Without those that the caller has made ``forget``.
                index_of = {key: i for key, i in index_of.items() if key in self._pending}
                if not replies and not isinstance(grid, SupportsWait):
                    time.sleep(min(max(0.05 * spent, 0.01), MAX_POLL_SECONDS, limit - spent))
            if max_wait is None and is_deployment(grid):
                yield from self._fetch_at_deadline(grid, index_of, seconds)
        finally:
            if max_wait is None and isinstance(grid, SupportsCancel):
                for key in grid.cancel_messages(index_of):
                    del self._pending[key]

    def _take(self, grid: Grid, index_of: dict[str, int]) -> list[tuple[int, Message | Fault]]:
        """Return (index, reply) of the replies that have arrived, none of which is pending any more.

        The caller may stop at any of them.
        """
        replies = self._pull(grid, list(index_of))
        for key, _ in replies:
            del self._pending[key]
        return sorted(((index_of.pop(key), each) for key, each in replies), key=itemgetter(0))

    def send(self, grid: Grid, messages: Sequence[Message], seconds: float) -> dict[str, int]:
        """Send messages that expire after ``seconds``; return the index of each accepted one by id."""
        began = self._clock()
        accepted = set(push(grid, messages))
        self._add_transfer(grid, began)
        index_of = {}
        for index, message in enumerate(messages):
            key = message.metadata.message_id
            if key in accepted:
                index_of[key] = index
                self._pending[key] = PendingMessage(
                    message.metadata.dst_node_id, began + seconds, seconds
                )
        return index_of

    def _fetch_at_deadline(
        self, grid: Grid, index_of: Mapping[str, int], seconds: float
    ) -> Iterator[tuple[int, Message | Fault]]:
        """Yield the replies that arrived in time, then a Fault for each that arrived in part."""
        end = self._clock() + grace_period(seconds)
        self._pull(grid, list(index_of))
        running = {key: future for key in index_of if (future := self._pending[key].future)}
        wait(running.values(), max(end - self._clock(), 0.0))
        for key, reply in self._finished_fetches(running):
            del self._pending[key], running[key]
            yield index_of[key], reply
        partial = Fault("lost", f"{PARTIAL_REPLY} within round-deadline = {seconds:g} s")
        yield from ((index_of[key], partial) for key in running if self._pending[key].future)

    def _pull(self, grid: Grid, keys: Sequence[str]) -> list[tuple[str, Message | Fault]]:
        """Fetch the replies that have arrived; only a call that returns some counts as transfer."""
        began = self._clock()
        replies = (
            self._fetch_in_threads(grid, keys) if is_deployment(grid) else self._fetch(grid, keys)
        )
        if replies:
            self._add_transfer(grid, began)
        return replies

    def _fetch(self, grid: Grid, keys: Sequence[str]) -> list[tuple[str, Message | Fault]]:
        """Fetch all in one call; one by one once a reply that cannot be read has failed such a call."""
        replies: list[tuple[str, Message | Fault]] = []
        for part in [[key] for key in keys] if self._one_by_one else [keys]:
            fetched = fetch(grid, part) if part else []
            if isinstance(fetched, Fault):
                self._one_by_one = True
                replies += [(key, fetched) for key in part if len(part) == 1]
            else:
                replies += fetched
        return replies

    def _fetch_in_threads(
        self, grid: Grid, keys: Sequence[str]
    ) -> list[tuple[str, Message | Fault]]:
        """Fetch each in a thread, so that a reply whose parts are still missing blocks no other."""
        idle = [key for key in keys if self._pending[key].future is None]
        for first in range(0, len(idle), MAX_FETCHES):
            started = {key: fetch_in_thread(grid, key) for key in idle[first : first + MAX_FETCHES]}
            for key, future in started.items():
                self._pending[key].future = future
            wait(started.values(), FETCH_SECONDS)
        return self._finished_fetches(keys)

    def _finished_fetches(self, keys: Iterable[str]) -> list[tuple[str, Message | Fault]]:
        """Return the replies of the fetches that have finished."""
        replies: list[tuple[str, Message | Fault]] = []
        for key in keys:
            future = self._pending[key].future
            if future and future.done():
                fetched = future.result()
                replies += [(key, fetched)] if isinstance(fetched, Fault) else fetched
                if not fetched:
                    self._pending[key].future = None
        return replies

    def _add_transfer(self, grid: Grid, began: float) -> None:
        if is_deployment(grid):
            self.transfer += self._clock() - began


def push(grid: Grid, messages: Sequence[Message]) -> Iterable[str]:
    """Return the ids of the messages that the grid has taken: none if its SuperLink fails."""
    try:
        return grid.push_messages(messages)
    except httpx.HTTPStatusError as error:
        if not error.response.is_server_error:
            raise
        log(WARNING, "The SuperLink failed to take %d messages: %r", len(messages), error)
        return ()


def fetch(grid: Grid, keys: Sequence[str]) -> Fetched:
    """Fetch the replies that have arrived; a Fault for all of them if Flower cannot build one.

    A SuperLink that fails (its database is locked by many nodes, say) is asked again later.
    """
    try:
        replies = {m.metadata.reply_to_message_id: m for m in grid.pull_messages(keys)}
    except RunNotRunningException:
        raise
    except Exception as error:
        if isinstance(error, httpx.HTTPStatusError) and error.response.is_server_error:
            log(WARNING, "The SuperLink failed to give out a reply, and is asked again: %r", error)
            return []
        log(WARNING, "A reply cannot be read: %r", error)
        return Fault("malformed", f"its reply cannot be read: {one_line(repr(error))}")
    return [(key, replies[key]) for key in keys if key in replies]


def fetch_in_thread(grid: Grid, key: str) -> Future[Fetched]:
    """Fetch one reply in a daemon thread."""
    future: Future[Fetched] = Future()

    def work() -> None:
        try:
            future.set_result(fetch(grid, [key]))
        except BaseException as error:  # raised by Future.result
            future.set_exception(error)

    Thread(target=work, name=f"pull {key}", daemon=True).start()
    return future


def match_by_node(
    nodes: Sequence[int], replies: Iterable[Message]
) -> Iterator[tuple[int, Message]]:
    """Yield each node's first reply with its index among ``nodes``; other replies are ignored."""
    index_of = {node: index for index, node in enumerate(nodes)}
    for reply in replies:
        index = index_of.pop(reply.metadata.src_node_id, None)
        if index is not None:
            yield index, reply
