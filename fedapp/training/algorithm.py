"""The interface of algorithms: a client rule and a server rule, as pure functions of named tensors.

The trainers call the client rule, the strategy calls the server rule. A new algorithm is one file in
``strategies/`` with one subclass of :class:`Algorithm` that overrides what differs from federated
averaging.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal, Protocol, cast

import numpy as np
from pydantic import Field
from torch import Tensor

from fedapp.analysis.privacy import Privacy
from fedapp.config.registry import Component
from fedapp.config.run_config import RunConfig
from fedapp.config.training import ServerConfig
from fedapp.seeds import generator
from fedapp.training.batches import Batch as Batch
from fedapp.training.round_plan import RoundPlan
from fedapp.training.tensors import Tensors as Tensors
from fedapp.training.tensors import add, weighted_mean


class Network(Protocol):
    """A network as a function of its parameters, with the task's loss."""

    def outputs(self, params: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        """Return the logits: [b, C] or [b, C, T]."""
        ...

    def features(self, params: Mapping[str, Tensor], inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits and the representation, the input of the last linear layer."""
        ...

    def loss(self, outputs: Tensor, targets: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the mean loss over the targets that count: a scalar."""
        ...


@dataclass(frozen=True)
class ClientContext:
    """Inputs of the client rule that are constant in one client update, but for ``step_state``.

    ``global_params``: theta as received, and the network's initial running statistics, if any.
    ``broadcast``: the server's further tensors. ``state``: the client state stored in the last round in
    which the client trained (``Algorithm.initial_client_state`` before the first). ``step_state``: the
    result of ``Algorithm.step_state`` in the previous local step. ``round_randomness``: the result of
    ``Algorithm.round_randomness``. ``learning_rate``, ``momentum``, ``nesterov``, ``weight_decay``: of
    the local optimizer; eta is a tensor where several clients train in one compiled step. ``round`` and
    ``steps`` (the number of local steps) are for ``round_randomness`` and ``finalize``; a local step
    must not depend on them, since it is traced once for all rounds and clients. ``label_counts`` [C]:
    the client's targets of each class, for algorithms that need "classes". ``normalisation``: the
    names of the parameters and running statistics of normalisation layers.
    """

    global_params: Mapping[str, Tensor]
    broadcast: Mapping[str, Tensor] = field(default_factory=dict)
    state: Mapping[str, Tensor] = field(default_factory=dict)
    learning_rate: float | Tensor = 0.0
    round: int = 0
    steps: int = 0
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    label_counts: Tensor | None = None
    normalisation: frozenset[str] = frozenset()
    step_state: Mapping[str, Tensor] = field(default_factory=dict)
    round_randomness: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class ClientExtras:
    """Results of a client update besides theta_k.

    The server averages ``upload`` over the clients with the weights of the updates. ``state`` is stored
    for the client's next round. ``update`` is sent in place of Delta_k or theta_k, with the parameters'
    names, shapes and types, by an algorithm with ``custom_update = True``.
    """

    upload: Tensors = field(default_factory=dict)
    state: Tensors = field(default_factory=dict)
    update: Tensors | None = None


@dataclass(frozen=True)
class ServerStep:
    """Inputs of the server rule besides tensors.

    ``plan`` is the round's: eta, ``update`` and the rest. ``num_clients`` is K, ``fraction`` C;
    ``participants`` is the number of accepted replies with a positive weight; ``share`` is their share of
    all clients' weight: |S_t| / K with uniform weighting, sum over S_t of n_k / n with weighting by
    examples.
    """

    plan: RoundPlan
    server_learning_rate: float
    num_clients: int
    participants: int
    share: float
    fraction: float = 1.0


Objective = Callable[[Network, Mapping[str, Tensor], Batch, ClientContext], Tensor]
"""(network, params, batch, context) to a scalar, as ``Algorithm.loss``."""


class Differentiate(Protocol):
    """The function with which a trainer lets an algorithm compute gradients."""

    def __call__(
        self, params: Mapping[str, Tensor], batch: Batch, objective: Objective | None = None
    ) -> tuple[Tensors, Tensor]:
        """Return gradient and value of the objective (None: ``Algorithm.loss``), detached."""
        ...


Need = Literal["classes", "features"]

NOT_SAVED = (
    "which is not saved: a resumed run would go on without it. Return what lasts as state, from start "
    "and apply or in ClientExtras"
)
"""Why an algorithm has no attributes but its parameters, and what it has in their place."""


class Algorithm(Component):
    """Federated averaging; subclasses override the parts in which they differ.

    The fields of a subclass are its hyper-parameters (run-config keys ``<name>.<field>``). Client
    rules are pure functions of tensors, without branches on their values, so that they also run
    under ``torch.func.vmap`` and ``torch.func.grad``.
    """

    reply: ClassVar[Literal["mean", "each"]] = "mean"
    """A node's reply: the weighted mean of its cohort's updates, or each client's update."""

    custom_update: ClassVar[bool] = False
    """Whether clients send ``ClientExtras.update``; the key `update` must be "delta"."""

    default_weighting: ClassVar[Literal["examples", "uniform"]] = "examples"
    """The meaning of ``weighting = "auto"``."""

    default_sampler: ClassVar[str] = "uniform"
    """The meaning of ``sampler = "auto"``."""

    default_server_learning_rate: ClassVar[Annotated[float, Field(ge=0, allow_inf_nan=False)]] = 1.0
    """The meaning of ``server-learning-rate = 0``."""

    one_gradient: ClassVar[bool] = False
    """Whether a client computes one gradient of all its examples, in parts of B, so that u is 1."""

    keeps_state: ClassVar[bool] = False
    """Whether clients store tensors from one round to the next."""

    keeps_mean: ClassVar[bool] = False
    """Whether the server's state is a mean over all clients, by ``ServerStep.share``.

    Then it is scaled where clients join, which count with 0.
    """

    own_normalisation: ClassVar[bool] = False
    """Whether normalisation layers, weights and running statistics, stay with the clients.

    Then their updates are not sent, a network may have BatchNorm, and the clients evaluate it.
    """

    poisson_sampling: ClassVar[bool] = False
    """Whether a round's clients must be a Poisson sample.

    The server rule is then applied in every round, even without replies.
    """

    needs: ClassVar[frozenset[Need]] = frozenset()
    """Required of the task: "classes" (a label an output) or "features" (a last linear layer)."""

    @classmethod
    def class_problems(cls) -> Iterator[str]:
        """Yield the problems of an ``aggregate`` that is not called, and of attributes."""
        if cls.aggregate is not Algorithm.aggregate and cls.reply != "each":
            yield (
                f"has aggregate, which is not called with reply = {cls.reply!r}: nodes send the mean of "
                'their clients\' updates. Add reply: ClassVar[str] = "each", or leave aggregate out.'
            )
        for name, attribute in cls.__private_attributes__.items():
            default: object = attribute.default
            if attribute.default_factory or isinstance(default, (dict, list, set, Tensor)):
                yield f"has {name}, {NOT_SAVED}. A constant is {name}: ClassVar."

    @property
    def min_updates(self) -> int:
        """The smallest number of updates that the server rule needs."""
        return 1

    def privacy(self, config: RunConfig) -> Privacy | None:
        """Return the run's differential privacy guarantee, or None."""
        return None

    def require_clients(self, config: RunConfig, clients: int) -> None:
        """Raise ConfigError if K, known once the nodes have connected, is too small."""

    def sampling_generator(self, seed: int, round_: int) -> np.random.Generator:
        """Return the generator that draws the participants."""
        return generator(seed, "sample", round_)

    # ------------------------------------------------------------------ client rule

    def round_randomness(self, context: ClientContext, seed: int, client: int) -> Tensors:
        """Return random tensors of ``client`` for this round: ``context.round_randomness``."""
        return {}

    def initial_client_state(self, context: ClientContext) -> Tensors:
        """Return the state of a client that has never trained; ``context.state`` is empty."""
        return {}

    def initial_params(self, context: ClientContext) -> Mapping[str, Tensor]:
        """Return the parameters from which the client starts: theta.

        A client that keeps state is also evaluated with them; then of ``context`` only ``global_params``,
        ``state`` and ``normalisation`` are set.
        """
        return context.global_params

    def loss(
        self, network: Network, params: Mapping[str, Tensor], batch: Batch, context: ClientContext
    ) -> Tensor:
        """Return the local objective on one batch: the task's mean loss."""
        return network.loss(network.outputs(params, batch.inputs), batch.targets, batch.mask)

    def gradient(
        self,
        differentiate: Differentiate,
        params: Mapping[str, Tensor],
        batch: Batch,
        context: ClientContext,
    ) -> tuple[Tensors, Tensor]:
        """Return the direction that a local step descends, and the objective's value.

        The direction may have further names, for ``step_state``; parameters among them are cloned. What
        is returned is a constant in later steps.
        """
        return differentiate(params, batch)

    def step_state(
        self, params: Mapping[str, Tensor], direction: Tensors, context: ClientContext
    ) -> Tensors:
        """Return ``context.step_state`` for the next step; ``params`` are those after this step.

        The next step may change ``params`` in place: what is to last is cloned.
        """
        return {}

    def finalize(
        self, params: Mapping[str, Tensor], context: ClientContext, steps: int | Tensor
    ) -> ClientExtras:
        """Return the client's upload and state after ``steps`` local steps (a scalar).

        The upload has the same tensors whatever ``steps`` is; after none ``context.step_state`` is empty.
        """
        return ClientExtras()

    def upload_bounds(self, context: ClientContext) -> Mapping[str, float]:
        """Return upper bounds on the scalars that ``finalize`` uploads, by name.

        The server rejects a scalar above its bound or below 0. Only ``context.steps``, ``momentum`` and
        ``nesterov`` are set. Scalars that are not named are unbounded.
        """
        return {}

    def update_bound(self, state: Mapping[str, Tensor]) -> float:
        """Return the largest L2 norm of an update, by the server's state; the server rejects more."""
        return math.inf

    # ------------------------------------------------------------------ server rule

    def start(self, theta: Mapping[str, Tensor]) -> Tensors:
        """Return the server's state before the first round; these tensors keep shape and type."""
        return {}

    def broadcast(self, state: Mapping[str, Tensor]) -> Tensors:
        """Return the tensors that clients are sent besides theta."""
        return {}

    def aggregate(self, updates: Sequence[Tensors], weights: Sequence[float]) -> Tensors:
        """Return the aggregate of single clients' updates, in client order.

        Called with ``reply = "each"``, and with ``record-updates``, where this must be the mean.
        """
        return weighted_mean(updates, weights)

    @property
    def takes_mean_model(self) -> bool:
        """Whether theta becomes the mean model with Option II, whatever the server learning rate is."""
        return type(self).apply is Algorithm.apply

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
        if step.plan.update == "model":
            return mean, state
        return add(theta, mean, step.server_learning_rate), state

    def report(self, state: Mapping[str, Tensor]) -> dict[str, float]:
        """Return the algorithm's own metrics of a round, by name, from the new server state."""
        return {}


def mean_update(theta: Mapping[str, Tensor], mean: Tensors, step: ServerStep) -> Tensors:
    """Return the mean Delta_k, from Delta_k (Option I) or theta_k (Option II)."""
    return mean if step.plan.update == "delta" else add(mean, theta, -1.0)


def algorithm_of(config: ServerConfig) -> Algorithm:
    """Return the algorithm that ``config`` names, with its hyper-parameters."""
    return cast("Algorithm", config.component("algorithm"))
