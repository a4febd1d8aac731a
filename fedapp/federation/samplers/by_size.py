"""Sampling in proportion to the clients' data."""

from __future__ import annotations

from typing import ClassVar

from fedapp.federation.samplers.sampler import Candidates, Sampler


class BySize(Sampler):
    """m clients, drawn one after another in proportion to n_k; with uniform weights.

    Li et al. 2020 (FedProx, section 5.1) draw with replacement, and then a client may count twice; here
    it trains once a round at most.
    """

    name: ClassVar[str] = "by-size"
    needs_uniform_weights: ClassVar[bool] = True

    def sample(self, candidates: Candidates) -> list[int]:
        """Return a sample without replacement, in proportion to n_k."""
        return candidates.drawn_by_size(candidates.number)
