"""What goes wrong with a client's turn: a kind, which is counted, and a reason, which is named."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

KINDS: Mapping[str, str] = {
    "raised": "its node, or the client at its node, raised an exception",
    "crashed": "the process that trained it ended without an answer",
    "lost": "its node is no longer connected, or its reply came only in part",
    "late": "no reply within round-deadline",
    "busy": "its node still works for an earlier round, and was not asked",
    "round": "a reply to another round",
    "malformed": "records that are missing, damaged or impossible, as more steps than a client can take",
    "tensors": "other arrays, shapes or types than the model's",
    "not-finite": "nan or infinite values",
    "norm": "an update, or what is sent besides, larger than it may be",
    "weight": "a weight or a number of examples that is negative, or more than the client holds",
}
"""The kinds of faults and what they mean, in the order of the table in ``docs/deploy.md``."""

IN_PART = "its reply came only in part"
"""What is said of a reply whose upload had begun: its node died, or its connection is slow."""


class Fault(NamedTuple):
    """Why one client is left out of one round."""

    kind: str
    reason: str


class ReplyError(Exception):
    """A reply that cannot be used; the text says why, ``kind`` is one of ``KINDS``."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.fault = Fault(kind, reason)


def count(faults: Mapping[int, Fault]) -> dict[str, int]:
    """Return how many clients have each kind of fault, in the order of ``KINDS``."""
    found = Counter(fault.kind for fault in faults.values())
    return {kind: found[kind] for kind in KINDS if found[kind]}
