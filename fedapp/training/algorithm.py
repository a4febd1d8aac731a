"""What an algorithm is: a client rule and a server rule, as pure functions of named tensors.

Both trainers call the client rule, the strategy calls the server rule; neither knows any
algorithm by name. A new algorithm is one file in ``strategies/`` with one subclass of
:class:`Algorithm` that overrides what differs from federated averaging.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Protocol

import torch
from torch import Tensor

from fedapp.registry import Component

Tensors = dict[str, Tensor]
"""Named tensors: parameters, gradients, updates, or an algorithm's own state."""


@dataclass(frozen=True)
class Batch:
    """A mini-batch: ``inputs`` [b, ...], ``targets`` [b, ...]; ``mask`` [b] is 0 for padding."""

    inputs: Tensor
    targets: Tensor
    mask: Tensor | None = None


class Network(Protocol):
    """The network as a function of its parameters, and the task's loss."""

    def outputs(self, params: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        """Return the logits: [b, C] or [b, C, T]."""
        ...

    def loss(self, outputs: Tensor, targets: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the mean loss over the targets that count: a scalar."""
        ...


@dataclass(frozen=True)
class Turn:
    """What is fixed while one client trains in one round.

    ``anchor`` is theta as received; ``broadcast`` what the server sends besides it; ``state`` what
    this client kept from its last turn (``Algorithm.first_state`` before the first).
    """

    anchor: Mapping[str, Tensor]
    broadcast: Mapping[str, Tensor] = field(default_factory=dict)
    state: Mapping[str, Tensor] = field(default_factory=dict)
    learning_rate: float = 0.0


@dataclass(frozen=True)
class Finish:
    """What a client's turn leaves behind besides its parameters.

    ``upload`` is averaged over the clients by the server with the same weights as the updates;
    ``state`` is kept for the client's next turn.
    """

    upload: Tensors = field(default_factory=dict)
    state: Tensors = field(default_factory=dict)


@dataclass(frozen=True)
class ServerStep:
    """What the server rule may use besides tensors."""

    round: int
    server_learning_rate: float
    update: Literal["delta", "model"]
    num_clients: int
    participants: int


Differentiate = Callable[[Mapping[str, Tensor], Batch], tuple[Tensors, Tensor]]
"""(params, batch) to (gradient of the local objective, its value without a graph)."""


class Algorithm(Component):
    """Federated averaging; subclasses override the parts in which they differ.

    The fields of a subclass are its hyper-parameters (run-config keys ``<name>.<field>``).
    """

    reply: ClassVar[Literal["mean", "each"]] = "mean"
    """What a node sends: the weighted mean of its cohort's updates, or each client's update."""

    keeps_state: ClassVar[bool] = False
    """Whether clients keep tensors from one turn to the next."""

    # ------------------------------------------------------------------ client rule

    def first_state(self, anchor: Mapping[str, Tensor]) -> Tensors:
        """Return the state of a client that has never had a turn."""
        return {}

    def loss(
        self, network: Network, params: Mapping[str, Tensor], batch: Batch, turn: Turn
    ) -> Tensor:
        """Return the local objective on one batch: the task's mean loss."""
        return network.loss(network.outputs(params, batch.inputs), batch.targets, batch.mask)

    def gradient(
        self, differentiate: Differentiate, params: Mapping[str, Tensor], batch: Batch, turn: Turn
    ) -> tuple[Tensors, Tensor]:
        """Return the direction that a local step descends, and the objective's value."""
        return differentiate(params, batch)

    def finish(self, params: Mapping[str, Tensor], turn: Turn, steps: int) -> Finish:
        """Return what the client uploads and keeps after ``steps`` local steps."""
        return Finish()

    # ------------------------------------------------------------------ server rule

    def start(self, theta: Mapping[str, Tensor]) -> Tensors:
        """Return the server's state before the first round."""
        return {}

    def broadcast(self, state: Mapping[str, Tensor]) -> Tensors:
        """Return what the clients are sent besides theta."""
        return {}

    def aggregate(self, updates: Sequence[Tensors], weights: Sequence[float]) -> Tensors:
        """Combine single clients' updates, in client order (only with ``reply = "each"``)."""
        return weighted_mean(updates, weights)

    def apply(
        self,
        theta: Mapping[str, Tensor],
        mean: Tensors,
        upload: Tensors,
        state: Tensors,
        step: ServerStep,
    ) -> tuple[Tensors, Tensors]:
        """Return the next theta and server state.

        Option II (``update = "model"``): theta becomes the mean model. Option I (``"delta"``):
        theta + eta_g * mean update (Seo et al. 2024, Algorithm 3, line 12).
        """
        if step.update == "model":
            return mean, state
        rate = step.server_learning_rate
        return {name: theta[name] + rate * mean[name] for name in theta}, state


class WeightedMean:
    """A weighted mean folded in float64, in the order in which terms are added.

    ``sum_i w_i x_i / sum_i w_i``; a mean of such means, weighted by their total weights, is the
    mean over all terms.
    """

    def __init__(self) -> None:
        self.total_weight = 0.0
        self._sum: Tensors = {}
        self._dtypes: dict[str, torch.dtype] = {}

    def add(self, tensors: Mapping[str, Tensor], weight: float) -> None:
        """Fold in one term; its tensors are not kept."""
        self.total_weight += weight
        for name, tensor in tensors.items():
            term = tensor.detach().to(torch.float64)
            if name in self._sum:
                self._sum[name].add_(term, alpha=weight)
            else:
                self._sum[name] = term * weight
                self._dtypes[name] = tensor.dtype

    def mean(self) -> Tensors:
        """Return the mean, cast back to each tensor's own type.

        Raises
        ------
        ZeroDivisionError
            Nothing with a positive weight was added.
        """
        if self.total_weight <= 0:
            raise ZeroDivisionError("the mean of nothing: no term has a positive weight")
        return {
            name: (total / self.total_weight).to(self._dtypes[name])
            for name, total in self._sum.items()
        }


def weighted_mean(terms: Sequence[Mapping[str, Tensor]], weights: Sequence[float]) -> Tensors:
    """Return ``sum_i w_i x_i / sum_i w_i``, folded in float64 in the order given."""
    mean = WeightedMean()
    for tensors, weight in zip(terms, weights, strict=True):
        mean.add(tensors, weight)
    return mean.mean()
