"""Which clients train in a round, and how they are distributed over nodes."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from fedapp.config.federation import participants


def sample_clients(
    rng: Callable[[], np.random.Generator], clients: Sequence[int], m: int
) -> list[int]:
    """Return m of ``clients`` at random, or all of them if they are no more, in ascending order.

    ``clients`` may be a ``range`` of any length, of which only the sampled members are created.
    """
    if m >= len(clients):
        return sorted(clients)
    chosen = rng().choice(len(clients), m, replace=False, shuffle=False)
    return sorted(clients[int(index)] for index in chosen)


def over_selected(fraction: float, clients: int, extra: float) -> int:
    """Return m and the over-selection, ceil(extra * m)."""
    m = participants(fraction, clients)
    return m + math.ceil(extra * m - 1e-9)


def poisson_sample(rng: np.random.Generator, clients: Sequence[int], rate: float) -> list[int]:
    """Return a Poisson sample of the clients, each with probability ``rate``, in ascending order."""
    sampled = np.flatnonzero(rng.random(len(clients)) < rate).tolist()
    return sorted(clients[index] for index in sampled)


def distribute(clients: Sequence[int], sizes: Mapping[int, int], num_nodes: int) -> list[list[int]]:
    """Return at most ``num_nodes`` cohorts of similar total size, each in ascending order.

    The clients, largest n_k first, go to the least loaded cohort; the cohorts are ordered by their
    first client. The result does not depend on node ids, which are random in every run.
    """
    heap = [(0, index) for index in range(min(num_nodes, len(clients)))]
    cohorts: list[list[int]] = [[] for _ in heap]
    for client in sorted(clients, key=lambda k: (-sizes[k], k)):
        load, index = heapq.heappop(heap)
        cohorts[index].append(client)
        heapq.heappush(heap, (load + max(sizes[client], 1), index))
    return sorted(sorted(cohort) for cohort in cohorts)
