"""FedOpt: the base of FedAdagrad, FedAdam and FedYogi."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping

import torch
from pydantic import Field
from torch import Tensor

from fedapp.training.algorithm import Algorithm, ServerStep, Tensors, mean_update
from fedapp.training.tensors import add, part, prefixed, scaled, zeros_like


class FedOpt(Algorithm):
    """An adaptive server optimizer with the mean update as its pseudo-gradient.

    Reddi et al. 2021 (ICLR), Algorithm 2: m <- beta1 m + (1 - beta1) Delta, v by the subclass,
    x <- x + eta m / (sqrt(v) + tau), eta being server-learning-rate, m_0 = 0, v_0 = tau^2. There is
    no bias correction. Flower's own rules start v at 0, and its FedAdam multiplies eta by
    sqrt(1 - beta2^(t+1)) / (1 - beta1^(t+1)), so that their results differ. A step is of the
    order of eta in each entry where Delta is large beside tau, so eta = 1 is far too large; the paper
    tunes eta on a grid of 10^(1/2) (Appendix D). The default is 0.01, and 0.03 for Adagrad.
    """

    beta1: float = Field(0.9, ge=0, lt=1, description="Decay of the mean of updates.")
    tau: float = Field(1e-3, gt=0, le=1e6, description="Adaptivity: added to the root of v.")

    @abstractmethod
    def second_moment(self, v: Tensor, delta: Tensor) -> Tensor:
        """Return the next v, entry by entry."""

    def start(self, theta: Mapping[str, Tensor]) -> Tensors:
        """Return m = 0 and v = tau^2."""
        moment = {name: torch.full_like(tensor, self.tau**2) for name, tensor in theta.items()}
        return prefixed("m", zeros_like(theta)) | prefixed("v", moment)

    def apply(
        self,
        theta: Mapping[str, Tensor],
        mean: Tensors,
        upload: Tensors,
        state: Tensors,
        step: ServerStep,
    ) -> tuple[Tensors, Tensors]:
        """Return x + eta m / (sqrt(v) + tau), with the new m and v."""
        delta = mean_update(theta, mean, step)
        first = add(scaled(part("m", state), self.beta1), delta, 1 - self.beta1)
        second = {n: self.second_moment(v, delta[n]) for n, v in part("v", state).items()}
        move = {name: m / (second[name].sqrt() + self.tau) for name, m in first.items()}
        moments = prefixed("m", first) | prefixed("v", second)
        return add(theta, move, step.server_learning_rate), moments
