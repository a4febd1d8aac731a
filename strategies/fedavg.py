"""Federated averaging."""

from __future__ import annotations

from typing import ClassVar

from fedapp.training.algorithm import Algorithm


class FedAvg(Algorithm):
    """FederatedAveraging (McMahan et al. 2017, Algorithm 1; Seo et al. 2024, Algorithm 3).

    The mean runs over the sampled clients, weighted by n_k / sum of n_k over S_t (the erratum), or
    uniformly with ``weighting = "uniform"`` (Seo's naive averaging). Options I and II are
    ``update = "delta"`` and ``update = "model"``. With E = 1 and B = infinity it is FedSGD.
    """

    name: ClassVar[str] = "fedavg"
