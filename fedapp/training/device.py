"""The device, and how it computes: precision, memory formats, denormal numbers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from fedapp.config.run_config import RunConfig
from fedapp.errors import ConfigError


def choose_device(config: RunConfig) -> torch.device:
    """Return the device that ``device`` names; ``auto`` is the first GPU, where there is one.

    A GPU is made to compute in full precision (``compute_exactly``).

    Raises
    ------
    ConfigError
        A GPU is asked for that this process does not see.
    """
    first = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(first if config.device == "auto" else config.device)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"device = {config.device!r}: this process sees {torch.cuda.device_count()} GPUs. "
            "Set device='auto' or 'cpu'; in Flower's simulation give each client a share of the "
            'GPU with --federation-config "client-resources-num-gpus=0.25".'
        )
    compute_exactly(device)
    return device


def compute_exactly(device: torch.device) -> None:
    """Let a GPU take all bits of a float32, and the same algorithms every time.

    PyTorch's own choice for convolutions is TF32, which rounds their inputs to 10 bits: 1e-3 a layer,
    so that a GPU's numbers would be neither a CPU's nor the other trainer's.
    """
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.benchmark = False


def memory_format(module: nn.Module) -> torch.memory_format:
    """Return channels-last for a network with two-dimensional convolutions, else contiguous.

    Convolutions and pooling are faster so; the values are the same up to rounding.
    """
    convolves = any(isinstance(layer, nn.Conv2d) for layer in module.modules())
    return torch.channels_last if convolves else torch.contiguous_format


def set_memory_format(module: nn.Module) -> torch.memory_format:
    """Lay a network's weights in its memory format, and return that."""
    format_ = memory_format(module)
    for parameter in module.parameters():
        parameter.data = to_memory_format(parameter.data, format_)
    return format_


def to_memory_format(tensor: Tensor, format_: torch.memory_format) -> Tensor:
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


def denormals_are_flushed() -> bool:
    """Return whether this thread takes subnormal numbers as zero."""
    return not bool(torch.tensor(1e-300, dtype=torch.float64) * 1e-10)


@contextmanager
def flush_denormals() -> Iterator[None]:
    """Take numbers below 1.2e-38 (float64: 2.2e-308) as zero in this thread; afterwards as before.

    The gradients of an LSTM's saturated gates are full of them: with FedSGD at eta = 9 a round of the
    word LSTM took twice as long as without (docs/performance.md). To the sums in which they end up
    they are nothing. Threads of PyTorch's own begin as the thread that needs them first.
    """
    before = denormals_are_flushed()
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)
