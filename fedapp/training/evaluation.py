"""Evaluation of a model on examples that stay on the device."""

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
from fedapp.training.batched.graph_matmul import LinearWithOnednn
from fedapp.training.batches import sequence_ends, to_device
from fedapp.training.device import flush_denormals, set_memory_format, to_memory_format
from fedapp.training.networks import running_statistics


def sample_examples(examples: Examples, count: int, seed: int) -> Examples:
    """Return ``count`` of the examples, in their order and drawn by ``seed``; all if there are fewer."""
    if count >= len(examples):
        return examples
    indices = generator(seed, "eval-train").choice(len(examples), count, replace=False)
    return Subset(examples, np.sort(indices))


@dataclass(frozen=True)
class Score:
    """Mean loss and accuracy over the ``count`` targets that count (tokens, or examples).

    The accuracy is nan where there is nothing to predict (a function to minimise). ``further`` are
    the numbers of ``Model.metrics``.
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
        self.memory_format = set_memory_format(self.module)
        self.model = model
        self.has_metrics = type(model).metrics is not Model.metrics
        statistics = running_statistics(self.module)
        self.statistics = {name: tensor.clone() for name, tensor in statistics.items()}
        self.params = {**dict(self.module.named_parameters()), **statistics}
        self.batch_size = batch_size
        self.transform = transform
        self.device = device
        self.dtype = dtype
        self._load(examples)

    def with_examples(self, examples: Examples) -> Evaluator:
        """Return an evaluator of the same network on other examples."""
        other = copy.copy(self)
        other._load(examples)
        return other

    def _load(self, examples: Examples) -> None:
        inputs, targets = to_device(examples, self.device)
        self.has_metrics |= self.model.predicts_numbers(targets)
        ends = sequence_ends(examples, causal=self.model.causal and not self.has_metrics)
        parts = (inputs.split(self.batch_size), targets.split(self.batch_size))
        if ends is not None:
            parts = _sorted_by_length(inputs, targets, ends, self.batch_size)
        transformed = (self.transform.test(batch, self.dtype) for batch in parts[0])
        self.batches = [to_memory_format(batch, self.memory_format) for batch in transformed]
        self.targets = parts[1]

    @flush_denormals()
    @torch.no_grad()
    def score(self, params: Mapping[str, Tensor]) -> Score:
        """Return the score of ``params``, with running statistics if any; nan if no target counts."""
        torch._foreach_copy_(list(self.params.values()), [params[name] for name in self.params])
        losses, num_correct, counts = [], [], []
        all_outputs: list[Tensor] = []
        for inputs, targets in zip(self.batches, self.targets, strict=True):
            with LinearWithOnednn():
                outputs = self.module(inputs)
            correct, count = self.model.num_correct(outputs, targets)
            losses.append(self.model.loss(outputs, targets).double() * count)
            num_correct.append(correct)
            counts.append(count)
            if self.has_metrics:
                all_outputs.append(outputs)
        total = int(torch.stack(counts).sum()) if counts else 0
        if total == 0:
            return Score(float("nan"), float("nan"), 0)
        loss = float(torch.stack(losses).sum()) / total
        accuracy = float(torch.stack(num_correct).double().sum()) / total
        further = (
            self.model.metrics(torch.cat(all_outputs), torch.cat(self.targets))
            if all_outputs
            else {}
        )
        return Score(loss, accuracy, total, further)


def _sorted_by_length(
    inputs: Tensor, targets: Tensor, ends: NDArray[np.int64], size: int
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Return batches of sequences of similar length, inputs and targets, cut to the longest of each."""
    order = np.argsort(ends, kind="stable")
    rows = [order[start : start + size] for start in range(0, len(order), size)]
    cuts = [(torch.from_numpy(row).to(inputs.device), int(ends[row[-1]])) for row in rows]
    return tuple(inputs[i, :end] for i, end in cuts), tuple(targets[i, :end] for i, end in cuts)
