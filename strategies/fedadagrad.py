"""FedAdagrad."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field
from torch import Tensor

from strategies._server_optimizer import FedOpt


class FedAdagrad(FedOpt):
    """Adagrad on the server: v <- v + Delta^2.

    Reddi et al. 2021, Algorithm 2; their experiments take beta1 = 0 for it, and so does the default.
    """

    name: ClassVar[str] = "fedadagrad"
    default_server_learning_rate: ClassVar[float] = 0.03

    beta1: float = Field(0.0, ge=0, lt=1, description="Decay of the mean of updates.")

    def second_moment(self, v: Tensor, delta: Tensor) -> Tensor:
        """Return v + Delta^2."""
        return v + delta**2
