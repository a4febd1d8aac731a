"""What may happen after a round besides the next one: metrics, checkpoints, progress, stopping."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from fedapp.training.algorithm import Tensors

RoundMetrics = dict[str, Any]
"""The metrics of one round, as they stand in ``metrics.jsonl``."""


@dataclass
class ServerState:
    """All that the server carries from round to round; a checkpoint holds exactly this.

    ``last_used_round`` is, by client, the last round in which the server used its reply; it is kept
    only if clients keep a state.
    """

    round: int
    theta: Tensors
    algorithm: Tensors = field(default_factory=dict)
    last_used_round: dict[int, int] = field(default_factory=dict)


class Ledger(Protocol):
    """What a private run has spent, and may still spend."""

    def allows(self, clients: Callable[[], Sequence[int]]) -> bool:
        """Return whether the next round, with these ``clients``, stays within ``max-epsilon``."""
        ...

    def charge(self, round_: int, clients: Sequence[int]) -> None:
        """Write down what a round costs, before its orders leave to ``clients``."""
        ...

    def report(self) -> RoundMetrics:
        """Return what a round's record says of it."""
        ...


class Callback:
    """Hooks of the round loop; the base does nothing."""

    def on_start(self, state: ServerState) -> None:
        """Run before the first round (or the first after a resume)."""

    def on_round(self, record: RoundMetrics, state: ServerState) -> bool:
        """Run after a round (round 0 is the evaluation of theta_0); True ends the run."""
        return False

    def on_end(self, state: ServerState) -> None:
        """Run after the last round."""

    def close(self) -> None:
        """Let go of what is held; runs last, also when the run is interrupted or fails."""
