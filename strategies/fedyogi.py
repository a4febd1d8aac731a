"""FedYogi."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field
from torch import Tensor

from strategies._server_optimizer import FedOpt


class FedYogi(FedOpt):
    """Yogi on the server: v <- v - (1 - beta2) Delta^2 sign(v - Delta^2).

    Reddi et al. 2021, Algorithm 2.
    """

    name: ClassVar[str] = "fedyogi"
    default_server_learning_rate: ClassVar[float] = 0.01

    beta2: float = Field(0.99, ge=0, lt=1, description="1 - beta2 is the pull of squared updates.")

    def second_moment(self, v: Tensor, delta: Tensor) -> Tensor:
        """Return v - (1 - beta2) Delta^2 sign(v - Delta^2)."""
        square = delta**2
        return v - (1 - self.beta2) * square * (v - square).sign()
