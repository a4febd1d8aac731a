"""What a round's line of ``metrics.jsonl`` says of training and of the clients' own tests."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from typing import Literal

from flwr.app import MetricRecord
from torch import Tensor

from fedapp.analysis.similarity import distances, layer_similarity
from fedapp.config.run_config import RunConfig
from fedapp.federation.aggregation import RoundReplies, RunningAggregate
from fedapp.federation.callback import RoundMetrics
from fedapp.federation.faults import Fault, count
from fedapp.training.algorithm import Algorithm
from fedapp.training.evaluation import Score
from fedapp.training.round_plan import Work
from fedapp.training.tensors import add


def training_record(config: RunConfig, found: RoundReplies, work: Work) -> RoundMetrics:
    """Return what a round's training did: u and eta * u averaged as the updates are."""
    aggregate = found.aggregate
    done = aggregate.average([work.updates(config, r.examples) for r in aggregate.reports])
    record: RoundMetrics = {
        "replied": len(aggregate.reports),
        "examples": sum(r.examples for r in aggregate.reports),
        "steps": sum(r.steps for r in aggregate.reports),
        "updates": done,
        "effective_updates": done * work.learning_rate,
        "train_loss": aggregate.average([r.loss for r in aggregate.reports]),
        "bytes_up": aggregate.bytes,
        "model_changed": False,
    }
    if found.unused:
        record["surplus"] = found.unused
    return record | (_faults(found.faults) if found.faults else {})


def _faults(faults: dict[int, Fault]) -> RoundMetrics:
    """Return who is left out and why, and how many by the kind of fault."""
    failures = {str(client): faults[client].reason for client in sorted(faults)}
    return {"failures": failures, "faults": count(faults)}


def client_scores(scores: Sequence[Score]) -> MetricRecord | None:
    """Return loss and accuracy over all clients' test examples, each example counting once.

    Numbers of ``Model.metrics`` are means over the clients, by their examples, where they are finite.
    """
    scores = [score for score in scores if score.count]
    total = sum(score.count for score in scores)
    if not total:
        return None
    return MetricRecord(
        {
            **{
                name: _mean(scores, name) for name in sorted({n for s in scores for n in s.further})
            },
            "loss": sum(s.loss * s.count for s in scores) / total,
            "accuracy": sum(s.accuracy * s.count for s in scores) / total,
            "worst-accuracy": min(s.accuracy for s in scores),
            "clients": len(scores),
        }
    )


def _mean(scores: Sequence[Score], name: str) -> float:
    finite = [s for s in scores if math.isfinite(s.further.get(name, math.nan))]
    total = sum(s.count for s in finite)
    return sum(s.further[name] * (s.count / total) for s in finite) if total else math.nan


def describe_updates(
    aggregate: RunningAggregate,
    algorithm: Algorithm,
    theta: Mapping[str, Tensor],
    update: Literal["delta", "model"],
) -> RoundMetrics:
    """Return how the updates of a round agree, and each client's training loss by its id.

    ``similarity``: by layer, the cosine averaged over all pairs of clients (Seo et al. 2024,
    Figure 13). ``distance_mean`` and ``distance_max``: of the clients' models from their weighted
    mean, in L2. ``client_train_loss``: Figure 12's traces.
    """
    sent, weights = aggregate.each()
    if update == "model" and not algorithm.custom_update:
        sent = [add(params, theta, -1.0) for params in sent]
    by_id = operator.attrgetter("client")
    apart = distances(sent, weights)
    return {
        "similarity": layer_similarity(sent),
        "distance_mean": sum(apart) / len(apart),
        "distance_max": max(apart),
        "client_train_loss": {str(r.client): r.loss for r in sorted(aggregate.reports, key=by_id)},
    }
