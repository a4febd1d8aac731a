"""Clipping and Gaussian noise of whole updates, for the private algorithms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedapp.seeds import generator, secret_generator
from fedapp.training.tensors import Tensors, scaled

Entropy = Literal["seed", "system"]


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
    """Return the generator of one draw of noise, from the run's seed or from the system."""
    if entropy == "system":
        return secret_generator()
    return generator(seed, purpose, round_, client)


def gaussian(like: Mapping[str, Tensor], deviation: float, rng: np.random.Generator) -> Tensors:
    """Return independent noise N(0, deviation^2), drawn in float64, of the tensors' kinds."""
    return {
        name: torch.from_numpy(np.asarray(rng.normal(0.0, deviation, tuple(tensor.shape)))).to(
            tensor
        )
        for name, tensor in like.items()
    }
