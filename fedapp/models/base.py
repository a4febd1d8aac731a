"""The interface of models: a network for a task, its loss and its accuracy."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedapp.data.base import IGNORE, Task
from fedapp.registry import Component
from fedapp.seeds import torch_seed


class Model(Component, ABC):
    """A family of networks, one for each task; its fields are its hyper-parameters."""

    @abstractmethod
    def build(self, task: Task) -> nn.Module:
        """Return a freshly initialised network: [n, *input_shape] to logits [n, C] (or [n, C, T]).

        Raises
        ------
        ConfigError
            The network does not fit the task (an image model for text, or the other way round).
        """

    def loss(self, outputs: Tensor, targets: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the mean cross-entropy over the targets that count: a scalar.

        ``mask`` [n] is 1 for real examples and 0 for the padding of a batch; targets equal to
        IGNORE never count.
        """
        if mask is None:
            return F.cross_entropy(outputs, targets, ignore_index=IGNORE)
        losses = F.cross_entropy(outputs, targets, ignore_index=IGNORE, reduction="none")
        weight = (targets != IGNORE) * mask.view(-1, *[1] * (targets.dim() - 1))
        return (losses * weight).sum() / weight.sum().clamp(min=1)

    def hits(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return how many targets are predicted correctly, and how many count: two scalars."""
        counted = targets != IGNORE
        return ((outputs.argmax(1) == targets) & counted).sum(), counted.sum()


def initialise(model: Model, task: Task, seed: int) -> nn.Module:
    """Build the network with weights drawn from (seed, "init") alone, in float32 on the CPU."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_seed(seed, "init"))
        return model.build(task)
