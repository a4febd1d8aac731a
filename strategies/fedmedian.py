"""The coordinate-wise median."""

from __future__ import annotations

from typing import ClassVar

from flwr.serverapp.strategy import FedMedian as Rule
from flwr.serverapp.strategy import Strategy

from strategies._flower_rules import RobustRule


class FedMedian(RobustRule):
    """The median of each coordinate, which tolerates malicious clients below one half.

    Yin et al. 2018 (ICML), Definition 1 and Algorithm 1, option I. Every client has the same
    weight: `weighting` has no effect. For an even number of clients it is the mean of the middle two.
    """

    name: ClassVar[str] = "fedmedian"

    def rule(self) -> Strategy:
        """Return Flower's FedMedian."""
        return Rule()
