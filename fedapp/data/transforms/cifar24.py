"""McMahan et al.'s CIFAR pipeline."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from fedapp.data.transforms.transform import Transform
from fedapp.errors import ConfigError

SIZE = 24
MAX_BRIGHTNESS = 63.0
CONTRAST = (0.2, 1.8)


class Cifar24(Transform):
    """24x24 crops, flips, brightness, contrast and whitening (McMahan et al. 2017, section 3).

    Training: a random crop, a left-right flip with probability 1/2, brightness +- 63 of 255,
    contrast by 0.2 to 1.8 around each channel's mean, then whitening of each image to mean 0 and
    deviation 1. Test: the central crop and whitening. The constants are those of the TensorFlow
    tutorial that the paper names.
    """

    name: ClassVar[str] = "cifar24"
    draws: ClassVar[int] = 5
    """Row and column of the crop, flip, brightness, contrast."""

    def output_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return (C, 24, 24).

        Raises
        ------
        ConfigError
            The inputs are not images, or are smaller than 24x24.
        """
        if len(shape) != 3 or min(shape[1:]) < SIZE:
            raise ConfigError(
                f"transform = 'cifar24': needs images of at least {SIZE}x{SIZE} pixels, but the "
                f"inputs have shape {shape}. Set transform='scale' or 'normalise'."
            )
        return (shape[0], SIZE, SIZE)

    def test(self, inputs: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the central crops, whitened: [n, C, 24, 24]."""
        from torchvision.transforms.v2.functional import center_crop  # slow to import

        return whiten(_to_bytes(center_crop(inputs, [SIZE, SIZE]), dtype))

    def train(self, inputs: Tensor, dtype: torch.dtype, draws: Tensor) -> Tensor:
        """Return random crops, flipped, brightened and whitened: [n, C, 24, 24]."""
        images = _to_bytes(_crop_and_flip(inputs, draws), dtype)
        brightness, contrast = draws[:, 3:].to(dtype).T[:, :, None, None, None]
        # As nothing is clipped, whitening removes the brightness; the step is kept as in the tutorial.
        images = images + (2 * brightness - 1) * MAX_BRIGHTNESS
        mean = images.mean(dim=(2, 3), keepdim=True)
        images = (images - mean) * (CONTRAST[0] + (CONTRAST[1] - CONTRAST[0]) * contrast) + mean
        return whiten(images)


def whiten(images: Tensor) -> Tensor:
    """Return (x - mean) / max(std, 1 / sqrt(N)) over the N numbers of each image: [n, C, H, W].

    The floor keeps images of one colour finite, as TensorFlow's ``per_image_standardization``.
    """
    std, mean = torch.std_mean(images, dim=(1, 2, 3), correction=0, keepdim=True)
    return (images - mean) / std.clamp(min=images[0].numel() ** -0.5 if len(images) else 1)


def _to_bytes(images: Tensor, dtype: torch.dtype) -> Tensor:
    """Return pixels in 0 ... 255 as floats."""
    return images.to(dtype) * 255 if images.is_floating_point() else images.to(dtype)


def _crop_and_flip(inputs: Tensor, draws: Tensor) -> Tensor:
    """Return one 24x24 part of each image, mirrored where the third draw is below 1/2."""
    n, channels, height, width = inputs.shape
    span = torch.arange(SIZE, device=inputs.device)
    top = (draws[:, 0] * (height - SIZE + 1)).long()
    left = (draws[:, 1] * (width - SIZE + 1)).long()
    columns = left[:, None] + torch.where(draws[:, 2, None] < 0.5, span.flip(0), span)
    rows = top[:, None] + span
    image = torch.arange(n, device=inputs.device)[:, None, None, None]
    channel = torch.arange(channels, device=inputs.device)[None, :, None, None]
    return inputs[image, channel, rows[:, None, :, None], columns[:, None, None, :]]
