"""The batched trainer: ClientUpdate of several clients in one program."""

from __future__ import annotations

import copy
import gc
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby

import torch
from torch import Tensor, nn
from torch.func import vmap

from fedapp.data.transforms.transform import Transform
from fedapp.models.model import Model
from fedapp.training.algorithm import Algorithm, Batch, ClientContext
from fedapp.training.batched.batch_loader import (
    ONE,
    WHOLE_COHORT,
    BatchLoader,
    ClientBatching,
    DeviceDataset,
    Step,
    batch_size_buckets,
    rounded_up,
)
from fedapp.training.batched.buffers import BufferPool, Layout, layout_of, shared_groups, split_rows
from fedapp.training.batched.compiled_step import CompiledStep, Groups, Mode, Pool
from fedapp.training.batched.run_batching import current_stack
from fedapp.training.device import flushed, laid_out, memory_format
from fedapp.training.local_step import LocalState, local_step, where_active
from fedapp.training.networks import PureNetwork, normalisation_names
from fedapp.training.round_plan import LocalPlan
from fedapp.training.tensors import Tensors, zeros_like
from fedapp.training.trainer import ClientResult, ClientTask

BUCKETS_PER_OCTAVE = 16
"""Numbers of clients that are captured, between a power of two and the next."""

MOST_GRAPHS = 64
"""CUDA graphs that a trainer keeps; before there are more, it forgets all."""


logger = logging.getLogger(__name__)

VERBS = {"record": "recorded", "compile": "compiled", "capture": "captured as a CUDA graph"}


