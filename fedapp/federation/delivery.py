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
from flwr.supercore.inflatable.inflatable_utils import ObjectPushError
from flwr.supercore.run import RunNotRunningException

from fedapp.errors import RunError, one_line
from fedapp.federation.faults import PARTIAL_REPLY, Fault, is_late, late

DEPLOYMENT_GRID = "HttpGrid"
"""Class name of Flower's grid of a deployment, whose import would import a web server."""

MAX_POLL_SECONDS = 0.5
"""Longest pause between two polls: a slow device costs two requests a second."""

MAX_FETCHES = 16
"""Number of replies of a deployment that are asked for together, and handed on before more are."""

FETCH_SECONDS = 0.5
"""Wait for a batch of fetches; those that take longer go on in their threads, beside further batches."""

FIRST_PAUSE, MAX_PAUSE = 1.0, 30.0
"""Pause in seconds before messages are sent again to a SuperLink that fails, and its longest."""

RESTART_SECONDS = 10.0
"""Pause between two looks for nodes that have connected anew while their replies are waited for."""

RESTARTED = Fault("lost", "its node was restarted, or had lost its connection")

SUPERLINK_FAILS = (
    "The SuperLink could not take {} messages for node-timeout = {:g} s. Its last answer: {}. See its "
    "log, and the disk with its database; then resume the run: `fedapp status` prints the command."
)

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
    reply, so it is kept until the reply is taken or no longer needed. ``batch`` is the number of the last
    batch in which it was fetched, and ``connection`` the node's as the message was sent, if known.
    """

    node: int
    expires: float
    seconds: float
    connection: object = None
    future: Future[Fetched] | None = None
    batch: int = 0


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
    train while a reply is fetched. Messages are sent again for ``repeat_seconds`` to a SuperLink that
    fails. ``connections`` returns those of a deployment's nodes, so that a node that connects anew is not
    waited for: Flower gives a message out once.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        repeat_seconds: float = 0.0,
        connections: Callable[[Grid], Mapping[int, object]] = lambda grid: {},
    ) -> None:
        self.late = 0
        self.transfer = 0.0
        self._clock = clock
        self._repeat_seconds = repeat_seconds
        self._connections = connections
        self._pending: dict[str, PendingMessage] = {}
        self._one_by_one = False
        self._sent = 0.0
        self._next_look = 0.0
        self._batches = 0

    def begin_round(self, grid: Grid) -> None:
        """Reset the counters, and drop the replies that came too late for the previous round."""
        self.late, self.transfer = 0, 0.0
        self.drop_late(grid)

    def drop_late(self, grid: Grid) -> None:
        """Count and drop replies to earlier exchanges; their nodes are no longer busy."""
        for _, reply in self._late_replies(grid):
            self.late += isinstance(reply, Message) and not reply.has_error()

    def collect_late(self, grid: Grid) -> list[tuple[int, Message | Fault]]:
        """Return (node, reply) for the replies to earlier exchanges that have arrived."""
        return list(self._late_replies(grid))

    def _late_replies(self, grid: Grid) -> Iterator[tuple[int, Message | Fault]]:
        while replies := self._pull(grid, list(self.unexpired())):
            yield from [(self._pending.pop(key).node, reply) for key, reply in replies]
            if not is_deployment(grid):
                return

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

        Raises
        ------
        RunError
            The SuperLink fails to take the messages for as long as ``repeat_seconds``, if not 0.
        """
        limit = seconds if max_wait is None else min(max_wait, seconds)
        index_of = self.send(grid, messages, seconds)
        began = self._sent
        for index in set(range(len(messages))) - set(index_of.values()):
            yield index, Fault("lost", "the message to its node was not taken")
        index_of |= sent or {}
        try:
            while index_of and (spent := self._clock() - began) < limit:
                if isinstance(grid, SupportsWait):
                    grid.wait_for_replies(list(index_of), limit - spent)
                replies = self._answered(index_of, self._pull(grid, list(index_of)))
                replies = replies or self._take_restarted(grid, index_of)
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

    def _take_restarted(
        self, grid: Grid, index_of: dict[str, int]
    ) -> list[tuple[int, Message | Fault]]:
        """Return (index, Fault) for the nodes that have connected anew, or the replies that they left.

        A reply that has arrived in part is left to its fetch.
        """
        if not is_deployment(grid) or self._clock() < self._next_look:
            return []
        self._next_look = self._clock() + RESTART_SECONDS
        now, pending = self._connections(grid), {key: self._pending[key] for key in index_of}
        restarted = [
            key
            for key, each in pending.items()
            if each.connection and now.get(each.node, each.connection) != each.connection
        ]
        self._fetch_all(grid, restarted)
        replies = self._finished_fetches(restarted)
        replies += [(key, RESTARTED) for key in restarted if pending[key].future is None]
        return self._answered(index_of, replies)

    def _answered(
        self, index_of: dict[str, int], replies: Iterable[tuple[str, Message | Fault]]
    ) -> list[tuple[int, Message | Fault]]:
        """Return (index, reply) in the order of the messages, none of which is pending any more.

        The caller may stop at any of them. After the deadline, Flower's error for a reply that it does
        not have is a late reply.
        """
        now, answers = self._clock(), []
        for key, reply in replies:
            message = self._pending.pop(key)
            is_over = message.expires <= now and is_late(reply)
            answers.append((index_of.pop(key), late(message.seconds) if is_over else reply))
        return sorted(answers, key=itemgetter(0))

    def send(self, grid: Grid, messages: Sequence[Message], seconds: float) -> dict[str, int]:
        """Send messages that expire after ``seconds``; return the index of each accepted one by id."""
        began = self._clock()
        messages, ids = self._push(grid, messages, seconds)
        self._add_transfer(grid, began)
        accepted, index_of = set(ids), {}
        connections = self._connections(grid) if is_deployment(grid) else {}
        self._next_look = self._clock() + RESTART_SECONDS
        for index, message in enumerate(messages):
            key, node = message.metadata.message_id, message.metadata.dst_node_id
            if key in accepted:
                index_of[key] = index
                self._pending[key] = PendingMessage(
                    node, self._sent + seconds, seconds, connections.get(node)
                )
        return index_of

    def _push(
        self, grid: Grid, messages: Sequence[Message], seconds: float
    ) -> tuple[Sequence[Message], Iterable[str]]:
        """Return the messages and the ids of those that the grid has taken.

        They are sent again while the SuperLink fails, which may have taken some: they stay the same, so
        that no node gets two, until they expire. With ``repeat_seconds`` = 0 all of them are lost.
        """
        self._sent = began = self._clock()
        pause = FIRST_PAUSE
        while isinstance(ids := push(grid, messages), Exception):
            left = began + self._repeat_seconds - self._clock()
            if not self._repeat_seconds:
                return messages, ()
            if left <= 0:
                answer = one_line(repr(ids))
                raise RunError(
                    SUPERLINK_FAILS.format(len(messages), self._repeat_seconds, answer)
                ) from ids
            time.sleep(min(pause, left))
            pause = min(2 * pause, MAX_PAUSE)
            if self._clock() >= self._sent + seconds:
                messages, self._sent = [renewed(each) for each in messages], self._clock()
        return messages, ids

    def _fetch_at_deadline(
        self, grid: Grid, index_of: dict[str, int], seconds: float
    ) -> Iterator[tuple[int, Message | Fault]]:
        """Yield the replies that arrived in time, then a Fault for each that arrived in part."""
        began = self._clock()
        end = began + grace_period(seconds)
        self._fetch_all(grid, list(index_of))
        running = [future for key in index_of if (future := self._pending[key].future)]
        wait(running, max(end - self._clock(), 0.0))
        if replies := self._finished_fetches(index_of):
            self._add_transfer(grid, began)
        yield from self._answered(index_of, replies)
        partial = Fault("lost", f"{PARTIAL_REPLY} within round-deadline = {seconds:g} s")
        yield from ((i, partial) for key, i in index_of.items() if self._pending[key].future)

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
        """Fetch until a batch brings replies, so that no more than these are held at a time."""
        for _ in self._fetch_batches(grid, keys):
            if replies := self._finished_fetches(keys):
                return replies
        return self._finished_fetches(keys)

    def _fetch_all(self, grid: Grid, keys: Sequence[str]) -> None:
        for _ in self._fetch_batches(grid, keys):
            pass

    def _fetch_batches(self, grid: Grid, keys: Sequence[str]) -> Iterator[None]:
        """Fetch each in a thread, so that a reply whose parts are still missing blocks no other.

        Yields after each batch; the first ones are those whose last batch was the longest ago.
        """
        idle = sorted(
            (key for key in keys if self._pending[key].future is None),
            key=lambda key: self._pending[key].batch,
        )
        for first in range(0, len(idle), MAX_FETCHES):
            started = {key: fetch_in_thread(grid, key) for key in idle[first : first + MAX_FETCHES]}
            self._batches += 1
            for key, future in started.items():
                self._pending[key].future, self._pending[key].batch = future, self._batches
            wait(started.values(), FETCH_SECONDS)
            yield

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


def push(
    grid: Grid, messages: Sequence[Message]
) -> Iterable[str] | httpx.HTTPStatusError | ObjectPushError:
    """Return the ids of the messages that the grid has taken, or the error of a SuperLink that fails.

    One that cannot write to its database answers so, or that an object of a message is not stored.
    """
    try:
        return grid.push_messages(messages)
    except (httpx.HTTPStatusError, ObjectPushError) as error:
        if isinstance(error, httpx.HTTPStatusError) and not error.response.is_server_error:
            raise
        log(WARNING, "The SuperLink failed to take %d messages: %r", len(messages), error)
        return error


def renewed(message: Message) -> Message:
    """Return a message with the same content, which lives as long from now on."""
    its = message.metadata
    return Message(
        message.content, its.dst_node_id, its.message_type, ttl=its.ttl, group_id=its.group_id
    )


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
