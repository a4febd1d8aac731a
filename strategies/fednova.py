"""FedNova."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

import torch
from torch import Tensor

from fedapp.config.run_config import RunConfig
from fedapp.training.algorithm import (
    Algorithm,
    ClientContext,
    ClientExtras,
    ServerStep,
    Tensors,
)
from fedapp.training.tensors import add, scaled

MAX_STEPS = 10**6
"""Most steps whose contributions are added up: how many there are is what a node says that it has."""


class FedNova(Algorithm):
    """Normalised averaging: clients that take more steps do not have more influence.

    Wang et al. 2020 (NeurIPS), Eq. 8 and section 4: theta + tau_eff sum of p_k d_k, where
    d_k = Delta_k / ||a_k||_1 and tau_eff = sum of p_k ||a_k||_1. ||a_k||_1 sums what each local
    gradient contributes: K for plain SGD, (K - rho (1 - rho^K) / (1 - rho)) / (1 - rho) for momentum
    rho (section 4), with rho^2 for the first rho in Nesterov's form. Weight decay is the gradient
    of a term of the loss, and included; clip-norm is an error, since ||a_k||_1 does not account for it.
    It equals federated averaging if all clients take the same number of steps.
    """

    name: ClassVar[str] = "fednova"
    custom_update: ClassVar[bool] = True

    def config_errors(self, config: RunConfig) -> Iterator[str]:
        """Yield the error of clipped gradients."""
        yield from config.clipping_errors("||a_k||_1 does not account for clipping")

    def finalize(
        self, params: Mapping[str, Tensor], context: ClientContext, steps: int | Tensor
    ) -> ClientExtras:
        """Return d_k in place of the update, and ||a_k||_1."""
        weight = accumulation_norm(next(iter(params.values())), context, steps)
        normalised = scaled(add(params, context.global_params, -1.0), 1 / weight.clamp(min=1))
        return ClientExtras(upload={"weight": weight}, update=normalised)

    def upload_bounds(self, context: ClientContext) -> Mapping[str, float]:
        """Return ||a_k||_1 of the largest number of steps, or more if they are too many to add up."""
        steps, rho = context.steps, context.momentum
        if steps <= MAX_STEPS:
            like = torch.zeros((), dtype=torch.float64)
            return {"weight": float(accumulation_norm(like, context, steps))}
        total = min(steps / (1 - rho), steps * (steps + 1) / 2)
        return {"weight": steps + rho * total if context.nesterov else total}

    def apply(
        self,
        theta: Mapping[str, Tensor],
        mean: Tensors,
        upload: Tensors,
        state: Tensors,
        step: ServerStep,
    ) -> tuple[Tensors, Tensors]:
        """Return theta + eta_g * tau_eff * mean of d_k."""
        return add(theta, mean, step.server_learning_rate * upload["weight"]), state


def accumulation_norm(like: Tensor, context: ClientContext, steps: int | Tensor) -> Tensor:
    """Return ||a_k||_1: the sum of the contributions of K local gradients to theta_k, in steps.

    K for plain SGD; with momentum rho the sum of (K - i) rho^i over i < K, which is
    (K - rho (1 - rho^K) / (1 - rho)) / (1 - rho) (Wang et al. 2020, section 4); in Nesterov's form rho
    times that, plus K. A scalar of ``like``'s type.
    """
    count, rho = int(steps), context.momentum
    step = torch.arange(count, dtype=torch.float64, device=like.device)
    total = ((count - step) * rho**step).sum()
    return (count + rho * total if context.nesterov else total).to(like.dtype)
