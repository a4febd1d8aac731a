"""The sequential trainer, the reference: ClientUpdate for one client after another."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from fedapp.data.transforms.transform import Transform
from fedapp.models.model import Model
from fedapp.training.algorithm import (
    Algorithm,
    Batch,
    ClientContext,
    Differentiate,
    Objective,
    Tensors,
)
from fedapp.training.batches import batches, counted_targets
from fedapp.training.device import flush_denormals, seeded_generators, set_memory_format
from fedapp.training.networks import LiveNetwork, normalisation_names, running_statistics
from fedapp.training.round_plan import RoundPlan
from fedapp.training.tensors import copies
from fedapp.training.trainer import ClientResult, ClientTask


class LocalOptimizer:
    """SGD in place, with momentum, Nesterov momentum, weight decay and clipping as in the plan.

    PyTorch's conventions: v = mu * v + g with v = g at the first step, then g + mu * v for
    Nesterov. Every client update starts with a new optimizer.
    """

    def __init__(self, plan: RoundPlan) -> None:
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
    """Trains clients one after another with one module, whose weights are set for each client."""

    def __init__(
        self,
        module: nn.Module,
        model: Model,
        algorithm: Algorithm,
        transform: Transform,
        device: torch.device,
        dtype: torch.dtype,
        num_classes: int = 0,
    ) -> None:
        self.num_classes = num_classes
        module = module.to(device=device, dtype=dtype).train()
        self.memory_format = set_memory_format(module)
        self.network, self.model = LiveNetwork(module, model), model
        self.normalisation = normalisation_names(module)
        self.tensors = {**self.network.params, **running_statistics(module)}
        self.statistics = {n: t.clone() for n, t in running_statistics(module).items()}
        self.clients_together = 1
        self.algorithm = algorithm
        self.transform = transform
        self.device = device
        self.dtype = dtype

    def __str__(self) -> str:
        return f"sequential on {self.device}"

    @flush_denormals()
    def client_updates(self, tasks: Sequence[ClientTask], plan: RoundPlan) -> list[ClientResult]:
        """Run ClientUpdate (McMahan et al. 2017, Algorithm 1) for one task after another."""
        results = []
        for task in tasks:
            with seeded_generators(task.rng, self.device):
                results.append(self._client_update(task, plan))
        return results

    def _client_update(self, task: ClientTask, plan: RoundPlan) -> ClientResult:
        """Return theta_k, from ``initial_params``, and what ``finalize`` adds.

        Both also see running statistics, if any.
        """
        context = task.context
        live = self.network.params
        live_params = list(live.values())
        with torch.no_grad():
            initial = self.algorithm.initial_params(context)
            torch._foreach_copy_(
                list(self.tensors.values()), [initial[name] for name in self.tensors]
            )
        optimizer = LocalOptimizer(plan)
        losses: list[Tensor] = []
        sizes: list[Tensor] = []
        kinds = (self.transform, self.device, self.dtype, self.memory_format)
        loader = batches(task.examples, plan, task.rng, *kinds, causal=self.model.causal)
        for batch in loader:
            direction, loss = self.algorithm.gradient(
                self._differentiate(context), live, batch, context
            )
            direction = {name: tensor.detach() for name, tensor in direction.items()}
            with torch.no_grad():
                optimizer.step(live_params, [direction[name] for name in live])
                step_state = self.algorithm.step_state(live, direction, context)
            if step_state:
                context = dataclasses.replace(context, step_state=step_state)
            losses.append(loss.detach())
            sizes.append(counted_targets(batch).sum())
        with torch.no_grad():
            final = copies(self.tensors)
            extras = self.algorithm.finalize(final, context, len(sizes))
        params = {name: final[name] for name in live}
        mean_loss = _mean_loss(losses, sizes)
        return ClientResult(params, len(task.examples), len(sizes), mean_loss, extras)

    def _differentiate(self, context: ClientContext) -> Differentiate:
        """Return the function with which the algorithm takes gradients in ``context``."""

        def differentiate(
            params: Mapping[str, Tensor], batch: Batch, objective: Objective | None = None
        ) -> tuple[Tensors, Tensor]:
            if params is not self.network.params:
                params = {name: t.detach().requires_grad_() for name, t in params.items()}
            loss = (objective or self.algorithm.loss)(self.network, params, batch, context)
            gradients = torch.autograd.grad(loss, list(params.values()), materialize_grads=True)
            return dict(zip(params, gradients, strict=True)), loss.detach()

        return differentiate


def _mean_loss(losses: list[Tensor], sizes: list[Tensor]) -> float:
    """Return the mean of the steps' losses, weighted by the targets that each is the mean of."""
    if not losses:
        return float("nan")
    weights = torch.stack(sizes).double().cpu()
    total = (torch.stack(losses).double().cpu() * weights).sum()
    return float(total / weights.sum().clamp(min=1))
