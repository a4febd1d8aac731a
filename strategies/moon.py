"""MOON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedapp.training.algorithm import (
    Algorithm,
    Batch,
    ClientContext,
    ClientExtras,
    Need,
    Network,
    Tensors,
)
from fedapp.training.batches import mean_over_targets


class Moon(Algorithm):
    """Model-contrastive: representations near the global model's, and far from the last local model's.

    Li, He and Song 2021 (CVPR), Eq. 3 and Algorithm 1: the loss gains mu times
    -log(exp(sim(z, z_glob) / T) / (exp(sim(z, z_glob) / T) + exp(sim(z, z_prev) / T))) with cosine
    similarities. z is the input of the last linear layer; the paper's projection head is not added
    to the networks. z_prev is that of the client's last local model; before its first round it is
    theta, for which both similarities are equal and the term's gradient is zero. The authors' code has
    no previous model in round 1, with the same effect, and compares a client that was not sampled yet
    with its initial weights.
    """

    name: ClassVar[str] = "moon"
    keeps_state: ClassVar[bool] = True
    needs: ClassVar[frozenset[Need]] = frozenset({"features"})

    mu: float = Field(1.0, ge=0, description="Weight of the contrastive term.")
    temperature: float = Field(0.5, gt=0, description="Temperature of the similarities.")

    def initial_client_state(self, context: ClientContext) -> Tensors:
        """Return theta, as the previous local model of a first round."""
        return dict(context.global_params)

    def loss(
        self, network: Network, params: Mapping[str, Tensor], batch: Batch, context: ClientContext
    ) -> Tensor:
        """Return the task's loss plus mu times the contrastive term."""
        logits, z = network.features(params, batch.inputs)
        with torch.no_grad():
            _, z_global = network.features(context.global_params, batch.inputs)
            _, z_previous = network.features(context.state, batch.inputs)
        nearer = F.cosine_similarity(z, z_global, -1) - F.cosine_similarity(z, z_previous, -1)
        contrast = mean_over_targets(F.softplus(-nearer / self.temperature), batch)
        return network.loss(logits, batch.targets, batch.mask) + self.mu * contrast

    def finalize(
        self, params: Mapping[str, Tensor], context: ClientContext, steps: int | Tensor
    ) -> ClientExtras:
        """Return the local model to keep."""
        return ClientExtras(state=dict(params))
