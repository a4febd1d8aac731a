"""How images and convolutions' weights lie in memory."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def memory_format(module: nn.Module) -> torch.memory_format:
    """Return channels-last for a network with two-dimensional convolutions, else contiguous.

    Convolutions and pooling are faster so; the values are the same up to rounding.
    """
    convolves = any(isinstance(layer, nn.Conv2d) for layer in module.modules())
    return torch.channels_last if convolves else torch.contiguous_format


def lay_out(module: nn.Module) -> torch.memory_format:
    """Lay a network's weights in its memory format, and return that."""
    format_ = memory_format(module)
    for parameter in module.parameters():
        parameter.data = laid_out(parameter.data, format_)
    return format_


def laid_out(tensor: Tensor, format_: torch.memory_format) -> Tensor:
    """Return the tensor in ``format_`` if it has four dimensions, else contiguous.

    With one channel both formats are the same numbers in the same order, which PyTorch takes for
    contiguous unless the strides say channels-last.
    """
    if tensor.dim() != 4:
        return tensor.contiguous()
    if format_ == torch.channels_last and tensor.shape[1] == 1:
        height, width = tensor.shape[2:]
        return tensor.contiguous().as_strided(tensor.shape, (height * width, 1, width, 1))
    return tensor.contiguous(memory_format=format_)
