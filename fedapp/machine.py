"""Cores, GPUs and memory of this process."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import signal
import threading
from collections.abc import Iterator

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of glibc's ``malloc.h``."""
TRIM_BYTES = 2**31 - 1
MMAP_BYTES = 2**30
"""Bytes of free memory that are not returned to the system, and of the largest block from the heap."""


def cores() -> int:
    """Return how many cores this process may use; on systems that cannot tell (macOS), all of them."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def gpus() -> list[str]:
    """Return the GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    import torch  # slow to import

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    named = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return named.split(",")[:count] if named else [str(number) for number in range(count)]


@contextlib.contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """Let SIGTERM raise KeyboardInterrupt, as Ctrl-C does; without effect outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@functools.cache
def keep_memory() -> bool:
    """Let this process reuse the memory that it frees; return whether that is possible (glibc).

    Otherwise each block of more than 32 MB, as the activations of a large batch, is mapped anew and
    filled page by page, which takes up to a third of a convolutional network's time at B = 600.
    """
    set_ = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    return set_ is not None and all(
        (set_(TRIM_THRESHOLD, TRIM_BYTES), set_(MMAP_THRESHOLD, MMAP_BYTES))
    )
