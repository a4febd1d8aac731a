"""The coordinate-wise median."""

from __future__ import annotations

from typing import ClassVar

from flwr.serverapp.strategy import FedMedian as Rule
from flwr.serverapp.strategy import Strategy

from strategies._flower_rules import RobustRule


class FedMedian(RobustRule):
    """The median of each coordinate, whatever fewer than half of the clients send.

    Yin et al. 2018 (ICML), Definition 1 and Algorithm 1, option I. Every client has one vote:
    `weighting` has no part in it. Of an even number of clients it is the mean of the middle two.
    """

    name: ClassVar[str] = "fedmedian"
    source: ClassVar[str] = "Yin et al. 2018, Definition 1"

    def rule(self) -> Strategy:
        """Return Flower's FedMedian."""
        return Rule()
