"""Transforms: from stored arrays to what a network sees, on whole batches and on the device."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from fedapp.registry import Component


class Transform(Component):
    """A map from stored arrays to network inputs. The base: bytes to [0, 1], the rest unchanged."""

    random: ClassVar[bool] = False
    """Whether ``train`` draws at random; if not, it is applied once to all of a client's data."""

    def output_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape that a network sees for inputs of ``shape``."""
        return shape

    def test(self, inputs: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the inputs as the network sees them at test time: [n, *output_shape]."""
        if inputs.dtype == torch.uint8:
            return inputs.to(dtype).div_(255)
        return inputs.to(dtype) if inputs.is_floating_point() else inputs

    def train(self, inputs: Tensor, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
        """Return the inputs as the network sees them in training; draws from ``generator`` (CPU)."""
        return self.test(inputs, dtype)
