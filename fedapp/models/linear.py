"""Linear models."""

from __future__ import annotations

import math
from typing import ClassVar

from torch import nn

from fedapp.data.dataset import Task
from fedapp.models.model import Model


class Linear(Model):
    """Multinomial logistic regression: one linear layer, so that the objective is convex.

    d C + C parameters for inputs of d numbers and C classes: 7,850 on MNIST. Weights and bias start
    from PyTorch's default for linear layers, uniform in +-1/sqrt(d).
    """

    name: ClassVar[str] = "linear"
    takes: ClassVar[frozenset[str]] = frozenset({"image", "vector"})

    def build(self, task: Task) -> nn.Module:
        """Return the network for flattened inputs of any shape: [n, ...] to [n, C]."""
        self.require_fit(task)
        return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(task.input_shape), task.num_classes))
