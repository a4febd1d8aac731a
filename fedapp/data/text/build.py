"""From texts to a data set: next-character and next-word tasks, and labelled texts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedapp.config.data import DataConfig
from fedapp.data.columns import code_groups, hold_out_random
from fedapp.data.dataset import Dataset, Examples, Task
from fedapp.data.readers.source import Source, Split
from fedapp.data.text.clients import client_column, hold_out_last, join_windows
from fedapp.data.text.symbols import (
    Characters,
    Symbols,
    most_frequent,
    symbol_dtype,
    truncate_and_pad,
    unroll,
    words_of,
)
from fedapp.errors import DataError


def encode_labelled(config: DataConfig, splits: list[Split]) -> tuple[Task, list[NDArray[Any]]]:
    """Return the task of texts with one label, still without its classes, and each split's [n, T]."""
    steps = config.text_unroll or (64 if config.text_unit == "words" else 256)
    texts = [split.inputs.to_pylist() for split in splits]
    symbols = _labelled_symbols(config, texts[0])
    task = Task(
        kind="tokens",
        input_shape=(steps,),
        num_classes=0,
        num_symbols=symbols.count,
        vocabulary=symbols.vocabulary,
        one_label=True,
    )
    encoded = (symbols.encode(each) for each in texts)
    return task, [truncate_and_pad(*each, steps, symbols) for each in encoded]


def _labelled_symbols(config: DataConfig, texts: list[str]) -> Symbols:
    return _symbols(config, texts, np.zeros(len(texts), np.int64), 0)


def build_next_symbol(config: DataConfig, source: Source) -> Dataset:
    """Return sequences in which every next symbol is to be predicted: inputs and targets [n, T].

    A client's texts are joined in the order of the rows, and sequences never span clients;
    with ``text-example = "line"`` they do not span texts either. ``groups["client_id"]`` is the client
    of a sequence; columns that are constant within each client (play, role) are stored too.

    Raises
    ------
    DataError
        `client-key` names no column, or no training text has two symbols.
    """
    splits = _split_lines(config, source)
    words = config.text_unit == "words"
    steps = config.text_unroll or (10 if words else 80)
    limit = config.text_client_words if words else 0
    symbols = _symbols(config, splits[0].texts, splits[0].owners, limit)
    by_line = config.text_example == "line"
    train = _sequences(splits[0], symbols, steps, limit, by_line=by_line)
    if not len(train):
        fix = "; raise text-client-words" if limit == 1 else ""
        raise DataError(f"dataset = {config.dataset!r}: no client has a symbol to predict{fix}.")
    empty = np.empty((0, steps), symbol_dtype(symbols.count))
    test = Examples(empty, empty)
    if splits[1:]:
        test = _sequences(splits[1], symbols, steps, 0, by_line=by_line)
    task = Task(
        kind="tokens",
        input_shape=(steps,),
        num_classes=symbols.count,
        num_symbols=symbols.count,
        vocabulary=symbols.vocabulary,
    )
    return Dataset(config.dataset, task, train, test, "")


def symbols_of(config: DataConfig, source: Source) -> Symbols:
    """Return the symbols of the data set that a source of texts becomes."""
    if source.train.labels is not None:
        return _labelled_symbols(config, hold_out_random(config, source).train.inputs.to_pylist())
    lines = _split_lines(config, source)[0]
    return _symbols(config, lines.texts, lines.owners, config.text_client_words)


def _split_lines(config: DataConfig, source: Source) -> list[Lines]:
    """Return the texts of the training split, and of the test split or the part held out."""
    client = client_column(config, source.train)
    splits = _lines(join_windows(config, source, client), client)
    if config.test_fraction and not splits[1:]:
        held = hold_out_last(splits[0].owners, config.test_fraction)
        splits = [splits[0].take(rows) for rows in held if len(rows)]
    return splits


@dataclass(frozen=True)
class Lines:
    """The n texts of a split, the client of each ([n]), and the code of each in every column ([n])."""

    texts: list[str]
    owners: NDArray[np.int64]
    codes: dict[str, NDArray[np.int32]]
    names: dict[str, tuple[str, ...]]

    def take(self, rows: NDArray[np.int64]) -> Lines:
        """Return the given rows, in this order."""
        texts = [self.texts[row] for row in rows.tolist()]
        codes = {name: column[rows] for name, column in self.codes.items()}
        return Lines(texts, self.owners[rows], codes, self.names)


def _lines(source: Source, client: str) -> list[Lines]:
    """Return the training split and the test split, if there is one."""
    groups, names, _ = code_groups(source.splits, client=client, required=True)
    return [
        Lines(split.inputs.to_pylist(), _owners(codes, len(split)), codes, names)
        for split, codes in zip(source.splits, groups, strict=True)
    ]


def _owners(codes: dict[str, NDArray[np.int32]], n: int) -> NDArray[np.int64]:
    return codes["client_id"].astype(np.int64) if "client_id" in codes else np.zeros(n, np.int64)


def _sequences(
    lines: Lines, symbols: Symbols, steps: int, limit: int, *, by_line: bool
) -> Examples:
    """Return sequences of ``steps`` symbols, cut from each client's stream or from each line.

    Only the first ``limit`` symbols of a client are used (0: all).
    """
    by_client = lines.take(np.argsort(lines.owners, kind="stable"))
    stream, lengths = symbols.encode(by_client.texts)
    owners = by_client.owners
    pieces = np.arange(len(owners)) if by_line else np.unique(owners, return_inverse=True)[1]
    piece_of_symbol = np.repeat(pieces, lengths)
    if limit:
        selected = _within_limit(np.repeat(owners, lengths), limit)
        stream, piece_of_symbol = stream[selected], piece_of_symbol[selected]
    unrolled = unroll(
        stream, np.bincount(piece_of_symbol, minlength=pieces[-1] + 1), steps, symbols
    )
    first_row = np.unique(pieces, return_index=True)[1]
    groups = {}
    for name, column in by_client.codes.items():
        if np.array_equal(column[first_row][pieces], column):
            groups[name] = column[first_row][unrolled.owners]
    names = {name: values for name, values in lines.names.items() if name in groups}
    return Examples(unrolled.inputs, unrolled.targets, groups, names)


def _within_limit(owners: NDArray[np.int64], limit: int) -> NDArray[np.bool_]:
    """Return which symbols are among the first ``limit`` of their owner: [n], for sorted owners [n]."""
    return np.arange(len(owners)) - np.searchsorted(owners, owners) < limit


def _symbols(
    config: DataConfig, texts: list[str], owners: NDArray[np.int64], limit: int
) -> Symbols:
    """Return bytes, or the vocabulary of the first ``limit`` words of every client (0: of all)."""
    if config.text_unit != "words":
        return Characters()
    words: dict[int, list[str]] = {}
    for text, owner in zip(texts, owners.tolist(), strict=True):
        words.setdefault(owner, []).extend(words_of(text))
    return most_frequent(
        (word for own in words.values() for word in own[: limit or None]), config.text_vocabulary
    )
