"""Replies folded as they come, in client order whatever the order of arrival."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from logging import WARNING

from flwr.app import Message
from flwr.common.logger import log

from fedapp.errors import plain
from fedapp.federation.faults import Fault, ReplyError
from fedapp.federation.nodes import Cohort
from fedapp.federation.validation import Expected, decode_reply, decode_scores
from fedapp.training.algorithm import Algorithm, Tensors, WeightedMean
from fedapp.training.client import ClientMetrics, TrainReply, TrainRequest
from fedapp.training.evaluation import Score

NOT_EVALUATED = "Node %s: clients %s are left out of this evaluation: %s"


class RunningAggregate:
    """The running weighted mean of a round: of cohort means, or each client's update kept."""

    def __init__(self) -> None:
        self.reports: list[ClientMetrics] = []
        self.bytes = 0
        self.train_seconds = 0.0
        self._mean = WeightedMean()
        self._uploads = WeightedMean()
        self._each: dict[int, Tensors] = {}

    def add(self, reply: TrainReply) -> None:
        """Fold in one node's reply."""
        self.reports += reply.reports
        self.bytes += reply.bytes
        self.train_seconds = max(self.train_seconds, sum(r.seconds for r in reply.reports))
        if reply.mean:
            self._mean.add(reply.mean, reply.weight)
        if reply.uploads:
            self._uploads.add(reply.uploads, reply.weight)
        self._each |= reply.each

    @property
    def weight(self) -> float:
        """Total weight of the clients that replied well."""
        return sum(report.weight for report in self.reports)

    @property
    def usable(self) -> int:
        """How many clients replied well and have a weight."""
        return sum(report.weight > 0 for report in self.reports)

    def mean(self, algorithm: Algorithm) -> tuple[Tensors, Tensors]:
        """Return the aggregated update and the mean of the uploads; nothing of nobody."""
        uploads = self._uploads.mean() if self._uploads.total_weight > 0 else {}
        if not self._each:
            return self._mean.mean() if self._mean.total_weight > 0 else {}, uploads
        return algorithm.aggregate(*self.each()), uploads

    def each(self) -> tuple[list[Tensors], list[float]]:
        """Return the single clients' updates, in client order, and their weights."""
        weights = {report.client: report.weight for report in self.reports}
        clients = sorted(self._each)
        return [self._each[client] for client in clients], [weights[client] for client in clients]

    def average(self, value_of: Sequence[float]) -> float:
        """Return the mean of one value a report, weighted as the updates are."""
        pairs = [
            (report.weight, value)
            for report, value in zip(self.reports, value_of, strict=True)
            if report.weight > 0 and value == value
        ]
        total = sum(weight for weight, _ in pairs)
        return sum(weight * value for weight, value in pairs) / total if total else float("nan")


def in_order(replies: Iterable[tuple[int, TrainReply | None]], count: int) -> Iterator[TrainReply]:
    """Yield replies 0 .. count-1 in order; None marks one that is lost, a missing one is skipped.

    At most the replies that came before their turn are held.
    """
    early: dict[int, TrainReply | None] = {}
    next_index = 0
    for index, reply in replies:
        early[index] = reply
        while next_index in early:
            ready = early.pop(next_index)
            next_index += 1
            if ready is not None:
                yield ready
    for index in range(next_index, count):
        late = early.get(index)
        if late is not None:
            yield late


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
                log(WARNING, NOT_EVALUATED, called(node), plain(whose), reason)
        except ReplyError as error:
            reason = _said(error.fault, deadline).reason
            log(WARNING, NOT_EVALUATED, called(node), plain(clients), reason)
    for node, clients in missing.values():
        log(WARNING, NOT_EVALUATED, called(node), plain(clients), _late(deadline).reason)
    return [scores[client] for client in sorted(scores)]


def _late(deadline: float) -> Fault:
    return Fault("late", f"no reply within round-deadline = {deadline:g} s")


def _said(fault: Fault, deadline: float) -> Fault:
    """Return the fault; a late reply is late, whichever causes Flower's own words name besides."""
    return _late(deadline) if fault.kind == "late" else fault
