"""FedBN."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from fedapp.training.algorithm import Algorithm, ClientContext, ClientExtras, Tensors


class FedBN(Algorithm):
    """Normalisation layers stay on the clients: each trains and is tested with its own.

    Li et al. 2021 (ICLR), Algorithm 1: weights, biases and BatchNorm's running statistics of
    normalisation layers (batch, group, layer, instance, RMS) are left out of the average. A client
    continues with those of its last round; before its first it has the initial ones, so use
    `fraction-train = 1`, as in the paper, to train all clients. Their own are not sent, and those of
    the server's model are not trained: `evaluation = "clients"` tests each client with its own. For
    models without such layers it is federated averaging.
    """

    name: ClassVar[str] = "fedbn"
    keeps_state: ClassVar[bool] = True
    own_normalisation: ClassVar[bool] = True

    def initial_client_state(self, context: ClientContext) -> Tensors:
        """Return the normalisation layers of theta, which are untrained."""
        return {name: context.global_params[name] for name in sorted(context.normalisation)}

    def initial_params(self, context: ClientContext) -> Mapping[str, Tensor]:
        """Return theta with the client's own normalisation layers."""
        return {**context.global_params, **context.state}

    def finalize(
        self, params: Mapping[str, Tensor], context: ClientContext, steps: int | Tensor
    ) -> ClientExtras:
        """Return the normalisation layers to keep."""
        return ClientExtras(state={name: params[name] for name in context.state})
