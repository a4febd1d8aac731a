"""FedSOL."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedapp.training.algorithm import (
    Algorithm,
    Batch,
    ClientContext,
    Differentiate,
    Need,
    Network,
    Tensors,
)
from fedapp.training.batches import mean_over_targets
from fedapp.training.tensors import TINY, add, norm, scaled


class FedSOL(Algorithm):
    """Local gradients are taken where the proximal loss is worst, to be orthogonal to it.

    Lee et al. 2024 (CVPR), Algorithm 1: with g_p the gradient of the proximal loss,
    eps = rho g_p / ||g_p||, and the step descends along the local loss's gradient at w + eps. The
    proximal loss is the KL divergence from theta's to the local model's softmax at temperature 3,
    as in the authors' code. `adaptive` scales eps entry by entry by |w - theta|, normalised along
    each tensor's first dimension, as the authors' code does for the paper's Lambda. At w = theta
    g_p is zero: the first step is one of SGD.
    """

    name: ClassVar[str] = "fedsol"
    needs: ClassVar[frozenset[Need]] = frozenset({"classes"})

    rho: float = Field(1.0, ge=0, description="Radius of the perturbation.")
    temperature: float = Field(3.0, gt=0, description="Temperature of the proximal loss.")
    adaptive: bool = Field(default=True, description="Perturb what has moved more by more.")

    def gradient(
        self,
        differentiate: Differentiate,
        params: Mapping[str, Tensor],
        batch: Batch,
        context: ClientContext,
    ) -> tuple[Tensors, Tensor]:
        """Return the local loss's gradient at w + eps, and its value there."""
        proximal, _ = differentiate(params, batch, self.proximal_loss)
        moved = add(params, context.global_params, -1.0)
        # At theta g_p is zero up to rounding errors, which must not be scaled to rho.
        length = torch.where(norm(moved) > 0, self.rho / (norm(proximal) + TINY), 0.0)
        epsilon = scaled(proximal, length)
        if self.adaptive:
            epsilon = {
                name: F.normalize(moved[name].abs(), dim=0) * e for name, e in epsilon.items()
            }
        return differentiate(add(params, epsilon), batch)

    def proximal_loss(
        self, network: Network, params: Mapping[str, Tensor], batch: Batch, context: ClientContext
    ) -> Tensor:
        """Return the KL divergence from theta's to the local model's prediction: a scalar."""
        with torch.no_grad():
            global_logits = network.outputs(context.global_params, batch.inputs) / self.temperature
        student = F.log_softmax(network.outputs(params, batch.inputs) / self.temperature, 1)
        teacher = F.log_softmax(global_logits, 1)
        return mean_over_targets((teacher.exp() * (teacher - student)).sum(1), batch)
