"""The plan of a round: E, B, eta and the rest, the number of steps, and the order of the examples."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast

import numpy as np
from numpy.typing import NDArray

from fedapp.config.run import TrainerName
from fedapp.config.run_config import RunConfig
from fedapp.seeds import generator

if TYPE_CHECKING:
    from fedapp.training.algorithm import Algorithm

LARGEST_BATCH = 2**31
"""Upper bound on a growing B: no client has more examples."""


@dataclass(frozen=True)
class RoundPlan:
    """All that one round asks of a client update (McMahan et al. 2017, Algorithm 1).

    ``epochs``: E; ``steps``: local steps in place of epochs (0: none); ``batch_size``: B (0: infinity);
    ``learning_rate``: eta. ``growing``: B changes from round to round, and batches are padded to one of
    few widths. ``one_gradient``: a client computes one gradient of all its examples (FedSGD).
    ``update``: theta_k - theta or theta_k; ``reply``: the cohort's mean, or each client's update.
    ``seed``: the run's; ``threads``: CPU threads; ``trainer``: as the run-config's key.
    """

    epochs: int = 0
    steps: int = 0
    batch_size: int = 0
    sampling: Literal["epoch", "uniform"] = "epoch"
    learning_rate: float = 0.0
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    clip_norm: float = 0.0
    growing: bool = False
    one_gradient: bool = False
    update: Literal["delta", "model"] = "delta"
    weighting: Literal["examples", "uniform"] = "examples"
    reply: Literal["mean", "each"] = "mean"
    round: int = 1
    seed: int = 0
    threads: int = 1
    trainer: TrainerName = "auto"

    @classmethod
    def of(cls, config: RunConfig, round_: int = 1) -> RoundPlan:
        """Return the plan of round ``round_`` (from 1).

        eta is eta * decay^(round - 1); E and B the same with factors of their own, rounded, and E at
        least 1. "It may be useful to decay the amount of local computation per round (moving to
        smaller E or larger B) in the same way decaying learning rates can be useful" (McMahan et al.
        2017, section 3). Halves are rounded up.
        """
        algorithm = cast("Algorithm", config.component("algorithm"))
        epochs = config.local_epochs * config.local_epochs_decay ** (round_ - 1)
        return cls(
            epochs=max(math.floor(epochs + 0.5), 1),
            steps=config.local_steps,
            batch_size=_grown(config.batch_size, config.batch_size_growth, round_ - 1),
            sampling=config.batch_sampling,
            learning_rate=config.learning_rate * config.learning_rate_decay ** (round_ - 1),
            momentum=config.momentum,
            nesterov=config.nesterov,
            weight_decay=config.weight_decay,
            clip_norm=config.clip_norm,
            growing=config.batch_size_growth > 1,
            one_gradient=algorithm.one_gradient,
            update=config.update,
            weighting="examples" if config.weighting == "examples" else "uniform",
            reply="each" if config.record_updates else algorithm.reply,
            round=round_,
            seed=config.seed,
            threads=config.threads or 1,
            trainer=config.trainer,
        )

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

    def updates(self, n: int) -> float:
        """Return u_k = E * n_k / B (McMahan et al. 2017, section 2); the steps if steps are given.

        A batch of more than a client's examples is one of all of them, as with B = infinity. It is 1
        where clients compute one gradient: FedSGD.
        """
        if self.one_gradient:
            return float(n > 0)
        if self.steps or n == 0:
            return float(self.steps if n else 0)
        return self.epochs * max(n / self.batch_size if self.batch_size else 1.0, 1.0)


def _grown(batch_size: int, growth: float, times: int) -> int:
    """Return batch_size * growth^times, rounded, and no more than ``LARGEST_BATCH``."""
    if growth == 1 or batch_size == 0:
        return batch_size
    most = math.log(LARGEST_BATCH / batch_size) / math.log(growth)
    return LARGEST_BATCH if times > most else math.floor(batch_size * growth**times + 0.5)


def client_generator(seed: int, round_: int, client: int) -> np.random.Generator:
    """Return the generator from which client ``client`` draws its batches in one round."""
    return generator(seed, "client", round_, client)


def passes(plan: RoundPlan, n: int, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
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
