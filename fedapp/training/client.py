"""The work of one node in a round: the client updates of its cohort."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from fedapp.data.dataset import Examples
from fedapp.errors import reason_of
from fedapp.training.algorithm import Algorithm, ClientContext, Tensors
from fedapp.training.client_state import ClientStates, StateLocation
from fedapp.training.device import to_memory_format
from fedapp.training.round_plan import RoundPlan, client_generator
from fedapp.training.tensors import WeightedMean, which_are_finite
from fedapp.training.trainer import CaptureError, ClientResult, ClientTask, Trainer, restoring


@dataclass(frozen=True)
class TrainRequest:
    """A server's request to a node: the round's plan, its clients, and where their states are."""

    plan: RoundPlan
    clients: tuple[int, ...]
    states: StateLocation | None = None


@dataclass(frozen=True)
class ClientMetrics:
    """One client's metrics of a round; ``weight`` is its weight in the mean."""

    client: int
    examples: int
    weight: float
    steps: int
    loss: float
    seconds: float


@dataclass(frozen=True)
class TrainReply:
    """One node's reply: mean update (or each client's), metrics, and failures by client.

    ``failures``: of clients that raised, on the node. ``rejected``: kind and reason, of clients whose
    own update is rejected. The server sets it, and ``bytes``, when it checks a reply.
    """

    mean: Tensors
    uploads: Tensors
    each: dict[int, Tensors]
    client_metrics: tuple[ClientMetrics, ...]
    failures: dict[int, str] = field(default_factory=dict)
    bytes: int = 0
    rejected: dict[int, tuple[str, str]] = field(default_factory=dict)

    @property
    def weight(self) -> float:
        """Total weight of the clients in the mean."""
        return sum(metrics.weight for metrics in self.client_metrics)


def train_cohort(
    trainer: Trainer,
    request: TrainRequest,
    theta: Mapping[str, Tensor],
    broadcast: Mapping[str, Tensor],
    data_of: Callable[[int], Examples],
    states: ClientStates | None = None,
) -> TrainReply:
    """Train the requested clients, in ascending order, and average their updates.

    A client that raises, or whose parameters are not finite, is left out of the mean and named in
    ``failures``. ``states`` reads and writes the clients' state; without it every client starts from
    ``Algorithm.initial_client_state``.
    """
    plan = request.plan
    shared = shared_context(trainer, theta, broadcast, plan)
    mean, uploads = WeightedMean(), WeightedMean()
    each: dict[int, Tensors] = {}
    client_metrics: list[ClientMetrics] = []
    failures: dict[int, str] = {}
    done = _client_updates(trainer, shared, plan, request.clients, data_of, states)
    for client, result, seconds in done:
        if isinstance(result, Exception):
            failures[client] = reason_of(result)
            continue
        weight = _weight(plan, trainer.algorithm, result.examples)
        update = result.extras.update or update_of(plan, result.params, shared, trainer.algorithm)
        if plan.reply == "each":
            each[client] = update
        else:
            mean.add(update, weight)
        uploads.add(result.extras.upload, weight)
        client_metrics.append(
            ClientMetrics(client, result.examples, weight, result.steps, result.loss, seconds)
        )
    return TrainReply(mean.mean(), uploads.mean(), each, tuple(client_metrics), failures)


def shared_context(
    trainer: Trainer,
    theta: Mapping[str, Tensor],
    broadcast: Mapping[str, Tensor],
    plan: RoundPlan,
) -> ClientContext:
    """Return the part of the context that all clients of the cohort share, on the device."""
    global_params = {
        n: to_memory_format(tensor.to(trainer.device), trainer.memory_format)
        for n, tensor in theta.items()
    }
    context = ClientContext(
        {**global_params, **trainer.statistics},
        _on_device(trainer, broadcast),
        learning_rate=plan.learning_rate,
        round=plan.round,
        momentum=plan.momentum,
        nesterov=plan.nesterov,
        weight_decay=plan.weight_decay,
        normalisation=trainer.normalisation,
    )
    state = trainer.algorithm.initial_client_state(context)
    return replace(context, state=_on_device(trainer, state))


def _on_device(trainer: Trainer, tensors: Mapping[str, Tensor]) -> Tensors:
    return {name: tensor.to(trainer.device) for name, tensor in tensors.items()}


def initial_client_params(
    algorithm: Algorithm, context: ClientContext, states: ClientStates | None, client: int
) -> Mapping[str, Tensor]:
    """Return the parameters from which ``client``, with its stored state, would start to train."""
    if states is None:
        return context.global_params
    initial = algorithm.initial_client_state(context)
    state = states.read(client, initial)
    return algorithm.initial_params(replace(context, state=initial if state is None else state))


def is_personalised(algorithm: Algorithm) -> bool:
    """Return whether a client starts from its own state, with which it is then evaluated too."""
    return algorithm.keeps_state and type(algorithm).initial_params is not Algorithm.initial_params


