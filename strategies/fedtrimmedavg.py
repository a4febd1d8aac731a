"""The coordinate-wise trimmed mean."""

from __future__ import annotations

import math
from typing import ClassVar

from flwr.serverapp.strategy import FedTrimmedAvg as Rule
from flwr.serverapp.strategy import Strategy
from pydantic import Field

from strategies._flower_rules import RobustRule

ROUNDING = 1e-12
"""Added to beta; larger than the rounding error of beta m, over m."""


class FedTrimmedAvg(RobustRule):
    """The mean of each coordinate without its smallest and largest values.

    Yin et al. 2018 (ICML), Definition 2 and Algorithm 1, option II: of m values the floor(beta m)
    smallest and as many of the largest are dropped, so that many malicious clients are
    tolerated (none if beta m < 1). Every client has the same weight: `weighting` has no effect.
    """

    name: ClassVar[str] = "fedtrimmedavg"

    beta: float = Field(0.2, ge=0, lt=0.5, description="Share of the values dropped at either end.")

    def rule(self) -> Strategy:
        """Return Flower's FedTrimmedAvg, which drops int(beta m): 0.29 * 100 is 28.999... in floats."""
        return Rule(beta=min(self.beta + ROUNDING, math.nextafter(0.5, 0.0)))
