"""The interface between a node and what trains its clients: tasks and a plan in, results out.

``SequentialTrainer``, the reference, trains one client after another. ``BatchedTrainer`` takes each local
step of several clients at once. Both are made from the same arguments and give the same results up to
rounding, so that ``build.make_trainer`` alone knows which of them a run has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from fedapp.data.dataset import Examples
from fedapp.training.algorithm import Algorithm, ClientContext, ClientExtras, Tensors
from fedapp.training.round_plan import RoundPlan


@dataclass(frozen=True)
class ClientTask:
    """One client update to run.

    ``context``: theta, eta and the client's state. ``rng``: the source of the examples' order and of all
    other random numbers of the update.
    """

    context: ClientContext
    examples: Examples
    rng: np.random.Generator


class CaptureError(RuntimeError):
    """Capturing a CUDA graph failed midway; it must not be retried in the same process."""


@contextmanager
def restoring(tasks: Iterable[ClientTask]) -> Iterator[None]:
    """Reset the tasks' generators where the block raises, so that they can be tried again."""
    states = [(task.rng.bit_generator, task.rng.bit_generator.state) for task in tasks]
    try:
        yield
    except BaseException:
        for generator, state in states:
            generator.state = state
        raise


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
    statistics, by name. ``memory_format``: that of theta's four-dimensional tensors in a context.
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
