"""Evaluation of a model on a set of examples that stays on the device."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedapp.data.dataset import Examples, Subset
from fedapp.data.transforms.transform import Transform
from fedapp.models.model import Model
from fedapp.seeds import generator
from fedapp.training.batched.graph_matmul import LinearByOnednn
from fedapp.training.batches import ends, to_device
from fedapp.training.layout import laid_out, lay_out
from fedapp.training.networks import running_statistics
from fedapp.training.subnormal import flushed


def sample(examples: Examples, count: int, seed: int) -> Examples:
    """Return ``count`` of the examples, the same for a seed, in their order; all if there are less."""
    if count >= len(examples):
        return examples
    drawn = generator(seed, "eval-train").choice(len(examples), count, replace=False)
    return Subset(examples, np.sort(drawn))


@dataclass(frozen=True)
class Score:
    """Mean loss and accuracy over the ``count`` targets that count (tokens, or examples).

    The accuracy is nan where there is nothing to predict (a function to minimise). ``further`` is
    what ``Model.metrics`` makes of the same outputs.
    """

    loss: float
    accuracy: float
    count: int
    further: Mapping[str, float] = field(default_factory=dict)


class Evaluator:
    """Scores parameters on fixed examples, in batches of ``batch_size``."""

    def __init__(
        self,
        module: nn.Module,
        model: Model,
        examples: Examples,
        transform: Transform,
        device: torch.device,
        dtype: torch.dtype,
        batch_size: int = 1000,
    ) -> None:
        self.module = module.to(device=device, dtype=dtype).eval()
        self.format = lay_out(self.module)
        self.model = model
        self.measures = type(model).metrics is not Model.metrics
        statistics = running_statistics(self.module)
        self.statistics = {name: tensor.clone() for name, tensor in statistics.items()}
        self.params = {**dict(self.module.named_parameters()), **statistics}
        self.batch_size = batch_size
        self.transform = transform
        self.device = device
        self.dtype = dtype
        self._load(examples)

    def on(self, examples: Examples) -> Evaluator:
        """Return an evaluator of the same network, not built anew, on other examples."""
        other = copy.copy(self)
        other._load(examples)
        return other

    def _load(self, examples: Examples) -> None:
        inputs, targets = to_device(examples, self.device)
        until = ends(examples, causal=self.model.causal and not self.measures)
        parts = (inputs.split(self.batch_size), targets.split(self.batch_size))
        if until is not None:
            parts = _by_length(inputs, targets, until, self.batch_size)
        shown = (self.transform.test(batch, self.dtype) for batch in parts[0])
        self.batches = [laid_out(batch, self.format) for batch in shown]
        self.targets = parts[1]

    @flushed()
    @torch.no_grad()
    def score(self, params: Mapping[str, Tensor]) -> Score:
        """Return the score of ``params``, with running statistics if any; nan where nothing counts."""
        torch._foreach_copy_(list(self.params.values()), [params[name] for name in self.params])
        losses, num_correct, counts = [], [], []
        kept: list[Tensor] = []
        for inputs, targets in zip(self.batches, self.targets, strict=True):
            with LinearByOnednn():
                outputs = self.module(inputs)
            hit, count = self.model.num_correct(outputs, targets)
            losses.append(self.model.loss(outputs, targets).double() * count)
            num_correct.append(hit)
            counts.append(count)
            if self.measures:
                kept.append(outputs)
        total = int(torch.stack(counts).sum()) if counts else 0
        if total == 0:
            return Score(float("nan"), float("nan"), 0)
        loss = float(torch.stack(losses).sum()) / total
        accuracy = float(torch.stack(num_correct).double().sum()) / total
        further = self.model.metrics(torch.cat(kept), torch.cat(self.targets)) if kept else {}
        return Score(loss, accuracy, total, further)


def _by_length(
    inputs: Tensor, targets: Tensor, until: NDArray[np.int64], size: int
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Return batches of sequences of like length, inputs and targets, each as long as its longest."""
    order = np.argsort(until, kind="stable")
    rows = [order[start : start + size] for start in range(0, len(order), size)]
    places = [(torch.from_numpy(row).to(inputs.device), int(until[row[-1]])) for row in rows]
    return tuple(inputs[i, :end] for i, end in places), tuple(targets[i, :end] for i, end in places)
