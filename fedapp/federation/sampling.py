"""Who trains in a round, and which node trains whom."""

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

    A function of (seed, round) alone (McMahan et al. 2017, Algorithm 1); ``clients`` may
    be a ``range`` of any length, of which only m members are looked at. ``extra`` is the share of
    clients drawn beyond m: ceil(extra * m) more, as far as there are.
    """
    m = participants(fraction, len(clients))
    m += math.ceil(extra * m - 1e-9)
    if m >= len(clients):
        return sorted(clients)
    round_randomness = generator(seed, "sample", round_).choice(
        len(clients), m, replace=False, shuffle=False
    )
    return sorted(clients[int(i)] for i in round_randomness)


def toss_coins(rng: np.random.Generator, clients: Sequence[int], rate: float) -> list[int]:
    """Return the clients whose own coin fell their way, each with probability ``rate``.

    Poisson sampling, in ascending order; as many draws as there are clients.
    """
    joined = np.flatnonzero(rng.random(len(clients)) < rate).tolist()
    return sorted(clients[index] for index in joined)


def spread(clients: Sequence[int], sizes: Mapping[int, int], num_nodes: int) -> list[list[int]]:
    """Return at most ``num_nodes`` cohorts of similar total size, each in ascending order.

    Largest n_k first onto the least loaded; the cohorts are ordered by their first client. The
    result does not depend on node ids, which are random in every run.
    """
    heap = [(0, index) for index in range(min(num_nodes, len(clients)))]
    cohorts: list[list[int]] = [[] for _ in heap]
    for client in sorted(clients, key=lambda k: (-sizes[k], k)):
        load, index = heapq.heappop(heap)
        cohorts[index].append(client)
        heapq.heappush(heap, (load + max(sizes[client], 1), index))
    return sorted(sorted(cohort) for cohort in cohorts)
