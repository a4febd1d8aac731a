"""The batched trainer: ClientUpdate of several clients in one program."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import vmap

from fedapp.data.transforms.base import Transform
from fedapp.models.base import Model
from fedapp.training.algorithm import Algorithm, Batch, Turn
from fedapp.training.feed import Feed, Resident, Step
from fedapp.training.layout import laid_out, memory_format
from fedapp.training.local_step import Walker, local_step, settle
from fedapp.training.networks import PureNetwork, normalisation_names
from fedapp.training.plan import LocalPlan
from fedapp.training.program import Groups, Mode, Program
from fedapp.training.stack import current_stack
from fedapp.training.tensors import Tensors, zeros_like
from fedapp.training.trainer import ClientTask, Outcome

SHARED = frozenset({"anchor", "broadcast", "rate"})
"""The groups of tensors that all clients of a run share; the others have a row for each."""

Layout = Literal["alone", "one run", "several runs"]
"""Whose rows a program's tensors have: one client's, without rows; a run's clients'; several runs'."""

WHOLE_COHORT = 10**9
"""More clients than any cohort has."""

FEW = 5
"""Clients whose weights a core's cache holds, for small networks."""


@dataclass(frozen=True)
class Together:
    """How many clients are one program; ``equal``: only such as take as many steps as each other.

    Where fewer are alike than ``clients``, half of them or a quarter ... train together, but not
    fewer than FEW; others train alone. So there are few programs to record.
    """

    clients: int
    equal: bool = False

    def __str__(self) -> str:
        few = {1: "one client", WHOLE_COHORT: "a cohort"}
        return few.get(self.clients, f"{self.clients} clients")

    def chunks(self, steps: Sequence[int], runs: int) -> Iterator[Sequence[int]]:
        """Yield the places of clients of ``runs`` runs, who take so many ``steps``, by program."""
        size = runs if self.equal and runs > 1 else self.clients * runs
        start = 0
        while start < len(steps):
            width = size if runs > 1 or not self.equal else self._alike(steps[start:])
            yield range(start, min(start + width, len(steps)))
            start += width

    def _alike(self, steps: Sequence[int]) -> int:
        """Return how many of the next clients train together, all with the same number of steps."""
        width = self.clients
        while width >= min(FEW, self.clients):
            if len(steps) >= width and len(set(steps[:width])) == 1:
                return width
            width //= 2
        return 1


