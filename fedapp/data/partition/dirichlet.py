"""Dirichlet label skew."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedapp.config.run_config import RunConfig
from fedapp.config.settings import no_effect
from fedapp.data.dataset import Examples, Partition, from_index_sets
from fedapp.data.partition.partitioning import (
    BY,
    PURPOSE,
    Partitioning,
    by_owner,
    index_sets,
    labels_of,
    log_normal_shares,
    require_labels,
    split_test_by_label,
)
from fedapp.errors import ConfigError
from fedapp.seeds import generator

MIN_TRIES, MAX_SMALL_CLIENTS = 5, 20
"""The search ends after MIN_TRIES draws if each left at least MAX_SMALL_CLIENTS clients too small.

The number of such clients varies little more than a Poisson variable with this mean, which is 0 with
probability exp(-20).
"""


class Dirichlet(Partitioning):
    """Each label divided in proportions drawn from Dirichlet(alpha) (Seo et al. 2024, Fig. 8).

    Yurochkin et al. 2019, as in NIID-Bench; alpha = 0.1 gives most clients a few labels,
    alpha = 100 is close to IID. Every example is used. Split by ``DirichletPartitioner`` of
    flwr-datasets with ``self_balancing`` off (Seo et al. say nothing of sizes); a client's examples
    are in the order of the data. The running sums of a label's shares are rounded down, so the last
    client's share is rounded up, to one example of most labels of which it would have none. With
    ``self_balancing``, and with more clients than examples, which ``DirichletPartitioner`` refuses, this
    class splits by the same rule.

    ``sigma`` combines the label skew with the log-normal sizes of ``sgm``: client k's concentration
    is alpha * K times its log-normal share, so that its expected share of every label is that
    share; the sizes themselves vary around it.
    """

    name: ClassVar[str] = "dirichlet"
    cached: ClassVar[bool] = True

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
        default=False,
        description="Give a client of more than n/K examples no more of the next labels.",
    )

    def config_errors(self, config: RunConfig) -> Iterator[str]:
        """Yield the error of a number of tries for the first draw."""
        if self.min_size == 0 and self.max_tries != type(self).model_fields["max_tries"].default:
            because = "with dirichlet.min-size = 0 the first draw counts. Set dirichlet.min-size=1"
            yield no_effect("dirichlet.max-tries", self.max_tries, because)

    def split(self, examples: Examples, num_clients: int, seed: int) -> Partition:
        """Return the first of at most ``max_tries`` draws in which every client has ``min_size``.

        Raises
        ------
        ConfigError
            No draw gave every client ``min_size`` examples, or there are too few examples.
        """
        labels, rng = labels_of(examples), generator(seed, PURPOSE)
        require_labels(labels, self.name)
        self._require_examples(len(labels), num_clients)
        known, counts = np.unique(labels, return_counts=True)
        alphas = self._concentrations(rng, num_clients)
        self._advance_to_valid_draw(rng, alphas, counts)
        if self.self_balancing or num_clients > len(labels):
            owner = np.empty(len(labels), dtype=np.int64)
            for label, sizes in zip(known, self._draw(rng, alphas, counts), strict=True):
                owner[labels == label] = np.repeat(np.arange(num_clients), sizes)
            return by_owner(owner, num_clients)
        from flwr_datasets.partitioner import DirichletPartitioner

        partitioner = DirichletPartitioner(
            num_clients, BY, alphas, self.min_size, self_balancing=False, shuffle=False, seed=rng
        )
        return from_index_sets([np.sort(each) for each in index_sets(partitioner, labels)])

    def split_test(
        self, test: Examples, train: Examples, partition: Partition, seed: int
    ) -> Partition | None:
        """Return the test examples, each label divided as the training examples with it are."""
        return split_test_by_label(test, train, partition)

    def _require_examples(self, n: int, num_clients: int) -> None:
        """Raise ConfigError unless n examples suffice for ``min_size`` for each client."""
        if self.min_size * num_clients > n:
            size, clients = n // num_clients, n // self.min_size
            fixes = [f"dirichlet.min-size to {size} or less" if size else "dirichlet.min-size=0"]
            fixes += [f"num-clients to {clients} or less"] if clients else []
            raise ConfigError(
                f"dirichlet.min-size = {self.min_size}: for num-clients = {num_clients} these are "
                f"{self.min_size * num_clients} training examples, and the data set has only {n}. Set "
                f"{', or '.join(fixes)}."
            )

    def _advance_to_valid_draw(
        self, rng: np.random.Generator, alphas: NDArray[np.float64], counts: NDArray[np.int64]
    ) -> None:
        """Advance ``rng`` to the first draw that gives every client ``min_size`` examples.

        ``DirichletPartitioner`` gives up after 11 draws; from this state it needs one.
        """
        fewest = num_clients = len(alphas)
        for tried in range(1, self.max_tries + 1):
            state = rng.bit_generator.state
            sizes = sum(self._draw(rng, alphas, counts))
            fewest = min(fewest, int(np.count_nonzero(sizes < self.min_size)))
            if fewest == 0:
                rng.bit_generator.state = state
                return
            if tried >= MIN_TRIES and fewest >= MAX_SMALL_CLIENTS:
                break
        raise ConfigError(
            f"dirichlet.alpha = {self.alpha}: none of {tried} draws (dirichlet.max-tries = "
            f"{self.max_tries}) gave each of num-clients = {num_clients} clients "
            f"dirichlet.min-size = {self.min_size} of the {counts.sum()} training examples; the best "
            f"left {fewest} clients with fewer. Raise dirichlet.alpha, or lower num-clients or "
            "dirichlet.min-size (0 allows empty clients)."
        )

    def _draw(
        self, rng: np.random.Generator, alphas: NDArray[np.float64], counts: NDArray[np.int64]
    ) -> Iterator[NDArray[np.int64]]:
        """Yield, for each label, the number of its ``counts`` examples that each client gets: [K]."""
        totals = np.zeros(len(alphas), dtype=np.int64)
        for count in counts:
            shares = rng.dirichlet(alphas)
            if self.self_balancing:
                shares = _balanced(shares, totals, counts.sum() / len(alphas))
            ends = (np.cumsum(shares) * count).astype(np.int64)
            ends[-1] = count
            sizes = np.diff(ends, prepend=0)
            totals += sizes
            yield sizes

    def _concentrations(self, rng: np.random.Generator, num_clients: int) -> NDArray[np.float64]:
        if self.sigma == 0:
            return np.full(num_clients, self.alpha)
        shares = log_normal_shares(rng, num_clients, self.sigma)
        # NumPy draws no Dirichlet with a concentration of exactly zero.
        return np.maximum(self.alpha * num_clients * shares, np.finfo(np.float64).tiny)


def _balanced(
    shares: NDArray[np.float64], sizes: NDArray[np.int64], mean_size: float
) -> NDArray[np.float64]:
    """Return the shares without clients above the mean size, rescaled to sum to 1."""
    open_shares = np.where(sizes > mean_size, 0.0, shares)
    total = open_shares.sum()
    return open_shares / total if total > 0 else shares
