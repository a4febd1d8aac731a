"""The result of every reader: splits of images or texts with labels and further columns."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedapp.config.data import TEST_SPLIT, DataConfig
from fedapp.data.table import Table
from fedapp.errors import DataError

T = TypeVar("T", bound=Sized)

CLIENT_NAMES = ("client_id", "character_id", "writer_id", "author", "user_id", "user")
"""Usual names of the column of clients."""

CSV_FORMAT = b"csv 3"
"""A constant part of the hash of CSV files. To read them otherwise, raise ``cache.READING``."""


@dataclass(frozen=True)
class Split:
    """One split as read.

    ``inputs``: images, uint8 [n, C, H, W], the columns of a table, float64 [n, p], or texts, a
    ``pyarrow.ChunkedArray`` of n strings. ``labels``: [n], integers, or floats for a regression; None
    where there is no label column. ``columns``: the further columns, each
    a ``pyarrow.ChunkedArray`` of length n.
    """

    inputs: Any
    labels: NDArray[Any] | None
    columns: dict[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def is_text(self) -> bool:
        """Whether the inputs are texts."""
        return not isinstance(self.inputs, np.ndarray)

    def take(self, rows: NDArray[np.int64]) -> Split:
        """Return the split of the given rows, in this order."""
        return Split(
            inputs=self.inputs.take(rows) if self.is_text else self.inputs[rows],
            labels=None if self.labels is None else self.labels[rows],
            columns={name: column.take(rows) for name, column in self.columns.items()},
        )


@dataclass(frozen=True)
class Source:
    """A data set as read. ``class_names`` is empty where labels are plain integers.

    ``table`` describes the columns of a table.
    """

    train: Split
    test: Split | None = None
    _: KW_ONLY
    class_names: tuple[str, ...] = ()
    table: Table | None = None

    @property
    def splits(self) -> list[Split]:
        """The training split and, if there is one, the test split."""
        return [self.train, self.test] if self.test else [self.train]


def visible_paths(folder: Path, above: frozenset[Path] = frozenset()) -> Iterator[Path]:
    """Yield all paths in ``folder`` at any depth, sorted; links are followed, hidden names left out.

    ``above`` are the folders that contain it: a link to one of them is not followed.
    """
    above = above | {folder.resolve()}
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
        yield path
        if path.is_dir() and path.resolve() not in above:
            yield from visible_paths(path, above)


def visible_files(folder: Path) -> Iterator[Path]:
    """Yield the files among ``visible_paths``."""
    return (path for path in visible_paths(folder) if path.is_file())


def chosen_sets(config: DataConfig, folder: Path, names: Collection[str]) -> list[str]:
    """Return the names, of the sets that ``folder`` holds, that `dataset-subset` is a part of.

    Names that have it as whole words come before others.

    Raises
    ------
    DataError
        There is none.
    """
    subset = config.dataset_subset
    words = re.compile(rf"(?<![^/-]){re.escape(subset)}(?![^/-])")
    complete = [name for name in names if subset and words.search(name)]
    chosen = complete or [name for name in names if subset in name]
    if not chosen:
        raise DataError(
            f"dataset-subset = {subset!r}: is no part of the name of a set in {folder}, which holds: "
            f"{', '.join(sorted(names))}."
        )
    return chosen


def several_sets(config: DataConfig, names: Iterable[str]) -> DataError:
    """Return the error on several sets of which `dataset-subset` has to choose one."""
    return DataError(
        f"dataset-subset = {config.dataset_subset!r}: {config.dataset} holds several sets: "
        f"{', '.join(sorted(names))}. Set dataset-subset to a part of only one name."
    )


_INDEX = re.compile(r"Unnamed: \d+(\.\d+)*|__index_level_\d+__")


def is_index(column: str) -> bool:
    """Return whether a column has no name of its own, as the rows' index that pandas or R wrote.

    pandas reads such columns of CSV as Unnamed: 0, or Unnamed: 0.1 of an index that was saved twice.
    """
    return bool(_INDEX.fullmatch(column))


def column_named(name: str, columns: Collection[str]) -> str:
    """Return the column that a key names, in which spaces around it may be left out; else ``name``."""
    like = (column for column in columns if column.strip() == name)
    return name if not name or name in columns else next(like, name)


def refuse_equal_names(path: Path | str, names: Sequence[str]) -> None:
    """Raise DataError if two columns of a file have the same name."""
    if twice := next((name for name in names if names.count(name) > 1), ""):
        raise DataError(f"{path}: two columns are called {twice!r}. Rename or remove one of them.")


def no_column(where: str, name: str, columns: Iterable[str]) -> str:
    """Return the error that ``where`` lacks a column, without what to do."""
    return f"{where}: has no column {name!r}, but {', '.join(columns) or 'none'}."


def no_column_in_test(config: DataConfig, key: str, name: str, columns: Iterable[str]) -> DataError:
    """Return the error that the test split lacks a column of the training split, for ``key``."""
    where = f"dataset {config.dataset!r}, split {config.test_split!r}"
    return DataError(
        f"{no_column(where, name, columns)} Name it there as in split {config.train_split!r}, or set "
        f"{key} to what both splits have."
    )


def choose_splits(
    config: DataConfig, available: Mapping[str, T], *, test_required: bool
) -> list[T]:
    """Return the training split among the ``available`` ones and, if there is one, the test split.

    The test split is left out where there is none, or `test-split` names the training split, and
    ``test_required`` is false, or `test-fraction` is set and `test-split` is not.

    Raises
    ------
    ConfigError
        `test-fraction` has no effect beside a test split.
    DataError
        A split is missing or has no examples.
    """
    chosen = [_pick(config, "train-split", config.train_split, available)]
    has_test = config.test_split in available and config.test_split != config.train_split
    unset = (DataConfig.model_fields["test_split"].default, config.train_split)
    named = config.test_split not in unset
    # Where nodes have data of their own, a part is held out on those without a test split.
    of_nodes = getattr(config, "num_clients", None) == 0
    if has_test and test_required and not of_nodes:
        config.refuse_unused(TEST_SPLIT)
    if has_test or (test_required and (named or not config.test_fraction)):
        chosen.append(_pick(config, "test-split", config.test_split, available))
    return chosen


def _pick(config: DataConfig, key: str, name: str, available: Mapping[str, T]) -> T:
    if name not in available:
        raise DataError(
            f"{key} = {name!r}: dataset {config.dataset!r} has no such split. "
            f"It has: {', '.join(available) or 'none'}. {_advice(config, key, available)}"
        )
    if not len(available[name]):
        raise DataError(
            f"{key} = {name!r}: this split of dataset {config.dataset!r} has no examples. "
            f"Set {key} to another one, or fill it."
        )
    return available[name]


def _advice(config: DataConfig, key: str, available: Collection[str]) -> str:
    """Return what to do about a split that is missing; the training split is none to test on."""
    if key == "train-split":
        return "Set train-split to one of them."
    others = [name for name in available if name != config.train_split]
    splits = f"Set test-split to {' or '.join(others)}, or " if others else ""
    # A test split that is named, or that is there under the usual name, is not held out.
    named = config.test_split != DataConfig.model_fields["test_split"].default
    parts = [f"test-split={config.train_split!r}"] if named else []
    parts += [] if config.test_fraction else ["test-fraction=0.2"]
    advice = f"{splits}set {' and '.join(parts)} to hold out a part."
    return advice[0].upper() + advice[1:]
