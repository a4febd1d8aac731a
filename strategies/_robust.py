"""What the robust rules share: every client's update goes through one of Flower's own rules."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Literal

from flwr.serverapp.strategy import Strategy

from fedapp.training.algorithm import Algorithm, Tensors
from strategies._flower_rules import aggregate_with


class RobustRule(Algorithm, ABC):
    """It stands in place of the mean; clients without examples have no say."""

    reply: ClassVar[Literal["mean", "each"]] = "each"
    exact: ClassVar[bool] = False

    @abstractmethod
    def rule(self) -> Strategy:
        """Return Flower's rule, with this algorithm's settings."""

    def aggregate(self, updates: Sequence[Tensors], weights: Sequence[float]) -> Tensors:
        """Return what the rule makes of the updates, in client order."""
        said = [(u, w) for u, w in zip(updates, weights, strict=True) if w > 0]
        return aggregate_with(self.rule(), [u for u, _ in said], [w for _, w in said])
