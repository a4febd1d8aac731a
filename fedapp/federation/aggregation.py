"""Aggregation of a round's replies: checked as they arrive, averaged in client order, and applied."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from logging import WARNING
from typing import Literal

from flwr.app import Message
from flwr.common.logger import log
from torch import Tensor

from fedapp.analysis.similarity import distances, layer_similarity
from fedapp.errors import ConfigError, RunError
from fedapp.federation.callback import RoundMetrics, ServerState
from fedapp.federation.faults import Fault, ReplyError, late
from fedapp.federation.messages import decode_reply
from fedapp.federation.validation import Expected
from fedapp.training.algorithm import Algorithm, ServerStep, Tensors
from fedapp.training.client import ClientMetrics, TrainReply, TrainRequest
from fedapp.training.tensors import WeightedMean, add, all_finite


class RunningAggregate:
    """The weighted mean of a round's replies so far, or every client's update if the rule needs each."""

    def __init__(self) -> None:
        self.client_metrics: list[ClientMetrics] = []
        self.bytes = 0
        self.train_seconds = 0.0
        self._mean = WeightedMean()
        self._uploads = WeightedMean()
        self._each: dict[int, Tensors] = {}

    def add(self, reply: TrainReply) -> None:
        """Add one node's reply."""
        self.client_metrics += reply.client_metrics
        self.bytes += reply.bytes
        seconds = sum(metrics.seconds for metrics in reply.client_metrics)
        self.train_seconds = max(self.train_seconds, seconds)
        if reply.mean:
            self._mean.add(reply.mean, reply.weight)
        if reply.uploads:
            self._uploads.add(reply.uploads, reply.weight)
        self._each |= reply.each

    @property
    def weight(self) -> float:
        """Total weight of the accepted clients."""
        return sum(metrics.weight for metrics in self.client_metrics)

    @property
    def num_weighted(self) -> int:
        """Number of accepted clients with a weight above 0."""
        return sum(metrics.weight > 0 for metrics in self.client_metrics)

    def mean(self, algorithm: Algorithm) -> tuple[Tensors, Tensors]:
        """Return the aggregated update and the mean of the uploads; both empty without clients."""
        if not self._each or not self.weight:
            return self._mean.mean(), self._uploads.mean()
        return algorithm.aggregate(*self.client_updates()), self._uploads.mean()

    def client_updates(self) -> tuple[list[Tensors], list[float]]:
        """Return the updates of the single clients, in client order, and their weights."""
        weights = {metrics.client: metrics.weight for metrics in self.client_metrics}
        clients = sorted(self._each)
        return [self._each[client] for client in clients], [weights[client] for client in clients]

    def average(self, values: Sequence[float]) -> float:
        """Return the mean of one value a client, weighted as the updates are; nan values are left out."""
        pairs = [
            (metrics.weight, value)
            for metrics, value in zip(self.client_metrics, values, strict=True)
            if metrics.weight > 0 and value == value
        ]
        total = sum(weight for weight, _ in pairs)
        return sum(weight * value for weight, value in pairs) / total if total else float("nan")


MAX_HELD = 64
"""Most replies that wait for an earlier one, which is then added when it comes."""


def in_order(replies: Iterable[tuple[int, TrainReply | None]]) -> Iterator[TrainReply]:
    """Yield replies in the order of their indices; None marks a rejected one, others may never come.

    Replies that arrive before their predecessors are buffered, but no more than ``MAX_HELD``: one that
    is further behind comes after its successors.
    """
    buffer: dict[int, TrainReply | None] = {}
    next_index = 0
    for index, reply in replies:
        if index < next_index:
            if reply is not None:
                yield reply
            continue
        buffer[index] = reply
        if len(buffer) > MAX_HELD:
            next_index = min(buffer)
        while next_index in buffer:
            ready = buffer.pop(next_index)
            next_index += 1
            if ready is not None:
                yield ready
    yield from (reply for _, reply in sorted(buffer.items()) if reply is not None)


