"""FedBN."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from fedapp.training.algorithm import Algorithm, Finish, Tensors, Turn


class FedBN(Algorithm):
    """Normalisation layers stay local: each client goes on with its own.

    Li et al. 2021 (ICLR), Algorithm 1: the parameters of normalisation layers (batch, group, layer,
    instance, RMS) are not taken from theta once a client has its own. The paper leaves them out of
    the average; here they are averaged like the rest, for the server's test and as the start of
    clients that have had no turn, which changes nothing for those that have. With
    `evaluation = "clients"` each client is tested with its own. Where a model has no such layers it
    is federated averaging.
    """

    name: ClassVar[str] = "fedbn"
    source: ClassVar[str] = "Li et al. 2021 (FedBN), Algorithm 1"
    keeps: ClassVar[str] = "normalisation layers"
    keeps_state: ClassVar[bool] = True
    neutral: ClassVar[Mapping[str, float]] = {}
    neutral_by: ClassVar[str] = "no such layers"

    def first_state(self, turn: Turn) -> Tensors:
        """Return theta's normalisation layers."""
        return {name: turn.anchor[name] for name in sorted(turn.normalisation)}

    def begin(self, turn: Turn) -> Mapping[str, Tensor]:
        """Return theta with the client's own normalisation layers."""
        return {**turn.anchor, **turn.state}

    def finish(self, params: Mapping[str, Tensor], turn: Turn, steps: int | Tensor) -> Finish:
        """Return the normalisation layers to keep."""
        return Finish(state={name: params[name] for name in turn.state})
