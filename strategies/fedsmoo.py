"""FedSMOO."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field
from torch import Tensor

from fedapp.training.algorithm import (
    Batch,
    ClientContext,
    ClientExtras,
    Differentiate,
    ServerStep,
    Tensors,
)
from fedapp.training.tensors import TINY, add, norm, part, prefixed, scaled, zeros_like
from strategies.feddyn import FedDyn


class FedSMOO(FedDyn):
    """Dynamic regularisation of the model and of the sharpness-aware perturbation.

    Sun et al. 2023 (ICML), Algorithm 1: FedDyn whose gradients are taken at w + s_k, with
    s_k = r u / ||u||, u = g - mu_k - s, mu_k <- mu_k + s_k - s at every step; clients send
    mu_k - s_k, of which the server makes the next s = r * mean / ||mean||. The paper's 1 / beta is
    alpha here, as in ``feddyn``. The mean in s is weighted as the updates are; the
    paper's is uniform, as with weighting='uniform'. The authors' code omits s_k from what is sent, since
    it is small; here it is included, as in the paper.
    """

    name: ClassVar[str] = "fedsmoo"

    rho: float = Field(0.1, ge=0, description="Radius of the perturbation, r.")

    def initial_client_state(self, context: ClientContext) -> Tensors:
        """Return lambda_k = 0 (under the parameters' names) and mu_k = 0."""
        return zeros_like(context.global_params) | prefixed("mu", zeros_like(context.global_params))

    def gradient(
        self,
        differentiate: Differentiate,
        params: Mapping[str, Tensor],
        batch: Batch,
        context: ClientContext,
    ) -> tuple[Tensors, Tensor]:
        """Return the gradient of FedDyn's objective, its first term taken at w + s_k; and s_k."""
        task = super(FedDyn, self).loss
        dual = part("mu", context.step_state or context.state)
        ascent, loss = differentiate(params, batch, task)
        ascent = add(add(ascent, dual, -1.0), context.broadcast, -1.0)
        perturbation = scaled(ascent, self.rho / (norm(ascent) + TINY))
        direction, _ = differentiate(add(params, perturbation), batch, task)
        direction = add(direction, context.state, -1.0)
        direction = add(direction, add(params, context.global_params, -1.0), self.alpha)
        return direction | prefixed("s", perturbation), loss

    def step_state(
        self, params: Mapping[str, Tensor], direction: Tensors, context: ClientContext
    ) -> Tensors:
        """Return mu_k + s_k - s, and s_k."""
        perturbation = part("s", direction)
        dual = part("mu", context.step_state or context.state)
        dual = add(add(dual, perturbation), context.broadcast, -1.0)
        return prefixed("mu", dual) | prefixed("s", perturbation)

    def finalize(
        self, params: Mapping[str, Tensor], context: ClientContext, steps: int | Tensor
    ) -> ClientExtras:
        """Return lambda_k - alpha (w - theta) and mu_k to keep, mu_k - s_k to send."""
        regulariser = super().finalize(params, context, steps).state
        dual = part("mu", context.step_state or context.state)
        last = part("s", context.step_state) or zeros_like(dual)
        return ClientExtras(upload=add(dual, last, -1.0), state=regulariser | prefixed("mu", dual))

    def start(self, theta: Mapping[str, Tensor]) -> Tensors:
        """Return lambda = 0 (under the parameters' names) and the mean in s, 0."""
        return zeros_like(theta) | prefixed("s", zeros_like(theta))

    def broadcast(self, state: Mapping[str, Tensor]) -> Tensors:
        """Return s = r * mean / ||mean||."""
        mean = part("s", state)
        return scaled(mean, self.rho / (norm(mean) + TINY))

    def apply(
        self,
        theta: Mapping[str, Tensor],
        mean: Tensors,
        upload: Tensors,
        state: Tensors,
        step: ServerStep,
    ) -> tuple[Tensors, Tensors]:
        """Return FedDyn's next theta and lambda, and the mean in s."""
        own = {name: state[name] for name in theta}
        theta, own = super().apply(theta, mean, upload, own, step)
        return dict(theta), own | prefixed("s", upload)
