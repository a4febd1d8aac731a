"""What this machine lets a process have."""

from __future__ import annotations

import os


def cores() -> int:
    """Return how many cores this process may use; where that cannot be asked (macOS), all there are."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
