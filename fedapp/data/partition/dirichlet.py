"""Dirichlet label skew."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedapp.data.base import Examples, Partition
from fedapp.data.partition.base import (
    PURPOSE,
    Partitioning,
    by_label,
    by_owner,
    labels_of,
    log_normal_shares,
    require_examples,
)
from fedapp.errors import ConfigError
from fedapp.seeds import generator

HOPELESS_TRIES, HOPELESS_CLIENTS = 5, 20
"""Draws after which it is no use to go on, if each left so many clients too small: their number
scatters little more than a Poisson variable, which is 0 with probability exp(-20) at most."""


class Dirichlet(Partitioning):
    """Each label divided in proportions drawn from Dirichlet(alpha) (Seo et al. 2024, Fig. 8).

    Yurochkin et al. 2019, as NIID-Bench uses it; alpha = 0.1 gives most clients a few labels,
    alpha = 100 is close to IID. Every example is used. ``DirichletPartitioner`` of flwr-datasets
    with ``self_balancing`` off (Seo et al. do not balance) gives the same index sets.

    ``sigma`` combines the label skew with the log-normal sizes of ``sgm``: client k's concentration
    is alpha * K times its log-normal share, so that its expected share of every label is that
    share; the sizes themselves vary around it.
    """

    name: ClassVar[str] = "dirichlet"

    alpha: float = Field(
        0.5, gt=0, le=1e6, description="Concentration; small: few labels a client."
    )
    min_size: int = Field(
        1, ge=0, description="Fewest examples a client may have. 0: clients may be empty."
    )
    sigma: float = Field(
        0.0, ge=0, le=10, description="Sigma of log-normal expected sizes, as in sgm. 0: all equal."
    )
    max_tries: int = Field(
        100, ge=1, description="Draws before giving up on a partition with min-size."
    )
    self_balancing: bool = Field(
        default=False, description="Give a client that has n/K examples no more of the next labels."
    )

    def split(self, examples: Examples, num_clients: int, seed: int) -> Partition:
        """Return the first of at most ``max_tries`` draws in which every client has ``min_size``.

        Raises
        ------
        ConfigError
            No draw gave every client ``min_size`` examples, or there are not that many.
        """
        labels = labels_of(examples)
        owner, _ = self._accepted(labels, labels[:0], num_clients, seed)
        return by_owner(owner, num_clients)

    def split_test(
        self, test: Examples, train: Examples, partition: Partition, seed: int
    ) -> Partition | None:
        """Return the test examples, each label divided as the training examples with it are."""
        if len(test) < partition.num_clients:
            return None
        return by_label(labels_of(test), labels_of(train), partition)

    def _accepted(
        self, train: NDArray[Any], test: NDArray[Any], num_clients: int, seed: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the owners [n] of the training and of the test examples with these labels."""
        require_examples(len(train), num_clients, self.min_size)
        rng = generator(seed, PURPOSE)
        concentration = self._concentration(rng, num_clients)
        groups = [(np.flatnonzero(train == c), np.flatnonzero(test == c)) for c in np.unique(train)]
        owner = np.full(len(train), -1, dtype=np.int64)
        owner_test = np.full(len(test), -1, dtype=np.int64)
        fewest = num_clients
        for tried in range(1, self.max_tries + 1):
            sizes = np.zeros(num_clients, dtype=np.int64)
            for members, members_test in groups:
                shares = rng.dirichlet(concentration)
                if self.self_balancing:
                    shares = _balanced(shares, sizes, len(train) / num_clients)
                owner[members] = _divide(shares, len(members))
                owner_test[members_test] = _divide(shares, len(members_test))
                sizes += np.bincount(owner[members], minlength=num_clients)
            fewest = min(fewest, int(np.count_nonzero(sizes < self.min_size)))
            if fewest == 0:
                return owner, owner_test
            if tried >= HOPELESS_TRIES and fewest >= HOPELESS_CLIENTS:
                break
        raise ConfigError(
            f"dirichlet.alpha = {self.alpha}: none of {tried} draws (dirichlet.max-tries = "
            f"{self.max_tries}) gave each of num-clients = {num_clients} clients "
            f"dirichlet.min-size = {self.min_size} of the {len(train)} training examples; the best "
            f"left {fewest} clients with fewer. Raise dirichlet.alpha, or lower num-clients or "
            "dirichlet.min-size (0 allows empty clients)."
        )

    def _concentration(self, rng: np.random.Generator, num_clients: int) -> NDArray[np.float64]:
        if self.sigma == 0:
            return np.full(num_clients, self.alpha)
        shares = log_normal_shares(rng, num_clients, self.sigma)
        # NumPy draws no Dirichlet with a concentration of exactly zero.
        return np.maximum(self.alpha * num_clients * shares, np.finfo(np.float64).tiny)


def _balanced(
    shares: NDArray[np.float64], sizes: NDArray[np.int64], mean_size: float
) -> NDArray[np.float64]:
    """Return the shares with those of clients above the mean size given to the others."""
    open_shares = np.where(sizes > mean_size, 0.0, shares)
    total = open_shares.sum()
    return open_shares / total if total > 0 else shares


def _divide(shares: NDArray[np.float64], n: int) -> NDArray[np.int64]:
    """Return the owner of each of n examples: consecutive blocks of about ``shares[k] * n``."""
    cuts = (np.cumsum(shares) * n).astype(np.int64)[:-1]
    return np.searchsorted(cuts, np.arange(n), side="right")
