"""The interface of embedded data sets."""

from __future__ import annotations

from abc import ABC, abstractmethod

from fedapp.data.base import Dataset
from fedapp.registry import Component


class Embedded(Component, ABC):
    """A data set that needs no download: its fields are its parameters."""

    @abstractmethod
    def load(self) -> Dataset:
        """Return the data set."""
