"""The work of one node in a round: the client updates of its cohort."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedapp.config.run_config import RunConfig
from fedapp.data.dataset import Examples
from fedapp.errors import reason_of
from fedapp.training.algorithm import Algorithm, ClientContext, Tensors, WeightedMean
from fedapp.training.client_state import ClientStates, StateLocation
from fedapp.training.layout import laid_out
from fedapp.training.round_plan import LocalPlan, client_generator
from fedapp.training.tensors import which_are_finite
from fedapp.training.trainer import ClientResult, ClientTask, Trainer


@dataclass(frozen=True)
class TrainRequest:
    """What a node is asked to do in one round, with how many CPU threads.

    ``epochs`` and ``batch_size`` are E and B of the round; 0: the run's.
    """

    round: int
    clients: tuple[int, ...]
    learning_rate: float
    reply: Literal["mean", "each"]
    states: StateLocation | None = None
    threads: int = 1
    epochs: int = 0
    batch_size: int = 0


@dataclass(frozen=True)
class ClientMetrics:
    """What one client says of its turn; ``weight`` is its weight in the mean."""

    client: int
    examples: int
    weight: float
    steps: int
    loss: float
    seconds: float


@dataclass(frozen=True)
class TrainReply:
    """One node's reply, checked: mean update (or each client's), metrics, and failures by client."""

    mean: Tensors
    uploads: Tensors
    each: dict[int, Tensors]
    client_metrics: tuple[ClientMetrics, ...]
    failures: dict[int, str] = field(default_factory=dict)
    bytes: int = 0

    @property
    def weight(self) -> float:
        """Total weight of the clients in the mean."""
        return sum(metrics.weight for metrics in self.client_metrics)


def train_cohort(
    config: RunConfig,
    trainer: Trainer,
    request: TrainRequest,
    theta: Mapping[str, Tensor],
    broadcast: Mapping[str, Tensor],
    data_of: Callable[[int], Examples],
    states: ClientStates | None = None,
) -> TrainReply:
    """Train the order's clients, in ascending order, and fold their updates.

    A client that raises, or whose parameters are no longer finite, is left out of the mean and
    named in ``failures``. ``states`` is where clients keep what their algorithm keeps; without it
    every turn is a client's first.
    """
    plan = LocalPlan.of(config, request.learning_rate, request.epochs, request.batch_size)
    shared = _turn(trainer, theta, broadcast, request, plan)
    mean, uploads = WeightedMean(), WeightedMean()
    each: dict[int, Tensors] = {}
    reports: list[ClientMetrics] = []
    failures: dict[int, str] = {}
    for context in _turns(config, trainer, shared, plan, request.clients, data_of, states):
        if isinstance(context.result, Exception):
            failures[context.client] = reason_of(context.result)
            continue
        outcome = context.result
        weight = _weight(config, trainer.algorithm, outcome.examples)
        update = outcome.extras.update or _update(config, outcome.params, shared, trainer.algorithm)
        if request.reply == "each":
            each[context.client] = update
        else:
            mean.add(update, weight)
        uploads.add(outcome.extras.upload, weight)
        reports.append(
            ClientMetrics(
                context.client,
                outcome.examples,
                weight,
                outcome.steps,
                outcome.loss,
                context.seconds,
            )
        )
    return TrainReply(
        mean.mean() if mean.total_weight > 0 else {},
        uploads.mean() if uploads.total_weight > 0 else {},
        each,
        tuple(reports),
        failures,
    )


def _turn(
    trainer: Trainer,
    theta: Mapping[str, Tensor],
    broadcast: Mapping[str, Tensor],
    request: TrainRequest,
    plan: LocalPlan,
) -> ClientContext:
    """Return what is the same in the turns of all clients of the cohort, on the device."""
    global_params = {
        n: laid_out(tensor.to(trainer.device), trainer.format) for n, tensor in theta.items()
    }
    context = ClientContext(
        {**global_params, **trainer.statistics},
        {n: tensor.to(trainer.device) for n, tensor in broadcast.items()},
        learning_rate=plan.learning_rate,
        round=request.round,
        momentum=plan.momentum,
        nesterov=plan.nesterov,
        normalisation=trainer.normalisation,
    )
    return replace(context, state=trainer.algorithm.initial_client_state(context))


def starting_point(
    algorithm: Algorithm, context: ClientContext, states: ClientStates | None, client: int
) -> Mapping[str, Tensor]:
    """Return what ``client`` would start its next turn from, with what it kept in ``states``."""
    if states is None:
        return context.global_params
    first = algorithm.initial_client_state(context)
    kept = states.read(client, first)
    return algorithm.initial_params(replace(context, state=first if kept is None else kept))


@dataclass(frozen=True)
class _Taken:
    """A client's turn, taken: its outcome, or what it raised, and the seconds that it took."""

    client: int
    result: ClientResult | Exception
    seconds: float


