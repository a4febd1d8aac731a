"""What differential privacy a run has spent: Rényi differential privacy by Opacus's accountant."""

from __future__ import annotations

import functools
import importlib
import logging
import math
import warnings
from collections.abc import Sequence
from types import ModuleType

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
    found = _accountant().compute_rdp(q=rate, noise_multiplier=noise, steps=1, orders=list(ORDERS))
    return tuple(float(value) for value in found)


def epsilon(cost: Sequence[float], delta: float) -> float:
    """Return the least epsilon for which (epsilon, delta) differential privacy follows from ``cost``.

    ``cost`` is the sum of the rounds' costs. Conversion by Balle et al. 2020, Theorem 21.
    """
    if not any(math.isfinite(value) for value in cost):
        return math.inf
    with warnings.catch_warnings():
        # It warns where the best order is the first or the last, whose epsilon holds all the same.
        warnings.simplefilter("ignore", UserWarning)
        spent, _ = _accountant().get_privacy_spent(orders=list(ORDERS), rdp=list(cost), delta=delta)
    return float(spent)


@functools.cache
def _accountant() -> ModuleType:
    """Return Opacus's functions; late, since it brings its training machinery, which takes seconds.

    It calls ``logging.basicConfig`` when it is imported: with the handler that this gives the root
    logger, every line that Flower's logger has printed would be printed once more.
    """
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    rdp = importlib.import_module("opacus.accountants.analysis.rdp")
    for handler in [each for each in root.handlers if each not in handlers]:
        root.removeHandler(handler)
    root.setLevel(level)
    return rdp


def default_delta(clients: int) -> float:
    """Return K^-1.1, below 1/K as McMahan et al. 2018, section 1, ask for."""
    return float(clients) ** -1.1 if clients > 1 else 0.5
