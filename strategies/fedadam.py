"""FedAdam."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field
from torch import Tensor

from strategies._server_optimizer import FedOpt


class FedAdam(FedOpt):
    """Adam on the server: v <- beta2 v + (1 - beta2) Delta^2 (Reddi et al. 2021, Algorithm 2)."""

    name: ClassVar[str] = "fedadam"
    default_server_learning_rate: ClassVar[float] = 0.01

    beta2: float = Field(0.99, ge=0, lt=1, description="Decay of the mean of squared updates.")

    def second_moment(self, v: Tensor, delta: Tensor) -> Tensor:
        """Return beta2 v + (1 - beta2) Delta^2."""
        return self.beta2 * v + (1 - self.beta2) * delta**2
