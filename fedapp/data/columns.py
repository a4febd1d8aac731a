"""Further columns (author, role) as integer codes, for natural partitions."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedapp.data.readers.source import Split
from fedapp.errors import DataError

FEW_NAMES = 1000
"""A column with more distinct values than this and than n / 2 describes rows, not groups."""


def code_groups(
    splits: list[Split], *, always: str = ""
) -> tuple[list[dict[str, NDArray[np.int32]]], dict[str, tuple[str, ...]]]:
    """Return each split's columns as integer codes, and what each code stands for.

    Codes count the sorted distinct values of all splits together, so that one author has one code.
    Columns with nearly as many values as rows, or that some split lacks, are left out, but never
    the column ``always``.

    Raises
    ------
    DataError
        The column ``always`` has empty values, or a split lacks it.
    """
    codes: list[dict[str, NDArray[np.int32]]] = [{} for _ in splits]
    names: dict[str, tuple[str, ...]] = {}
    for name in splits[0].columns:
        columns = [split.columns.get(name) for split in splits]
        values = _values(columns)
        if values is None and name == always:
            raise DataError(
                f"client-key = {name!r}: some row or split has no value of this type. "
                "Fill the column."
            )
        if values is None or (len(values) > _limit(splits) and name != always):
            continue
        names[name] = tuple(map(str, values.to_pylist()))
        for codes_of_split, column in zip(codes, columns, strict=True):
            codes_of_split[name] = _codes(column, values)
    return codes, names


def _limit(splits: list[Split]) -> int:
    return max(FEW_NAMES, sum(map(len, splits)) // 2)


def _values(columns: list[Any]) -> Any:
    """Return the sorted distinct values of a column in all splits; None if some are missing."""
    import pyarrow as pa

    if any(column is None or column.null_count for column in columns):
        return None
    if len({column.type for column in columns}) > 1:
        return None
    return pa.chunked_array([c for column in columns for c in column.chunks]).unique().sort()


def _codes(column: Any, values: Any) -> NDArray[np.int32]:
    import pyarrow.compute as pc

    return np.asarray(pc.index_in(column, value_set=values).to_numpy(), np.int32)
