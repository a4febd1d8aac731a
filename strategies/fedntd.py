"""FedNTD."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedapp.training.algorithm import Algorithm, Batch, ClientContext, Need, Network
from fedapp.training.batches import mean_over_targets

EXCLUDED = -1e9
"""Logit of the true class, which excludes it from the softmax."""


class FedNTD(Algorithm):
    """Not-true distillation: keeps theta's predictions for the classes other than the label.

    Lee et al. 2022 (NeurIPS), section 4: the loss gains beta times the KL divergence from theta's
    to the local model's softmax over the classes other than the true one, at temperature tau. As in
    the authors' code it is multiplied by tau^2, which keeps the scale of the gradients, as usual in
    distillation. The code's configuration sets tau = beta = 1, for which the factor is 1.
    """

    name: ClassVar[str] = "fedntd"
    needs: ClassVar[frozenset[Need]] = frozenset({"classes"})

    beta: float = Field(1.0, ge=0, description="Weight of the distillation.")
    temperature: float = Field(1.0, ge=1e-3, le=1e6, description="Temperature of the softmax, tau.")

    def loss(
        self, network: Network, params: Mapping[str, Tensor], batch: Batch, context: ClientContext
    ) -> Tensor:
        """Return the task's loss plus beta times the not-true distillation."""
        logits = network.outputs(params, batch.inputs)
        with torch.no_grad():
            global_logits = network.outputs(context.global_params, batch.inputs)
        student = F.log_softmax(self._not_true(logits, batch.targets), 1)
        teacher = F.log_softmax(self._not_true(global_logits, batch.targets), 1)
        divergence = (teacher.exp() * (teacher - student)).sum(1)
        distilled = self.temperature**2 * mean_over_targets(divergence, batch)
        return network.loss(logits, batch.targets, batch.mask) + self.beta * distilled

    def _not_true(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return logits [b, C] or [b, C, T] over tau, without the true class."""
        classes = torch.arange(logits.shape[1], device=logits.device)
        true = classes.view(-1, *[1] * (logits.dim() - 2)) == targets.unsqueeze(1)
        return (logits / self.temperature).masked_fill(true, EXCLUDED)
