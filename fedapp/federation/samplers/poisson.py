"""Poisson sampling."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from fedapp.config.run_config import RunConfig
from fedapp.federation.samplers.sampler import Candidates, Sampler
from fedapp.federation.sampling import poisson_sample


class Poisson(Sampler):
    """Each client with probability C, independently (McMahan et al. 2018, Algorithm 1)."""

    name: ClassVar[str] = "poisson"
    may_be_few: ClassVar[bool] = True

    def sample(self, candidates: Candidates) -> list[int]:
        """Return a Poisson sample, of any size."""
        return poisson_sample(candidates.rng(), candidates.clients, candidates.fraction)

    def config_errors(self, config: RunConfig) -> Iterator[str]:
        """Yield the errors of no clients, and of over-selection, whose m clients there are not."""
        if not config.fraction_train:
            yield (
                "fraction-train = 0: with sampler = 'poisson' it is the probability that a client takes "
                "part, so none ever would. Set it above 0."
            )
        if config.over_selection:
            yield (
                f"over-selection = {config.over_selection}: has no effect, because sampler = 'poisson' "
                "draws any number of clients, and waits for all. Leave it out."
            )
