"""The batched trainer: ClientUpdate of several clients, each step of all of them in one call."""

from __future__ import annotations

import copy
import gc
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby

import torch
from torch import Tensor, nn

from fedapp.data.transforms.transform import Transform
from fedapp.models.model import Model
from fedapp.training.algorithm import Algorithm
from fedapp.training.batched.batch_loader import BatchLoader, batch_size_buckets, rounded_up
from fedapp.training.batched.buffers import WITHOUT_ROWS, BufferPool, Layout, layout_of, split_rows
from fedapp.training.batched.chunks import ONE_CLIENT, ClientBatching, MemoryLimit
from fedapp.training.batched.compiled_step import BoundStep, CompiledStep, GraphPool, Mode
from fedapp.training.batched.run_batching import current_run_batch, shared_settings
from fedapp.training.device import flush_denormals, memory_format
from fedapp.training.local_step import groups_of, in_place, over_clients, step_of_groups
from fedapp.training.networks import PureNetwork, has_recurrent_cells, normalisation_names
from fedapp.training.round_plan import RoundPlan
from fedapp.training.tensors import Tensors
from fedapp.training.trainer import ClientResult, ClientTask

BUCKETS_PER_OCTAVE = 16
"""Numbers of clients for which steps are captured, between a power of two and the next."""

MAX_GRAPHS = 64
"""CUDA graphs that a trainer keeps; before there are more, it releases all."""

MODES = {"record": "recorded", "compile": "compiled", "capture": "captured as a CUDA graph"}


