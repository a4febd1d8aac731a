"""FedLC."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field
from torch import Tensor

from fedapp.training.algorithm import Algorithm, Batch, ClientContext, Need, Network

RAREST = 1e-8
"""Count in place of 0, which removes a class that the client lacks from the softmax (tau * 100)."""


class FedLC(Algorithm):
    """Logits are calibrated by how many examples of each class the client holds.

    Zhang et al. 2022 (ICML), section 4, L_Cal: cross-entropy of f_c(x) - tau n_c^(-1/4). In the
    paper the denominator sums over the other classes only, which has no lower bound; as in common
    implementations, it is the softmax over all classes here, so that tau = 0 is federated averaging.
    Classes that the client lacks have a count of 1e-8, a margin of 100 tau, which removes them unless
    tau is below 0.1.
    """

    name: ClassVar[str] = "fedlc"
    needs: ClassVar[frozenset[Need]] = frozenset({"classes"})

    tau: float = Field(1.0, ge=0, description="Strength of the calibration.")

    def loss(
        self, network: Network, params: Mapping[str, Tensor], batch: Batch, context: ClientContext
    ) -> Tensor:
        """Return the task's loss of the calibrated logits."""
        logits = network.outputs(params, batch.inputs)
        if context.label_counts is None:
            raise ValueError("the trainer gives no label counts")
        margin = self.tau * context.label_counts.clamp(min=RAREST) ** -0.25
        margin = margin.view(-1, *[1] * (logits.dim() - 2))
        return network.loss(logits - margin, batch.targets, batch.mask)
