"""What this machine lets a process have."""

from __future__ import annotations

import ctypes
import functools
import os

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""The names of two settings in glibc's ``malloc.h``."""
KEPT = 2**31 - 1
LARGEST = 2**30
"""Bytes of free memory that are not given back, and of a block that is taken from them."""


def cores() -> int:
    """Return how many cores this process may use; where that cannot be asked (macOS), all there are."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def gpus() -> list[str]:
    """Return the GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    import torch  # slow to import

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    named = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return named.split(",")[:count] if named else [str(number) for number in range(count)]


@functools.cache
def keep_memory() -> bool:
    """Let this process keep the memory that it frees, and return whether it can (on Linux with glibc).

    Else each block of more than 32 MB, the activations of a large batch, is new memory from the
    system, which comes page by page: up to a third of a convolutional network's time at B = 600.
    """
    set_ = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    return set_ is not None and all((set_(TRIM_THRESHOLD, KEPT), set_(MMAP_THRESHOLD, LARGEST)))
