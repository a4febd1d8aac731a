"""Callbacks of the round loop, and the server's state that they are given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from fedapp.training.algorithm import Tensors

RoundMetrics = dict[str, Any]
"""The metrics of one round: a line of ``metrics.jsonl``."""


@dataclass
class ServerState:
    """What the server carries from round to round; a checkpoint holds exactly this.

    ``last_used_round`` is, by client, the last round whose reply the server used. It is filled only
    if the algorithm's clients keep a state.
    """

    round: int
    theta: Tensors
    algorithm: Tensors = field(default_factory=dict)
    last_used_round: dict[int, int] = field(default_factory=dict)


class Ledger(Protocol):
    """The privacy that a run has spent, and its budget."""

    def allows(self, clients: Callable[[], Sequence[int]]) -> bool:
        """Return whether the next round, with these ``clients``, stays within ``max-epsilon``."""
        ...

    def charge(self, round_: int, clients: Sequence[int]) -> None:
        """Record the cost of a round, before its requests are sent to ``clients``."""
        ...

    def round_metrics(self) -> RoundMetrics:
        """Return epsilon, delta and the adjacency, for the round's metrics."""
        ...


class Callback:
    """Hooks of the round loop; the base class does nothing."""

    def on_start(self, state: ServerState) -> None:
        """Run before the first round (or the first after a resume)."""

    def on_round(self, record: RoundMetrics, state: ServerState) -> bool:
        """Run after a round (round 0 is the evaluation of theta_0); True ends the run."""
        return False

    def on_end(self, state: ServerState) -> None:
        """Run after the last round."""

    def close(self) -> None:
        """Release resources; runs last, also when the run is interrupted or fails."""
