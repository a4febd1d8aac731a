"""Streams of symbols to sequences of one length: unrolling for next-symbol tasks, or cut to fit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedapp.data.dataset import IGNORE
from fedapp.data.text.symbols import Symbols


@dataclass(frozen=True)
class Unrolled:
    """Inputs and targets, [n, T] each, and whose each sequence is, [n]."""

    inputs: NDArray[np.int16 | np.int32]
    targets: NDArray[np.int16 | np.int32]
    owners: NDArray[np.int64]


def unroll(
    stream: NDArray[np.int32], lengths: NDArray[np.int64], steps: int, symbols: Symbols
) -> Unrolled:
    """Return every client's stream cut into sequences of ``steps`` (input, next symbol) pairs.

    Client k's stream is the next ``lengths[k]`` symbols. No pair spans two clients. A target is
    IGNORE where there is nothing to predict: in the padding of a client's last sequence, and where
    the next symbol is ``symbols.unpredicted``. Sequences without any target are left out.
    """
    pairs = np.maximum(lengths - 1, 0)
    counts = -(-pairs // steps)
    owner = np.repeat(np.arange(len(lengths)), pairs)
    position = np.arange(len(owner)) - (np.cumsum(pairs) - pairs)[owner]
    source = (np.cumsum(lengths) - lengths)[owner] + position
    row, column = (np.cumsum(counts) - counts)[owner] + position // steps, position % steps

    kind = compact(symbols.count)
    inputs = np.full((int(counts.sum()), steps), symbols.padding, kind)
    targets = np.full(inputs.shape, IGNORE, kind)
    inputs[row, column] = stream[source]
    following = stream[source + 1]
    targets[row, column] = np.where(following == symbols.unpredicted, IGNORE, following)
    counted = (targets != IGNORE).any(axis=1)
    owners = np.repeat(np.arange(len(lengths)), counts)
    return Unrolled(inputs[counted], targets[counted], owners[counted])


def fit(
    stream: NDArray[np.int32], lengths: NDArray[np.int64], steps: int, symbols: Symbols
) -> NDArray[np.int16 | np.int32]:
    """Return each text's first ``steps`` symbols, padded on the left: [n, steps].

    So the last position is the last symbol of the text, where a recurrent network is read out.
    """
    kept = np.minimum(lengths, steps)
    row = np.repeat(np.arange(len(lengths)), kept)
    position = np.arange(len(row)) - (np.cumsum(kept) - kept)[row]
    inputs = np.full((len(lengths), steps), symbols.padding, compact(symbols.count))
    inputs[row, position + (steps - kept)[row]] = stream[
        (np.cumsum(lengths) - lengths)[row] + position
    ]
    return inputs


def compact(count: int) -> type[np.int16] | type[np.int32]:
    """Return the smaller integer type that holds ``count`` symbols and IGNORE."""
    return np.int16 if count <= np.iinfo(np.int16).max else np.int32
