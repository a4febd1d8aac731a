"""Data sets as arrays of examples, with a task, and partitions as index sets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedapp.data.table import Statistics, Table
from fedapp.errors import ConfigError

IGNORE = -1
"""Target value that the loss and the accuracy leave out (padding of token sequences)."""


@dataclass(frozen=True)
class Task:
    """The properties of a data set that a model depends on and that all clients share.

    ``input_shape`` is the shape of one example before transforms: (C, H, W) for images, (T,) for
    token sequences, (d,) for vectors; (d, d + 1) for quadratic functions in d unknowns (A
    and b). ``num_classes`` is the number of labels, or of symbols where every token is predicted. Token
    tasks: ``num_symbols`` is the number of symbols in inputs, ``vocabulary`` identifies them ("bytes",
    or a digest of the words), and ``one_label`` is true where a sequence has one label. Tables:
    ``columns`` names what the d numbers are. With ``regression`` targets are floats, and
    ``num_classes`` is the number of outputs, 1.
    """

    kind: Literal["image", "tokens", "vector", "quadratic"]
    input_shape: tuple[int, ...]
    num_classes: int
    labels: tuple[str, ...] = ()
    num_symbols: int = 0
    vocabulary: str = ""
    one_label: bool = False
    columns: tuple[str, ...] = ()
    regression: bool = False

    @property
    def has_accuracy(self) -> bool:
        """Whether predictions are right or wrong."""
        return self.kind != "quadratic" and not self.regression


@dataclass(frozen=True)
class Examples:
    """Examples as arrays that may be memory-mapped.

    ``inputs``: [n, *input_shape], uint8 (images), integer (tokens) or float. ``targets``: [n], or
    [n, T] for token tasks, with IGNORE where nothing is predicted. ``groups``: further columns of codes
    [n] by name (author, role), for natural partitions; ``group_names[name][code]`` is the value of a
    code, the same in the training and the test examples. ``left_out`` says of columns that could have
    been such why they are not.
    """

    inputs: NDArray[Any]
    targets: NDArray[Any]
    groups: dict[str, NDArray[Any]] = field(default_factory=dict)
    group_names: dict[str, tuple[str, ...]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def base(self) -> Examples:
        """The set of which these examples are a subset; the set itself where they are all of it."""
        return self

    @property
    def indices(self) -> NDArray[np.int64]:
        """Positions of these examples in ``base``: [n]."""
        return np.arange(len(self))


class Subset(Examples):
    """The examples of ``base`` at ``indices``, in that order; copied when they are first read.

    Code that reads ``base`` by index needs no copy of a client's data.
    """

    _base: Examples
    _indices: NDArray[np.int64]

    def __init__(self, base: Examples, indices: NDArray[np.int64]) -> None:
        vars(self).update(_base=base, _indices=indices, groups={}, group_names={}, left_out={})

    @property
    def base(self) -> Examples:
        """The set of which these are a subset."""
        return self._base

    @property
    def indices(self) -> NDArray[np.int64]:
        """Positions of these examples in ``base``: [n]."""
        return self._indices

    @cached_property
    def inputs(self) -> NDArray[Any]:
        """[n, *input_shape]."""
        return np.asarray(self.base.inputs[self.indices])

    @cached_property
    def targets(self) -> NDArray[Any]:
        """[n], or [n, T] for token tasks."""
        return np.asarray(self.base.targets[self.indices])

    def __len__(self) -> int:
        return len(self._indices)


@dataclass(frozen=True)
class Dataset:
    """A data set: its training and test examples, its task, and a fingerprint of its content.

    Tables: ``table`` describes columns that are not coded yet, and ``statistics`` are those with which
    they were coded.
    """

    name: str
    task: Task
    train: Examples
    test: Examples
    fingerprint: str
    table: Table | None = None
    statistics: Statistics | None = None


@dataclass(frozen=True)
class Partition:
    """Index sets P_1 ... P_K into the training (and test) examples.

    Client k holds ``indices[offsets[k] : offsets[k + 1]]``. ``test`` is the partition of the test
    examples where a scheme gives each client a test set, else None.
    """

    indices: NDArray[np.int64]
    offsets: NDArray[np.int64]
    test: Partition | None = None

    @property
    def num_clients(self) -> int:
        """K, the number of clients."""
        return len(self.offsets) - 1

    @property
    def sizes(self) -> NDArray[np.int64]:
        """n_k for every client: [K]."""
        return np.diff(self.offsets)

    def client(self, k: int) -> NDArray[np.int64]:
        """Return P_k, the indices of client ``k``'s examples."""
        return self.indices[self.offsets[k] : self.offsets[k + 1]]


class IndexSetError(ConfigError):
    """Index sets that a partitioner gives are none; ``load_partition`` adds which partitioner."""


def from_index_sets(sets: Sequence[NDArray[np.int64]]) -> Partition:
    """Return the partition whose client k holds ``sets[k]``.

    Raises
    ------
    IndexSetError
        A set is no list or array of whole numbers.
    """
    arrays = [_index_set(client, indices) for client, indices in enumerate(sets)]
    sizes = np.array([len(indices) for indices in arrays], dtype=np.int64)
    return Partition(np.concatenate([np.empty(0, np.int64), *arrays]), offsets_of(sizes))


def offsets_of(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the start of each client's slice, and the end of the last: [K + 1]."""
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def _index_set(client: int, indices: Any) -> NDArray[np.int64]:
    """Return the indices of ``client`` as an array, if they are such."""
    try:
        array = np.asarray(indices)
    except ValueError:  # lists of different lengths
        array = np.array(None)
    if array.ndim != 1:
        raise IndexSetError(
            f"client {client} has a {type(indices).__name__} that is no list of indices. Give each "
            "client a list or array of one dimension: of a set s, sorted(s)."
        )
    if not array.size:
        return np.empty(0, np.int64)
    if array.dtype == bool:
        raise IndexSetError(
            f"client {client} has a mask of {len(array)} booleans, and indices are whole numbers. Give "
            "np.flatnonzero(mask)."
        )
    if array.dtype.kind not in "iu":
        raise IndexSetError(
            f"client {client} has index {array.tolist()[0]!r}, and indices are whole numbers. Give "
            "integers: of an array x of whole floats, x.astype(int)."
        )
    return array.astype(np.int64)
