"""Rows take turns in one run, so that a machine that is slow for a while is slow for all."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

import torch

WARM_UP = 2
"""Turns that do not count where a turn is many calls; else one does not."""


def take_turns(
    found: Mapping[str, Callable[[], object]], turns: int, repeat: int = 1
) -> dict[str, list[float]]:
    """Return the seconds that each row took in each turn, over ``repeat`` calls."""
    times: dict[str, list[float]] = {name: [] for name in found}
    for turn in range(-WARM_UP if repeat > 1 else -1, turns):
        for name, call in found.items():
            began = time.perf_counter()
            for _ in range(repeat):
                call()
            if turn >= 0:
                times[name].append((time.perf_counter() - began) / repeat)
    return times


def ratio(times: Sequence[float], base: Sequence[float]) -> float:
    """Return the median over the turns of a row's time over the base's in the same turn."""
    return statistics.median(mine / bare for mine, bare in zip(times, base, strict=True))


def conditions(turns: int = 0) -> str:
    """Return the line above the tables: machine, versions, threads, and turns if there are any."""
    return (
        f"{platform.machine()}, {os.cpu_count()} cores; torch {torch.__version__}, 1 thread a process, "
        f"float32" + (f"; medians of {turns} turns" if turns else "")
    )


def median_seconds(call: Callable[[], object], device: torch.device, turns: int) -> float:
    """Return the median of ``turns`` calls' seconds, each waited for, after one that is not timed."""
    times = []
    for turn in range(turns + 1):
        began = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        if turn:
            times.append(time.perf_counter() - began)
    return statistics.median(times)
