"""Multi-Krum."""

from __future__ import annotations

from typing import ClassVar, Literal

from flwr.serverapp.strategy import MultiKrum as Rule
from flwr.serverapp.strategy import Strategy
from pydantic import Field

from strategies._flower_rules import RobustRule


class MultiKrum(RobustRule):
    """The mean of the updates that are nearest to the others, where f clients may be malicious.

    Blanchard et al. 2017 (NeurIPS), Multi-Krum: the plain mean of the updates with the least Krum
    scores; with weighting='examples', weighted by the reported numbers of examples. n >= 2 f + 3 is
    required, and for Krum's guarantee to cover all averaged updates, at most n - f - 2 of them
    (Damaskinos et al. 2019, AggregaThor).
    """

    name: ClassVar[str] = "multikrum"
    default_weighting: ClassVar[Literal["examples", "uniform"]] = "uniform"

    num_malicious: int = Field(1, ge=0, description="Malicious clients a round to withstand, f.")
    num_selected: int = Field(3, ge=1, description="Updates that are averaged.")

    @property
    def min_updates(self) -> int:
        """The larger of 2 f + 3 and f + 2 + the number of updates averaged."""
        return self.num_malicious + 2 + max(self.num_malicious + 1, self.num_selected)

    def rule(self) -> Strategy:
        """Return Flower's MultiKrum."""
        return Rule(num_malicious_nodes=self.num_malicious, num_nodes_to_select=self.num_selected)
