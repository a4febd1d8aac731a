"""The batched trainer: ClientUpdate of several clients, each step of all of them in one call."""

from __future__ import annotations

import copy
import gc
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.func import vmap

from fedapp.data.transforms.transform import Transform
from fedapp.models.model import Model
from fedapp.training.algorithm import Algorithm, Batch, ClientContext
from fedapp.training.batched.batch_loader import (
    ONE_CLIENT,
    WHOLE_COHORT,
    BatchLoader,
    ClientBatches,
    ClientBatching,
    DeviceDataset,
    batch_size_buckets,
    mean_over_steps,
    rounded_up,
)
from fedapp.training.batched.buffers import BufferPool, Layout, layout_of, shared_groups, split_rows
from fedapp.training.batched.compiled_step import CompiledStep, GraphPool, Groups, Mode
from fedapp.training.batched.run_batching import current_run_batch
from fedapp.training.device import flush_denormals, memory_format, to_memory_format
from fedapp.training.local_step import LocalState, local_step, where_active
from fedapp.training.networks import PureNetwork, normalisation_names
from fedapp.training.round_plan import RoundPlan
from fedapp.training.tensors import Tensors, zeros_like
from fedapp.training.trainer import ClientResult, ClientTask

BUCKETS_PER_OCTAVE = 16
"""Numbers of clients for which steps are captured, between a power of two and the next."""

MAX_GRAPHS = 64
"""CUDA graphs that a trainer keeps; before there are more, it releases all."""

