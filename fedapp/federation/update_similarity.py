"""What a round's record says of the clients' updates, with ``record-updates``."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Literal

from torch import Tensor

from fedapp.analysis.similarity import distances, layer_similarity
from fedapp.federation.aggregation import RunningAggregate
from fedapp.federation.callback import RoundMetrics
from fedapp.training.algorithm import Algorithm
from fedapp.training.tensors import add


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
