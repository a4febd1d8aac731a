"""DP-FedAvg."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedapp.analysis.privacy import ORDERS, default_delta, epsilon, round_cost
from fedapp.config import RunConfig, participants
from fedapp.errors import RunError
from fedapp.training.algorithm import Algorithm, Finish, ServerStep, Tensors, Turn
from fedapp.training.tensors import add
from strategies.noise import Entropy, clipped, gaussian, noise_generator, norm_of


class DPFedAvg(Algorithm):
    """Differentially private averaging: clipped updates, Gaussian noise on their mean.

    McMahan et al. 2018 (ICLR), Algorithm 1 with flat clipping: clients send Delta_k min(1, S /
    ||Delta_k||), the server adds N(0, (z S / m)^2) to their uniform mean, and one client changes
    what is released by no more than epsilon and delta say. With ``adaptive``, S follows a quantile
    of the norms (Andrew et al. 2021, Algorithm 1): S <- S exp(-eta_S (b - gamma)), b the share of
    clients within S plus N(0, sigma_b^2) / m; the update's noise multiplier is then
    (z^-2 - (2 sigma_b)^-2)^-1/2, so that both releases together cost what z alone costs. m is
    the number of clients that replied; epsilon and sigma_b = m / 20 count all that were asked, with
    over-selection too. What epsilon assumes and covers: docs/privacy.md.
    """

    name: ClassVar[str] = "dp-fedavg"
    own_weighting: ClassVar[Literal["examples", "uniform"]] = "uniform"
    source: ClassVar[str] = "McMahan et al. 2018, Algorithm 1; Andrew et al. 2021, Algorithm 1"
    infinite: ClassVar[frozenset[str]] = frozenset({"cost"})
    sends: ClassVar[str] = "Δ_k clipped; with adaptive, whether ‖Δ_k‖ ≤ S; gets θ, S"
    own_update: ClassVar[bool] = True
    exact: ClassVar[bool] = False
    neutral: ClassVar[Mapping[str, float]] = {"clip": 0.0, "noise": 0.0}

    clip: float = Field(
        1.0, ge=0, description="Largest L2 norm of an update, S (at first, if adaptive). 0: none."
    )
    noise: float = Field(1.0, ge=0, description="Noise multiplier, z.")
    delta: float = Field(0.0, ge=0, lt=1, description="Delta of the epsilon given. 0: K^-1.1.")
    adaptive: bool = Field(default=False, description="Let S follow a quantile of the norms.")
    quantile: float = Field(0.5, gt=0, lt=1, description="Share of updates within S, gamma.")
    clip_rate: float = Field(0.2, gt=0, description="Learning rate of S, eta_S.")
    count_noise: float = Field(
        0.0, ge=0, description="Noise on the number of updates within S, sigma_b. 0: m / 20."
    )
    entropy: Entropy = Field(
        "seed", description="Where noise comes from: 'seed', or 'system', which no client knows."
    )

    def misfits(self, config: RunConfig) -> Iterator[str]:
        """Say what breaks the bound on one client's influence, or cannot be noised."""
        yield from super().misfits(config)
        if config.weighting != "uniform":
            yield (
                f"weighting = {config.weighting!r}: with algorithm = {self.name!r} each client must have "
                "the same influence, so only 'uniform' is allowed. Set weighting='uniform'."
            )
        if not self.clip and (self.noise or self.adaptive):
            yield (
                f"{self.name}.clip = 0: without clipping no noise is enough, and adaptive has no start. "
                f"Set {self.name}.clip=1.0, or {self.name}.noise=0.0 and {self.name}.adaptive=false."
            )
        clients = participants(config.fraction_train, config.num_clients)
        if config.num_clients and self._too_little(clients):
            yield self._advice(clients)

    def _count_noise(self, clients: int) -> float:
        """Return sigma_b: as set, or m / 20 (Andrew et al. 2021, section 3.1); 0 without noise."""
        return (self.count_noise or clients / 20) if self.noise else 0.0

    def _too_little(self, clients: int) -> bool:
        return self.adaptive and self.noise > 0 and 2 * self._count_noise(clients) <= self.noise

    def _advice(self, clients: int) -> str:
        return (
            f"{self.name}.noise = {self.noise}: with adaptive it must be below 2 sigma_b = "
            f"{2 * self._count_noise(clients):g}. Set {self.name}.count-noise above "
            f"{self.noise / 2:g} (it is the deviation of a number of clients), or raise fraction-train."
        )

    def _update_noise(self, clients: int) -> float:
        """Return the noise multiplier of the mean update (Andrew et al. 2021, Theorem 1)."""
        if not self.adaptive or not self.noise:
            return self.noise
        if self._too_little(clients):
            raise RunError(self._advice(clients))
        return float((self.noise**-2 - (2 * self._count_noise(clients)) ** -2) ** -0.5)

    def finish(self, params: Mapping[str, Tensor], turn: Turn, steps: int | Tensor) -> Finish:
        """Return the clipped Delta_k, and with ``adaptive`` 1 if its norm is within S, else 0."""
        update = add(params, turn.anchor, -1.0)
        if not self.clip:
            return Finish(update=update)
        bound = turn.broadcast["clip"]
        within = {"within": (norm_of(update) <= bound).to(torch.float64)} if self.adaptive else {}
        return Finish(update=clipped(update, bound), upload=within)

    def largest(self, turn: Turn) -> Mapping[str, float]:
        """Return 1, which says that Delta_k is within S."""
        return {"within": 1.0} if self.adaptive else {}

    def start(self, theta: Mapping[str, Tensor]) -> Tensors:
        """Return S, and what has been spent: nothing."""
        clip = torch.tensor(self.clip, dtype=torch.float64)
        return {"clip": clip, "cost": torch.zeros(len(ORDERS), dtype=torch.float64)}

    def broadcast(self, state: Mapping[str, Tensor]) -> Tensors:
        """Return S."""
        return {"clip": state["clip"]} if self.clip else {}

    def apply(
        self,
        theta: Mapping[str, Tensor],
        mean: Tensors,
        upload: Tensors,
        state: Tensors,
        step: ServerStep,
    ) -> tuple[Tensors, Tensors]:
        """Return theta + eta_g (mean + noise); the next S; and the cost with this round's."""
        rng = noise_generator(self.entropy, step.seed, "dp-noise", step.round)
        bound, clients = float(state["clip"]), step.participants
        if self.noise:
            deviation = self._update_noise(step.sampled) * bound / clients
            mean = add(mean, gaussian(theta, deviation, rng))
        if self.adaptive:
            within = min(max(float(upload["within"]), 0.0), 1.0)  # a client may send any number
            within += float(rng.normal(0.0, self._count_noise(step.sampled) / clients))
            bound *= math.exp(-self.clip_rate * (within - self.quantile))
        cost = round_cost(self.noise, step.sampled / step.num_clients)
        state = {
            "clip": torch.tensor(bound, dtype=torch.float64),
            "cost": state["cost"] + torch.tensor(cost, dtype=torch.float64),
        }
        return add(theta, mean, step.server_learning_rate), state

    def report(self, state: Mapping[str, Tensor], step: ServerStep) -> dict[str, float]:
        """Return epsilon at delta after this round, and S of the next."""
        delta = self.delta or default_delta(step.num_clients)
        spent = epsilon(state["cost"].tolist(), delta)
        return {"epsilon": spent, "delta": delta, "clip": float(state["clip"])}
