"""What differential privacy a run has spent: Rényi differential privacy by Opacus's accountant."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Sequence

ORDERS: tuple[float, ...] = (
    *(1 + x / 10 for x in range(1, 100)),
    *map(float, range(11, 64)),
    *(72.0, 96.0, 128.0, 192.0, 256.0, 512.0, 1024.0),
)
"""The orders alpha at which Rényi divergences are added up."""


@functools.lru_cache(maxsize=64)
def round_cost(noise: float, rate: float) -> tuple[float, ...]:
    """Return the Rényi divergence of one round at each of ``ORDERS``; rounds add up.

    ``noise`` is the noise multiplier z, the standard deviation over the L2 sensitivity; ``rate``
    the probability q with which a client takes part, independently of the others (Poisson
    sampling). Mironov et al. 2019, "Rényi differential privacy of the sampled Gaussian mechanism";
    infinite without noise.
    """
    if noise == 0:
        return (math.inf,) * len(ORDERS)
    # Imported late: Opacus brings its whole training machinery, which takes seconds to import.
    from opacus.accountants.analysis.rdp import compute_rdp

    found = compute_rdp(q=rate, noise_multiplier=noise, steps=1, orders=list(ORDERS))
    return tuple(float(value) for value in found)


def epsilon(cost: Sequence[float], delta: float) -> float:
    """Return the least epsilon for which (epsilon, delta) differential privacy follows from ``cost``.

    ``cost`` is the sum of the rounds' costs. Conversion by Balle et al. 2020, Theorem 21.
    """
    if not any(math.isfinite(value) for value in cost):
        return math.inf
    from opacus.accountants.analysis.rdp import get_privacy_spent

    with warnings.catch_warnings():
        # It warns where the best order is the first or the last, whose epsilon holds all the same.
        warnings.simplefilter("ignore", UserWarning)
        spent, _ = get_privacy_spent(orders=list(ORDERS), rdp=list(cost), delta=delta)
    return float(spent)


def default_delta(clients: int) -> float:
    """Return K^-1.1, below 1/K as McMahan et al. 2018, section 1, ask for."""
    return float(clients) ** -1.1 if clients > 1 else 0.5