logger = logging.getLogger(__name__)

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
        single = batching.clients == 1
        self.memory_format = memory_format(module) if single else torch.contiguous_format
        self.algorithm, self.transform = algorithm, transform
        self.device, self.dtype, self.num_classes = device, dtype, num_classes
        self.clients_together, self.mode = batching.clients, mode
        self.batching = batching
        self._max_clients = WHOLE_COHORT
        self._device_dataset = DeviceDataset(device)
        self._steps: dict[tuple[RoundPlan, Layout], CompiledStep] = {}
        self._pool, self._buffers = GraphPool(), BufferPool(device, self.memory_format)

    def __str__(self) -> str:
        return f"batched on {self.device}, {self.batching} a program, {MODES[self.mode]}"

    def client_updates(self, tasks: Sequence[ClientTask], plan: RoundPlan) -> list[ClientResult]:
        """Run ClientUpdate (McMahan et al. 2017, Algorithm 1) for all ``tasks`` and return theta_k.

        The results are those of the sequential trainer, up to rounding. In a batch of runs the clients
        of all the runs train together.
        """
        batch = current_run_batch()
        return batch.client_updates(self.train, tasks, plan) if batch else self.train(tasks, plan)

    @flush_denormals()
    def train(self, tasks: Sequence[ClientTask], plan: RoundPlan) -> list[ClientResult]:
        """Run ClientUpdate for clients of one run or several, each at its context's learning rate."""
        steps = [plan.num_steps(len(task.examples)) for task in tasks]
        training = [index for index, count in enumerate(steps) if count]
        runs = len({id(task.context.global_params) for task in tasks})
        results: dict[int, ClientResult] = {}
        for positions in self.batching.chunks([steps[index] for index in training], max(runs, 1)):
            chunk = [training[position] for position in positions]
            trained = self._train_within_memory([tasks[index] for index in chunk], plan)
            results.update(zip(chunk, trained, strict=True))
        return [results.get(index) or self._untrained(task) for index, task in enumerate(tasks)]

    def _untrained(self, task: ClientTask) -> ClientResult:
        """Return the result of a client without examples, which takes no step."""
        params = {
            name: tensor.clone()
            for name, tensor in self.algorithm.initial_params(task.context).items()
        }
        extras = self.algorithm.finalize(params, task.context, 0)
        return ClientResult(params, len(task.examples), 0, float("nan"), extras)

    # ------------------------------------------------------------------ memory

    def _train_within_memory(
        self, tasks: Sequence[ClientTask], plan: RoundPlan
    ) -> list[ClientResult]:
        """Train all the clients, or half of them at a time where the device runs out of memory."""
        results: list[ClientResult] = []
        while tasks:
            chunk = tasks[: self._max_clients]
            trained = self._train_or_none(chunk, plan)
            if trained is None:
                self._max_clients = -(-len(chunk) // 2)
                logger.warning(
                    "%s has too little memory for that many clients in a program: %d from now on. "
                    "clients-together=%d begins so.",
                    *(self.device, self._max_clients, self._max_clients),
                )
                self._release(0)
            else:
                results += trained
                tasks = tasks[len(chunk) :]
        return results

    def _train_or_none(
        self, tasks: Sequence[ClientTask], plan: RoundPlan
    ) -> list[ClientResult] | None:
        """Train the clients, or return None, with their generators reset, if memory runs out."""
        rng_states = [task.rng.bit_generator.state for task in tasks]
        try:
            return self._train_chunk(tasks, plan)
        except torch.OutOfMemoryError:
            if len(tasks) == 1:
                raise
        for task, state in zip(tasks, rng_states, strict=True):
            task.rng.bit_generator.state = state
        return None  # outside the handler, so that the traceback's tensors are freed

    def _release(self, rows: int) -> None:
        """Release all compiled steps and buffers; new buffers have ``rows`` rows."""
        self._steps = {}
        self._pool = GraphPool()
        self._buffers = BufferPool(self.device, self.memory_format, rows)
        gc.collect()
        torch.cuda.empty_cache()

    def _require_rows(self, rows: int) -> None:
        """Make the buffers at least ``rows`` long. CUDA graphs of others, or too many, are released."""
        graphs = sum(step.num_traced for step in self._steps.values())
        larger = rows > self._buffers.rows
        if self.mode == "capture" and (larger or graphs >= MAX_GRAPHS):
            self._release(max(rows, self._buffers.rows))
        elif larger:
            self._buffers = BufferPool(self.device, self.memory_format, rows)

    # ------------------------------------------------------------------ local steps

    def _train_chunk(self, tasks: Sequence[ClientTask], plan: RoundPlan) -> list[ClientResult]:
        """Train clients that have steps to take, sorted by their number, most first."""
        steps = [plan.num_steps(len(task.examples)) for task in tasks]
        order = sorted(range(len(tasks)), key=lambda index: -steps[index])
        trained = self._train_sorted([tasks[index] for index in order], plan)
        results = dict(zip(order, trained, strict=True))
        return [results[index] for index in range(len(tasks))]

    @torch.no_grad()
    def _train_sorted(self, tasks: Sequence[ClientTask], plan: RoundPlan) -> list[ClientResult]:
        """Train clients of which none takes more steps than the one before it."""
        padded = self._pad_clients(tasks)
        pairs = [(task.examples, task.rng) for task in padded]
        counts = () if self.mode == "compile" else batch_size_buckets(len(padded))
        loader = BatchLoader(pairs, plan, self.transform, self._device_dataset, self.dtype, counts)
        layout = layout_of([task.context for task in padded])
        single = layout == "one client"
        self._require_rows(0 if single else len(padded))
        groups = self._fill_buffers(padded, plan, layout)
        step = self._compiled_step(plan, layout)
        step_states, losses = self._take_steps(loader, step, groups, layout)
        params = split_rows(groups["params"], len(padded), single)
        return [
            self._result(task, params[row], step_states[row], loader.steps[row], losses[row])
            for row, task in enumerate(tasks)
        ]

    def _pad_clients(self, tasks: Sequence[ClientTask]) -> list[ClientTask]:
        """Return the tasks and, for CUDA graphs, copies of the last up to a bucket's size.

        The copies train too: masking them would cost more.
        """
        extra = 0
        if self.mode == "capture":
            extra = rounded_up(len(tasks), BUCKETS_PER_OCTAVE) - len(tasks)
        last = tasks[-1]
        return [*tasks, *(replace(last, rng=copy.deepcopy(last.rng)) for _ in range(extra))]

    def _take_steps(
        self, loader: BatchLoader, step: CompiledStep, groups: Groups, layout: Layout
    ) -> tuple[list[Tensors], list[float]]:
        """Take all local steps, and return each client's step state and mean loss.

        Where at most a quarter of the clients has steps left, the step goes on with these rows alone.
        """
        single, rows = layout == "one client", len(loader.clients)
        bound, step_state, step_states = step.bind(groups), dict[str, Tensor](), list[Tensors]()
        losses, sizes = list[Tensor](), list[Tensor]()
        for batch in loader:
            remaining = len(batch.sizes)
            if remaining < rows:
                ended = {name: tensor[remaining:] for name, tensor in step_state.items()}
                step_states = [*split_rows(ended, rows - remaining, single), *step_states]
                step_state = {name: tensor[:remaining] for name, tensor in step_state.items()}
                bound = step.bind(self._first_rows(groups, remaining, layout))
                rows = remaining
            result = bound({"step_state": step_state, "batch": self._batch_group(batch, single)})
            step_state, loss = result.get("step_state", {}), result["loss"]["loss"].reshape(-1)
            losses.append(loss.clone() if self.mode == "capture" else loss)
            sizes.append(batch.sizes)
        return [*split_rows(step_state, rows, single), *step_states], mean_over_steps(losses, sizes)

    def _result(
        self, task: ClientTask, params: Tensors, step_state: Tensors, steps: int, loss: float
    ) -> ClientResult:
        context = replace(task.context, step_state=step_state)
        extras = self.algorithm.finalize(params, context, steps)
        return ClientResult(params, len(task.examples), steps, loss, extras)

    # ------------------------------------------------------------------ inputs of a step

    def _fill_buffers(
        self, tasks: Sequence[ClientTask], plan: RoundPlan, layout: Layout
    ) -> dict[str, Tensors]:
        """Return all inputs but the batches, in tensors whose addresses do not change."""
        buffers, single = self._buffers, layout == "one client"
        contexts = [task.context for task in tasks]
        shared = layout != "several runs"
        senders = contexts[:1] if shared else contexts
        params = [self.algorithm.initial_params(context) for context in contexts]
        velocity = zeros_like(params[0]) if plan.momentum else {}
        counts = [{} if t.label_counts is None else {"counts": t.label_counts} for t in contexts]
        rates = [torch.as_tensor(context.learning_rate, dtype=self.dtype) for context in senders]
        return {
            "params": buffers.copy_in("params", params, single=single),
            "velocity": buffers.copy_in("velocity", [velocity] * len(contexts), single=single),
            "global_params": buffers.copy_shared(
                "global_params", [context.global_params for context in senders], shared=shared
            ),
            "broadcast": buffers.copy_shared(
                "broadcast", [context.broadcast for context in senders], shared=shared
            ),
            "state": buffers.copy_in("state", [t.state for t in contexts], single=single),
            "round_randomness": buffers.copy_in(
                "round_randomness", [t.round_randomness for t in contexts], single=single
            ),
            "labels": buffers.copy_in("labels", counts, single=single),
            "rate": buffers.copy_in("rate", [{"rate": rate} for rate in rates], single=shared),
        }

    def _first_rows(self, groups: Groups, count: int, layout: Layout) -> dict[str, Tensors]:
        """Return the inputs of the first ``count`` clients."""
        shared, buffers = shared_groups(layout), self._buffers
        return {
            group: dict(tensors) if group in shared else buffers.first_rows(group, tensors, count)
            for group, tensors in groups.items()
        }

    def _batch_group(self, batch: ClientBatches, single: bool) -> Tensors:
        if single:
            inputs = to_memory_format(batch.inputs[0], self.memory_format)
            return {"inputs": inputs, "targets": batch.targets[0], "mask": batch.mask[0]}
        tensors = {"inputs": batch.inputs, "targets": batch.targets, "mask": batch.mask}
        return tensors if batch.all_active else {**tensors, "active": batch.active}

    # ------------------------------------------------------------------ the step

    def _compiled_step(self, plan: RoundPlan, layout: Layout) -> CompiledStep:
        """Return a local step of one client, or of several, which changes its params in place."""
        plan = plan.step
        if (plan, layout) not in self._steps:
            step = self._client_step(plan)
            batched = step if layout == "one client" else _over_clients(step, layout)

            def function(groups: Groups) -> dict[str, Tensors]:
                after = batched(groups)
                for group in ("params", "velocity"):
                    for name, tensor in after.pop(group).items():
                        groups[group][name].copy_(tensor)
                return after

            self._steps[plan, layout] = CompiledStep(function, self.mode, self._pool)
        return self._steps[plan, layout]

    def _client_step(self, plan: RoundPlan) -> Callable[[Groups], dict[str, Tensors]]:
        """Return a local step of one client as a function of groups of tensors."""

        def step(groups: Groups) -> dict[str, Tensors]:
            given = groups["batch"]
            batch = Batch(given["inputs"], given["targets"], given["mask"])
            before = LocalState(*(dict(groups[g]) for g in ("params", "velocity", "step_state")))
            context = self._context(plan, groups)
            after, loss = local_step(self.algorithm, self.network, plan, before, batch, context)
            if "active" in given:
                after = where_active(given["active"], after, before)
            return {
                "params": after.params,
                "velocity": after.velocity,
                "step_state": after.step_state,
                "loss": {"loss": loss},
            }

        return step

    def _context(self, plan: RoundPlan, groups: Groups) -> ClientContext:
        return ClientContext(
            groups["global_params"],
            groups["broadcast"],
            groups["state"],
            learning_rate=groups["rate"]["rate"],
            momentum=plan.momentum,
            nesterov=plan.nesterov,
            label_counts=groups["labels"].get("counts"),
            normalisation=self.normalisation,
            round_randomness=groups["round_randomness"],
        )


def _over_clients(
    step: Callable[[Groups], dict[str, Tensors]], layout: Layout
) -> Callable[[Groups], dict[str, Tensors]]:
    """Return ``step`` over the rows of all groups but those that one run's clients share."""

    def batched(groups: Groups) -> dict[str, Tensors]:
        dims = {group: None if group in shared_groups(layout) else 0 for group in groups}
        return vmap(step, in_dims=(dims,))(groups)

    return batched
