"""FedProx."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field
from torch import Tensor

from fedapp.training.algorithm import Algorithm, Batch, ClientContext, Network
from fedapp.training.tensors import add, dot


class FedProx(Algorithm):
    """A proximal term keeps local models near theta: mu / 2 ||w - theta||^2.

    Li et al. 2020 (MLSys), Eq. 2 and Algorithm 2: client k inexactly minimises
    F_k(w) + mu / 2 ||w - theta||^2. Algorithm 2 averages uniformly over clients drawn with probability
    p_k; here, as in the paper's experiments (section 5.1), clients are drawn uniformly and averaged by
    `weighting`.
    """

    name: ClassVar[str] = "fedprox"

    mu: float = Field(0.01, ge=0, description="Weight of the proximal term.")

    def loss(
        self, network: Network, params: Mapping[str, Tensor], batch: Batch, context: ClientContext
    ) -> Tensor:
        """Return the task's loss plus mu / 2 ||w - theta||^2."""
        drift = add(params, context.global_params, -1.0)
        return super().loss(network, params, batch, context) + self.mu / 2 * dot(drift, drift)