class BatchedTrainer:
    """Trains several clients at a time, each local step of all of them in one compiled step.

    The step is the algorithm's client rule under ``torch.func.vmap``, or without it for a single
    client. Clients that have taken all their steps, and the padding of partial batches, are masked.
    """

    def __init__(
        self,
        module: nn.Module,
        model: Model,
        algorithm: Algorithm,
        transform: Transform,
        device: torch.device,
        dtype: torch.dtype,
        num_classes: int = 0,
        batching: ClientBatching = ONE_CLIENT,
        mode: Mode = "record",
    ) -> None:
        self.network = PureNetwork(module.to(device=device, dtype=dtype).train(), model)
        self.normalisation = normalisation_names(module)
        self.statistics: Tensors = {}
        self._share = not has_recurrent_cells(module)
        single = batching.clients == 1
        self.memory_format = memory_format(module) if single else torch.contiguous_format
        self.algorithm = algorithm
        self.device, self.dtype, self.num_classes = device, dtype, num_classes
        self.clients_together, self.mode = batching.clients, mode
        self.batching = batching
        self._memory_limit = MemoryLimit(device)
        self._loader = BatchLoader(transform, device, dtype, self.memory_format)
        self._steps: dict[tuple[RoundPlan, Layout], CompiledStep] = {}
        self._pool, self._buffers = GraphPool(), BufferPool(device, self.memory_format)

    def __str__(self) -> str:
        return f"batched on {self.device}, {self.batching} a program, {MODES[self.mode]}"

    def client_updates(self, tasks: Sequence[ClientTask], plan: RoundPlan) -> list[ClientResult]:
        """Run ClientUpdate (McMahan et al. 2017, Algorithm 1) for all ``tasks`` and return theta_k.

        In a batch of runs the clients of all the runs train together.
        """
        batch = current_run_batch()
        return batch.client_updates(self.train, tasks, plan) if batch else self.train(tasks, plan)

    @flush_denormals()
    @torch.no_grad()
    def train(self, tasks: Sequence[ClientTask], plan: RoundPlan) -> list[ClientResult]:
        """Run ClientUpdate for clients of one run or several, each at its context's learning rate."""
        steps = [plan.num_steps(len(task.examples)) for task in tasks]
        training = [index for index, count in enumerate(steps) if count]
        num_runs = max(len({id(task.context.global_params) for task in tasks}), 1)
        train = partial(self._train_chunk, plan=plan)
        results: dict[int, ClientResult] = {}
        for chunk in self.batching.chunks([steps[index] for index in training], num_runs):
            clients = sorted((training[c] for c in chunk), key=lambda index: -steps[index])
            chosen = [tasks[index] for index in clients]
            trained = self._memory_limit.train(train, chosen, self._release)
            results |= zip(clients, trained, strict=True)
        return [
            results[index] if index in results else self._untrained(task, plan)
            for index, task in enumerate(tasks)
        ]

    def _train_chunk(self, tasks: Sequence[ClientTask], plan: RoundPlan) -> list[ClientResult]:
        """Run ClientUpdate for clients that take their steps together, those with most steps first.

        Where at most a quarter of the clients has steps left, the step goes on with these rows alone.
        """
        filled_up = self._fill_up(tasks)
        contexts, rows = [task.context for task in filled_up], len(filled_up)
        layout = layout_of(contexts, share=self._share)
        groups, step = self._fill_buffers(filled_up, plan, layout), self._step(plan, layout)
        step_state, step_states = dict[str, Tensor](), list[Tensors]()
        losses, sizes = list[Tensor](), list[Tensor]()
        buckets = () if self.mode == "compile" else batch_size_buckets(rows)
        batches = self._loader.batches(filled_up, plan, buckets)
        for remaining, of_these in groupby(batches, key=lambda batch: len(batch.sizes)):
            if remaining < rows:
                ended = {name: tensor[remaining:] for name, tensor in step_state.items()}
                step_states = [*split_rows(ended, rows - remaining, layout), *step_states]
                step_state = {name: tensor[:remaining] for name, tensor in step_state.items()}
                rows = remaining
            bound = BoundStep(step, self._buffers.first_rows(groups, rows, layout))
            for batch in of_these:
                after = bound({"step_state": step_state, "batch": batch.tensors})
                step_state, loss = after.get("step_state", {}), after["loss"]["loss"].reshape(-1)
                losses.append(loss.clone() if self.mode == "capture" else loss)
                sizes.append(batch.sizes)
        params = split_rows(groups["params"], len(filled_up), layout)
        ended_states = [*split_rows(step_state, rows, layout), *step_states]
        given = zip(tasks, params, ended_states, mean_over_steps(losses, sizes), strict=False)
        return [self._result(*each, plan) for each in given]

    def _result(
        self, task: ClientTask, params: Tensors, step_state: Tensors, loss: float, plan: RoundPlan
    ) -> ClientResult:
        steps = plan.num_steps(len(task.examples))
        context = replace(task.context, step_state=step_state)
        extras = self.algorithm.finalize(params, context, steps)
        return ClientResult(params, len(task.examples), steps, loss, extras)

    def _untrained(self, task: ClientTask, plan: RoundPlan) -> ClientResult:
        """Return the result of a client without examples, which takes no step."""
        initial = self.algorithm.initial_params(task.context)
        params = {name: tensor.clone() for name, tensor in initial.items()}
        return self._result(task, params, {}, float("nan"), plan)

    def _fill_up(self, tasks: Sequence[ClientTask]) -> list[ClientTask]:
        """Return the tasks and, for CUDA graphs, copies of the last up to a bucket's size.

        The copies train too: masking them would cost more.
        """
        extra = 0
        if self.mode == "capture":
            extra = rounded_up(len(tasks), BUCKETS_PER_OCTAVE) - len(tasks)
        last = tasks[-1]
        return [*tasks, *(replace(last, rng=copy.deepcopy(last.rng)) for _ in range(extra))]

    def _fill_buffers(
        self, tasks: Sequence[ClientTask], plan: RoundPlan, layout: Layout
    ) -> dict[str, Tensors]:
        """Return all inputs of a step but the batches, in tensors whose addresses do not change."""
        self._require_rows(0 if layout == "one client" else len(tasks))
        groups = groups_of(self.algorithm, [task.context for task in tasks], plan, self.dtype)
        return {group: self._buffers.fill(group, each, layout) for group, each in groups.items()}

    def _require_rows(self, rows: int) -> None:
        """Make the buffers at least ``rows`` long. CUDA graphs of others, or too many, are released."""
        graphs = sum(step.num_traced for step in self._steps.values())
        larger = rows > self._buffers.rows
        if self.mode == "capture" and (larger or graphs >= MAX_GRAPHS):
            self._release(max(rows, self._buffers.rows))
        elif larger:
            self._buffers = BufferPool(self.device, self.memory_format, rows)

    def _release(self, rows: int = 0) -> None:
        """Release all compiled steps and buffers; new buffers have ``rows`` rows."""
        self._steps = {}
        self._pool = GraphPool()
        self._buffers = BufferPool(self.device, self.memory_format, rows)
        gc.collect()
        torch.cuda.empty_cache()

    def _step(self, plan: RoundPlan, layout: Layout) -> CompiledStep:
        """Return a local step of one client, or of several, which changes its params in place.

        Its graph depends neither on E nor on eta nor on B.
        """
        plan = replace(shared_settings(plan), epochs=0, steps=0, batch_size=0)
        if (plan, layout) not in self._steps:
            step = step_of_groups(self.algorithm, self.network, plan, self.normalisation)
            if layout != "one client":
                step = over_clients(step, WITHOUT_ROWS[layout])
            self._steps[plan, layout] = CompiledStep(in_place(step), self.mode, self._pool)
        return self._steps[plan, layout]


def mean_over_steps(losses: list[Tensor], sizes: list[Tensor]) -> list[float]:
    """Return each client's mean loss, weighted by the targets that count: [steps][c] both to [c].

    Later steps can be of fewer clients, the first ones.
    """
    total, weight = (torch.zeros_like(losses[0], dtype=torch.float64) for _ in range(2))
    for count, group in groupby(range(len(losses)), key=lambda step: len(losses[step])):
        steps = [*group]
        weights = torch.stack([sizes[step] for step in steps]).double()
        values = torch.stack([losses[step] for step in steps]).double()
        total[:count] += (values.where(weights > 0, 0.0) * weights).sum(0)
        weight[:count] += weights.sum(0)
    return [float(loss) for loss in (total / weight.clamp(min=1)).cpu()]
