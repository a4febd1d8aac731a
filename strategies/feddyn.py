"""FedDyn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field
from torch import Tensor

from fedapp.training.algorithm import (
    Algorithm,
    Batch,
    ClientContext,
    ClientExtras,
    Network,
    ServerStep,
    Tensors,
    mean_update,
)
from fedapp.training.tensors import add, dot, scaled, zeros_like


class FedDyn(Algorithm):
    """A dynamic regulariser aligns the clients' optima with the global one.

    Acar et al. 2021 (ICLR), Algorithm 1: client k minimises L_k(w) - <g_k, w> + alpha / 2
    ||w - theta||^2 and keeps g_k - alpha (w - theta); the server keeps h and sets theta to
    theta + eta_g * mean update - h / alpha. The paper's h accumulates -alpha / m times the updates (m:
    all clients); here the share of the weight as in ``scaffold``, which is the same with uniform
    weighting. With alpha = 0 it is federated averaging, without h / alpha. The authors' code also has a
    weight decay (1e-3 for CIFAR-10), and divides alpha by the client's examples over their mean.
    """

    name: ClassVar[str] = "feddyn"
    keeps_state: ClassVar[bool] = True
    keeps_mean: ClassVar[bool] = True

    alpha: float = Field(0.1, ge=0, description="Weight of the regulariser.")

    def initial_client_state(self, context: ClientContext) -> Tensors:
        """Return g_k = 0."""
        return zeros_like(context.global_params)

    def loss(
        self, network: Network, params: Mapping[str, Tensor], batch: Batch, context: ClientContext
    ) -> Tensor:
        """Return L_k(w) - <g_k, w> + alpha / 2 ||w - theta||^2."""
        drift = add(params, context.global_params, -1.0)
        linear = dot(params, context.state)
        return (
            super().loss(network, params, batch, context)
            - linear
            + self.alpha / 2 * dot(drift, drift)
        )

    def finalize(
        self, params: Mapping[str, Tensor], context: ClientContext, steps: int | Tensor
    ) -> ClientExtras:
        """Return g_k - alpha (w - theta) to keep."""
        drift = add(params, context.global_params, -1.0)
        return ClientExtras(state=add(scaled(drift, -self.alpha), context.state))

    def start(self, theta: Mapping[str, Tensor]) -> Tensors:
        """Return h = 0."""
        return zeros_like(theta)

    def apply(
        self,
        theta: Mapping[str, Tensor],
        mean: Tensors,
        upload: Tensors,
        state: Tensors,
        step: ServerStep,
    ) -> tuple[Tensors, Tensors]:
        """Return theta + eta_g * mean update - h / alpha, with h <- h - alpha * share * mean update."""
        update = mean_update(theta, mean, step)
        moved = add(theta, update, step.server_learning_rate)
        if not self.alpha:
            return moved, state
        h = add(state, update, -self.alpha * step.share)
        return add(moved, scaled(h, -1 / self.alpha)), h
