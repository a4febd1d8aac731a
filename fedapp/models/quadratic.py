"""The variable of a quadratic function."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from fedapp.data.dataset import Task
from fedapp.models.model import Model, without_accuracy


class Quadratic(Model):
    """A vector x, and as loss the function x'Ax / 2 - b'x of each example; for `quadratic`.

    d parameters, all 0 at the start. There is nothing to predict, so the accuracy is nan.
    """

    name: ClassVar[str] = "quadratic"
    takes: ClassVar[frozenset[str]] = frozenset({"quadratic"})

    def build(self, task: Task) -> nn.Module:
        """Return the network: functions (A_i, b_i) [n, d, d + 1] to their values at x [n]."""
        self.require_fit(task)
        return Point(task.input_shape[0])

    def loss(self, outputs: Tensor, targets: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the mean of the values that count: a scalar."""
        if mask is None:
            return outputs.mean()
        return (outputs * mask).sum() / mask.sum().clamp(min=1)

    def num_correct(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return nan, and the number of examples."""
        return without_accuracy(targets)


class Point(nn.Module):
    """The vector x."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.zeros(size))

    def forward(self, functions: Tensor) -> Tensor:
        """Return x'A_i x / 2 - b_i'x for each function: [n, d, d + 1] to [n]."""
        matrices, vectors = functions[..., :-1], functions[..., -1]
        return (matrices @ self.x / 2 - vectors) @ self.x
