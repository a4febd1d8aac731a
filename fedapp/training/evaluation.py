"""Evaluation of a model on examples that stay on the device."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedapp.config.registry import Component, setting_of
from fedapp.data.dataset import Examples, Subset, Task
from fedapp.data.transforms.transform import Transform
from fedapp.errors import ConfigError, one_line
from fedapp.models.model import Model, is_regression
from fedapp.seeds import generator
from fedapp.training.batched.graph_matmul import LinearWithOnednn
from fedapp.training.batches import sequence_ends, to_device
from fedapp.training.device import flush_denormals, set_memory_format, to_memory_format
from fedapp.training.networks import running_statistics

SCORE_PREFIXES = ("test_", "training_set_", "client_")
"""How the names of theta's scores begin in a round's metrics."""

EVALUATION_BATCH = 1000
"""Examples of a batch, where it need not fit a processor's cache."""


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
        batch_size: int = EVALUATION_BATCH,
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
        self.has_metrics |= is_regression(targets)
        ends = sequence_ends(examples, causal=self.model.causal and not self.has_metrics)
        parts = (inputs.split(self.batch_size), targets.split(self.batch_size))
        if ends is not None:
            parts = _sorted_by_length(inputs, targets, ends, self.batch_size)
        self.inputs, self.targets = parts
        self._transformed: dict[int, Tensor] = {}

    @property
    def num_batches(self) -> int:
        """The number of batches."""
        return len(self.targets)

    def _batch(self, index: int) -> Tensor:
        """Return the transformed inputs of a batch, which stay on the device."""
        if index not in self._transformed:
            batch = self.transform.test(self.inputs[index], self.dtype)
            self._transformed[index] = to_memory_format(batch, self.memory_format)
        return self._transformed[index]

    def batch_sums(self, params: Mapping[str, Tensor], batches: Iterable[int]) -> Tensor:
        """Return the sum of the loss, the correct targets and those that count, by batch [b, 3]."""
        return self._outputs(params, batches)[0]

    @flush_denormals()
    @torch.no_grad()
    def _outputs(
        self, params: Mapping[str, Tensor], batches: Iterable[int]
    ) -> tuple[Tensor, list[Tensor]]:
        """Return the sums of batches, and where ``Model.metrics`` needs them the outputs."""
        torch._foreach_copy_(list(self.params.values()), [params[name] for name in self.params])
        sums = [torch.empty(0, 3, dtype=torch.float64, device=self.device)]
        all_outputs: list[Tensor] = []
        for index in batches:
            targets = self.targets[index]
            with LinearWithOnednn():
                outputs = self.module(self._batch(index))
            correct, count = self.model.num_correct(outputs, targets)
            loss = self.model.loss(outputs, targets).double() * count
            sums.append(torch.stack([loss, correct.double(), count.double()])[None])
            if self.has_metrics:
                all_outputs.append(outputs)
        return torch.cat(sums), all_outputs

    def score(self, params: Mapping[str, Tensor]) -> Score:
        """Return the score of ``params``, with running statistics if any; nan if no target counts."""
        sums, outputs = self._outputs(params, range(self.num_batches))
        score = score_of(sums)
        if not (score.count and outputs):
            return score
        further = self.model.metrics(torch.cat(outputs), torch.cat(self.targets))
        return replace(score, further=as_floats(self.model, "metrics", further))


RESERVED = frozenset(("loss", "accuracy", "worst_accuracy", "clients", "train_loss"))
"""Names that no number of ``Model.metrics`` has: those of a round's own numbers of clients."""


def is_reserved(name: str) -> bool:
    """Return whether a name is in ``RESERVED``, where a record has ``_`` for ``-``."""
    return str(name).replace("-", "_") in RESERVED


def metric_names(model: Model, task: Task) -> frozenset[str] | None:
    """Return the names that the numbers of ``Model.metrics`` have; None if the model chooses them."""
    if type(model).metrics is not Model.metrics:
        return None
    return frozenset(("rmse", "r2") if task.regression else ())


def as_floats(component: Component, method: str, found: Any) -> dict[str, float]:
    """Return the numbers that a method of a component gives, by name.

    Raises
    ------
    ConfigError
        It is no dictionary, or one of its values is no number.
    """
    returns = f"{setting_of(component)}: {method} returns"
    if not isinstance(found, Mapping):
        raise ConfigError(
            f"{returns} {one_line(repr(found))}. Let it return a dictionary of numbers."
        )
    numbers: dict[str, float] = {}
    for name, value in found.items():
        try:
            numbers[name] = float(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ConfigError(
                f"{returns} {one_line(repr(value))} for {name!r}, which is no number. Let it return a "
                "float for it."
            ) from error
    return numbers


def score_of(sums: Tensor) -> Score:
    """Return the score of the sums of all batches [b, 3]; nan if no target counts."""
    loss, correct, count = (column.contiguous().sum() for column in sums.T)
    total = int(count)
    if total == 0:
        return Score(math.nan, math.nan, 0)
    return Score(float(loss) / total, float(correct) / total, total)


class ServerScore:
    """Scores theta on sets of examples by name; the batches of all have one numbering."""

    def __init__(self, evaluators: Mapping[str, Evaluator]) -> None:
        self.evaluators = evaluators
        self.sizes = [each.num_batches for each in evaluators.values()]

    def __call__(self, theta: Mapping[str, Tensor]) -> dict[str, float]:
        """Return the scores by their names in the metrics of a round."""
        return self._named([each.score(theta) for each in self.evaluators.values()])

    @property
    def num_batches(self) -> int:
        """The number of batches that can be evaluated apart; 0 where ``Model.metrics`` needs all."""
        return 0 if any(e.has_metrics for e in self.evaluators.values()) else sum(self.sizes)

    def batch_sums(self, theta: Mapping[str, Tensor], batches: Sequence[int]) -> Tensor:
        """Return the sums of ascending batches [b, 3]."""
        sums, first = [], 0
        for evaluator, size in zip(self.evaluators.values(), self.sizes, strict=True):
            own = [index - first for index in batches if first <= index < first + size]
            sums.append(evaluator.batch_sums(theta, own))
            first += size
        return torch.cat(sums)

    def from_sums(self, sums: Tensor) -> dict[str, float]:
        """Return the scores of the sums of all batches."""
        return self._named([score_of(part) for part in sums.split(self.sizes)])

    def _named(self, scores: Sequence[Score]) -> dict[str, float]:
        named: dict[str, float] = {}
        for prefix, score in zip(self.evaluators, scores, strict=True):
            numbers = {**score.further, "loss": score.loss, "accuracy": score.accuracy}
            named |= {f"{prefix}_{name}": value for name, value in numbers.items()}
        return named


def _sorted_by_length(
    inputs: Tensor, targets: Tensor, ends: NDArray[np.int64], size: int
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Return batches of sequences of similar length, inputs and targets, cut to the longest of each."""
    order = np.argsort(ends, kind="stable")
    rows = [order[start : start + size] for start in range(0, len(order), size)]
    cuts = [(torch.from_numpy(row).to(inputs.device), int(ends[row[-1]])) for row in rows]
    return tuple(inputs[i, :end] for i, end in cuts), tuple(targets[i, :end] for i, end in cuts)
