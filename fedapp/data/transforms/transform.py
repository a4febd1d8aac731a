"""Transforms: from stored arrays to network inputs, for whole batches on the device."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from fedapp.config.registry import Component


class Transform(Component):
    """A map from stored arrays to network inputs. The base: bytes to [0, 1], tokens to int64."""

    draws: ClassVar[int] = 0
    """Random numbers for each training example of each batch; 0: training inputs are test inputs."""

    def output_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape that a network sees for inputs of ``shape``."""
        return shape

    def test(self, inputs: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the inputs as the network sees them at test time: [n, *output_shape]."""
        if inputs.dtype == torch.uint8:
            return inputs.to(dtype).div_(255)
        return inputs.to(dtype) if inputs.is_floating_point() else inputs.long()

    def train(self, inputs: Tensor, dtype: torch.dtype, draws: Tensor) -> Tensor:
        """Return the inputs as the network sees them in training: [n, *output_shape].

        ``draws``: random numbers in [0, 1), float32 on the inputs' device: [n, D]. They come from each
        client's generator on the CPU, so they are the same for every device.
        """
        return self.test(inputs, dtype)


class Scale(Transform):
    """Bytes become floats in [0, 1]; floats and tokens keep their values."""

    name: ClassVar[str] = "scale"
