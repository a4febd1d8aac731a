"""The clients of a text: their column, LEAF's windows joined, and the last lines held out."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedapp.config.data import DataConfig
from fedapp.data.readers.source import CLIENT_NAMES, Source, Split, column_named, no_column_in_test
from fedapp.errors import DataError


def client_column(config: DataConfig, split: Split) -> str:
    """Return the name of the column that holds the client of each row; "" where there is one client.

    Raises
    ------
    DataError
        `client-key` names no column.
    """
    key = column_named(config.client_key, split.columns)
    if key and key not in split.columns:
        raise DataError(
            f"client-key = {config.client_key!r}: dataset {config.dataset!r} has no such column. "
            f"Its further columns: {', '.join(split.columns) or 'none'}."
        )
    usual = (name for name in CLIENT_NAMES if name in split.columns)
    return key or next(usual, "")


def join_windows(config: DataConfig, source: Source, client: str) -> Source:
    """Return the texts from which LEAF's windows (x: 80 characters, y: the next one) were cut.

    A row that continues the client's row before it belongs to the same text. Only the client's column
    is kept. With `test-fraction`, the end of each text becomes the test split.
    """
    if not _has_windows(source.train):
        return source
    train = _texts(source.train, client)
    if source.test is not None:
        for key, name in (("input-key", "y"), ("client-key", client or "y")):
            if name not in source.test.columns:
                raise no_column_in_test(config, key, name, source.test.columns)
        return Source(_split(train, client), _split(_texts(source.test, client), client))
    if not config.test_fraction:
        return Source(_split(train, client))
    cuts = [len(text) - int(config.test_fraction * len(text)) for _, text in train]
    heads = [(who, text[:cut]) for (who, text), cut in zip(train, cuts, strict=True)]
    tails = [(who, text[cut:]) for (who, text), cut in zip(train, cuts, strict=True) if text[cut:]]
    return Source(_split(heads, client), _split(tails, client))


def hold_out_last(
    owners: NDArray[np.int64], fraction: float
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows for training and for testing, for the client of each row ``owners``: [n].

    The last max(int(fraction * n_k), 1) rows of client k are for testing (McMahan et al. 2017, section 3:
    the last 20 % of lines, at least one). The row of a client with only one is for training.
    """
    order = np.argsort(owners, kind="stable")
    sizes = np.bincount(owners)
    rank = np.empty(len(owners), np.int64)
    rank[order] = np.arange(len(owners)) - (np.cumsum(sizes) - sizes)[owners[order]]
    held = np.where(sizes > 1, np.maximum((fraction * sizes).astype(np.int64), 1), 0)
    testing = rank >= (sizes - held)[owners]
    return np.flatnonzero(~testing), np.flatnonzero(testing)


def _has_windows(split: Split) -> bool:
    import pyarrow.compute as pc

    from fedapp.data.readers.numbers import is_text

    following = split.columns.get("y")
    if following is None or not is_text(following.type):
        return False
    lengths = pc.min_max(pc.utf8_length(split.inputs)).as_py()
    one = pc.all(pc.equal(pc.utf8_length(following), 1)).as_py()
    return bool(one and lengths["min"] == lengths["max"] and not following.null_count)


def _texts(split: Split, client: str) -> list[tuple[Any, str]]:
    """Return (client, text) for every series of windows that overlap in all but one character."""
    columns = [split.inputs, split.columns["y"]]
    columns.append(split.columns[client] if client else split.columns["y"])
    texts: list[tuple[Any, list[str]]] = []
    latest: dict[Any, tuple[str, list[str]]] = {}
    for start in range(0, len(split), 100_000):  # limits the memory of Python strings
        rows = zip(*(column.slice(start, 100_000).to_pylist() for column in columns), strict=True)
        for window, following, row_client in rows:
            who = row_client if client else ""
            expected, pieces = latest.get(who, ("", []))
            if window != expected:
                pieces = [window]
                texts.append((who, pieces))
            pieces.append(following)
            latest[who] = (window[1:] + following, pieces)
    return [(who, "".join(pieces)) for who, pieces in texts]


def _split(texts: list[tuple[Any, str]], client: str) -> Split:
    import pyarrow as pa

    columns = {client: pa.chunked_array([pa.array([who for who, _ in texts])])} if client else {}
    return Split(
        pa.chunked_array([pa.array([text for _, text in texts], pa.string())]), None, columns
    )
