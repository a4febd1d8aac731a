"""What a round's line of ``metrics.jsonl`` says of training and of the clients' own tests."""

from __future__ import annotations

import math
from collections.abc import Sequence

from flwr.app import MetricRecord

from fedapp.config.run_config import RunConfig
from fedapp.federation.callback import RoundMetrics
from fedapp.federation.collect import RoundReplies
from fedapp.federation.faults import Fault, count
from fedapp.training.evaluation import Score
from fedapp.training.round_plan import Work


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