class BatchedTrainer:
    """Trains ``together`` clients at a time, each local step of all of them in one program.

    The program is the algorithm's own client rule under ``torch.func.vmap``; one client alone needs
    none. Clients with fewer steps than others wait, and partial batches are padded: masks keep both
    out of the result.
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
        together: ClientBatching = ONE,
        mode: Mode = "record",
    ) -> None:
        self.network = PureNetwork(module.to(device=device, dtype=dtype).train(), model)
        self.normalisation = normalisation_names(module)
        self.statistics: Tensors = {}
        alone = together.clients == 1
        self.format = memory_format(module) if alone else torch.contiguous_format
        self.algorithm, self.transform = algorithm, transform
        self.device, self.dtype, self.num_classes = device, dtype, num_classes
        self.together, self.mode = together.clients, mode
        self.programs = together
        self._most = WHOLE_COHORT
        self._device_dataset = DeviceDataset(device)
        self._programs: dict[tuple[LocalPlan, Layout], CompiledStep] = {}
        self._pool, self._buffers = Pool(), BufferPool(device, self.format)

    def __str__(self) -> str:
        return f"batched on {self.device}, {self.programs} a program, {VERBS[self.mode]}"

    def client_updates(self, tasks: Sequence[ClientTask], plan: LocalPlan) -> list[ClientResult]:
        """Run ClientUpdate (McMahan et al. 2017, Algorithm 1) for all ``tasks`` and return theta_k.

        The outcomes are those of the sequential trainer, up to rounding. Stacked runs train together.
        """
        stack = current_stack()
        return stack.client_updates(self.train, tasks, plan) if stack else self.train(tasks, plan)

    @flushed()
    def train(self, tasks: Sequence[ClientTask], plan: LocalPlan) -> list[ClientResult]:
        """Run ClientUpdate for clients of one run, or of several, each at its turn's learning rate."""
        steps = [plan.num_steps(len(task.examples)) for task in tasks]
        busy = [index for index, count in enumerate(steps) if count]
        runs = len({id(task.context.global_params) for task in tasks})
        outcomes: dict[int, ClientResult] = {}
        for places in self.programs.chunks([steps[index] for index in busy], max(runs, 1)):
            chunk = [busy[place] for place in places]
            walked = self._walk_as_fits([tasks[index] for index in chunk], plan)
            outcomes.update(zip(chunk, walked, strict=True))
        return [outcomes.get(index) or self._idle(task) for index, task in enumerate(tasks)]

    def _idle(self, task: ClientTask) -> ClientResult:
        """Return the outcome of a client without examples: it takes no step."""
        params = {
            name: tensor.clone()
            for name, tensor in self.algorithm.initial_params(task.context).items()
        }
        extras = self.algorithm.finalize(params, task.context, 0)
        return ClientResult(params, len(task.examples), 0, float("nan"), extras)

    def _walk_as_fits(self, tasks: Sequence[ClientTask], plan: LocalPlan) -> list[ClientResult]:
        """Take the steps of all clients; where memory does not hold them, of half of them at a time."""
        outcomes: list[ClientResult] = []
        while tasks:
            some = tasks[: self._most]
            walked = self._walk_if_it_fits(some, plan)
            if walked is None:
                self._most = -(-len(some) // 2)
                self._let_go()
            else:
                outcomes += walked
                tasks = tasks[len(some) :]
        return outcomes

    def _walk_if_it_fits(
        self, tasks: Sequence[ClientTask], plan: LocalPlan
    ) -> list[ClientResult] | None:
        """Take all local steps; or return None, with the generators as they were, for lack of memory."""
        draws = [task.rng.bit_generator.state for task in tasks]
        try:
            return self._walk(tasks, plan)
        except torch.OutOfMemoryError:
            if len(tasks) == 1:
                raise
        for task, state in zip(tasks, draws, strict=True):
            task.rng.bit_generator.state = state
        return None  # and the error is gone, with the tensors that it held

    def _let_go(self) -> None:
        """Say so, and forget programs and places: the memory of both is the device's."""
        logger.warning(
            "%s has too little memory for that many clients in a program: %d from now on. "
            "clients-together=%d begins so.",
            *(self.device, self._most, self._most),
        )
        self._begin_anew(0)

    def _begin_anew(self, rows: int) -> None:
        """Forget all programs, and have places for ``rows`` clients of one."""
        self._programs = {}
        self._pool, self._buffers = Pool(), BufferPool(self.device, self.format, rows)
        gc.collect()
        torch.cuda.empty_cache()

    def _make_room(self, rows: int) -> None:
        """Have places for ``rows`` clients. Graphs that read others, or are too many, are not kept."""
        graphs = sum(program.recorded for program in self._programs.values())
        larger = rows > self._buffers.rows
        if self.mode == "capture" and (larger or graphs >= MOST_GRAPHS):
            self._begin_anew(max(rows, self._buffers.rows))
        elif larger:
            self._buffers = BufferPool(self.device, self.format, rows)

    def _walk(self, tasks: Sequence[ClientTask], plan: LocalPlan) -> list[ClientResult]:
        """Take all local steps of clients that have some, those first in a program that take most."""
        steps = [plan.num_steps(len(task.examples)) for task in tasks]
        order = sorted(range(len(tasks)), key=lambda index: -steps[index])
        outcomes = self._walk_in_order([tasks[index] for index in order], plan)
        walked = dict(zip(order, outcomes, strict=True))
        return [walked[index] for index in range(len(tasks))]

    @torch.no_grad()
    def _walk_in_order(self, tasks: Sequence[ClientTask], plan: LocalPlan) -> list[ClientResult]:
        """Take all local steps of clients of which none takes more than the one before it."""
        filled = self._filled_up(tasks)
        pairs = [(task.examples, task.rng) for task in filled]
        counts = () if self.mode == "compile" else batch_size_buckets(len(filled))
        loader = BatchLoader(pairs, plan, self.transform, self._device_dataset, self.dtype, counts)
        layout = layout_of([task.context for task in filled])
        alone = layout == "alone"
        self._make_room(0 if alone else len(filled))
        groups = self._in_buffers(filled, plan, layout)
        step_states, means = self._take(loader, self._program(plan, layout), groups, layout)
        params = split_rows(groups["params"], len(filled), alone)
        return [
            self._outcome(task, params[row], step_states[row], loader.steps[row], means[row])
            for row, task in enumerate(tasks)
        ]

    def _filled_up(self, tasks: Sequence[ClientTask]) -> list[ClientTask]:
        """Return the tasks, and copies of the last to a number of which there are few, to be captured.

        Copies train as it does: nobody has to wait, which would cost more than they do.
        """
        more = (
            rounded_up(len(tasks), BUCKETS_PER_OCTAVE) - len(tasks) if self.mode == "capture" else 0
        )
        last = tasks[-1]
        return [*tasks, *(replace(last, rng=copy.deepcopy(last.rng)) for _ in range(more))]

    def _take(
        self, loader: BatchLoader, program: CompiledStep, groups: Groups, layout: Layout
    ) -> tuple[list[Tensors], list[float]]:
        """Take the steps, and return what each client remembers, and its mean loss.

        Where no more than a quarter of the clients has a step left, the others are let out.
        """
        alone, rows = layout == "alone", len(loader.clients)
        call, step_state, step_states = program.on(groups), dict[str, Tensor](), list[Tensors]()
        losses, sizes = list[Tensor](), list[Tensor]()
        for step in loader:
            stay = len(step.sizes)
            if stay < rows:
                out = {name: tensor[stay:] for name, tensor in step_state.items()}
                step_states = [*split_rows(out, rows - stay, alone), *step_states]
                step_state = {name: tensor[:stay] for name, tensor in step_state.items()}
                call, rows = program.on(self._first(groups, stay, layout)), stay
            result = call({"step_state": step_state, "batch": self._batch(step, alone)})
            step_state, loss = result.get("step_state", {}), result["loss"]["loss"].reshape(-1)
            losses.append(loss.clone() if self.mode == "capture" else loss)
            sizes.append(step.sizes)
        return [*split_rows(step_state, rows, alone), *step_states], _mean_over_steps(losses, sizes)

    def _outcome(
        self, task: ClientTask, params: Tensors, step_state: Tensors, steps: int, loss: float
    ) -> ClientResult:
        extras = self.algorithm.finalize(
            params, replace(task.context, step_state=step_state), steps
        )
        return ClientResult(params, len(task.examples), steps, loss, extras)

    # ------------------------------------------------------------------ what goes in

    def _in_buffers(
        self, tasks: Sequence[ClientTask], plan: LocalPlan, layout: Layout
    ) -> dict[str, Tensors]:
        """Return all but the batches, in tensors that stay where they are from turn to turn."""
        contexts, buffers, alone = (
            [task.context for task in tasks],
            self._buffers,
            layout == "alone",
        )
        shared = layout != "several runs"
        senders = contexts[:1] if shared else contexts
        start = [self.algorithm.initial_params(context) for context in contexts]
        still = zeros_like(start[0]) if plan.momentum else {}
        counts = [{} if t.label_counts is None else {"counts": t.label_counts} for t in contexts]
        rates = [torch.as_tensor(context.learning_rate, dtype=self.dtype) for context in senders]
        return {
            "params": buffers.placed("params", start, alone=alone),
            "velocity": buffers.placed("velocity", [still] * len(contexts), alone=alone),
            "global_params": buffers.sent(
                "global_params", [context.global_params for context in senders], shared=shared
            ),
            "broadcast": buffers.sent("broadcast", [t.broadcast for t in senders], shared=shared),
            "state": buffers.placed("state", [context.state for context in contexts], alone=alone),
            "round_randomness": buffers.placed(
                "round_randomness", [context.round_randomness for context in contexts], alone=alone
            ),
            "labels": buffers.placed("labels", counts, alone=alone),
            "rate": buffers.placed("rate", [{"rate": rate} for rate in rates], alone=shared),
        }

    def _first(self, groups: Groups, count: int, layout: Layout) -> dict[str, Tensors]:
        """Return the rows of the first ``count`` clients."""
        shared = shared_groups(layout)
        return {
            group: dict(tensors) if group in shared else self._buffers.first(group, tensors, count)
            for group, tensors in groups.items()
        }

    def _batch(self, step: Step, alone: bool) -> Tensors:
        if alone:
            inputs = laid_out(step.inputs[0], self.format)
            return {"inputs": inputs, "targets": step.targets[0], "mask": step.mask[0]}
        batch = {"inputs": step.inputs, "targets": step.targets, "mask": step.mask}
        return batch if step.together else {**batch, "active": step.active}

    # ------------------------------------------------------------------ the program

    def _program(self, plan: LocalPlan, layout: Layout) -> CompiledStep:
        """Return one local step of one client, or of several, which changes its params in place."""
        plan = plan.step
        if (plan, layout) not in self._programs:
            step = self._step(plan)
            whole = step if layout == "alone" else _over_clients(step, layout)

            def function(groups: Groups) -> dict[str, Tensors]:
                after = whole(groups)
                for group in ("params", "velocity"):
                    for name, tensor in after.pop(group).items():
                        groups[group][name].copy_(tensor)
                return after

            self._programs[plan, layout] = CompiledStep(function, self.mode, self._pool)
        return self._programs[plan, layout]

    def _step(self, plan: LocalPlan) -> Callable[[Groups], dict[str, Tensors]]:
        """Return a local step of one client as a function of groups of tensors."""

        def step(groups: Groups) -> dict[str, Tensors]:
            given = groups["batch"]
            batch = Batch(given["inputs"], given["targets"], given["mask"])
            before = LocalState(*(dict(groups[g]) for g in ("params", "velocity", "step_state")))
            context = self._turn(plan, groups)
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

    def _turn(self, plan: LocalPlan, groups: Groups) -> ClientContext:
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

    def whole(groups: Groups) -> dict[str, Tensors]:
        dims = {group: None if group in shared_groups(layout) else 0 for group in groups}
        return vmap(step, in_dims=(dims,))(groups)

    return whole


def _mean_over_steps(losses: list[Tensor], sizes: list[Tensor]) -> list[float]:
    """Return each client's mean loss, weighted by the targets that count: [steps][c] both to [c].

    Later steps can be of fewer clients, the first ones.
    """
    total, weight = (torch.zeros_like(losses[0], dtype=torch.float64) for _ in range(2))
    for count, steps in groupby(range(len(losses)), key=lambda step: len(losses[step])):
        some = [*steps]
        weights = torch.stack([sizes[step] for step in some]).double()
        found = torch.stack([losses[step] for step in some]).double()
        total[:count] += (found.where(weights > 0, 0.0) * weights).sum(0)
        weight[:count] += weights.sum(0)
    return [float(loss) for loss in (total / weight.clamp(min=1)).cpu()]
