"""FedBN."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from fedapp.training.algorithm import Algorithm, Finish, Tensors, Turn


class FedBN(Algorithm):
    """Normalisation layers stay with the clients: each trains and is tested with its own.

    Li et al. 2021 (ICLR), Algorithm 1: weights, biases and BatchNorm's running statistics of
    normalisation layers (batch, group, layer, instance, RMS) are left out of the average. A client
    goes on with those of its last turn; before its first it has those that the seed draws, so
    `fraction-train = 1`, as in the paper, leaves nobody untrained. No change of theirs is sent, and
    the server's model has none that are trained: `evaluation = "clients"` tests each client with its
    own. Where a model has no such layers it is federated averaging.
    """

    name: ClassVar[str] = "fedbn"
    source: ClassVar[str] = "Li et al. 2021 (FedBN), Algorithm 1"
    keeps: ClassVar[str] = "normalisation layers"
    keeps_state: ClassVar[bool] = True
    own_normalisation: ClassVar[bool] = True
    neutral: ClassVar[Mapping[str, float]] = {}
    neutral_by: ClassVar[str] = "no such layers"

    def first_state(self, turn: Turn) -> Tensors:
        """Return the normalisation layers of theta, which nobody has trained."""
        return {name: turn.anchor[name] for name in sorted(turn.normalisation)}

    def begin(self, turn: Turn) -> Mapping[str, Tensor]:
        """Return theta with the client's own normalisation layers."""
        return {**turn.anchor, **turn.state}

    def finish(self, params: Mapping[str, Tensor], turn: Turn, steps: int | Tensor) -> Finish:
        """Return the normalisation layers to keep."""
        return Finish(state={name: params[name] for name in turn.state})
