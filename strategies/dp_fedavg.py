"""DP-FedAvg."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedapp.analysis.privacy import CLIENT, Privacy
from fedapp.config.run_config import RunConfig
from fedapp.config.settings import kebab, no_effect
from fedapp.errors import ConfigError
from fedapp.training.algorithm import ClientContext, ClientExtras, ServerStep, Tensors
from fedapp.training.tensors import add, scaled
from strategies._noise import Private, clipped, gaussian, noise_generator, norm_of

LARGEST_STEP, LARGEST_CLIP = 50.0, 1e30
"""Bounds of the logarithm by which S changes in a round, and of S, which large noise would exceed."""


class DPFedAvg(Private):
    """Differentially private averaging: Poisson sampling, clipped updates, and noise on their sum.

    McMahan et al. 2018 (ICLR), Algorithm 1 with flat clipping: client k takes part with probability
    q = C, independently of the others, and sends Delta_k min(1, S / ||Delta_k||), clipped once, after
    the last local step, as by Andrew et al., where Algorithm 1 clips after each; the server adds
    N(0, (z S)^2) to the sum and divides it by q K, the expected number of clients, so that one client
    more or less changes the sum by at most S. With ``adaptive``, S follows a quantile of the norms
    (Andrew et al. 2021, Algorithm 1): S <- S exp(-eta_S (b - gamma)), b - 1/2 = (sum of (b_k - 1/2) +
    N(0, sigma_b^2)) / (q K) with b_k = 1 for a norm within S, else 0; the update's noise multiplier is
    then (z^-2 - (2 sigma_b)^-2)^-1/2, so that both releases together cost as much as z alone.
    Assumptions and scope of epsilon: docs/privacy.md.
    """

    name: ClassVar[str] = "dp-fedavg"
    default_sampler: ClassVar[str] = "poisson"
    poisson_sampling: ClassVar[bool] = True

    adaptive: bool = Field(default=False, description="Let S follow a quantile of the norms.")
    initial_clip: float = Field(0.1, gt=0, description="S of the first round, with adaptive.")
    quantile: float = Field(0.5, gt=0, lt=1, description="Share of updates within S, gamma.")
    clip_rate: float = Field(0.2, gt=0, description="Learning rate of S, eta_S.")
    count_noise: float = Field(
        0.0, ge=0, description="Noise on the number of updates within S, sigma_b. 0: q K / 20."
    )

    def config_errors(self, config: RunConfig) -> Iterator[str]:
        """Yield settings that break the bound on one client's influence, or the noise."""
        yield from super().config_errors(config)
        if config.weighting != "uniform":
            yield (
                f"weighting = {config.weighting!r}: with algorithm = {self.name!r} each client must have "
                "the same influence, so only 'uniform' is allowed. Leave the key out."
            )
        if config.sampler != "poisson":
            yield (
                f"sampler = {config.sampler!r}: with algorithm = {self.name!r} each client is sampled "
                "independently, with probability fraction-train: epsilon is computed for that. Leave the "
                "key out."
            )
        if config.on_failure == "stop":
            yield (
                f"on-failure = 'stop': with algorithm = {self.name!r} a client's examples would say, "
                "without noise, when the run ends. Leave the key out."
            )
        if config.min_replies != type(config).model_fields["min_replies"].default:
            yield (
                f"min-replies = {config.min_replies}: with algorithm = {self.name!r} a round changes the "
                "model however many clients reply: its noise is that of their expected number. Leave the "
                "key out."
            )
        bound = type(config).model_fields["max_update_norm"].default
        if config.max_update_norm not in (0, bound):
            yield (
                f"max-update-norm = {config.max_update_norm:g}: with algorithm = {self.name!r} one "
                "client could let the updates of all of its node count as zero. Leave the key out: "
                f"{self.name}.clip bounds each client's."
            )
        for field, because in self._unused().items():
            if (value := getattr(self, field)) != type(self).model_fields[field].default:
                yield no_effect(f"{self.name}.{kebab(field)}", value, because)
        if config.num_clients and self._too_little(config.fraction_train * config.num_clients):
            yield self._advice(config.fraction_train * config.num_clients)

    def _unused(self) -> Mapping[str, str]:
        """Return the parameters that have no effect, each with why and what else to set."""
        if not self.adaptive:
            because = f"{self.name}.adaptive is false. Set {self.name}.adaptive=true"
            return dict.fromkeys(("initial_clip", "quantile", "clip_rate", "count_noise"), because)
        unused = {"clip": f"{self.name}.adaptive is true. Set {self.name}.initial-clip"}
        if not self.noise:
            unused["count_noise"] = f"{self.name}.noise is 0. Set {self.name}.noise=1.0"
        return unused

    def privacy(self, config: RunConfig) -> Privacy:
        """Return what one round costs."""
        return Privacy(
            noise=self.noise,
            rate=config.fraction_train,
            adjacency=CLIENT,
            delta=self.delta,
            max_epsilon=self.max_epsilon,
            repeatable=self.entropy == "seed",
        )

    def sampling_generator(self, seed: int, round_: int) -> np.random.Generator:
        """Return the generator of the Poisson sampling."""
        return noise_generator(self.entropy, seed, "sample", round_)

    def _count_noise(self, expected: float) -> float:
        """Return sigma_b: as set, or q K / 20 (Andrew et al. 2021, section 3.1); 0 without noise."""
        return (self.count_noise or expected / 20) if self.noise else 0.0

    def _too_little(self, expected: float) -> bool:
        return self.adaptive and self.noise > 0 and 2 * self._count_noise(expected) <= self.noise

    def _advice(self, expected: float) -> str:
        return (
            f"{self.name}.noise = {self.noise}: with adaptive it must be below 2 sigma_b = "
            f"{2 * self._count_noise(expected):g}. Set {self.name}.count-noise above "
            f"{self.noise / 2:g} (it is the deviation of a number of clients), or raise fraction-train "
            "or num-clients."
        )

    def require_clients(self, config: RunConfig, clients: int) -> None:
        """Raise ConfigError if K clients are too few for the noise of the count."""
        if self._too_little(config.fraction_train * clients):
            raise ConfigError(self._advice(config.fraction_train * clients))

    def _update_noise(self, expected: float) -> float:
        """Return the noise multiplier of the sum of updates (Andrew et al. 2021, Theorem 1)."""
        if not self.adaptive or not self.noise:
            return self.noise
        return float((self.noise**-2 - (2 * self._count_noise(expected)) ** -2) ** -0.5)

    def finalize(
        self, params: Mapping[str, Tensor], context: ClientContext, steps: int | Tensor
    ) -> ClientExtras:
        """Return the clipped Delta_k, and with ``adaptive`` 1 if its norm is within S, else 0."""
        update = add(params, context.global_params, -1.0)
        if not context.broadcast:
            return ClientExtras(update=update)
        bound = context.broadcast["clip"]
        within = {"within": (norm_of(update) <= bound).to(torch.float64)} if self.adaptive else {}
        return ClientExtras(update=clipped(update, bound), upload=within)

    def upload_bounds(self, context: ClientContext) -> Mapping[str, float]:
        """Return 1, for a Delta_k whose norm is within S."""
        return {"within": 1.0} if self.adaptive else {}

    def update_bound(self, state: Mapping[str, Tensor]) -> float:
        """Return S, which no mean of clipped updates exceeds."""
        return float(self.broadcast(state).get("clip", math.inf))

    def start(self, theta: Mapping[str, Tensor]) -> Tensors:
        """Return S of the first round."""
        clip = self.initial_clip if self.adaptive else self.clip
        return {"clip": torch.tensor(clip, dtype=torch.float64)}

    def broadcast(self, state: Mapping[str, Tensor]) -> Tensors:
        """Return S, if updates are clipped."""
        return {"clip": state["clip"]} if self.clip or self.adaptive else {}

    def apply(
        self,
        theta: Mapping[str, Tensor],
        mean: Tensors,
        upload: Tensors,
        state: Tensors,
        step: ServerStep,
    ) -> tuple[Tensors, Tensors]:
        """Return theta + eta_g (sum + noise) / (q K), and the next S."""
        rng = noise_generator(self.entropy, step.plan.seed, "dp-noise", step.plan.round)
        bound, expected = float(state["clip"]), step.fraction * step.num_clients
        update = scaled(mean or add(theta, theta, -1.0), step.participants / expected)
        if self.noise:
            deviation = self._update_noise(expected) * bound / expected
            update = add(update, gaussian(theta, deviation, rng))
        if self.adaptive:
            # Bounded again here, since a client may send any number.
            share = min(max(float(upload.get("within", 0.5)), 0.0), 1.0)
            within = 0.5 + step.participants * (share - 0.5) / expected
            within += float(rng.normal(0.0, self._count_noise(expected) / expected))
            exponent = -self.clip_rate * (within - self.quantile)
            bound *= math.exp(min(max(exponent, -LARGEST_STEP), LARGEST_STEP))
            bound = min(max(bound, 1 / LARGEST_CLIP), LARGEST_CLIP)
        state = {"clip": torch.tensor(bound, dtype=torch.float64)}
        return add(theta, update, step.server_learning_rate), state

    def report(self, state: Mapping[str, Tensor]) -> dict[str, float]:
        """Return S of the next round."""
        return {"clip": float(state["clip"])}