def _client_updates(
    trainer: Trainer,
    shared: ClientContext,
    plan: RoundPlan,
    clients: Sequence[int],
    data_of: Callable[[int], Examples],
    states: ClientStates | None,
) -> Iterator[tuple[int, ClientResult | Exception, float]]:
    """Train the clients in ascending order, as many at a time as the trainer takes.

    Yields each client with its result, or the exception that it raised, and its share of the seconds.
    """
    ascending = sorted(clients)
    for start in range(0, len(ascending), trainer.clients_together):
        chunk = ascending[start : start + trainer.clients_together]
        began = time.perf_counter()
        tasks: dict[int, ClientTask] = {}
        results: dict[int, ClientResult | Exception] = {}
        for client in chunk:
            try:
                tasks[client] = client_task(trainer, shared, plan, client, data_of(client), states)
            except Exception as error:
                results[client] = error
        results |= _train(trainer, tasks, plan)
        seconds = (time.perf_counter() - began) / len(chunk)
        for client in chunk:
            yield client, _store_state(results[client], client, states), seconds


def _train(
    trainer: Trainer, tasks: Mapping[int, ClientTask], plan: RoundPlan
) -> dict[int, ClientResult | Exception]:
    """Return the clients' results; where they raise together, of each alone, to find the one at fault.

    After an incomplete capture nothing is retried: the error is every client's.
    """
    try:
        with restoring(tasks.values()):
            results = trainer.client_updates(list(tasks.values()), plan)
        return _check_finite(dict(zip(tasks, results, strict=True)))
    except Exception as error:
        if len(tasks) == 1 or isinstance(error, CaptureError):
            return dict.fromkeys(tasks, error)
    separate: dict[int, ClientResult | Exception] = {}
    for client, task in tasks.items():
        separate |= _train(trainer, {client: task}, plan)
    return separate


def _check_finite(results: Mapping[int, ClientResult]) -> dict[int, ClientResult | Exception]:
    """Return the results, with an error for each that is not finite; synchronises the device once."""
    error = FloatingPointError(
        "its update is not finite: training diverged (a smaller learning-rate, or clip-norm)"
    )
    finite = which_are_finite([_tensors_of(result) for result in results.values()])
    return {
        client: result if sound and (math.isfinite(result.loss) or not result.steps) else error
        for (client, result), sound in zip(results.items(), finite, strict=True)
    }


def _tensors_of(result: ClientResult) -> list[Tensor]:
    """Return all tensors that the client would send or store."""
    extras = result.extras
    parts = (result.params, extras.upload, extras.state, extras.update or {})
    return [tensor for part in parts for tensor in part.values()]


def _store_state(
    result: ClientResult | Exception, client: int, states: ClientStates | None
) -> ClientResult | Exception:
    """Write the client's state, and return the result, or the exception that writing raised."""
    if isinstance(result, Exception):
        return result
    try:
        if states is not None and result.extras.state and result.steps:
            states.write(client, result.extras.state)
    except Exception as error:
        return error
    return result


def client_task(
    trainer: Trainer,
    shared: ClientContext,
    plan: RoundPlan,
    client: int,
    examples: Examples,
    states: ClientStates | None,
) -> ClientTask:
    """Return the trainer's task for one client."""
    algorithm, context = trainer.algorithm, replace(shared, steps=plan.num_steps(len(examples)))
    if states is not None and algorithm.keeps_state:
        state = states.read(client, shared.state)
        if state is not None:
            context = replace(context, state=_on_device(trainer, state))
    if "classes" in algorithm.needs:
        context = replace(context, label_counts=_label_counts(trainer, examples))
    randomness = algorithm.round_randomness(context, plan.seed, client)
    context = replace(context, round_randomness=_on_device(trainer, randomness))
    return ClientTask(context, examples, client_generator(plan.seed, plan.round, client))


def _label_counts(trainer: Trainer, examples: Examples) -> Tensor:
    """Return the number of targets of each class: [C]."""
    labels = examples.targets[examples.targets >= 0].astype(np.int64)
    counts = np.bincount(labels, minlength=trainer.num_classes)
    return torch.as_tensor(counts, dtype=trainer.dtype, device=trainer.device)


def update_of(
    plan: RoundPlan, params: Tensors, context: ClientContext, algorithm: Algorithm
) -> Tensors:
    """Return Delta_k = theta_k - theta (Option I) or theta_k (Option II).

    With ``own_normalisation`` the tensors of normalisation layers are theta's.
    """
    global_params = context.global_params
    if algorithm.own_normalisation:
        own = params.keys() & context.normalisation
        params = {name: global_params[name] if name in own else params[name] for name in params}
    if plan.update == "model":
        return params
    differences = torch._foreach_sub(
        list(params.values()), [global_params[name] for name in params]
    )
    return dict(zip(params, differences, strict=True))


def _weight(plan: RoundPlan, algorithm: Algorithm, examples: int) -> float:
    """Return n_k, or 1; 0 for a client without examples where single updates are aggregated."""
    if plan.weighting == "examples":
        return float(examples)
    return 1.0 if algorithm.reply == "mean" else float(examples > 0)
