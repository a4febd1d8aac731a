"""Flower's own robust aggregation rules (median, trimmed mean, Krum, Bulyan) as algorithms."""

from __future__ import annotations

import gc
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import ClassVar, Literal

import torch
from flwr.app import ArrayRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp.strategy import Strategy

from fedapp.config.federation import participants
from fedapp.config.run_config import RunConfig
from fedapp.config.settings import kebab
from fedapp.errors import RunError
from fedapp.federation.arrays import to_arrays, to_tensors
from fedapp.training.algorithm import Algorithm, Tensors


def aggregate_with(rule: Strategy, updates: Sequence[Tensors], weights: Sequence[float]) -> Tensors:
    """Return the aggregate of clients' updates by one of Flower's rules, in each tensor's own type.

    Flower's rules expect one client a node: replies with exactly one ``ArrayRecord`` and one
    ``MetricRecord`` with ``num-examples``. The arrays are float64, since Krum's
    ``|x|^2 + |y|^2 - 2xy`` cancels in float32. Needs Flower's ``TaskIdentity``, which every engine
    sets.

    Raises
    ------
    RunError
        There are too few updates for the number of malicious clients to tolerate.
    """
    replies = [
        _reply(number, tensors, weight)
        for number, (tensors, weight) in enumerate(zip(updates, weights, strict=True), start=1)
    ]
    # Bulyan collects garbage once a client, which takes 0.4 s with PyTorch; frozen objects are skipped.
    gc.freeze()
    try:
        arrays, _ = rule.aggregate_train(1, replies)
    finally:
        gc.unfreeze()
    if arrays is None:
        raise RunError(
            f"{type(rule).__name__} cannot aggregate {len(replies)} updates: it needs more clients a "
            "round. Raise fraction-train, or lower the number of malicious clients to tolerate."
        )
    return _with_types_of(arrays, updates[0])


def _reply(node: int, tensors: Tensors, weight: float) -> Message:
    exact = {name: tensor.to(torch.float64) for name, tensor in tensors.items()}
    content = RecordDict(
        {"arrays": to_arrays(exact), "metrics": MetricRecord({"num-examples": float(weight)})}
    )
    return Message(content, node, MessageType.TRAIN)


def _with_types_of(arrays: ArrayRecord, like: Tensors) -> Tensors:
    tensors = to_tensors(arrays)
    return {name: tensors[name].to(tensor) for name, tensor in like.items()}


class RobustRule(Algorithm, ABC):
    """An aggregation rule in place of the mean; clients without examples are ignored."""

    reply: ClassVar[Literal["mean", "each"]] = "each"

    def config_errors(self, config: RunConfig) -> Iterator[str]:
        """Yield an error if fewer clients train a round than the rule needs."""
        clients = participants(config.fraction_train, config.num_clients)
        if config.num_clients and clients < self.min_updates:
            own = [
                f"{self.name}.{kebab(field)} (now {getattr(self, field)})"
                for field in type(self).model_fields
            ]
            yield (
                f"algorithm = {self.name!r}: needs updates from {self.min_updates} clients a round, and "
                f"only {clients} train (max(floor(fraction-train * num-clients), 1)). Raise "
                f"fraction-train or num-clients, or lower {' or '.join(own)}."
            )

    @abstractmethod
    def rule(self) -> Strategy:
        """Return Flower's rule, with this algorithm's settings."""

    def aggregate(self, updates: Sequence[Tensors], weights: Sequence[float]) -> Tensors:
        """Return the rule's aggregate of the updates of clients with a weight, in client order."""
        weighted = [(u, w) for u, w in zip(updates, weights, strict=True) if w > 0]
        return aggregate_with(self.rule(), [u for u, _ in weighted], [w for _, w in weighted])
