"""Replies: checked, folded, and what is missing named."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from logging import WARNING

from flwr.app import Message
from flwr.common.logger import log

from fedapp.errors import one_line
from fedapp.federation.aggregation import RunningAggregate, in_order
from fedapp.federation.faults import Fault, ReplyError
from fedapp.federation.nodes import Cohort
from fedapp.federation.validation import Expected, decode_reply, decode_scores
from fedapp.training.client import TrainReply, TrainRequest
from fedapp.training.evaluation import Score

NOT_EVALUATED = "Node %s: clients %s are left out of this evaluation: %s"


@dataclass
class RoundReplies:
    """What came of a round's orders.

    ``faults`` says why a client is left out; ``unused`` names the clients that were asked for in
    addition and not waited for, since enough others had replied well.
    """

    aggregate: RunningAggregate = field(default_factory=RunningAggregate)
    faults: dict[int, Fault] = field(default_factory=dict)
    unused: list[int] = field(default_factory=list)


def collect_replies(
    requests: Sequence[TrainRequest],
    replies: Iterable[tuple[int, Message | Fault]],
    expected: Expected,
    wanted: int,
    deadline: float,
) -> RoundReplies:
    """Fold good replies, of (index of the order, reply), until ``wanted`` clients replied well.

    Replies are taken as they come and folded in the order of the orders.
    """
    found = RoundReplies()
    missing = dict(enumerate(requests))
    checked = _checked(requests, replies, expected, wanted, deadline, missing, found)
    for reply in in_order(checked, len(requests)):
        found.aggregate.add(reply)
    rest = [client for request in missing.values() for client in request.clients]
    if len(found.aggregate.reports) >= wanted:
        found.unused = sorted(rest)
    else:
        found.faults |= dict.fromkeys(rest, _late(deadline))
    return found


def _checked(
    requests: Sequence[TrainRequest],
    replies: Iterable[tuple[int, Message | Fault]],
    expected: Expected,
    wanted: int,
    deadline: float,
    missing: dict[int, TrainRequest],
    found: RoundReplies,
) -> Iterator[tuple[int, TrainReply | None]]:
    """Yield each order's reply, or None for one that is lost; stop when there are enough."""
    good = 0
    for index, message in replies:
        request = missing.pop(index)
        reply = None
        try:
            if isinstance(message, Fault):
                raise ReplyError(*message)
            reply = decode_reply(request, message, expected)
            raised = {client: Fault("raised", why) for client, why in reply.failures.items()}
            found.faults |= raised
            good += len(reply.reports)
        except ReplyError as error:
            found.faults |= dict.fromkeys(request.clients, _said(error.fault, deadline))
        yield index, reply
        if good >= wanted:
            return


def collect_scores(
    asked: Sequence[Cohort],
    replies: Iterable[tuple[int, Message | Fault]],
    deadline: float,
    *,
    graded: bool,
    called: Callable[[int], str] = str,
) -> list[Score]:
    """Return the clients' scores, of (index in ``asked``, reply), in any order; log what is missing.

    ``called`` says how a node is named.
    """
    scores: dict[int, Score] = {}
    missing = dict(enumerate(asked))
    for index, message in replies:
        node, clients = missing.pop(index)
        try:
            if isinstance(message, Fault):
                raise ReplyError(*message)
            found = decode_scores(message, clients, graded=graded)
            scores |= {k: score for k, score in found.items() if isinstance(score, Score)}
            faults = {k: fault.reason for k, fault in found.items() if isinstance(fault, Fault)}
            for reason in dict.fromkeys(faults.values()):
                whose = [client for client, why in faults.items() if why == reason]
                log(WARNING, NOT_EVALUATED, called(node), one_line(whose), reason)
        except ReplyError as error:
            reason = _said(error.fault, deadline).reason
            log(WARNING, NOT_EVALUATED, called(node), one_line(clients), reason)
    for node, clients in missing.values():
        log(WARNING, NOT_EVALUATED, called(node), one_line(clients), _late(deadline).reason)
    return [scores[client] for client in sorted(scores)]


def _late(deadline: float) -> Fault:
    return Fault("late", f"no reply within round-deadline = {deadline:g} s")


def _said(fault: Fault, deadline: float) -> Fault:
    """Return the fault; a late reply is late, whichever causes Flower's own words name besides."""
    return _late(deadline) if fault.kind == "late" else fault
