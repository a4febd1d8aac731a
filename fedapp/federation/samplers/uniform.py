"""Uniform sampling."""

from __future__ import annotations

from typing import ClassVar

from fedapp.federation.samplers.sampler import Candidates, Sampler
from fedapp.federation.sampling import sample_clients


class Uniform(Sampler):
    """m = max(floor(C*K), 1) clients at random (McMahan et al. 2017, Algorithm 1)."""

    name: ClassVar[str] = "uniform"

    def sample(self, candidates: Candidates) -> list[int]:
        """Return a uniform sample without replacement."""
        return sample_clients(candidates.rng, candidates.clients, candidates.number)