ONE = Together(1)

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
        together: Together = ONE,
        mode: Mode = "record",
    ) -> None:
        self.network = PureNetwork(module.to(device=device, dtype=dtype).train(), model)
        self.normalisation = normalisation_names(module)
        alone = together.clients == 1
        self.format = memory_format(module) if alone else torch.contiguous_format
        self.algorithm, self.transform = algorithm, transform
        self.device, self.dtype, self.num_classes = device, dtype, num_classes
        self.together, self.mode = together.clients, mode
        self.programs = together
        self._most = WHOLE_COHORT
        self._resident = Resident(device)
        self._programs: dict[tuple[LocalPlan, Layout], Program] = {}
        self._places: dict[tuple[str, str, torch.Size], Tensor] = {}
        self._last: dict[str, tuple[Mapping[str, Tensor], Tensors]] = {}

    def __str__(self) -> str:
        return f"batched on {self.device}, {self.programs} a program, {VERBS[self.mode]}"

    def client_updates(self, tasks: Sequence[ClientTask], plan: LocalPlan) -> list[Outcome]:
        """Run ClientUpdate (McMahan et al. 2017, Algorithm 1) for all ``tasks`` and return theta_k.

        The outcomes are those of the sequential trainer, up to rounding. Stacked runs train together.
        """
        stack = current_stack()
        return stack.client_updates(self.train, tasks, plan) if stack else self.train(tasks, plan)

    def train(self, tasks: Sequence[ClientTask], plan: LocalPlan) -> list[Outcome]:
        """Run ClientUpdate for clients of one run, or of several, each at its turn's learning rate."""
        steps = [plan.num_steps(len(task.examples)) for task in tasks]
        busy = [index for index, count in enumerate(steps) if count]
        runs = len({id(task.turn.anchor) for task in tasks})
        outcomes: dict[int, Outcome] = {}
        for places in self.programs.chunks([steps[index] for index in busy], max(runs, 1)):
            chunk = [busy[place] for place in places]
            walked = self._walk_as_fits([tasks[index] for index in chunk], plan)
            outcomes.update(zip(chunk, walked, strict=True))
        return [outcomes.get(index) or self._idle(task) for index, task in enumerate(tasks)]

    def _idle(self, task: ClientTask) -> Outcome:
        """Return the outcome of a client without examples: it takes no step."""
        params = {name: tensor.clone() for name, tensor in self.algorithm.begin(task.turn).items()}
        finish = self.algorithm.finish(params, task.turn, 0)
        return Outcome(params, len(task.examples), 0, float("nan"), finish)

    def _walk_as_fits(self, tasks: Sequence[ClientTask], plan: LocalPlan) -> list[Outcome]:
        """Take the steps of all clients; where memory does not hold them, of half of them at a time."""
        outcomes: list[Outcome] = []
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
    ) -> list[Outcome] | None:
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
        """Forget programs and places: the memory of both is the device's."""
        logger.warning(
            "%s has too little memory for that many clients in a program: %d from now on. "
            "clients-together=%d begins so.",
            *(self.device, self._most, self._most),
        )
        self._programs.clear()
        self._places.clear()
        self._last.clear()
        gc.collect()
        torch.cuda.empty_cache()

    @torch.no_grad()
    def _walk(self, tasks: Sequence[ClientTask], plan: LocalPlan) -> list[Outcome]:
        """Take all local steps of clients that have some."""
        pairs = [(task.examples, task.rng) for task in tasks]
        feed = Feed(pairs, plan, self.transform, self._resident, self.dtype)
        layout = _layout([task.turn for task in tasks])
        alone = layout == "alone"
        groups = self._stage(tasks, plan, layout)
        call, memory = self._program(plan, layout).on(groups), dict[str, Tensor]()
        losses, sizes = [], []
        for step in feed:
            result = call({"memory": memory, "batch": self._batch(step, alone)})
            memory, loss = result.get("memory", {}), result["loss"]["loss"].reshape(-1)
            losses.append(loss.clone() if self.mode == "capture" else loss)
            sizes.append(step.sizes)
        means = _mean_over_steps(losses, sizes)
        params, memories = (_rows(part, len(tasks), alone) for part in (groups["params"], memory))
        return [
            self._outcome(task, params[row], memories[row], feed.steps[row], means[row])
            for row, task in enumerate(tasks)
        ]

    def _outcome(
        self, task: ClientTask, params: Tensors, memory: Tensors, steps: int, loss: float
    ) -> Outcome:
        finish = self.algorithm.finish(params, replace(task.turn, memory=memory), steps)
        return Outcome(params, len(task.examples), steps, loss, finish)

    # ------------------------------------------------------------------ what goes in

    def _stage(
        self, tasks: Sequence[ClientTask], plan: LocalPlan, layout: Layout
    ) -> dict[str, Tensors]:
        """Return all but the batches, in tensors that stay where they are from turn to turn."""
        turns, alone = [task.turn for task in tasks], layout == "alone"
        shared = layout != "several runs"
        senders = turns[:1] if shared else turns
        start = [self.algorithm.begin(turn) for turn in turns]
        counts = [{} if t.label_counts is None else {"counts": t.label_counts} for t in turns]
        params = self._placed("params", start, alone)
        rates = [torch.as_tensor(turn.learning_rate, dtype=self.dtype) for turn in senders]
        still = [zeros_like(params)] if plan.momentum else [{}]
        return {
            "params": params,
            "velocity": self._placed("velocity", still, alone=True),
            "anchor": self._sent("anchor", [turn.anchor for turn in senders], shared),
            "broadcast": self._sent("broadcast", [turn.broadcast for turn in senders], shared),
            "state": self._placed("state", [turn.state for turn in turns], alone),
            "drawn": self._placed("drawn", [turn.drawn for turn in turns], alone),
            "labels": self._placed("labels", counts, alone),
            "rate": self._placed("rate", [{"rate": rate} for rate in rates], shared),
        }

    def _placed(self, group: str, rows: Sequence[Mapping[str, Tensor]], alone: bool) -> Tensors:
        """Copy the clients' tensors to where the last turn's were: a CUDA graph reads them there."""
        placed: Tensors = {}
        for name in rows[0]:
            tensors = [row[name].to(self.device) for row in rows]
            values = laid_out(tensors[0], self.format) if alone else _stacked(tensors)
            key = (group, name, values.shape)
            if key in self._places:
                self._places[key].copy_(values)
            else:
                self._places[key] = values.clone()
            placed[name] = self._places[key]
        return placed

    def _sent(self, group: str, rows: Sequence[Mapping[str, Tensor]], shared: bool) -> Tensors:
        """Place what the server sent; what a cohort's turns share, once for the whole cohort."""
        if not shared:
            return self._placed(group, rows, alone=False)
        last, placed = self._last.get(group, (None, {}))
        if last is not rows[0]:
            placed = self._placed(group, rows, alone=True)
            self._last[group] = (rows[0], placed)
        return placed

    def _batch(self, step: Step, alone: bool) -> Tensors:
        if alone:
            inputs = laid_out(step.inputs[0], self.format)
            return {"inputs": inputs, "targets": step.targets[0], "mask": step.mask[0]}
        batch = {"inputs": step.inputs, "targets": step.targets, "mask": step.mask}
        return batch if step.together else {**batch, "active": step.active}

    # ------------------------------------------------------------------ the program

    def _program(self, plan: LocalPlan, layout: Layout) -> Program:
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

            self._programs[plan, layout] = Program(function, self.mode)
        return self._programs[plan, layout]

    def _step(self, plan: LocalPlan) -> Callable[[Groups], dict[str, Tensors]]:
        """Return a local step of one client as a function of groups of tensors."""

        def step(groups: Groups) -> dict[str, Tensors]:
            given = groups["batch"]
            batch = Batch(given["inputs"], given["targets"], given["mask"])
            before = Walker(*(dict(groups[g]) for g in ("params", "velocity", "memory")))
            turn = self._turn(plan, groups)
            after, loss = local_step(self.algorithm, self.network, plan, before, batch, turn)
            if "active" in given:
                after = settle(given["active"], after, before)
            return {
                "params": after.params,
                "velocity": after.velocity,
                "memory": after.memory,
                "loss": {"loss": loss},
            }

        return step

    def _turn(self, plan: LocalPlan, groups: Groups) -> Turn:
        return Turn(
            groups["anchor"],
            groups["broadcast"],
            groups["state"],
            learning_rate=groups["rate"]["rate"],
            momentum=plan.momentum,
            nesterov=plan.nesterov,
            label_counts=groups["labels"].get("counts"),
            normalisation=self.normalisation,
            drawn=groups["drawn"],
        )


