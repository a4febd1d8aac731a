"""Replies folded as they come, in client order whatever the order of arrival."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from fedapp.training.algorithm import Algorithm, Tensors
from fedapp.training.client import ClientMetrics, TrainReply
from fedapp.training.tensors import WeightedMean


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
