"""The sequential trainer: ClientUpdate, one client after another. It is the reference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedapp.data.base import Examples
from fedapp.data.transforms.base import Transform
from fedapp.models.base import Model
from fedapp.training.algorithm import Algorithm, Batch, Finish, Tensors, Turn
from fedapp.training.batches import batches
from fedapp.training.plan import LocalPlan


@dataclass(frozen=True)
class Outcome:
    """What one turn of one client gives.

    ``params``: theta_k. ``loss``: mean over the local steps of the local objective, weighted by
    batch sizes (nan where a client has no examples).
    """

    params: Tensors
    examples: int
    steps: int
    loss: float
    finish: Finish


class LiveNetwork:
    """A module as a function of its parameters, quick for the parameters that it holds itself."""

    def __init__(self, module: nn.Module, model: Model) -> None:
        self.module = module
        self.loss = model.loss
        self.params: Tensors = dict(module.named_parameters())

    def outputs(self, params: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        """Return the logits at ``params``: [b, C] or [b, C, T]."""
        if params is self.params:
            return self.module(inputs)  # type: ignore[no-any-return]
        return functional_call(self.module, dict(params), (inputs,))  # type: ignore[no-any-return]


class LocalOptimizer:
    """Plain SGD in place, with momentum, Nesterov's form, weight decay and clipping as set.

    PyTorch's conventions: v = mu * v + g with v = g at the first step, then g + mu * v for
    Nesterov. It starts afresh in every turn.
    """

    def __init__(self, plan: LocalPlan) -> None:
        self.plan = plan
        self.velocity: list[Tensor] = []

    def step(self, params: list[Tensor], direction: list[Tensor]) -> None:
        """Descend along ``direction`` by one step."""
        plan = self.plan
        if plan.clip_norm:
            norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(direction)))
            factor = (plan.clip_norm / (norm + 1e-12)).clamp(max=1.0)
            direction = list(torch._foreach_mul(direction, factor))
        if plan.weight_decay:
            direction = list(torch._foreach_add(direction, params, alpha=plan.weight_decay))
        if plan.momentum:
            direction = self._with_momentum(direction)
        torch._foreach_add_(params, direction, alpha=-plan.learning_rate)

    def _with_momentum(self, direction: list[Tensor]) -> list[Tensor]:
        if self.velocity:
            torch._foreach_mul_(self.velocity, self.plan.momentum)
            torch._foreach_add_(self.velocity, direction)
        else:
            self.velocity = [tensor.clone() for tensor in direction]
        if not self.plan.nesterov:
            return self.velocity
        return list(torch._foreach_add(direction, self.velocity, alpha=self.plan.momentum))


class SequentialTrainer:
    """Trains clients one after another with one module, whose weights are set for each turn."""

    def __init__(
        self,
        module: nn.Module,
        model: Model,
        algorithm: Algorithm,
        transform: Transform,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.network = LiveNetwork(module.to(device=device, dtype=dtype).train(), model)
        self.algorithm = algorithm
        self.transform = transform
        self.device = device
        self.dtype = dtype

    def client_update(
        self, turn: Turn, examples: Examples, plan: LocalPlan, rng: np.random.Generator
    ) -> Outcome:
        """Run ClientUpdate (McMahan et al. 2017, Algorithm 1) and return theta_k.

        ``turn.anchor`` is theta; ``examples`` the client's own; ``rng`` its generator of this
        round, from which the order of the examples and the transform's draws come.
        """
        live = self.network.params
        values = list(live.values())
        with torch.no_grad():
            torch._foreach_copy_(values, [turn.anchor[name] for name in live])
        optimizer = LocalOptimizer(plan)
        losses: list[Tensor] = []
        sizes: list[int] = []
        for batch in batches(examples, plan, rng, self.transform, self.device, self.dtype):
            direction, loss = self.algorithm.gradient(
                lambda params, at: self._differentiate(params, at, turn), live, batch, turn
            )
            with torch.no_grad():
                optimizer.step(values, [direction[name] for name in live])
            losses.append(loss)
            sizes.append(len(batch.targets))
        with torch.no_grad():
            params = {name: tensor.detach().clone() for name, tensor in live.items()}
            finish = self.algorithm.finish(params, turn, len(sizes))
        return Outcome(params, len(examples), len(sizes), _mean_loss(losses, sizes), finish)

    def _differentiate(
        self, params: Mapping[str, Tensor], batch: Batch, turn: Turn
    ) -> tuple[Tensors, Tensor]:
        if params is not self.network.params:
            params = {name: tensor.detach().requires_grad_() for name, tensor in params.items()}
        loss = self.algorithm.loss(self.network, params, batch, turn)
        gradients = torch.autograd.grad(loss, list(params.values()))
        return dict(zip(params, gradients, strict=True)), loss.detach()


def _mean_loss(losses: list[Tensor], sizes: list[int]) -> float:
    if not losses:
        return float("nan")
    weights = torch.tensor(sizes, dtype=torch.float64)
    return float((torch.stack(losses).double().cpu() * weights).sum() / weights.sum())
