"""Which clients train together: by their numbers of steps, and as many as the device's memory holds."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from fedapp.training.trainer import ClientResult, ClientTask, restoring

WHOLE_COHORT = 10**9
"""More clients than any cohort has."""

CLIENTS_PER_CORE = 5
"""Clients whose weights a core's cache holds, for small networks."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ClientBatching:
    """How many clients share a compiled step; ``equal``: only clients with equal numbers of steps.

    Where fewer than ``clients`` are equal, half of them or a quarter ... train together, but at least
    CLIENTS_PER_CORE; others train alone. So few steps are traced.
    """

    clients: int
    equal: bool = False

    def __str__(self) -> str:
        names = {1: "one client", WHOLE_COHORT: "a cohort"}
        return names.get(self.clients, f"{self.clients} clients")

    def chunks(self, steps: Sequence[int], runs: int) -> Iterator[Sequence[int]]:
        """Yield the positions of clients that train together, given their ``steps``, of ``runs`` runs."""
        size = runs if self.equal and runs > 1 else self.clients * runs
        start = 0
        while start < len(steps):
            width = size if runs > 1 or not self.equal else self._num_equal(steps[start:])
            yield range(start, min(start + width, len(steps)))
            start += width

    def _num_equal(self, steps: Sequence[int]) -> int:
        """Return how many of the next clients train together, all with the same number of steps."""
        width = self.clients
        while width >= min(CLIENTS_PER_CORE, self.clients):
            if len(steps) >= width and len(set(steps[:width])) == 1:
                return width
            width //= 2
        return 1


ONE_CLIENT = ClientBatching(1)

TrainTasks = Callable[[Sequence[ClientTask]], list[ClientResult]]


class MemoryLimit:
    """The number of clients that fit the device's memory together, halved whenever it runs out."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.clients = device, WHOLE_COHORT

    def train(
        self, train: TrainTasks, tasks: Sequence[ClientTask], release: Callable[[], None]
    ) -> list[ClientResult]:
        """Return the results of ``train``, called with as many tasks at a time as the memory holds.

        After the memory ran out, ``release`` is called, and the tasks' generators are as before. Where
        it does not hold a single client, torch.OutOfMemoryError is raised.
        """
        results: list[ClientResult] = []
        while len(results) < len(tasks):
            chunk = tasks[len(results) : len(results) + self.clients]
            trained: list[ClientResult] | None = None
            try:
                with restoring(chunk):
                    trained = train(chunk)
            except torch.OutOfMemoryError:
                if len(chunk) == 1:
                    raise
            if trained is None:  # outside the handler, so that the traceback's tensors are freed
                self.clients = -(-len(chunk) // 2)
                logger.warning(
                    "%s has too little memory for that many clients in a program: %d from now on. "
                    "clients-together=%d begins so.",
                    *(self.device, self.clients, self.clients),
                )
                release()
            else:
                results += trained
        return results
