"""Callbacks of the round loop, the server's state that they are given, and the privacy ledger."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from fedapp.config.registry import Component
from fedapp.config.settings import Scalar
from fedapp.training.algorithm import Tensors

if TYPE_CHECKING:
    from fedapp.federation.round_result import RoundResult

RoundMetrics = dict[str, Any]
"""The metrics of one round: a line of ``metrics.jsonl``."""


@dataclass
class ServerState:
    """What the server carries from round to round; a checkpoint holds exactly this.

    Where the algorithm's clients keep a state, ``last_used_round`` is, by client, the last round whose
    reply the server used, and if nodes are clients, ``sizes`` has n_k of all that have been accepted.
    """

    round: int
    theta: Tensors
    algorithm: Tensors = field(default_factory=dict)
    last_used_round: dict[int, int] = field(default_factory=dict)
    sizes: dict[int, int] = field(default_factory=dict)


class Ledger:
    """The privacy that a run has spent, and its budget; this base class is that of a run without any."""

    def allows(self, clients: Callable[[], Sequence[int]]) -> bool:
        """Return whether the next round, with these ``clients``, stays within ``max-epsilon``."""
        return True

    def charge(self, round_: int, clients: Sequence[int]) -> None:
        """Record the cost of a round, before its requests are sent to ``clients``."""

    def round_metrics(self) -> RoundMetrics:
        """Return epsilon, delta and the adjacency, for the round's metrics."""
        return {}


class Callback:
    """Hooks of the round loop; the base class does nothing."""

    def on_start(self, state: ServerState) -> None:
        """Run before the first round (or the first after a resume)."""

    def on_round(self, result: RoundResult, state: ServerState) -> bool:
        """Run after a round (round 0 is the evaluation of theta_0); True ends the run.

        ``result.metrics`` is the round's line of ``metrics.jsonl``, as a dictionary.
        """
        return False

    def on_end(self, state: ServerState) -> None:
        """Run after the last round."""

    def close(self) -> None:
        """Release resources; runs last, also when the run is interrupted or fails."""


class RunCallback(Component, Callback):
    """Base of the callbacks that the run-config chooses; fields are parameters.

    What it remembers between its methods are attributes that begin with an underscore.
    """

    _directory: Path = Path()
    _settings: Mapping[str, Scalar] = {}

    @property
    def directory(self) -> Path:
        """The run directory."""
        return self._directory

    @property
    def settings(self) -> Mapping[str, Scalar]:
        """The run-config: every key with its value, and the parameters of the chosen components."""
        return self._settings

    def of_run(self, directory: Path, settings: Mapping[str, Scalar]) -> Self:
        """Return the callback, which now belongs to the run in ``directory``."""
        self._directory, self._settings = directory, settings
        return self
