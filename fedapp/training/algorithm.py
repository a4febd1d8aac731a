"""What an algorithm is: a client rule and a server rule, as pure functions of named tensors.

Both trainers call the client rule, the strategy calls the server rule; neither knows any
algorithm by name. A new algorithm is one file in ``strategies/`` with one subclass of
:class:`Algorithm` that overrides what differs from federated averaging.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, Protocol

import numpy as np
from torch import Tensor

from fedapp.analysis.privacy import Privacy
from fedapp.config.registry import Component
from fedapp.config.run_config import RunConfig, kebab, participants
from fedapp.data.dataset import Task
from fedapp.errors import ConfigError
from fedapp.seeds import generator
from fedapp.training.batches import Batch
from fedapp.training.tensors import Tensors, add, weighted_mean

__all__ = [
    "Algorithm",
    "Batch",
    "ClientContext",
    "ClientExtras",
    "Differentiate",
    "Network",
    "Objective",
    "ServerStep",
    "Tensors",
    "mean_update",
]


class Network(Protocol):
    """The network as a function of its parameters, and the task's loss."""

    def outputs(self, params: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        """Return the logits: [b, C] or [b, C, T]."""
        ...

    def features(self, params: Mapping[str, Tensor], inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits and the representation: what the last linear layer is given."""
        ...

    def loss(self, outputs: Tensor, targets: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the mean loss over the targets that count: a scalar."""
        ...


@dataclass(frozen=True)
class ClientContext:
    """What is constant while one client trains in one round.

    ``global_params``: theta as received, and the initial running statistics of a network that has
    any. ``broadcast``: what else the server sends. ``state``: what the client kept from the last round
    in which it trained (``Algorithm.initial_client_state`` before the first). ``step_state``: what
    ``Algorithm.step_state`` carries from one local step to the next. ``round_randomness``: the result
    of ``Algorithm.round_randomness``. ``learning_rate``, ``momentum``, ``nesterov``: of the local
    optimizer; eta is a tensor where several clients train in one compiled step. ``round`` and
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
    label_counts: Tensor | None = None
    normalisation: frozenset[str] = frozenset()
    step_state: Mapping[str, Tensor] = field(default_factory=dict)
    round_randomness: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class ClientExtras:
    """What a client's turn leaves behind besides its parameters.

    ``upload`` is averaged over the clients by the server with the same weights as the updates;
    ``state`` is kept for the client's next turn; ``update`` is sent in place of Delta_k or theta_k
    (with the parameters' names, shapes and types) by an algorithm with ``custom_update = True``.
    """

    upload: Tensors = field(default_factory=dict)
    state: Tensors = field(default_factory=dict)
    update: Tensors | None = None


@dataclass(frozen=True)
class ServerStep:
    """What the server rule may use besides tensors.

    ``share`` is the part of all clients' weight that took part in this round: |S_t| / K with
    uniform weighting, sum over S_t of n_k / n with weighting by examples. ``num_clients`` is K,
    ``fraction`` C; ``participants`` clients replied well and have a weight; ``seed`` is the run's.
    """

    round: int
    learning_rate: float
    server_learning_rate: float
    update: Literal["delta", "model"]
    num_clients: int
    participants: int
    share: float
    fraction: float = 1.0
    seed: int = 0


Objective = Callable[[Network, Mapping[str, Tensor], Batch, ClientContext], Tensor]
"""(network, params, batch, turn) to a scalar, as ``Algorithm.loss``."""


class Differentiate(Protocol):
    """What a trainer gives an algorithm to take gradients with."""

    def __call__(
        self, params: Mapping[str, Tensor], batch: Batch, objective: Objective | None = None
    ) -> tuple[Tensors, Tensor]:
        """Return the gradient of the objective (None: the local one), and its value, no graph."""
        ...


Drift = Literal["", "path", "landscape", "both"]
Need = Literal["classes", "features"]


class Algorithm(Component):
    """Federated averaging; subclasses override the parts in which they differ.

    The fields of a subclass are its hyper-parameters (run-config keys ``<name>.<field>``). Client
    rules are pure functions of tensors, without branches on their values, so that they also run
    under ``torch.func.vmap`` and ``torch.func.grad``.
    """

    reply: ClassVar[Literal["mean", "each"]] = "mean"
    """What a node sends: the weighted mean of its cohort's updates, or each client's update."""

    custom_update: ClassVar[bool] = False
    """Whether clients send something of their own, ``ClientExtras.update``, whatever ``update`` is.

    It is treated as an update, not as a model: the server rule sees ``step.update = "delta"``.
    """

    default_weighting: ClassVar[Literal["examples", "uniform"]] = "examples"
    """What ``weighting = "auto"`` stands for."""

    default_server_learning_rate: ClassVar[float] = 1.0
    """What ``server-learning-rate = 0`` stands for."""

    one_gradient: ClassVar[bool] = False
    """Whether a client computes one gradient of all its examples, and u is 1; B only divides the work."""

    keeps_state: ClassVar[bool] = False
    """Whether clients keep tensors from one turn to the next."""

    own_normalisation: ClassVar[bool] = False
    """Whether normalisation layers stay with the clients, weights and running statistics.

    Then no change of theirs is sent, a network may have BatchNorm, and the clients test it.
    """

    may_be_infinite: ClassVar[frozenset[str]] = frozenset()
    """Names of the server's state that may be infinite; where another is, the round changes nothing."""

    by_coin: ClassVar[bool] = False
    """Whether each client takes part by a coin of its own, which falls its way with probability C.

    The server rule is then applied in every round, to what came, and that may be nothing.
    """

    needs: ClassVar[frozenset[Need]] = frozenset()
    """What the task must have: "classes" (a label an output) or "features" (a last linear layer)."""

    source: ClassVar[str] = "McMahan et al. 2017, Algorithm 1"
    """Paper and equation, for the tables."""

    against_drift: ClassVar[Drift] = ""
    """Which strategy against client drift it is, of the two of Seo et al. 2024, section 5.

    It adjusts the "path" of updates, modifies the clients' loss "landscape", or does "both"; empty: it
    is not made against drift.
    """

    sends: ClassVar[str] = "Δ_k or θ_k"
    """What a client sends, for the tables."""

    keeps: ClassVar[str] = ""
    """What a client keeps between its turns, for the tables."""

    fedavg_equivalent: ClassVar[Mapping[str, bool | int | float | str] | None] = None
    """Hyper-parameters at which it is federated averaging; None: it has no such setting.

    Empty: it is so by the data or the model alone, as ``fedavg_equivalent_by`` says.
    """

    fedavg_equivalent_by: ClassVar[str] = ""
    """What else it takes to be federated averaging (of data, model or weighting), for the tables."""

    exact: ClassVar[bool] = True
    """Whether it converges to the optimum of the quadratic whose clients differ in b alone."""

    def require_fit(self, task: Task) -> None:
        """Raise ConfigError if the task lacks what this algorithm needs."""
        if self.needs and task.kind == "quadratic":
            raise ConfigError(
                f"algorithm = {self.name!r}: needs examples with labels, and this data set holds "
                "quadratic functions. Choose another dataset, for example dataset='digits', or "
                "algorithm='fedavg'."
            )

    @property
    def min_updates(self) -> int:
        """Fewest clients' updates from which the server rule makes something."""
        return 1

    @property
    def personalised(self) -> bool:
        """Whether a client's turn starts from what it kept, by which the client is then tested too."""
        return self.keeps_state and type(self).initial_params is not Algorithm.initial_params

    def config_errors(self, config: RunConfig) -> Iterable[str]:
        """Say if fewer clients train a round than the server rule needs."""
        clients = participants(config.fraction_train, config.num_clients)
        if config.num_clients and clients < self.min_updates:
            own = [
                f"{self.name}.{kebab(field)} (now {getattr(self, field)})"
                for field in type(self).model_fields
            ]
            yield (
                f"algorithm = {self.name!r}: needs updates from {self.min_updates} clients a round, and "
                f"only {clients} train (max(floor(fraction-train * num-clients), 1)). Raise "
                f"fraction-train or num-clients, or lower {' or '.join(own)}."
            )

    def privacy(self, config: RunConfig) -> Privacy | None:
        """Return which differential privacy a run promises; None: it promises none."""
        return None

    def require_clients(self, config: RunConfig, clients: int) -> None:
        """Raise ConfigError if K is too small, where it is known only when nodes have connected."""

    def coins(self, seed: int, round_: int) -> np.random.Generator:
        """Return the generator of the clients' coins, with ``by_coin``."""
        return generator(seed, "sample", round_)

    # ------------------------------------------------------------------ client rule

    def round_randomness(self, context: ClientContext, seed: int, client: int) -> Tensors:
        """Return what ``client`` draws for this round: ``context.round_randomness``."""
        return {}

    def initial_client_state(self, context: ClientContext) -> Tensors:
        """Return the state of a client that has never had a turn; ``context.state`` is empty."""
        return {}

    def initial_params(self, context: ClientContext) -> Mapping[str, Tensor]:
        """Return the parameters from which the client starts: theta."""
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

        The direction may hold further names besides the parameters', for ``step_state``.
        """
        return differentiate(params, batch)

    def step_state(
        self, params: Mapping[str, Tensor], direction: Tensors, context: ClientContext
    ) -> Tensors:
        """Return ``context.step_state`` for the next step; ``params`` are those after this step."""
        return {}

    def finalize(
        self, params: Mapping[str, Tensor], context: ClientContext, steps: int | Tensor
    ) -> ClientExtras:
        """Return what the client uploads and keeps after ``steps`` local steps (a scalar)."""
        return ClientExtras()

    def upload_like(self, theta: Mapping[str, Tensor], broadcast: Mapping[str, Tensor]) -> Tensors:
        """Return tensors of the names, shapes and types that ``finalize`` uploads."""
        context = ClientContext(theta, broadcast, learning_rate=1.0)
        context = replace(
            context,
            state=self.initial_client_state(context),
            round_randomness=self.round_randomness(context, 0, 0),
        )
        return self.finalize(theta, context, 1).upload

    def largest(self, context: ClientContext) -> Mapping[str, float]:
        """Return the largest number of a client that takes ``context.steps`` local steps, by its name.

        Of the numbers that ``finalize`` uploads: the server refuses one above it, and one below 0. Only
        ``context.steps``, ``momentum`` and ``nesterov`` are known. What is not named may be any number.
        """
        return {}

    # ------------------------------------------------------------------ server rule

    def start(self, theta: Mapping[str, Tensor]) -> Tensors:
        """Return the server's state before the first round."""
        return {}

    def broadcast(self, state: Mapping[str, Tensor]) -> Tensors:
        """Return what the clients are sent besides theta."""
        return {}

    def aggregate(self, updates: Sequence[Tensors], weights: Sequence[float]) -> Tensors:
        """Combine single clients' updates, in client order.

        Only with ``reply = "each"``, or with ``record-updates``, for which this must stay the mean.
        """
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
        return add(theta, mean, step.server_learning_rate), state

    def report(self, state: Mapping[str, Tensor], step: ServerStep) -> dict[str, float]:
        """Return what a round's record says of the algorithm, by name."""
        return {}


def mean_update(theta: Mapping[str, Tensor], mean: Tensors, step: ServerStep) -> Tensors:
    """Return the mean Delta_k, whether clients send Delta_k (Option I) or theta_k (Option II)."""
    return mean if step.update == "delta" else add(mean, theta, -1.0)
