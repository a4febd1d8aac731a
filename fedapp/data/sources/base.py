"""What every reader returns: splits of images or texts with their labels and further columns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Split:
    """One split as read.

    ``inputs``: images, uint8 [n, C, H, W], or texts, a ``pyarrow.ChunkedArray`` of n strings.
    ``labels``: [n], or None where there is no label column. ``columns``: the further columns, each
    a ``pyarrow.ChunkedArray`` of length n.
    """

    inputs: Any
    labels: NDArray[np.int64] | None
    columns: dict[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def is_text(self) -> bool:
        """Whether the inputs are texts."""
        return not isinstance(self.inputs, np.ndarray)

    def take(self, rows: NDArray[np.int64]) -> Split:
        """Return the split that holds the given rows, in that order."""
        return Split(
            inputs=self.inputs.take(rows) if self.is_text else self.inputs[rows],
            labels=None if self.labels is None else self.labels[rows],
            columns={name: column.take(rows) for name, column in self.columns.items()},
        )


@dataclass(frozen=True)
class Source:
    """A data set as read. ``class_names`` is empty where labels are plain integers."""

    train: Split
    test: Split | None
    class_names: tuple[str, ...] = ()
