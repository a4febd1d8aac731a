"""Clipping and Gaussian noise of updates, for the private algorithms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar, Literal, cast

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedapp.config.run_config import RunConfig
from fedapp.federation.samplers.sampler import Sampler
from fedapp.seeds import generator, secret_generator
from fedapp.training.algorithm import Algorithm
from fedapp.training.tensors import Tensors, scaled

Entropy = Literal["seed", "system"]

LEAST_CLIP = 1e-30
"""The smallest S: training takes numbers near the smallest of their type for 0, and clips nothing."""
LEAST_DELTA = 1e-14
"""The smallest delta: below it the accountant's distributions, whose tails are cut, give no epsilon."""


class Private(Algorithm):
    """Base of the private algorithms: the hyper-parameters of clipping, noise and privacy."""

    default_weighting: ClassVar[Literal["examples", "uniform"]] = "uniform"
    custom_update: ClassVar[bool] = True

    clip: float = Field(1.0, ge=0, description="Largest L2 norm of an update, S. 0: none.")
    noise: float = Field(1.0, ge=0, description="Noise multiplier, z: the deviation over S.")
    delta: float = Field(
        0.0, ge=0, lt=1, description="Delta of the epsilon given, at least 1e-14. 0: K^-1.1."
    )
    max_epsilon: float = Field(
        0.0, ge=0, description="End the run before a round that would pass this epsilon. 0: never."
    )
    entropy: Entropy = Field(
        "system",
        description="Source of random draws: 'system', or for tests 'seed', which is not private.",
    )

    def config_errors(self, config: RunConfig) -> Iterator[str]:
        """Yield the errors of noise without clipping, of a bound without noise, and of losses sent."""
        if cast("Sampler", config.component("sampler")).asks:
            yield (
                f"sampler = {config.sampler!r}: with algorithm = {self.name!r} the losses that clients "
                "would send are not private. Leave the key out."
            )
        if config.target_accuracy and config.evaluation == "clients":
            yield (
                f"target-accuracy = {config.target_accuracy:g}: with algorithm = {self.name!r} and "
                f"evaluation = {config.evaluation!r} the clients' examples would say, without noise, "
                "when the run ends. Set evaluation='server', or leave target-accuracy out."
            )
        if 0 < self.delta < LEAST_DELTA:
            yield (
                f"{self.name}.delta = {self.delta:g}: epsilon is not computed below {LEAST_DELTA:g}. "
                "Raise it, or leave the key out."
            )
        if 0 < self.clip < LEAST_CLIP:
            yield (
                f"{self.name}.clip = {self.clip:g}: updates are not clipped below {LEAST_CLIP:g}. "
                "Raise it, or leave the key out."
            )
        if self.noise and not self.clip:
            yield (
                f"{self.name}.clip = 0: without clipping no noise is enough. "
                f"Set {self.name}.clip=1.0, or {self.name}.noise=0.0."
            )
        if self.max_epsilon and not self.noise:
            yield (
                f"{self.name}.max-epsilon = {self.max_epsilon:g}: without noise epsilon is infinite from "
                f"the first round on. Set {self.name}.noise=1.0, or {self.name}.max-epsilon=0.0."
            )


def norm_of(update: Mapping[str, Tensor]) -> Tensor:
    """Return the L2 norm over all tensors, summed in float64: a scalar."""
    return torch.stack([t.to(torch.float64).square().sum() for t in update.values()]).sum().sqrt()


def clipped(update: Mapping[str, Tensor], bound: float | Tensor) -> Tensors:
    """Return ``update * min(1, bound / ||update||)`` (McMahan et al. 2018, Algorithm 1, FlatClip)."""
    factor = (bound / norm_of(update).clamp(min=1e-300)).clamp(max=1.0)
    first = next(iter(update.values()))
    return scaled(update, factor.to(first.dtype))


def noise_generator(
    entropy: Entropy, seed: int, purpose: str, round_: int, client: int = 0
) -> np.random.Generator:
    """Return the generator of one draw of noise, seeded by the run's seed or by the system."""
    if entropy == "system":
        return secret_generator()
    return generator(seed, purpose, round_, client)


def gaussian(like: Mapping[str, Tensor], deviation: float, rng: np.random.Generator) -> Tensors:
    """Return noise N(0, deviation^2), drawn in float64, with the tensors' shapes, types and devices."""
    return {
        name: torch.from_numpy(np.asarray(rng.normal(0.0, deviation, tuple(tensor.shape)))).to(
            tensor
        )
        for name, tensor in like.items()
    }