def _turns(
    config: RunConfig,
    trainer: Trainer,
    shared: ClientContext,
    plan: LocalPlan,
    clients: Sequence[int],
    data_of: Callable[[int], Examples],
    states: ClientStates | None,
) -> Iterator[_Taken]:
    """Give the clients their turns, as many at a time as the trainer takes, in ascending order."""
    ascending = sorted(clients)
    for start in range(0, len(ascending), trainer.together):
        chunk = ascending[start : start + trainer.together]
        began = time.perf_counter()
        tasks: dict[int, ClientTask] = {}
        results: dict[int, ClientResult | Exception] = {}
        for client in chunk:
            try:
                tasks[client] = _task(
                    config, trainer, shared, plan, client, data_of(client), states
                )
            except Exception as error:
                results[client] = error
        results |= _outcomes(trainer, tasks, plan)
        seconds = (time.perf_counter() - began) / len(chunk)
        for client in chunk:
            yield _Taken(client, _kept(results[client], client, states), seconds)


def _outcomes(
    trainer: Trainer, tasks: Mapping[int, ClientTask], plan: LocalPlan
) -> dict[int, ClientResult | Exception]:
    """Return what each client's turn gives; an exception in a shared program is everybody's."""
    try:
        outcomes = trainer.client_updates(list(tasks.values()), plan)
        return _checked(dict(zip(tasks, outcomes, strict=True)))
    except Exception as error:
        return dict.fromkeys(tasks, error)


def _checked(outcomes: Mapping[int, ClientResult]) -> dict[int, ClientResult | Exception]:
    """Return the outcomes, and an error for each that is not finite; the device is waited for once."""
    error = FloatingPointError(
        "its update is not finite: training diverged (a smaller learning-rate, or clip-norm)"
    )
    finite = which_are_finite([_tensors_of(outcome) for outcome in outcomes.values()])
    return {
        client: outcome if sound and (math.isfinite(outcome.loss) or not outcome.steps) else error
        for (client, outcome), sound in zip(outcomes.items(), finite, strict=True)
    }


def _tensors_of(outcome: ClientResult) -> list[Tensor]:
    """Return all that the client would send or keep."""
    extras = outcome.extras
    parts = (outcome.params, extras.upload, extras.state, extras.update or {})
    return [tensor for part in parts for tensor in part.values()]


def _kept(
    result: ClientResult | Exception, client: int, states: ClientStates | None
) -> ClientResult | Exception:
    """Return the outcome, and keep the client's state; or else what is wrong with them."""
    if isinstance(result, Exception):
        return result
    try:
        if states is not None and result.extras.state and result.steps:
            states.write(client, result.extras.state)
    except Exception as error:
        return error
    return result


def _task(
    config: RunConfig,
    trainer: Trainer,
    shared: ClientContext,
    plan: LocalPlan,
    client: int,
    examples: Examples,
    states: ClientStates | None,
) -> ClientTask:
    """Return what the trainer needs to know of one client's turn."""
    context = replace(shared, steps=plan.num_steps(len(examples)))
    context = _own_turn(context, trainer, examples, states, client)
    context = replace(
        context, round_randomness=trainer.algorithm.round_randomness(context, config.seed, client)
    )
    return ClientTask(context, examples, client_generator(config.seed, shared.round, client))


def _own_turn(
    context: ClientContext,
    trainer: Trainer,
    examples: Examples,
    states: ClientStates | None,
    client: int,
) -> ClientContext:
    """Return the turn with what the client kept, and with what it knows of its data."""
    if states is not None and trainer.algorithm.keeps_state:
        kept = states.read(client, context.state)
        if kept is not None:
            kept = {name: tensor.to(trainer.device) for name, tensor in kept.items()}
            context = replace(context, state=kept)
    if "classes" in trainer.algorithm.needs:
        context = replace(context, label_counts=_label_counts(trainer, examples))
    return context


def _label_counts(trainer: Trainer, examples: Examples) -> Tensor:
    """Return how many targets of each class there are: [C]."""
    counted = examples.targets[examples.targets >= 0].astype(np.int64)
    counts = np.bincount(counted, minlength=trainer.num_classes)
    return torch.as_tensor(counts, dtype=trainer.dtype, device=trainer.device)


def _update(
    config: RunConfig, params: Tensors, context: ClientContext, algorithm: Algorithm
) -> Tensors:
    """Return Delta_k = theta_k - theta (Option I) or theta_k (Option II).

    Normalisation layers that stay with the client are as they were in theta.
    """
    global_params = context.global_params
    if algorithm.own_normalisation:
        own = params.keys() & context.normalisation
        params = {name: global_params[name] if name in own else params[name] for name in params}
    if config.update == "model":
        return params
    differences = torch._foreach_sub(
        list(params.values()), [global_params[name] for name in params]
    )
    return dict(zip(params, differences, strict=True))


def _weight(config: RunConfig, algorithm: Algorithm, examples: int) -> float:
    """Return n_k, or 1; to a rule over single updates, a client without examples has none to say."""
    if config.weighting == "examples":
        return float(examples)
    return 1.0 if algorithm.reply == "mean" else float(examples > 0)
