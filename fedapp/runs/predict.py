"""Predictions of a run's model for files: images, rows of a table, and texts."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedapp.data.load import load_transform
from fedapp.data.readers import read_source
from fedapp.data.readers.rows import TABLES, read_image, read_rows
from fedapp.data.text.build import symbols_of
from fedapp.data.text.symbols import (
    BEGIN,
    END,
    UNKNOWN,
    Characters,
    Symbols,
    Words,
    truncate_and_pad,
)
from fedapp.errors import ConfigError, DataError
from fedapp.runs.saved_model import SavedModel

WANTED = {
    "image": "images (PNG or JPEG)",
    "vector": "tables (.csv or .parquet)",
    "tokens": "texts (.txt)",
}
"""The files that a model of each kind of task takes."""


@dataclass(frozen=True)
class Prediction:
    """What the model says of one row (-1: the whole file): a class, a number or a text."""

    file: str
    row: int
    value: str | float
    probability: float | None = None


def predict(model: SavedModel, files: list[Path], length: int) -> Iterator[Prediction]:
    """Yield the predictions of all files; ``length`` symbols follow a text.

    Raises
    ------
    ConfigError
        The model predicts nothing of files: its inputs are vectors without columns, or functions.
    DataError
        A file is missing, or cannot be read as the model's inputs.
    """
    task = model.task
    if task.kind not in WANTED or (task.kind == "vector" and model.statistics is None):
        raise ConfigError(
            f"the model of {model.directory.path} takes {task.kind} inputs of a data set of its own, and "
            "no file holds such. Use fedapp.runs.saved_model.load_model in Python."
        )
    symbols = _symbols(model) if task.kind == "tokens" else None
    for file in files:
        if not file.is_file():
            fault = "is a folder" if file.is_dir() else "there is no such file"
            raise DataError(f"{file}: {fault}. {_wanted(task.kind)}")
        if symbols is None:
            yield from _scores(model, file, _inputs(model, file), whole=task.kind == "image")
        elif task.one_label:
            encoded = symbols.encode([_text(file)])
            inputs = truncate_and_pad(*encoded, task.input_shape[0], symbols)
            yield from _scores(model, file, inputs, whole=True)
        else:
            yield Prediction(str(file), -1, continuation(model, symbols, _text(file), length))


def _inputs(model: SavedModel, file: Path) -> NDArray[np.generic]:
    if model.statistics is None:
        return read_image(file, model.task.input_shape)
    if file.suffix.lower() not in TABLES:
        raise DataError(f"{file}: is no table. {_wanted('vector')}")
    return read_rows(file, model.statistics, model.config.missing)


def _scores(
    model: SavedModel, file: Path, inputs: NDArray[np.generic], *, whole: bool
) -> Iterator[Prediction]:
    """Yield the class and its probability, or the number, of each row of ``inputs``."""
    outputs = _outputs(model, inputs).double()
    for row, output in enumerate(outputs):
        place = -1 if whole else row
        if model.task.regression:
            yield Prediction(str(file), place, float(output[0]))
        else:
            probability, best = output.softmax(0).max(0)
            yield Prediction(str(file), place, model.label(int(best)), float(probability))


@torch.no_grad()
def _outputs(model: SavedModel, inputs: NDArray[np.generic]) -> Tensor:
    dtype = next(model.module.parameters()).dtype
    transformed = load_transform(model.config).test(torch.from_numpy(np.array(inputs)), dtype)
    return model.module(transformed)  # type: ignore[no-any-return]


def continuation(model: SavedModel, symbols: Symbols, text: str, length: int) -> str:
    """Return the ``length`` most probable symbols after ``text``, each given those before it.

    Lines are encoded one by one as in training, where a text of characters has no line break.
    """
    stream, _ = symbols.encode(text.split("\n"))
    known: list[int] = stream.tolist()
    if isinstance(symbols, Characters):
        known.pop()  # the end of the line
    found: list[int] = []
    while len(found) < length:
        window = np.array([known[-model.task.input_shape[0] :] or [UNKNOWN]], np.int64)
        logits = _outputs(model, window)[0, :, -1]
        logits[symbols.unpredicted] = -torch.inf
        found.append(int(logits.argmax()))
        known.append(found[-1])
        if isinstance(symbols, Characters) and found[-1] == END:
            known.append(BEGIN)
    return _as_text(symbols, found)


def _as_text(symbols: Symbols, found: list[int]) -> str:
    if isinstance(symbols, Words):
        words = {number: word for word, number in symbols.numbers.items()}
        return " ".join(words[symbol] for symbol in found)
    newline = ord("\n")
    return bytes(newline if s >= BEGIN else s for s in found).decode(errors="replace")


def _symbols(model: SavedModel) -> Symbols:
    """Return the symbols of the model's texts; words are those of the run's data, which is read again.

    Raises
    ------
    DataError
        The data are missing, or others.
    """
    if model.task.vocabulary == "bytes":
        return Characters()
    with tempfile.TemporaryDirectory() as scratch:
        source = read_source(model.config, Path(scratch), test_required=False)
        symbols = symbols_of(model.config, source)
    if symbols.vocabulary != model.task.vocabulary:
        raise DataError(
            f"dataset = {model.config.dataset!r}: its words are not those of the model. Restore the data "
            "of the run."
        )
    return symbols


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").rstrip("\n")
    except (OSError, ValueError) as error:
        raise DataError(f"{file}: cannot be read as text: {error}. {_wanted('tokens')}") from error


def _wanted(kind: str) -> str:
    return f"Name another file; the model takes {WANTED[kind]}."
