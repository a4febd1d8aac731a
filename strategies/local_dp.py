"""Local differential privacy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedapp.analysis.privacy import ORDERS, default_delta, epsilon, round_cost
from fedapp.config import RunConfig
from fedapp.training.algorithm import Algorithm, Finish, ServerStep, Tensors, Turn
from fedapp.training.tensors import add
from strategies.noise import Entropy, clipped, gaussian, noise_generator


class LocalDP(Algorithm):
    """Each client adds noise to its own clipped update: the server need not be trusted.

    Client k sends Delta_k min(1, S / ||Delta_k||) + N(0, (z S)^2) (the Gaussian mechanism, Dwork
    and Roth 2014, Theorem A.1, on the client). Two clipped updates are at most 2 S apart, so one
    turn costs a Gaussian of multiplier z / 2. The epsilon given is that of a client that takes part
    in every round so far. Against the server noise protects only with ``entropy = "system"``,
    since the server knows the seed. What epsilon covers: docs/privacy.md.
    """

    name: ClassVar[str] = "local-dp"
    own_weighting: ClassVar[Literal["examples", "uniform"]] = "uniform"
    source: ClassVar[str] = "Dwork and Roth 2014, Theorem A.1"
    infinite: ClassVar[frozenset[str]] = frozenset({"cost"})
    sends: ClassVar[str] = "Δ_k clipped, with noise"
    own_update: ClassVar[bool] = True
    exact: ClassVar[bool] = False
    neutral: ClassVar[Mapping[str, float]] = {"clip": 0.0, "noise": 0.0}

    clip: float = Field(1.0, ge=0, description="Largest L2 norm of an update, S. 0: none.")
    noise: float = Field(1.0, ge=0, description="Deviation of the noise over S, z.")
    delta: float = Field(0.0, ge=0, lt=1, description="Delta of the epsilon given. 0: K^-1.1.")
    entropy: Entropy = Field(
        "seed", description="Where noise comes from: 'seed', or 'system', which no server knows."
    )

    def misfits(self, config: RunConfig) -> Iterator[str]:
        """Say if there is noise without a bound."""
        yield from super().misfits(config)
        if self.noise and not self.clip:
            yield (
                f"{self.name}.clip = 0: without clipping no noise is enough. "
                f"Set {self.name}.clip=1.0, or {self.name}.noise=0.0."
            )

    def draw(self, turn: Turn, seed: int, client: int) -> Tensors:
        """Return the noise of this client and round."""
        if not self.noise:
            return {}
        rng = noise_generator(self.entropy, seed, self.name, turn.round, client)
        return gaussian(turn.anchor, self.noise * self.clip, rng)

    def finish(self, params: Mapping[str, Tensor], turn: Turn, steps: int | Tensor) -> Finish:
        """Return the clipped Delta_k with its noise."""
        update = add(params, turn.anchor, -1.0)
        if self.clip:
            update = clipped(update, self.clip)
        return Finish(update=add(update, turn.drawn) if self.noise else update)

    def start(self, theta: Mapping[str, Tensor]) -> Tensors:
        """Return what has been spent: nothing."""
        return {"cost": torch.zeros(len(ORDERS), dtype=torch.float64)}

    def apply(
        self,
        theta: Mapping[str, Tensor],
        mean: Tensors,
        upload: Tensors,
        state: Tensors,
        step: ServerStep,
    ) -> tuple[Tensors, Tensors]:
        """Return theta + eta_g * mean of what the clients sent; and the cost with this round's."""
        cost = torch.tensor(round_cost(self.noise / 2, 1.0), dtype=torch.float64)
        return add(theta, mean, step.server_learning_rate), {"cost": state["cost"] + cost}

    def report(self, state: Mapping[str, Tensor], step: ServerStep) -> dict[str, float]:
        """Return epsilon at delta, of a client that has taken part in every round."""
        delta = self.delta or default_delta(step.num_clients)
        return {"epsilon": epsilon(state["cost"].tolist(), delta), "delta": delta}
