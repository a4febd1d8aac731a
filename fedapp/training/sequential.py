"""The sequential trainer: ClientUpdate, one client after another. It is the reference."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from fedapp.data.dataset import Examples
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
from fedapp.training.device import flush_denormals, set_memory_format
from fedapp.training.networks import LiveNetwork, normalisation_names, running_statistics
from fedapp.training.round_plan import LocalPlan
from fedapp.training.trainer import ClientResult, ClientTask


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


@contextlib.contextmanager
def drawing_from(rng: np.random.Generator, device: torch.device) -> Iterator[None]:
    """Let what a network draws by itself (dropout) come from ``rng``, whose own numbers stay as they are.

    PyTorch's global generators are afterwards as they were.
    """
    seed, on_gpu = int(rng.spawn(1)[0].integers(2**63 - 1)), device.type == "cuda"
    with torch.random.fork_rng([device] if on_gpu else []):
        # torch.manual_seed, which sees to all kinds of devices, takes a hundred times as long.
        torch.default_generator.manual_seed(seed)
        if on_gpu:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield


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
        num_classes: int = 0,
    ) -> None:
        self.num_classes = num_classes
        module = module.to(device=device, dtype=dtype).train()
        self.memory_format = set_memory_format(module)
        self.network, self.model = LiveNetwork(module, model), model
        self.normalisation = normalisation_names(module)
        self.held = {**self.network.params, **running_statistics(module)}
        self.statistics = {n: t.clone() for n, t in running_statistics(module).items()}
        self.clients_together = 1
        self.algorithm = algorithm
        self.transform = transform
        self.device = device
        self.dtype = dtype

    def __str__(self) -> str:
        return f"sequential on {self.device}"

    @flush_denormals()
    def client_updates(self, tasks: Sequence[ClientTask], plan: LocalPlan) -> list[ClientResult]:
        """Run ClientUpdate for all ``tasks``, one after another."""
        outcomes = []
        for task in tasks:
            with drawing_from(task.rng, self.device):
                outcomes.append(self.client_update(task.context, task.examples, plan, task.rng))
        return outcomes

    def client_update(
        self, context: ClientContext, examples: Examples, plan: LocalPlan, rng: np.random.Generator
    ) -> ClientResult:
        """Run ClientUpdate (McMahan et al. 2017, Algorithm 1) and return theta_k.

        ``context.global_params`` is theta; ``examples`` the client's own; ``rng`` its generator of this
        round, from which the order of the examples and the transform's draws come. Where the network
        keeps running statistics, the algorithm begins and finishes with them beside the parameters.
        """
        live = self.network.params
        values = list(live.values())
        with torch.no_grad():
            start = self.algorithm.initial_params(context)
            torch._foreach_copy_(list(self.held.values()), [start[name] for name in self.held])
        optimizer = LocalOptimizer(plan)
        losses: list[Tensor] = []
        sizes: list[Tensor] = []
        kinds = (self.transform, self.device, self.dtype, self.memory_format)
        stream = batches(examples, plan, rng, *kinds, causal=self.model.causal)
        for batch in stream:
            direction, loss = self.algorithm.gradient(
                self._differentiate(context), live, batch, context
            )
            with torch.no_grad():
                optimizer.step(values, [direction[name] for name in live])
                step_state = self.algorithm.step_state(live, direction, context)
            if step_state:
                context = dataclasses.replace(context, step_state=step_state)
            losses.append(loss)
            sizes.append(counted_targets(batch).sum())
        with torch.no_grad():
            ended = {
                name: tensor.detach().clone(memory_format=torch.contiguous_format)
                for name, tensor in self.held.items()
            }
            extras = self.algorithm.finalize(ended, context, len(sizes))
        params = {name: ended[name] for name in live}
        return ClientResult(params, len(examples), len(sizes), _mean_loss(losses, sizes), extras)

    def _differentiate(self, context: ClientContext) -> Differentiate:
        """Return the function with which the algorithm takes gradients in ``context``."""

        def differentiate(
            params: Mapping[str, Tensor], batch: Batch, objective: Objective | None = None
        ) -> tuple[Tensors, Tensor]:
            if params is not self.network.params:
                params = {name: t.detach().requires_grad_() for name, t in params.items()}
            loss = (objective or self.algorithm.loss)(self.network, params, batch, context)
            gradients = torch.autograd.grad(loss, list(params.values()))
            return dict(zip(params, gradients, strict=True)), loss.detach()

        return differentiate


def _mean_loss(losses: list[Tensor], sizes: list[Tensor]) -> float:
    """Return the mean of the steps' losses, weighted by the targets that each is the mean of."""
    if not losses:
        return float("nan")
    weights = torch.stack(sizes).double().cpu()
    total = (torch.stack(losses).double().cpu() * weights).sum()
    return float(total / weights.sum().clamp(min=1))
