"""Normalisation by channel."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import ClassVar, Literal

import torch
from pydantic import Field, field_validator
from torch import Tensor

from fedapp.config.run_config import RunConfig
from fedapp.config.settings import no_effect
from fedapp.data.transforms.transform import Transform
from fedapp.errors import ConfigError

PRESETS = {
    "half": ((0.5,), (0.5,)),
    "mnist": ((0.1307,), (0.3081,)),
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar100": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}
"""Mean and standard deviation by channel, of pixels in [0, 1], over each training set."""


class Normalise(Transform):
    """Bytes become floats in [0, 1], then (x - mean) / std by channel."""

    name: ClassVar[str] = "normalise"

    preset: Literal["half", "mnist", "cifar10", "cifar100", "imagenet"] = Field(
        "half", description="Published statistics; 'half' (0.5 and 0.5) maps [0, 1] to [-1, 1]."
    )
    mean: str = Field(
        "", description="Mean by channel, e.g. '0.49,0.48,0.45'. Empty: the preset's."
    )
    std: str = Field("", description="Deviation by channel, above 0. Empty: the preset's.")

    @field_validator("mean", "std")
    @classmethod
    def _numbers(cls, value: str) -> str:
        try:
            finite = all(map(math.isfinite, _numbers(value)))
        except ValueError:
            finite = False
        if not finite:
            raise ValueError("must be finite numbers with commas between them, or empty.")
        return value

    @field_validator("std")
    @classmethod
    def _above_zero(cls, value: str) -> str:
        if any(number <= 0 for number in _numbers(value)):
            raise ValueError("must be above 0.")
        return value

    def config_errors(self, config: RunConfig) -> Iterator[str]:
        """Yield the errors of a preset beside statistics, and of statistics of unequal length."""
        if self.mean and self.preset != type(self).model_fields["preset"].default:
            because = "normalise.mean and normalise.std are given. Leave these out"
            yield no_effect("normalise.preset", self.preset, because)
        if len(_numbers(self.mean)) != len(_numbers(self.std)):
            yield (
                f"normalise.mean = {self.mean!r}: normalise.std = {self.std!r} has another number of "
                "channels. Give as many numbers in both, or neither."
            )

    def statistics(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return mean and standard deviation, one number for each channel or one for all."""
        return (_numbers(self.mean), _numbers(self.std)) if self.mean else PRESETS[self.preset]

    def output_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return ``shape``.

        Raises
        ------
        ConfigError
            The inputs are not images, or have another number of channels than the statistics.
        """
        mean, _ = self.statistics()
        if len(shape) != 3 or len(mean) not in (1, shape[0]):
            raise ConfigError(
                f"transform = 'normalise': has statistics of {len(mean)} channels, but the inputs "
                f"have shape {shape}. Set normalise.preset, or normalise.mean and normalise.std, "
                "to fit an image's channels, or transform='scale'."
            )
        return shape

    def test(self, inputs: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the normalised images: [n, C, H, W]."""
        mean, std = (on_device(part, inputs.device, dtype) for part in self.statistics())
        return (super().test(inputs, dtype) - mean).div_(std)


@functools.cache
def on_device(numbers: tuple[float, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return the numbers, one for each channel or for all, as [C, 1, 1]; cached by device."""
    return torch.tensor(numbers, dtype=dtype, device=device)[:, None, None]


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(float(part) for part in text.split(",")) if text else ()
