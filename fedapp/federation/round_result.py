"""What one round asked of the nodes, and what it found out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from fedapp.federation.aggregation import RoundReplies
from fedapp.federation.callback import RoundMetrics
from fedapp.federation.faults import count
from fedapp.training.client import TrainRequest
from fedapp.training.round_plan import RoundPlan


@dataclass(frozen=True)
class RoundRequests:
    """A round's plan, the sampled clients S_t, and the nodes with a train request each.

    A client whose node could not be asked is in ``sampled`` alone. ``bytes_asked`` are those of the
    messages of a sampler that asks for losses.
    """

    plan: RoundPlan = field(default_factory=RoundPlan)
    sampled: Sequence[int] = ()
    nodes: Sequence[int] = ()
    by_node: Sequence[TrainRequest] = ()
    bytes_asked: int = 0

    @property
    def clients(self) -> list[int]:
        """The clients that are asked."""
        return [client for request in self.by_node for client in request.clients]


UNCHANGED = "the model stays as it was"
"""How the log's line about a round ends that has a ``problem``."""


@dataclass(frozen=True)
class TrainingResult:
    """What the training of a round found out.

    ``problem`` says why theta stays as it was; empty if the server rule was applied. ``late`` counts
    the replies to earlier rounds that came in this one. ``further`` are the algorithm's own metrics, and
    the similarity of the clients' updates if it is recorded.
    """

    requests: RoundRequests
    replies: RoundReplies
    problem: str
    late: int
    further: RoundMetrics

    @property
    def metrics(self) -> RoundMetrics:
        """The metrics of the training; u and eta * u are averaged as the updates are."""
        plan, aggregate, faults = self.requests.plan, self.replies.aggregate, self.replies.faults
        clients = aggregate.client_metrics
        updates = aggregate.average([plan.updates(client.examples) for client in clients])
        if_any = {
            "bytes_asked": self.requests.bytes_asked,
            "surplus": self.replies.unused,
            "failures": {str(client): faults[client].reason for client in sorted(faults)},
            "faults": count(faults),
            "late_replies": self.late,
        }
        return {
            **self.further,
            "learning_rate": plan.learning_rate,
            **({} if plan.steps else {"local_epochs": plan.epochs}),
            "batch_size": plan.batch_size,
            "clients": list(self.requests.sampled),
            "replied": len(clients),
            "examples": sum(client.examples for client in clients),
            "steps": sum(client.steps for client in clients),
            "updates": updates,
            "effective_updates": updates * plan.learning_rate,
            "train_loss": aggregate.average([client.loss for client in clients]),
            "bytes_up": aggregate.bytes,
            **{name: value for name, value in if_any.items() if value},
            "model_changed": not self.problem,
        }


@dataclass(frozen=True)
class RoundResult:
    """What one round found out; round 0 is the evaluation of theta_0, without training.

    ``privacy`` is epsilon, delta and the adjacency of a private run, ``scores`` theta's, and ``seconds``
    the time by part of the round.
    """

    round: int
    training: TrainingResult | None = None
    bytes_down: int = 0
    privacy: RoundMetrics = field(default_factory=dict)
    scores: RoundMetrics = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)

    @cached_property
    def metrics(self) -> RoundMetrics:
        """The line of ``metrics.jsonl``."""
        training = {} if self.training is None else self.training.metrics
        down = {} if self.training is None else {"bytes_down": self.bytes_down}
        parts = {**training, **down, **self.privacy, **self.scores}
        return {"round": self.round, "seconds": dict(self.seconds), **parts}

    @property
    def numbers(self) -> dict[str, float]:
        """Every number of ``metrics`` but for single clients', of groups as ``seconds/train``."""
        metrics = dict(self.metrics)
        for group in ("seconds", "faults", "similarity"):
            metrics |= {f"{group}/{key}": value for key, value in metrics.get(group, {}).items()}
        return {key: value for key, value in metrics.items() if type(value) in (int, float)}