def _layout(turns: Sequence[Turn]) -> Layout:
    """Return whose turns these are: what a run's clients are sent is one object."""
    if len(turns) == 1:
        return "alone"
    senders = {(id(turn.anchor), id(turn.broadcast), turn.learning_rate) for turn in turns}
    return "one run" if len(senders) == 1 else "several runs"


def _over_clients(
    step: Callable[[Groups], dict[str, Tensors]], layout: Layout
) -> Callable[[Groups], dict[str, Tensors]]:
    """Return ``step`` over the rows of all groups but those that one run's clients share."""
    shared = SHARED if layout == "one run" else frozenset()

    def whole(groups: Groups) -> dict[str, Tensors]:
        dims = {group: None if group in shared else 0 for group in groups}
        return vmap(step, in_dims=(dims,))(groups)

    return whole


def _stacked(tensors: Sequence[Tensor]) -> Tensor:
    """Return [c, ...] of the clients' tensors, contiguous however each lies in memory."""
    return torch.stack([tensor.contiguous() for tensor in tensors])


def _rows(tensors: Tensors, count: int, alone: bool) -> list[Tensors]:
    """Return a copy of each client's tensors; on a GPU as parts of one copy, which is one launch."""
    if alone:
        return [_copies(tensors)]
    if any(tensor.device.type != "cpu" for tensor in tensors.values()):
        whole = _copies(tensors)
        return [{name: tensor[row] for name, tensor in whole.items()} for row in range(count)]
    return [_copies({n: tensor[row] for n, tensor in tensors.items()}) for row in range(count)]


def _copies(tensors: Tensors) -> Tensors:
    return {n: t.clone(memory_format=torch.contiguous_format) for n, t in tensors.items()}


def _mean_over_steps(losses: list[Tensor], sizes: list[Tensor]) -> list[float]:
    """Return each client's mean loss, weighted by batch sizes: [steps][c] both to [c]."""
    weights = torch.stack(sizes).double()
    weighted = torch.stack(losses).double().where(weights > 0, 0.0) * weights
    return [float(loss) for loss in (weighted.sum(0) / weights.sum(0)).cpu()]
