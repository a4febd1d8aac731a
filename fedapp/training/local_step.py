"""One local step as a pure function of named tensors, as the batched trainer runs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.func import grad_and_value

from fedapp.training.algorithm import Algorithm, Batch, Objective, Turn
from fedapp.training.networks import PureNetwork
from fedapp.training.round_plan import LocalPlan
from fedapp.training.tensors import Tensors, add, norm, scaled


@dataclass(frozen=True)
class Walker:
    """A client between two local steps: where it is, its momentum, what its algorithm remembers."""

    params: Tensors
    velocity: Tensors
    memory: Tensors


def local_step(
    algorithm: Algorithm,
    network: PureNetwork,
    plan: LocalPlan,
    walker: Walker,
    batch: Batch,
    turn: Turn,
) -> tuple[Walker, Tensor]:
    """Return the client after one step on ``batch``, and the objective's value before it.

    ``turn.learning_rate`` is eta; ``plan`` says the rest. The arithmetic is that of
    ``sequential.LocalOptimizer``; a velocity of zeros is the one before the first step.
    """
    turn = replace(turn, memory=walker.memory)

    def differentiate(
        params: Mapping[str, Tensor], batch: Batch, objective: Objective | None = None
    ) -> tuple[Tensors, Tensor]:
        rule = objective or algorithm.loss
        return grad_and_value(lambda at: rule(network, at, batch, turn))(dict(params))

    direction, loss = algorithm.gradient(differentiate, walker.params, batch, turn)
    step, velocity = _descent(plan, walker, {name: direction[name] for name in walker.params})
    params = add(walker.params, step, -turn.learning_rate)
    return Walker(params, velocity, algorithm.remember(params, direction, turn)), loss


def _descent(plan: LocalPlan, walker: Walker, direction: Tensors) -> tuple[Tensors, Tensors]:
    """Return what is subtracted, times eta, and the next velocity."""
    if plan.clip_norm:
        factor = (plan.clip_norm / (norm(direction) + 1e-12)).clamp(max=1.0)
        direction = scaled(direction, factor)
    if plan.weight_decay:
        direction = add(direction, walker.params, plan.weight_decay)
    if not plan.momentum:
        return direction, {}
    velocity = add(direction, walker.velocity, plan.momentum)
    return (add(direction, velocity, plan.momentum) if plan.nesterov else velocity), velocity


def settle(active: Tensor, after: Walker, before: Walker) -> Walker:
    """Return ``after`` where ``active`` (a scalar) is true, else ``before``.

    What was not there before (an algorithm's first memory) is taken as it is: every client that
    trains at all takes the first step.
    """

    def chosen(new: Tensors, old: Tensors) -> Tensors:
        return {n: torch.where(active, t, old[n]) if n in old else t for n, t in new.items()}

    return Walker(
        chosen(after.params, before.params),
        chosen(after.velocity, before.velocity),
        chosen(after.memory, before.memory),
    )
