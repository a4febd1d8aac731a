"""FedSAM."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field
from torch import Tensor

from fedapp.training.algorithm import Algorithm, Batch, ClientContext, Differentiate, Tensors
from fedapp.training.tensors import TINY, add, norm


class FedSAM(Algorithm):
    """Sharpness-aware: each step descends along the gradient at the worst point nearby.

    Qu et al. 2022 (ICML), Algorithm 1: w~ = w + rho g / ||g||, then w - eta g(w~), both gradients on
    the same mini-batch. The perturbation has length rho even at an optimum, so the iterates
    stay near it, not at it.
    """

    name: ClassVar[str] = "fedsam"

    rho: float = Field(0.05, ge=0, description="Radius of the perturbation.")

    def gradient(
        self,
        differentiate: Differentiate,
        params: Mapping[str, Tensor],
        batch: Batch,
        context: ClientContext,
    ) -> tuple[Tensors, Tensor]:
        """Return the gradient at w + rho g / ||g||, and the loss at w."""
        ascent, loss = differentiate(params, batch)
        worst = add(params, ascent, self.rho / (norm(ascent) + TINY))
        direction, _ = differentiate(worst, batch)
        return direction, loss
