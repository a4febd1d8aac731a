"""FedAvgM."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

from pydantic import Field
from torch import Tensor

from fedapp.config.run_config import RunConfig
from fedapp.config.settings import no_effect
from fedapp.training.algorithm import Algorithm, ServerStep, Tensors, mean_update
from fedapp.training.tensors import add, scaled, zeros_like


class FedAvgM(Algorithm):
    """Heavy-ball or Nesterov momentum on the server.

    Hsu et al. 2019 (arXiv 1909.06335), section 3: v <- beta v + Delta, w <- w + eta_g v with
    Delta the mean update. With `nesterov`, w + eta_g (Delta + beta v), PyTorch's form of Nesterov's
    accelerated gradient; with one full-batch local step it is that method on the whole objective.
    """

    name: ClassVar[str] = "fedavgm"

    momentum: float = Field(0.9, ge=0, lt=1, description="Server momentum, beta.")
    nesterov: bool = Field(default=False, description="Nesterov's form of the server momentum.")

    def config_errors(self, config: RunConfig) -> Iterator[str]:
        """Yield the error of Nesterov's form without momentum."""
        if self.nesterov and not self.momentum:
            because = "fedavgm.momentum is 0. Set fedavgm.momentum=0.9"
            yield no_effect("fedavgm.nesterov", self.nesterov, because)

    def start(self, theta: Mapping[str, Tensor]) -> Tensors:
        """Return v = 0."""
        return zeros_like(theta)

    def apply(
        self,
        theta: Mapping[str, Tensor],
        mean: Tensors,
        upload: Tensors,
        state: Tensors,
        step: ServerStep,
    ) -> tuple[Tensors, Tensors]:
        """Return w + eta_g v (or w + eta_g (Delta + beta v)) and v."""
        update = mean_update(theta, mean, step)
        velocity = add(scaled(state, self.momentum), update)
        move = add(update, velocity, self.momentum) if self.nesterov else velocity
        return add(theta, move, step.server_learning_rate), velocity
