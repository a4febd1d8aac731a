"""Symbols: texts to numbers, as bytes or words, and to sequences of one length."""

from __future__ import annotations

import functools
import hashlib
import re
import sys
import unicodedata
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedapp.data.dataset import IGNORE

BEGIN, END = 256, 257
"""Markers around every line, beside the 256 bytes: 258 symbols (char-LSTM: 866,578 parameters)."""

UNKNOWN = 0
"""The symbol of all words outside the vocabulary."""


@functools.cache
def word_pattern() -> re.Pattern[str]:
    r"""Return the pattern of a word: letters, digits and the marks that follow them, which \w lacks."""
    characters = map(chr, range(sys.maxunicode + 1))
    marks = "".join(each for each in characters if unicodedata.category(each).startswith("M"))
    part = rf"\w[\w{marks}]*"
    return re.compile(rf"{part}(?:['’-]{part})*")


@dataclass(frozen=True)
class Symbols(ABC):
    """How texts become symbols 0 ... count - 1.

    ``vocabulary`` identifies them, so that nodes can be compared. ``unpredicted`` is an input symbol
    that is never a target; ``padding`` fills up sequences.
    """

    count: int
    vocabulary: str
    unpredicted: int
    padding: int

    @abstractmethod
    def encode(self, texts: Sequence[str]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Return the symbols of all n texts, concatenated, and the number of each text's symbols, [n]."""


@dataclass(frozen=True)
class Characters(Symbols):
    """Bytes of UTF-8 ("character" is a one-byte string, footnote 6), each line between markers.

    The begin marker always follows the end marker, so it is not predicted: the targets are the
    characters and one line end for each line.
    """

    count: int = 258
    vocabulary: str = "bytes"
    unpredicted: int = BEGIN
    padding: int = END

    def encode(self, texts: Sequence[str]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Return BEGIN, the bytes and END of every line."""
        lines = [text.encode() for text in texts]
        lengths = np.fromiter(map(len, lines), np.int64, len(lines)) + 2
        ends = np.cumsum(lengths)
        symbols = np.full(int(lengths.sum()), BEGIN, np.int32)
        symbols[ends - 1] = END
        inner = np.ones(len(symbols), np.bool_)
        inner[ends - 1] = inner[ends - lengths] = False
        symbols[inner] = np.frombuffer(b"".join(lines), np.uint8)
        return symbols, lengths


@dataclass(frozen=True)
class Words(Symbols):
    """The most frequent words; symbol 0 is any other word, symbol i the i-th most frequent one.

    Words are lower case without punctuation. An unknown word is an input but never a target, so
    predicting that a word is rare does not count as correct.
    """

    numbers: Mapping[str, int]

    def encode(self, texts: Sequence[str]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Return the words' numbers."""
        words = [words_of(text) for text in texts]
        lengths = np.fromiter(map(len, words), np.int64, len(words))
        flat = (self.numbers.get(word, UNKNOWN) for line in words for word in line)
        return np.fromiter(flat, np.int32, int(lengths.sum())), lengths


def words_of(text: str) -> list[str]:
    """Return the words of a text in lower case; apostrophes and hyphens within a word belong to it."""
    return word_pattern().findall(unicodedata.normalize("NFC", text.lower()))


def most_frequent(words: Iterable[str], size: int) -> Words:
    """Return the vocabulary of ``size`` symbols: the most frequent words, ties by alphabet.

    One of the ``size`` symbols is the unknown word.
    """
    ranked = sorted(Counter(words).items(), key=lambda item: (-item[1], item[0]))[: size - 1]
    chosen = [word for word, _ in ranked]
    digest = hashlib.sha256("\n".join(chosen).encode()).hexdigest()[:16]
    numbers = {word: rank for rank, word in enumerate(chosen, 1)}
    return Words(len(numbers) + 1, f"words {digest}", UNKNOWN, UNKNOWN, numbers)


@dataclass(frozen=True)
class Sequences:
    """Inputs and targets, [n, T] each, and the owner of each sequence, [n]."""

    inputs: NDArray[np.int16 | np.int32]
    targets: NDArray[np.int16 | np.int32]
    owners: NDArray[np.int64]


def unroll(
    stream: NDArray[np.int32], lengths: NDArray[np.int64], steps: int, symbols: Symbols
) -> Sequences:
    """Return every client's stream cut into sequences of ``steps`` (input, next symbol) pairs.

    The streams of ``lengths[k]`` symbols follow one another in ``stream``. No pair spans two clients. A
    target is IGNORE in the padding of a client's last sequence and where the next symbol is
    ``symbols.unpredicted``. Sequences without any target are left out.
    """
    pairs = np.maximum(lengths - 1, 0)
    counts = -(-pairs // steps)
    owner = np.repeat(np.arange(len(lengths)), pairs)
    position = np.arange(len(owner)) - (np.cumsum(pairs) - pairs)[owner]
    source = (np.cumsum(lengths) - lengths)[owner] + position
    row, column = (np.cumsum(counts) - counts)[owner] + position // steps, position % steps

    kind = symbol_dtype(symbols.count)
    inputs = np.full((int(counts.sum()), steps), symbols.padding, kind)
    targets = np.full(inputs.shape, IGNORE, kind)
    inputs[row, column] = stream[source]
    following = stream[source + 1]
    targets[row, column] = np.where(following == symbols.unpredicted, IGNORE, following)
    counted = (targets != IGNORE).any(axis=1)
    owners = np.repeat(np.arange(len(lengths)), counts)
    return Sequences(inputs[counted], targets[counted], owners[counted])


def truncate_and_pad(
    stream: NDArray[np.int32], lengths: NDArray[np.int64], steps: int, symbols: Symbols
) -> NDArray[np.int16 | np.int32]:
    """Return each text's first ``steps`` symbols, padded on the left: [n, steps].

    The last position is then the last symbol of the text, after which a recurrent network predicts.
    """
    used = np.minimum(lengths, steps)
    row = np.repeat(np.arange(len(lengths)), used)
    position = np.arange(len(row)) - (np.cumsum(used) - used)[row]
    inputs = np.full((len(lengths), steps), symbols.padding, symbol_dtype(symbols.count))
    inputs[row, position + (steps - used)[row]] = stream[
        (np.cumsum(lengths) - lengths)[row] + position
    ]
    return inputs


def symbol_dtype(count: int) -> type[np.int16] | type[np.int32]:
    """Return the smaller integer type that holds ``count`` symbols and IGNORE."""
    return np.int16 if count <= np.iinfo(np.int16).max else np.int32