@dataclass
class RoundReplies:
    """What the train requests of a round returned.

    ``faults`` says why a client is left out. ``unused`` lists the clients of the over-selection that
    were no longer waited for when enough others had been accepted.
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
    """Aggregate replies, given as (index of the request, reply), until ``wanted`` clients are accepted.

    Replies are checked as they arrive and added in the order of the requests.
    """
    result = RoundReplies()
    unanswered = dict(enumerate(requests))
    decoded = _decode_each(replies, expected, wanted, unanswered, result.faults)
    for reply in in_order(decoded):
        result.aggregate.add(reply)
    remaining = [client for request in unanswered.values() for client in request.clients]
    if len(result.aggregate.client_metrics) >= wanted:
        result.unused = sorted(remaining)
    else:
        result.faults |= dict.fromkeys(remaining, late(deadline))
    return result


def _decode_each(
    replies: Iterable[tuple[int, Message | Fault]],
    expected: Expected,
    wanted: int,
    unanswered: dict[int, TrainRequest],
    faults: dict[int, Fault],
) -> Iterator[tuple[int, TrainReply | None]]:
    """Yield each request's reply, or None for a rejected one, until ``wanted`` clients are accepted.

    Removes answered requests from ``unanswered`` and adds to ``faults``.
    """
    accepted = 0
    for index, message in replies:
        request = unanswered.pop(index)
        reply = None
        try:
            reply = decode_reply(request, message, expected)
            faults |= {client: Fault("raised", why) for client, why in reply.failures.items()}
            faults |= {client: Fault(*why) for client, why in reply.rejected.items()}
            accepted += len(reply.client_metrics)
        except ReplyError as error:
            faults |= dict.fromkeys(request.clients, error.fault)
        yield index, reply
        if accepted >= wanted:
            return


def log_faults(faults: Mapping[int, Fault], on_failure: str) -> None:
    """Log why clients are left out of a round.

    Raises
    ------
    RunError
        A client failed, and ``on_failure`` is "stop".
    """
    for client, fault in sorted(faults.items()):
        log(WARNING, "Client %d is left out of this round: %s", client, fault.reason)
    if faults and on_failure == "stop":
        client = min(faults)
        raise RunError(f"client {client} failed ({faults[client].reason}) and on-failure is 'stop'")


def too_few(aggregate: RunningAggregate, min_replies: int, algorithm: Algorithm) -> str:
    """Return the problem of a round with too few accepted clients; empty if they suffice."""
    needed, accepted = algorithm.min_updates, len(aggregate.client_metrics)
    few = accepted < min_replies or aggregate.num_weighted < needed
    if algorithm.poisson_sampling or not few:
        return ""
    return (
        f"{accepted} clients replied well, {aggregate.num_weighted} of them with a weight; "
        f"min-replies = {min_replies}, and algorithm = {algorithm.name!r} needs {needed}"
    )


def similarity_metrics(
    aggregate: RunningAggregate, theta: Mapping[str, Tensor], update: Literal["delta", "model"]
) -> RoundMetrics:
    """Return how similar the clients' updates are, and each client's training loss.

    ``similarity``: by layer, the cosine averaged over all pairs of clients (Seo et al. 2024,
    Figure 13). ``distance_mean`` and ``distance_max``: L2 distances of what the clients send from
    its weighted mean. ``client_train_loss``: by client, Figure 12's traces.
    """
    updates, weights = aggregate.client_updates()
    if update == "model":
        updates = [add(params, theta, -1.0) for params in updates]
    from_mean = distances(updates, weights)
    clients = sorted(aggregate.client_metrics, key=lambda metrics: metrics.client)
    return {
        "similarity": layer_similarity(updates),
        "distance_mean": sum(from_mean) / len(from_mean),
        "distance_max": max(from_mean),
        "client_train_loss": {str(client.client): client.loss for client in clients},
    }


def _require_same_shapes(
    algorithm: Algorithm, after: Mapping[str, Tensor], before: Mapping[str, Tensor]
) -> None:
    """Refuse a server state that a checkpoint could not replace; rules may add to their state."""
    new = _kinds(after)
    for name, (shape, dtype) in _kinds(before).items():
        now = new.get(name)
        if now != (shape, dtype):
            is_now = f"a tensor of shape {now[0]} of {now[1]}" if now else "nothing"
            raise ConfigError(
                f"algorithm = {algorithm.name!r}: apply returns as state {name!r} {is_now}, and it was "
                f"of shape {shape} of {dtype}. Let the tensors of the state keep their shapes and types."
            )


def _kinds(tensors: Mapping[str, Tensor]) -> dict[str, tuple[tuple[int, ...], str]]:
    return {name: (tuple(t.shape), str(t.dtype)) for name, t in tensors.items()}


def apply_server_rule(
    algorithm: Algorithm, aggregate: RunningAggregate, state: ServerState, step: ServerStep
) -> str:
    """Apply the server rule to ``state``; return the problem, without any change, of one not finite."""
    mean, uploads = aggregate.mean(algorithm)
    theta, own = algorithm.apply(state.theta, mean, uploads, state.algorithm, step)
    _require_same_shapes(algorithm, own, state.algorithm)
    if not all_finite([*theta.values(), *own.values()]):
        return f"algorithm = {algorithm.name!r} makes nan or infinite values of these updates"
    state.theta, state.algorithm = theta, own
    if algorithm.keeps_state:
        used = [metrics for metrics in aggregate.client_metrics if metrics.steps]
        rounds = {metrics.client: step.plan.round for metrics in used}
        state.last_used_round = state.last_used_round | rounds
    return ""
