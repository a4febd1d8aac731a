"""The privacy loss of a run, by the accountant of ``dp-accounting``."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

GRID = 1e-3
"""Spacing of the grid of privacy losses; the accountant rounds up, so epsilon is an upper bound."""

FINE_FROM = 0.2
"""Noise multiplier below which the spacing grows, with the square, as the losses do."""

NO_NOISE = 1e-100
"""Noise multiplier below which epsilon is taken for infinite: its search does not converge."""

LEAST_NOISE = 1e-3
"""Noise multiplier below which sampling is not accounted for: epsilon is above 10^5 a round."""

CLIENT = "add or remove one client"
REPLACED = "replace one client's data"


@dataclass(frozen=True)
class Privacy:
    """A differential privacy guarantee, and the mechanism of each charge.

    A charge is one use of a Gaussian mechanism whose standard deviation is ``noise`` times the L2
    sensitivity (the noise multiplier z), on a Poisson sample of the clients with probability ``rate``
    (q). Every round is one charge; with ``by_client`` every request to a client is one for this client.
    ``delta`` 0 means K^-1.1, ``max_epsilon`` 0 no bound. ``repeatable``: the noise is a function of the
    seed.
    """

    noise: float
    rate: float
    adjacency: str
    delta: float
    max_epsilon: float
    repeatable: bool
    by_client: bool = False

    def after(self, charges: int, clients: int) -> float:
        """Return epsilon after ``charges``, of a run with ``clients`` clients."""
        return epsilon(self.noise, self.rate, charges, self.delta_of(clients))

    def delta_of(self, clients: int) -> float:
        """Return delta for ``clients`` clients."""
        return self.delta or default_delta(clients)


@functools.lru_cache(maxsize=1024)
def epsilon(noise: float, rate: float, charges: int, delta: float) -> float:
    """Return the smallest epsilon with (epsilon, delta) differential privacy after ``charges``.

    Without sampling (``rate`` 1) the composition of n Gaussian mechanisms is one of multiplier
    z / sqrt n, whose epsilon is exact (Balle and Wang 2018, Theorem 8). With it, the privacy loss
    distribution of the sampled mechanism is composed numerically (Koskela et al. 2020; Doroshenko et al.
    2022), for neighbours that differ in one client added or removed. Infinite without noise.
    """
    if not charges:
        return 0.0
    if noise < NO_NOISE:
        return math.inf
    import dp_accounting as dp  # takes seconds, and only servers need it
    from dp_accounting.pld import PLDAccountant

    if rate == 1 or noise < LEAST_NOISE:
        return float(dp.get_epsilon_gaussian(noise / math.sqrt(charges), delta))
    accountant = PLDAccountant(
        neighboring_relation=dp.NeighboringRelation.ADD_OR_REMOVE_ONE,
        value_discretization_interval=GRID * max(FINE_FROM / noise, 1.0) ** 2,
    )
    gaussian = dp.GaussianDpEvent(noise)
    accountant.compose(dp.PoissonSampledDpEvent(rate, gaussian), charges)
    return float(accountant.get_epsilon(delta))


def default_delta(clients: int) -> float:
    """Return K^-1.1, below 1/K, as in the experiments of McMahan et al. 2018."""
    return float(clients) ** -1.1 if clients > 1 else 0.5
