"""Subnormal numbers, which a processor computes with more slowly than with others, taken as zero."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


def are_flushed() -> bool:
    """Return whether this thread takes subnormal numbers as zero."""
    return not bool(torch.tensor(1e-300, dtype=torch.float64) * 1e-10)


@contextmanager
def flushed() -> Iterator[None]:
    """Take numbers below 1.2e-38 (float64: 2.2e-308) as zero in this thread; afterwards as before.

    The gradients of an LSTM's saturated gates are full of them: with FedSGD at eta = 9 a round of the
    word LSTM took twice as long as without (docs/performance.md). To the sums in which they end up
    they are nothing. Threads of PyTorch's own begin as the thread that needs them first.
    """
    before = are_flushed()
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)
