"""Replies fetched from a grid: in the caller's thread, or each in a thread of its own.

Flower's grid of a deployment takes a reply from the SuperLink as soon as its head is there, and then
waits for its parts until they all are, or for 180 s after the last one. So a device that dies or is
slow while it uploads holds up whoever fetches, and the replies that are fetched with its own.

Threads may share that grid: its client is made for it (Flower fetches a reply's parts in several),
and what else it changes while it fetches belongs to the thread. One pull does not wait for another.
Those threads of Flower's end with the grid's client, or 5 s later with the process, by force.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from logging import WARNING
from threading import Thread

from flwr.app import Message
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.supercore.run import RunNotRunningException

from fedapp.errors import one_line
from fedapp.federation.faults import Fault

Pulled = list[tuple[str, Message]] | Fault
"""The replies that were there, by the ids of their messages, or why they cannot be read."""


def fetch(grid: Grid, keys: Sequence[str]) -> Pulled:
    """Fetch the replies that are there; one that Flower itself cannot build takes the others down."""
    try:
        found = {m.metadata.reply_to_message_id: m for m in grid.pull_messages(keys)}
    except RunNotRunningException:
        raise
    except Exception as error:
        log(WARNING, "A reply cannot be read: %r", error)
        return Fault("malformed", f"its reply cannot be read: {one_line(repr(error))}")
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
