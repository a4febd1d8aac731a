"""Krum."""

from __future__ import annotations

from typing import ClassVar

from flwr.serverapp.strategy import Krum as Rule
from flwr.serverapp.strategy import Strategy
from pydantic import Field

from strategies._flower_rules import RobustRule


class Krum(RobustRule):
    """The update that is nearest to the others, where f clients may be malicious.

    Blanchard et al. 2017 (NeurIPS), section 4: the update with the least sum of squared distances to
    its n - f - 2 nearest ones; n >= 2 f + 3 is required. `weighting` has no effect.
    """

    name: ClassVar[str] = "krum"

    num_malicious: int = Field(1, ge=0, description="Malicious clients a round to withstand, f.")

    @property
    def min_updates(self) -> int:
        """2 f + 3."""
        return 2 * self.num_malicious + 3

    def rule(self) -> Strategy:
        """Return Flower's Krum."""
        return Rule(num_malicious_nodes=self.num_malicious)
