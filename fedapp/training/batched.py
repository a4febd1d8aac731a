"""The batched trainer: ClientUpdate of several clients in one program."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.func import vmap

from fedapp.data.transforms.base import Transform
from fedapp.models.base import Model
from fedapp.training.algorithm import Algorithm, Batch, Turn
from fedapp.training.feed import Feed, Step
from fedapp.training.layout import laid_out, memory_format
from fedapp.training.local_step import Walker, local_step, settle
from fedapp.training.networks import PureNetwork, normalisation_names
from fedapp.training.plan import LocalPlan
from fedapp.training.program import Groups, Mode, Program
from fedapp.training.tensors import Tensors, zeros_like
from fedapp.training.trainer import ClientTask, Outcome

SHARED = frozenset({"anchor", "broadcast", "rate"})
"""The groups of tensors that all clients of a program share; the others have a row for each."""


WHOLE_COHORT = 10**9
"""More clients than any cohort has."""

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
        together: int = 1,
        mode: Mode = "record",
    ) -> None:
        self.network = PureNetwork(module.to(device=device, dtype=dtype).train(), model)
        self.normalisation = normalisation_names(module)
        self.format = memory_format(module) if together == 1 else torch.contiguous_format
        self.algorithm, self.transform = algorithm, transform
        self.device, self.dtype, self.num_classes = device, dtype, num_classes
        self.together, self.mode = together, mode
        self._programs: dict[tuple[LocalPlan, bool], Program] = {}
        self._places: dict[tuple[str, str, torch.Size], Tensor] = {}
        self._last: dict[str, tuple[Mapping[str, Tensor], Tensors]] = {}

    def __str__(self) -> str:
        clients = {1: "one client", WHOLE_COHORT: "a cohort"}.get(
            self.together, f"{self.together} clients"
        )
        return f"batched on {self.device}, {clients} a program, {VERBS[self.mode]}"

    def client_updates(self, tasks: Sequence[ClientTask], plan: LocalPlan) -> list[Outcome]:
        """Run ClientUpdate (McMahan et al. 2017, Algorithm 1) for all ``tasks`` and return theta_k.

        The outcomes are those of the sequential trainer, up to rounding.
        """
        busy = [index for index, task in enumerate(tasks) if plan.num_steps(len(task.examples))]
        outcomes: dict[int, Outcome] = {}
        for start in range(0, len(busy), self.together):
            chunk = busy[start : start + self.together]
            walked = self._walk([tasks[index] for index in chunk], plan)
            outcomes.update(zip(chunk, walked, strict=True))
        return [outcomes.get(index) or self._idle(task) for index, task in enumerate(tasks)]

    def _idle(self, task: ClientTask) -> Outcome:
        """Return the outcome of a client without examples: it takes no step."""
        params = {name: tensor.clone() for name, tensor in self.algorithm.begin(task.turn).items()}
        finish = self.algorithm.finish(params, task.turn, 0)
        return Outcome(params, len(task.examples), 0, float("nan"), finish)

    @torch.no_grad()
    def _walk(self, tasks: Sequence[ClientTask], plan: LocalPlan) -> list[Outcome]:
        """Take all local steps of clients that have some."""
        pairs = [(task.examples, task.rng) for task in tasks]
        feed = Feed(pairs, plan, self.transform, self.device, self.dtype)
        alone = len(tasks) == 1
        program = self._program(plan, alone)
        groups = self._stage(tasks, plan, alone)
        losses, sizes = [], []
        for step in feed:
            result = program({**groups, "batch": self._batch(step, alone)})
            groups["memory"] = result.get("memory", {})
            losses.append(result["loss"]["loss"].reshape(-1).clone())
            sizes.append(step.mask.sum(1))
        means = _mean_over_steps(losses, sizes)
        return [
            self._outcome(
                task,
                _row(groups["params"], row, alone),
                _row(groups["memory"], row, alone),
                feed.steps[row],
                means[row],
            )
            for row, task in enumerate(tasks)
        ]

    def _outcome(
        self, task: ClientTask, params: Tensors, memory: Tensors, steps: int, loss: float
    ) -> Outcome:
        finish = self.algorithm.finish(params, replace(task.turn, memory=memory), steps)
        return Outcome(params, len(task.examples), steps, loss, finish)

    # ------------------------------------------------------------------ what goes in

    def _stage(
        self, tasks: Sequence[ClientTask], plan: LocalPlan, alone: bool
    ) -> dict[str, Tensors]:
        """Return all but the batches, in tensors that stay where they are from turn to turn."""
        turns = [task.turn for task in tasks]
        start = [self.algorithm.begin(turn) for turn in turns]
        counts = [{} if t.label_counts is None else {"counts": t.label_counts} for t in turns]
        params = self._placed("params", start, alone)
        rate = torch.tensor(plan.learning_rate, dtype=self.dtype)
        still = [zeros_like(params)] if plan.momentum else [{}]
        return {
            "params": params,
            "velocity": self._placed("velocity", still, alone=True),
            "memory": {},
            "anchor": self._shared("anchor", turns[0].anchor),
            "broadcast": self._shared("broadcast", turns[0].broadcast),
            "state": self._placed("state", [turn.state for turn in turns], alone),
            "drawn": self._placed("drawn", [turn.drawn for turn in turns], alone),
            "labels": self._placed("labels", counts, alone),
            "rate": self._placed("rate", [{"rate": rate}], alone=True),
        }

    def _placed(self, group: str, rows: Sequence[Mapping[str, Tensor]], alone: bool) -> Tensors:
        """Copy the clients' tensors to where the last turn's were: a CUDA graph reads them there."""
        placed: Tensors = {}
        for name in rows[0]:
            tensors = [row[name].to(self.device) for row in rows]
            values = laid_out(tensors[0], self.format) if alone else torch.stack(tensors)
            key = (group, name, values.shape)
            if key in self._places:
                self._places[key].copy_(values)
            else:
                self._places[key] = values.clone()
            placed[name] = self._places[key]
        return placed

    def _shared(self, group: str, tensors: Mapping[str, Tensor]) -> Tensors:
        """Copy what a cohort's turns share to its place, once for the whole cohort."""
        last, placed = self._last.get(group, (None, {}))
        if last is not tensors:
            placed = self._placed(group, [tensors], alone=True)
            self._last[group] = (tensors, placed)
        return placed

    def _batch(self, step: Step, alone: bool) -> Tensors:
        if alone:
            inputs = laid_out(step.inputs[0], self.format)
            return {"inputs": inputs, "targets": step.targets[0], "mask": step.mask[0]}
        return {
            "inputs": step.inputs,
            "targets": step.targets,
            "mask": step.mask,
            "active": step.active,
        }

    # ------------------------------------------------------------------ the program

    def _program(self, plan: LocalPlan, alone: bool) -> Program:
        """Return one local step of one client, or of several, which changes its params in place."""
        plan = replace(plan, learning_rate=0.0)
        if (plan, alone) not in self._programs:
            step = self._step(plan)
            whole = step if alone else _over_clients(step)

            def function(groups: Groups) -> dict[str, Tensors]:
                after = whole(groups)
                for group in ("params", "velocity"):
                    for name, tensor in after.pop(group).items():
                        groups[group][name].copy_(tensor)
                return after

            self._programs[plan, alone] = Program(function, self.mode)
        return self._programs[plan, alone]

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


def _over_clients(
    step: Callable[[Groups], dict[str, Tensors]],
) -> Callable[[Groups], dict[str, Tensors]]:
    """Return ``step`` over the rows of all groups but the shared ones."""

    def whole(groups: Groups) -> dict[str, Tensors]:
        dims = {group: None if group in SHARED else 0 for group in groups}
        return vmap(step, in_dims=(dims,))(groups)

    return whole


def _row(tensors: Tensors, row: int, alone: bool) -> Tensors:
    """Return a copy of one client's tensors."""
    return {
        name: (tensor if alone else tensor[row]).clone(memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }


def _mean_over_steps(losses: list[Tensor], sizes: list[Tensor]) -> list[float]:
    """Return each client's mean loss, weighted by batch sizes: [steps][c] both to [c]."""
    weights = torch.stack(sizes).double()
    weighted = torch.stack(losses).double().where(weights > 0, 0.0) * weights
    return [float(loss) for loss in (weighted.sum(0) / weights.sum(0)).cpu()]
