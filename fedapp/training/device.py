"""The device, and how it computes: precision, memory formats, denormal numbers, generators."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from fedapp.config.run import ExecutionConfig
from fedapp.errors import ConfigError


def choose_device(config: ExecutionConfig) -> torch.device:
    """Return the device that ``device`` names; ``auto`` is the first GPU, where there is one.

    A GPU computes in full precision from then on (``compute_exactly``).

    Raises
    ------
    ConfigError
        ``device`` is a GPU that this process does not see.
    """
    first = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(first if config.device == "auto" else config.device)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"device = {config.device!r}: this process sees {torch.cuda.device_count()} GPUs. "
            "Set device='auto', a GPU where there is one, or 'cpu'; in Flower's simulation give each "
            'client a share of the GPU with --federation-config "client-resources-num-gpus=0.25".'
        )
    compute_exactly(device)
    return device


def describe_device(device: torch.device) -> str:
    """Return the device, a GPU with its name, as ``cuda (NVIDIA H100 80GB HBM3)``."""
    name = f" ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else ""
    return f"{device}{name}"


def compute_exactly(device: torch.device) -> None:
    """Make a GPU compute in full float32 precision, with deterministic cuDNN algorithms.

    PyTorch's default for convolutions is TF32, which rounds their inputs to 10 bits, 1e-3 a layer.
    """
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.benchmark = False


def memory_format(module: nn.Module) -> torch.memory_format:
    """Return channels-last for a network with 2-D convolutions on a CPU, else contiguous.

    That is faster there, and slower on a GPU in full precision (``benchmarks.gpu convolutions``).
    """
    convolutions = (layer for layer in module.modules() if isinstance(layer, nn.Conv2d))
    on_cpu = any(layer.weight.device.type == "cpu" for layer in convolutions)
    return torch.channels_last if on_cpu else torch.contiguous_format


def set_memory_format(module: nn.Module) -> torch.memory_format:
    """Convert a network's weights to its memory format, and return the format."""
    format_ = memory_format(module)
    for parameter in module.parameters():
        parameter.data = to_memory_format(parameter.data, format_)
    return format_


def to_memory_format(tensor: Tensor, format_: torch.memory_format) -> Tensor:
    """Return the tensor in ``format_`` if it has four dimensions, else contiguous.

    With one channel both formats have the same layout, and PyTorch treats the tensor as contiguous
    unless its strides are those of channels-last.
    """
    if tensor.dim() != 4:
        return tensor.contiguous()
    if format_ == torch.channels_last and tensor.shape[1] == 1:
        height, width = tensor.shape[2:]
        return tensor.contiguous().as_strided(tensor.shape, (height * width, 1, width, 1))
    return tensor.contiguous(memory_format=format_)


def denormals_are_flushed() -> bool:
    """Return whether this thread flushes denormal numbers to zero."""
    return not bool(torch.tensor(1e-300, dtype=torch.float64) * 1e-10)


@contextmanager
def flush_denormals() -> Iterator[None]:
    """Flush denormals, below 1.2e-38 (float64: 2.2e-308), to zero in this thread; then restore the mode.

    The gradients of an LSTM's saturated gates are full of them: with FedSGD at eta = 9 a round of the
    word LSTM took twice as long (docs/results/speed.md). The other threads of PyTorch's pool, with
    ``threads`` above 1, keep the mode in which they were started.
    """
    before = denormals_are_flushed()
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


@contextmanager
def seeded_generators(rng: np.random.Generator, device: torch.device) -> Iterator[None]:
    """Seed PyTorch's generators, from which dropout draws, with a child of ``rng``; then restore them.

    The stream of ``rng`` itself is not advanced.
    """
    seed, on_gpu = int(rng.spawn(1)[0].integers(2**63 - 1)), device.type == "cuda"
    with torch.random.fork_rng([device] if on_gpu else []):
        # torch.manual_seed, which seeds all kinds of devices, takes a hundred times as long.
        torch.default_generator.manual_seed(seed)
        if on_gpu:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield
