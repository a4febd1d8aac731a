"""FedBN."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from fedapp.training.algorithm import Algorithm, ClientContext, ClientExtras, Tensors


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
    fedavg_equivalent: ClassVar[Mapping[str, float]] = {}
    fedavg_equivalent_by: ClassVar[str] = "no such layers"

    def initial_client_state(self, context: ClientContext) -> Tensors:
        """Return the normalisation layers of theta, which nobody has trained."""
        return {name: context.global_params[name] for name in sorted(context.normalisation)}

    def initial_params(self, context: ClientContext) -> Mapping[str, Tensor]:
        """Return theta with the client's own normalisation layers."""
        return {**context.global_params, **context.state}

    def finalize(
        self, params: Mapping[str, Tensor], context: ClientContext, steps: int | Tensor
    ) -> ClientExtras:
        """Return the normalisation layers to keep."""
        return ClientExtras(state={name: params[name] for name in context.state})
