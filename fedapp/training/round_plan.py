"""The local training of one round: E, B, eta, the number of steps, and the order of the examples."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, cast

import numpy as np
from numpy.typing import NDArray

from fedapp.config.run_config import RunConfig
from fedapp.seeds import generator

if TYPE_CHECKING:
    from fedapp.training.algorithm import Algorithm

LARGEST_BATCH = 2**31
"""Upper bound on a growing B: no client has more examples."""


@dataclass(frozen=True)
class Work:
    """Settings of one round: eta, E and B (0: infinity), and whether u is 1 (FedSGD)."""

    learning_rate: float
    epochs: int
    batch_size: int
    one_gradient: bool = False

    @classmethod
    def of(cls, config: RunConfig, round_: int) -> Work:
        """Return the settings of round ``round_`` (from 1).

        eta is eta * decay^(round - 1); E and B the same with factors of their own, rounded, and E at
        least 1. "It may be useful to decay the amount of local computation per round (moving to
        smaller E or larger B) in the same way decaying learning rates can be useful" (McMahan et al.
        2017, section 3). Halves are rounded up.
        """
        epochs = config.local_epochs * config.local_epochs_decay ** (round_ - 1)
        return cls(
            config.learning_rate * config.learning_rate_decay ** (round_ - 1),
            max(math.floor(epochs + 0.5), 1),
            _grown(config.batch_size, config.batch_size_growth, round_ - 1),
            cast("Algorithm", config.component("algorithm")).one_gradient,
        )

    def updates(self, config: RunConfig, n: int) -> float:
        """Return u_k = E * n_k / B (McMahan et al. 2017, section 2); the steps if steps are given.

        A batch of more than a client's examples is one of all of them, as with B = infinity. It is 1
        where clients compute one gradient: FedSGD.
        """
        if self.one_gradient:
            return float(n > 0)
        if config.local_steps or n == 0:
            return float(config.local_steps if n else 0)
        return self.epochs * max(n / self.batch_size if self.batch_size else 1.0, 1.0)


def _grown(batch_size: int, growth: float, times: int) -> int:
    """Return batch_size * growth^times, rounded, and no more than ``LARGEST_BATCH``."""
    if growth == 1 or batch_size == 0:
        return batch_size
    most = math.log(LARGEST_BATCH / batch_size) / math.log(growth)
    return LARGEST_BATCH if times > most else math.floor(batch_size * growth**times + 0.5)


@dataclass(frozen=True)
class LocalPlan:
    """The settings of ClientUpdate: E, B (0: infinity), eta of this round, and the local optimizer.

    ``growing``: B changes from round to round, and batches are padded to one of few widths.
    """

    epochs: int
    steps: int
    batch_size: int
    sampling: Literal["epoch", "uniform"]
    learning_rate: float
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    clip_norm: float = 0.0
    growing: bool = False

    @classmethod
    def of(
        cls, config: RunConfig, learning_rate: float, epochs: int = 0, batch_size: int = 0
    ) -> LocalPlan:
        """Return the run's plan with the learning rate, E and B of one round (0: the run's)."""
        return cls(
            epochs=epochs or config.local_epochs,
            steps=config.local_steps,
            batch_size=batch_size or config.batch_size,
            sampling=config.batch_sampling,
            learning_rate=learning_rate,
            momentum=config.momentum,
            nesterov=config.nesterov,
            weight_decay=config.weight_decay,
            clip_norm=config.clip_norm,
            growing=config.batch_size_growth > 1,
        )

    @property
    def step(self) -> LocalPlan:
        """The settings on which a single step's traced graph depends: neither E nor eta nor B."""
        return replace(self, epochs=0, steps=0, batch_size=0, learning_rate=0.0)

    def batch(self, n: int) -> int:
        """Return the size of a full mini-batch for a client of ``n`` examples."""
        return min(self.batch_size, n) if self.batch_size else n

    def smallest_batch(self, n: int) -> int:
        """Return the size of the smallest mini-batch of a client of ``n`` examples."""
        size = self.batch(n)
        left = n % size if size else 0
        all_full = self.sampling == "uniform" or (self.steps and self.steps * size < n)
        return left if left and not all_full else size

    def num_steps(self, n: int) -> int:
        """Return the local steps of a client of ``n`` examples."""
        if n == 0:
            return 0
        return self.steps or self.epochs * -(-n // self.batch(n))


def client_generator(seed: int, round_: int, client: int) -> np.random.Generator:
    """Return the generator from which client ``client`` draws its batches in one round."""
    return generator(seed, "client", round_, client)


def passes(plan: LocalPlan, n: int, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
    """Yield permutations of the examples 0..n-1, each to be split into batches.

    With ``epoch`` sampling one is a pass over the data, reshuffled each epoch, whose last batch may be
    partial (McMahan et al. 2017, Algorithm 1, which splits the data once for all epochs). With
    ``uniform`` sampling it is one random mini-batch without replacement (Seo et al. 2024, Algorithms 1
    and 2). The batch of all examples (B = infinity) is not shuffled.
    """
    left, size = plan.num_steps(n), plan.batch(n)
    while left > 0:
        if size == n:
            order = np.arange(n)
        elif plan.sampling == "uniform":
            order = rng.choice(n, size, replace=False)
        else:
            order = rng.permutation(n)[: left * size]
        yield order
        left -= -(-len(order) // size)
