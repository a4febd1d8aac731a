"""The interface of partitioners."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from numpy.typing import NDArray

from fedapp.data.base import Examples, Partition
from fedapp.registry import Component


class Partitioning(Component, ABC):
    """A rule that splits n examples over K clients; its fields are its parameters."""

    @abstractmethod
    def split(self, examples: Examples, num_clients: int, seed: int) -> Partition:
        """Return the partition of ``examples`` over ``num_clients`` clients.

        Raises
        ------
        ConfigError
            The data cannot be split in this way; the message names the keys and values.
        """


def labels_of(examples: Examples) -> NDArray[Any]:
    """Return one label an example: the target, or for token sequences the first target."""
    targets = examples.targets
    return targets if targets.ndim == 1 else targets[:, 0]
