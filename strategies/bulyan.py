"""Bulyan."""

from __future__ import annotations

from typing import ClassVar

from flwr.serverapp.strategy import Bulyan as Rule
from flwr.serverapp.strategy import Strategy
from pydantic import Field

from strategies._flower_rules import RobustRule


class Bulyan(RobustRule):
    """Krum selects updates; of each coordinate, the values nearest to the median are averaged.

    El Mhamdi et al. 2018 (ICML), section 4: n - 2 f updates are selected and n - 4 f values
    averaged; n >= 4 f + 3 is required. The paper selects them one by one, each time applying Krum to
    the rest; Flower's rule, used here, takes the n - 2 f best scores of one application.
    `weighting` has no effect.
    """

    name: ClassVar[str] = "bulyan"

    num_malicious: int = Field(1, ge=0, description="Malicious clients a round to withstand, f.")

    @property
    def min_updates(self) -> int:
        """4 f + 3."""
        return 4 * self.num_malicious + 3

    def rule(self) -> Strategy:
        """Return Flower's Bulyan."""
        return Rule(num_malicious_nodes=self.num_malicious)
