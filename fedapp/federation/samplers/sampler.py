"""The interface of samplers: who takes part in a round."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np

from fedapp.config.registry import Component
from fedapp.config.run_config import RunConfig
from fedapp.training.algorithm import algorithm_of


@dataclass(frozen=True)
class Candidates:
    """The clients that a round may sample from, and what is known of them.

    ``clients``: their ids, in ascending order; a ``range`` of any length. ``number``: m and the
    over-selection. ``rng``: makes the generator of this round's draw. ``sizes``: n_k by client.
    ``losses``: asks clients for F_k(theta), their mean training loss; only those that answer have one.
    """

    seed: int
    round: int
    clients: Sequence[int]
    fraction: float
    number: int
    rng: Callable[[], np.random.Generator]
    sizes: Callable[[Sequence[int]], Mapping[int, int]]
    losses: Callable[[Sequence[int]], Mapping[int, float]]

    def drawn_by_size(self, number: int) -> list[int]:
        """Return ``number`` of the clients with examples, in turns, each in proportion to n_k."""
        sizes = self.sizes(self.clients)
        weights = np.array([sizes[client] for client in self.clients], dtype=np.float64)
        number = min(number, int((weights > 0).sum()))
        if not number:
            return []
        chosen = self.rng().choice(
            len(weights), number, replace=False, p=weights / weights.sum(), shuffle=False
        )
        return sorted(self.clients[int(index)] for index in chosen)


class Sampler(Component, ABC):
    """Chooses S_t, statelessly: a function of the seed, the round and what the clients answer."""

    needs_uniform_weights: ClassVar[bool] = False
    """Whether the sample follows n_k, so that weights n_k would count it twice."""

    may_be_few: ClassVar[bool] = False
    """Whether a round may have fewer clients than m, down to none."""

    asks: ClassVar[bool] = False
    """Whether clients are asked for their loss before the round."""

    @abstractmethod
    def sample(self, candidates: Candidates) -> list[int]:
        """Return S_t, in ascending order.

        A round waits for all of it, or with ``over-selection`` for the first m.
        """

    def available(self, seed: int, round_: int, clients: Sequence[int]) -> Sequence[int]:
        """Return the clients that a round may sample from, as far as the sampler limits them."""
        return clients

    def prepare(self, config: RunConfig) -> None:
        """Read what the sampler needs, once, before the first round.

        Raises
        ------
        ConfigError
            A file is missing, or does not fit the configuration.
        """

    def config_errors(self, config: RunConfig) -> Iterator[str]:
        """Yield the errors of weights and of algorithms that do not go with the sample."""
        if self.needs_uniform_weights and config.weighting != "uniform":
            yield (
                f"weighting = {config.weighting!r}: does not go with sampler = {self.name!r}, which "
                "samples in proportion to n_k, so that weights n_k would count it twice. Set "
                "weighting='uniform', or sampler='uniform'."
            )
        algorithm = algorithm_of(config)
        if self.needs_uniform_weights and algorithm.keeps_mean:
            yield (
                f"sampler = {self.name!r}: with algorithm = {algorithm.name!r} the server keeps a mean "
                "over clients, which this sampler's uniform weights would not weight by n_k, so that it "
                "would converge to another model than the objective's. Set sampler='uniform'."
            )


def prepared_sampler(config: RunConfig) -> Sampler:
    """Return the sampler of a run, which has read what it needs.

    Raises
    ------
    ConfigError
        A file is missing, or does not fit the configuration.
    """
    sampler = cast("Sampler", config.component("sampler"))
    sampler.prepare(config)
    return sampler
