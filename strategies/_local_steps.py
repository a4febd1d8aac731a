"""How much a client's local steps moved it, for rules that divide by it."""

from __future__ import annotations

import torch
from torch import Tensor

from fedapp.training.algorithm import ClientContext


def steps_in_all(like: Tensor, context: ClientContext, steps: int | Tensor) -> Tensor:
    """Return ||a_k||_1: what each of K local gradients contributes to theta_k, summed, in steps.

    K for plain SGD; with momentum rho (K - rho (1 - rho^K) / (1 - rho)) / (1 - rho), and with rho^2
    for the second rho in Nesterov's form (Wang et al. 2020, section 4.1). A scalar of ``like``'s type.
    """
    count = torch.as_tensor(steps, dtype=like.dtype, device=like.device)
    rho, lead = context.momentum, context.momentum * (context.momentum if context.nesterov else 1.0)
    return (count - lead * (1 - rho**count) / (1 - rho)) / (1 - rho)
