"""Linear models and multi-layer perceptrons."""

from __future__ import annotations

import math
from typing import ClassVar

from pydantic import Field
from torch import nn

from fedapp.data.dataset import Task
from fedapp.models.model import Model


class TwoNN(Model):
    """The "2NN": two hidden layers of 200 units with ReLU (McMahan et al. 2017, section 3).

    199,210 parameters on MNIST. Weights and biases start from PyTorch's default for linear layers,
    uniform in +-1/sqrt(fan-in); the paper does not state its own.
    """

    name: ClassVar[str] = "2nn"
    takes: ClassVar[frozenset[str]] = frozenset({"image", "vector"})

    hidden: int = Field(200, ge=1, description="Units of each of the two hidden layers.")

    def build(self, task: Task) -> nn.Module:
        """Return the network for flattened inputs of any shape."""
        self.require_fit(task)
        return nn.Sequential(
            nn.Flatten(),
            nn.Linear(math.prod(task.input_shape), self.hidden),
            nn.ReLU(),
            nn.Linear(self.hidden, self.hidden),
            nn.ReLU(),
            nn.Linear(self.hidden, task.num_classes),
        )


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
