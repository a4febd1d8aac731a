"""Which clients train in a round, and how they are distributed over nodes."""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence

import numpy as np

from fedapp.config.run_config import participants
from fedapp.seeds import generator


def sample_clients(
    seed: int,
    round_: int,
    clients: Sequence[int],
    fraction: float,
    extra: float = 0.0,
) -> list[int]:
    """Return S_t: m = max(floor(C*K + 1e-9), 1) of ``clients``, in ascending order.

    A function of (seed, round) alone (McMahan et al. 2017, Algorithm 1). ``clients`` may be a
    ``range`` of any length, of which only the sampled members are created. ``extra`` is the
    over-selection: ceil(extra * m) further clients are sampled, if there are as many.
    """
    m = participants(fraction, len(clients))
    m += math.ceil(extra * m - 1e-9)
    if m >= len(clients):
        return sorted(clients)
    rng = generator(seed, "sample", round_)
    sampled = rng.choice(len(clients), m, replace=False, shuffle=False)
    return sorted(clients[int(i)] for i in sampled)


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
