"""Sampling in proportion to the clients' data."""

from __future__ import annotations

from typing import ClassVar

from fedapp.federation.samplers.sampler import Candidates, Sampler


class BySize(Sampler):
    """m clients, drawn one after another in proportion to n_k; with uniform weights.

    Li et al. 2020 (FedProx, Algorithm 2) draw clients with probability n_k / n. With replacement a client
    may count twice, and its mean weight is n_k / n; here it trains once a round at most, so that its mean
    weight is at most 1 / m: the larger clients count less than their share.
    """

    name: ClassVar[str] = "by-size"
    needs_uniform_weights: ClassVar[bool] = True

    def sample(self, candidates: Candidates) -> list[int]:
        """Return a sample without replacement, in proportion to n_k."""
        return candidates.drawn_by_size(candidates.number)
