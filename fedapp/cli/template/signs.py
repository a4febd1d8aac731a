"""Local steps along signs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field
from torch import Tensor

from fedapp.training.algorithm import Algorithm, Batch, ClientContext, Differentiate, Tensors


class Signs(Algorithm):
    """Local steps along the sign of the gradient."""

    name: ClassVar[str] = "signs"

    scale: float = Field(0.01, gt=0, description="Length of a step in each coordinate, times eta.")

    def gradient(
        self,
        differentiate: Differentiate,
        params: Mapping[str, Tensor],
        batch: Batch,
        context: ClientContext,
    ) -> tuple[Tensors, Tensor]:
        """Return the scaled signs of the gradient, and the objective's value."""
        gradient, loss = differentiate(params, batch)
        return {name: self.scale * tensor.sign() for name, tensor in gradient.items()}, loss
