"""Faults: why a client is left out of a round, as a kind, which is counted, and a reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from flwr.app import Message, RecordDict
from flwr.common.constant import ErrorCode

from fedapp.errors import one_line

KINDS: Mapping[str, str] = {
    "raised": "its node, or the client at its node, raised an exception",
    "crashed": "the process that trained it ended without an answer",
    "lost": "its node is no longer connected, was restarted, or its reply came only in part",
    "late": "no reply within round-deadline, or the SuperLink no longer has it",
    "busy": "its node still works for an earlier round, and was not asked",
    "round": "a reply to another round",
    "malformed": "records that are missing, damaged or impossible, as more steps than a client can take",
    "tensors": "other arrays, shapes or types than the model's",
    "not-finite": "nan or infinite values",
    "norm": "an update, or what is sent besides, larger than it may be",
    "weight": "a weight or a number of examples that is negative, or more than the client holds",
}
"""The kinds of faults and what they mean, in the order of the table in ``docs/deploy-reference.md``."""

PARTIAL_REPLY = "its reply came only in part"
"""Reason for a reply whose upload had begun: its node died, or its connection is slow."""


FAULT_OF = {
    ErrorCode.MESSAGE_UNAVAILABLE: "late",
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE: "late",
    ErrorCode.NODE_UNAVAILABLE: "lost",
    ErrorCode.CLIENT_APP_CRASHED: "crashed",
}
"""Kind of fault of Flower's errors that are not an exception at the node."""
UPLOAD_BROKE_OFF = "Reply message objects are unavailable"
"""Start of Flower's reason where no part came for 180 s; its code is that of a late reply."""


class Fault(NamedTuple):
    """Why one client is left out of one round; ``kind`` is one of ``KINDS``."""

    kind: str
    reason: str


class ReplyError(Exception):
    """A reply that is rejected; the text says why, ``kind`` is one of ``KINDS``."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.fault = Fault(kind, one_line(reason))


def count(faults: Mapping[int, Fault]) -> dict[str, int]:
    """Return the number of clients by kind of fault, in the order of ``KINDS``."""
    kinds = Counter(fault.kind for fault in faults.values())
    return {kind: kinds[kind] for kind in KINDS if kinds[kind]}


def is_missing(message: Message) -> bool:
    """Return whether the message is Flower's error for a reply that is late or incomplete."""
    return message.has_error() and FAULT_OF.get(message.error.code) == "late"


def is_late(reply: Message | Fault) -> bool:
    """Return whether the reply is Flower's error for one that it does not have, or no longer."""
    if isinstance(reply, Fault) or not is_missing(reply):
        return False
    return not (reply.error.reason or "").startswith(UPLOAD_BROKE_OFF)


def late(deadline: float) -> Fault:
    """Return the fault of a client without a reply."""
    return Fault("late", f"no reply within round-deadline = {deadline:g} s")


def content_of(reply: Message | Fault) -> RecordDict:
    """Return a reply's content, or raise ReplyError for a fault or an error message."""
    if isinstance(reply, Fault):
        raise ReplyError(*reply)
    if reply.has_error():
        if is_missing(reply) and not is_late(reply):
            raise ReplyError("lost", f"{PARTIAL_REPLY}, and its upload broke off")
        kind, reason = FAULT_OF.get(reply.error.code, "raised"), reply.error.reason or ""
        raise ReplyError(kind, reason if kind == "late" else f"the node failed: {one_line(reason)}")
    return reply.content
