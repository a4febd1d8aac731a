"""A local step of one client or several as a pure function of named tensors, for the batched trainer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from fedapp.training.algorithm import Algorithm, Batch, ClientContext, Objective
from fedapp.training.networks import PureNetwork
from fedapp.training.round_plan import RoundPlan
from fedapp.training.tensors import Groups, Tensors, add, norm, scaled, zeros_like

Step = Callable[[Groups], dict[str, Tensors]]


@dataclass(frozen=True)
class LocalState:
    """A client between two local steps: parameters, momentum, and the algorithm's step state."""

    params: Tensors
    velocity: Tensors
    step_state: Tensors


def local_step(
    algorithm: Algorithm,
    network: PureNetwork,
    plan: RoundPlan,
    local_state: LocalState,
    batch: Batch,
    context: ClientContext,
) -> tuple[LocalState, Tensor]:
    """Return the state after one step on ``batch``, and the objective's value before it.

    ``context.learning_rate`` is eta; ``plan`` has the optimizer's other settings. The arithmetic is that
    of ``sequential.LocalOptimizer``; the velocity before the first step is zero.
    """
    context = replace(context, step_state=local_state.step_state)

    def differentiate(
        params: Mapping[str, Tensor], batch: Batch, objective: Objective | None = None
    ) -> tuple[Tensors, Tensor]:
        rule = objective or algorithm.loss
        return grad_and_value(lambda at: rule(network, at, batch, context))(dict(params))

    direction, loss = algorithm.gradient(differentiate, local_state.params, batch, context)
    step, velocity = _descent(
        plan, local_state, {name: direction[name] for name in local_state.params}
    )
    params = add(local_state.params, step, -context.learning_rate)
    return LocalState(params, velocity, algorithm.step_state(params, direction, context)), loss


def _descent(
    plan: RoundPlan, local_state: LocalState, direction: Tensors
) -> tuple[Tensors, Tensors]:
    """Return the descent direction and the next velocity."""
    if plan.clip_norm:
        factor = (plan.clip_norm / (norm(direction) + 1e-12)).clamp(max=1.0)
        direction = scaled(direction, factor)
    if plan.weight_decay:
        direction = add(direction, local_state.params, plan.weight_decay)
    if not plan.momentum:
        return direction, {}
    velocity = add(direction, local_state.velocity, plan.momentum)
    return (add(direction, velocity, plan.momentum) if plan.nesterov else velocity), velocity


def where_active(active: Tensor, after: LocalState, before: LocalState) -> LocalState:
    """Return ``after`` where ``active`` (a scalar) is true, else ``before``.

    Tensors that ``before`` lacks (the first step state) are those of ``after``: every client that
    trains takes the first step.
    """

    def chosen(new: Tensors, old: Tensors) -> Tensors:
        return {n: torch.where(active, t, old[n]) if n in old else t for n, t in new.items()}

    return LocalState(
        chosen(after.params, before.params),
        chosen(after.velocity, before.velocity),
        chosen(after.step_state, before.step_state),
    )


def groups_of(
    algorithm: Algorithm, contexts: Sequence[ClientContext], plan: RoundPlan, dtype: torch.dtype
) -> dict[str, Sequence[Mapping[str, Tensor]]]:
    """Return each client's tensors by group, but for the batch and the step state."""
    params = [algorithm.initial_params(context) for context in contexts]
    velocity = zeros_like(params[0]) if plan.momentum else {}
    counts = [{} if c.label_counts is None else {"counts": c.label_counts} for c in contexts]
    rates = [torch.as_tensor(context.learning_rate, dtype=dtype) for context in contexts]
    return {
        "params": params,
        "velocity": [velocity] * len(contexts),
        "global_params": [context.global_params for context in contexts],
        "broadcast": [context.broadcast for context in contexts],
        "state": [context.state for context in contexts],
        "round_randomness": [context.round_randomness for context in contexts],
        "labels": counts,
        "rate": [{"rate": rate} for rate in rates],
    }


def step_of_groups(
    algorithm: Algorithm, network: PureNetwork, plan: RoundPlan, normalisation: frozenset[str]
) -> Step:
    """Return a client's local step as a function of groups of tensors.

    Given are the groups of ``groups_of``, step_state and batch; a client for which the batch's scalar
    ``active`` is false stays as it is. Returned are params, velocity, step_state and loss.
    """

    def step(groups: Groups) -> dict[str, Tensors]:
        given = groups["batch"]
        batch = Batch(given["inputs"], given["targets"], given["mask"])
        before = LocalState(*(dict(groups[g]) for g in ("params", "velocity", "step_state")))
        context = ClientContext(
            groups["global_params"],
            groups["broadcast"],
            groups["state"],
            learning_rate=groups["rate"]["rate"],
            momentum=plan.momentum,
            nesterov=plan.nesterov,
            weight_decay=plan.weight_decay,
            label_counts=groups["labels"].get("counts"),
            normalisation=normalisation,
            round_randomness=groups["round_randomness"],
        )
        after, loss = local_step(algorithm, network, plan, before, batch, context)
        if "active" in given:
            after = where_active(given["active"], after, before)
        return {**vars(after), "loss": {"loss": loss}}

    return step


def over_clients(step: Step, shared: Collection[str]) -> Step:
    """Return ``step`` over the rows of all groups but the ``shared`` ones."""

    def batched(groups: Groups) -> dict[str, Tensors]:
        dims = {group: None if group in shared else 0 for group in groups}
        return vmap(step, in_dims=(dims,))(groups)

    return batched


def in_place(step: Step) -> Step:
    """Return ``step`` with the next params and velocity written over those that it is given."""

    def stepped(groups: Groups) -> dict[str, Tensors]:
        after = step(groups)
        for group in ("params", "velocity"):
            for name, tensor in after.pop(group).items():
                groups[group][name].copy_(tensor)
        return after

    return stepped
