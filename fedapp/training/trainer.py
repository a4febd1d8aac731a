"""The interface of trainers, which run ClientUpdate for the clients of a node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from fedapp.data.dataset import Examples
from fedapp.training.algorithm import Algorithm, ClientContext, ClientExtras, Tensors
from fedapp.training.round_plan import RoundPlan


@dataclass(frozen=True)
class ClientTask:
    """One client update to run: context, the client's examples, and its generator.

    The order of the examples and the transform's draws come from ``rng``.
    """

    context: ClientContext
    examples: Examples
    rng: np.random.Generator


@dataclass(frozen=True)
class ClientResult:
    """The result of one client update.

    ``params``: theta_k. ``loss``: mean over the local steps of the local objective, weighted by
    batch sizes (nan where a client has no examples).
    """

    params: Tensors
    examples: int
    steps: int
    loss: float
    extras: ClientExtras


class Trainer(Protocol):
    """Runs ClientUpdate (McMahan et al. 2017, Algorithm 1) for ``clients_together`` clients at a time.

    ``normalisation``: see ``ClientContext``. ``statistics``: the network's initial running
    statistics, by name.
    """

    algorithm: Algorithm
    device: torch.device
    dtype: torch.dtype
    num_classes: int
    normalisation: frozenset[str]
    statistics: Tensors
    memory_format: torch.memory_format
    clients_together: int

    def client_updates(self, tasks: Sequence[ClientTask], plan: RoundPlan) -> list[ClientResult]:
        """Return the results, in the order of ``tasks``."""
        ...
