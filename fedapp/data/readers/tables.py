"""Arrow tables to splits: the input, the label and further columns; encoded images are decoded."""

from __future__ import annotations

import functools
import io
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from PIL import Image
from PIL.ExifTags import Base
from PIL.ImageOps import exif_transpose

from fedapp.config.data import DataConfig
from fedapp.data.readers.numbers import (
    Column,
    categorical_inputs,
    categories_of,
    is_text,
    label_of,
    numbers_of,
    refuse_text_among_numbers,
    table_inputs,
)
from fedapp.data.readers.source import (
    CLIENT_NAMES,
    Source,
    Split,
    choose_splits,
    column_named,
    is_index,
    no_column_in_test,
)
from fedapp.data.table import Table
from fedapp.errors import DataError
from fedapp.machine import cores

GREY = ("1", "L", "LA")
DEEP = ("I", "I;16", "I;16B", "I;16L", "F")
"""Modes of Pillow: grey images, and those of more than 8 bits a channel."""
SUFFIXES = frozenset(
    {".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".jp2", ".webp", ".avif", ".bmp", ".gif"}
    | {".tif", ".tiff", ".tga", ".ppm", ".pgm", ".pbm"}
)
"""Suffixes of images, by which class folders have them. No image of another format is read."""
ROWS_PER_TASK = 512
MAX_THREADS = 16
"""Of decoding: images per task of the thread pool, and its threads at most."""


def source_from_tables(
    config: DataConfig,
    tables: Mapping[str, Any],
    class_names: Mapping[str, tuple[str, ...]],
    *,
    test_required: bool,
    folders: Sequence[Path],
) -> Source:
    """Return the source in ``tables`` (by split name), with images decoded.

    ``class_names`` gives the names of each class-label column, ``folders`` are those in which
    images lie of which a table has the path alone.

    Raises
    ------
    DataError
        A split or a column is missing, empty or of a type that cannot be used.
    """
    chosen = choose_splits(config, tables, test_required=test_required)
    train = chosen[0]
    given = {key: getattr(config, key) for key in ("input_key", "label_key", "client_key")}
    columns = {key: column_named(name, train.column_names) for key, name in given.items()}
    config = config.model_copy(update=columns)
    _check_clients(config, train)
    label = _label_name(config, train, class_names)
    splits = dict(zip((config.train_split, config.test_split), chosen, strict=False))
    if names := table_inputs(config, splits, class_names, label):
        return _source_of_table(config, splits, names, label, class_names)
    keys = _input_key(config, train), label
    if config.label_key:
        _column(config, config.train_split, train, "label-key", label)
    parts = (_split(config, name, table, *keys, folders) for name, table in splits.items())
    return Source(*parts, class_names=class_names.get(label, ()))


def _check_clients(config: DataConfig, table: Any) -> None:
    if config.client_key not in table.column_names:
        return
    kind = table.schema.field(config.client_key).type
    if not _is_scalar(kind):
        raise DataError(
            f"client-key = {config.client_key!r}: this column holds {kind}, and ids are whole numbers or "
            "texts. Save it as text, or name another column."
        )


def _input_key(config: DataConfig, table: Any) -> str:
    if config.input_key:
        column = _column(config, config.train_split, table, "input-key", config.input_key)
        if _is_image(column.type) or is_text(column.type):
            return config.input_key
        raise DataError(
            f"input-key = {config.input_key!r}: this column of dataset {config.dataset!r} holds "
            f"{column.type}, neither images nor text. {_column_list(table)}"
        )
    images: list[str] = [field.name for field in table.schema if _is_image(field.type)]
    texts: list[str] = [field.name for field in table.schema if is_text(field.type)]
    clients = (*CLIENT_NAMES, config.client_key)
    texts.sort(key=lambda name: (name != "text", name != "x", name in clients or is_index(name)))
    if not images + texts:
        raise DataError(
            f"dataset = {config.dataset!r}: no column holds images or text, and not all others hold "
            f"numbers. For a table, set input-keys to the columns to use. {_column_list(table)}"
        )
    return (images + texts)[0]


def _label_name(config: DataConfig, table: Any, class_names: Mapping[str, tuple[str, ...]]) -> str:
    """Return the label column's name, or "" where there is none (next-token tasks)."""
    usual = "label" if "label" in table.column_names else ""
    return config.label_key or next(iter(class_names), usual)


def _no_label(config: DataConfig, table: Any) -> DataError:
    return DataError(
        f"label-key = '': dataset {config.dataset!r} has no class-label column and none named "
        f"'label'. Set label-key. {_column_list(table)}"
    )


def _source_of_table(
    config: DataConfig,
    splits: Mapping[str, Any],
    names: Sequence[str],
    label: str,
    class_names: Mapping[str, tuple[str, ...]],
) -> Source:
    """Return a table of numbers and categories, whose inputs are the columns ``names``."""
    train = splits[config.train_split]
    if not label:
        raise _no_label(config, train)

    def column(name: str, key: str) -> Column:
        parts = {split: _column(config, split, table, key, name) for split, table in splits.items()}
        is_input = key == "input-keys"
        return Column(config.dataset, name, parts, class_names.get(name, ()), keys=is_input)

    labels, label_names = label_of(config, column(label, "label-key"))
    categorical = categorical_inputs(config, train, names)
    coded = [
        _coded(config, column(name, "input-keys"), is_categorical=name in categorical)
        for name in names
    ]
    used = {*names, label} - {config.client_key}
    parts = (
        Split(
            inputs=np.stack([codes[split] for _, codes in coded], axis=1),
            labels=labels[split],
            columns=_scalars(table, used),
        )
        for split, table in splits.items()
    )
    targets = labels[config.train_split]
    num_classes = (
        0 if targets.dtype.kind == "f" else len(label_names) or max(int(targets.max()) + 1, 1)
    )
    return Source(
        *parts,
        class_names=label_names,
        table=Table(tuple(names), tuple(values for values, _ in coded), label_names, num_classes),
    )


def _scalars(table: Any, used: Collection[str]) -> dict[str, Any]:
    """Return the columns of texts and numbers that are not ``used``, by name."""
    return {
        field.name: table.column(field.name)
        for field in table.schema
        if field.name not in used and _is_scalar(field.type)
    }


def _coded(
    config: DataConfig, column: Column, *, is_categorical: bool
) -> tuple[tuple[str, ...] | None, dict[str, NDArray[np.float64]]]:
    """Return the values of a categorical column, or None, and its numbers in each split.

    With ``is_categorical`` numbers are categories, too.
    """
    if is_categorical:
        return categories_of(column, config.missing)
    refuse_text_among_numbers(column)
    if column.is_categorical:
        return categories_of(column, config.missing)
    return None, numbers_of(column, config.missing)


def _split(
    config: DataConfig,
    name: str,
    table: Any,
    input_key: str,
    label_key: str,
    folders: Sequence[Path],
) -> Split:
    inputs = _column(config, name, table, "input-key", input_key)
    where = f"dataset {config.dataset!r}, split {name!r}, column {input_key!r}"
    images = _is_image(inputs.type)
    if images and not label_key:
        raise _no_label(config, table)
    return Split(
        inputs=decode_images(inputs, where, folders) if images else _texts(inputs, where),
        labels=_labels(config, name, table, label_key) if label_key else None,
        columns=_scalars(table, (input_key, label_key)),
    )


def _labels(config: DataConfig, split: str, table: Any, key: str) -> NDArray[np.int64]:
    column = _column(config, split, table, "label-key", key)
    where = f"label-key = {key!r}: this column of dataset {config.dataset!r}, split {split!r},"
    if column.null_count:  # first: of integers with gaps CSV makes floats
        raise DataError(
            f"{where} has {column.null_count} rows without a label. Remove or label them."
        )
    if not (pa.types.is_integer(column.type) or pa.types.is_boolean(column.type)):
        raise DataError(
            f"{where} holds {column.type}, but labels are integers 0, 1, ... or class labels. Number "
            "them, or set label-key; of a table of numbers and categories, set input-keys. "
            f"{_column_list(table)}"
        )
    return np.asarray(column.to_numpy(), dtype=np.int64)


def _texts(column: Any, where: str) -> Any:
    if column.null_count:
        raise DataError(
            f"{where}: {column.null_count} rows have no text. Remove or fill them, or set input-keys "
            "if it is a column of a table."
        )
    if pc.all(pc.equal(pc.utf8_trim_whitespace(column), "")).as_py():
        raise DataError(f"{where}: every text is empty.")
    return column


def _column(config: DataConfig, split: str, table: Any, key: str, name: str) -> Any:
    if name not in table.column_names and split == config.test_split != config.train_split:
        raise no_column_in_test(config, key, name, table.column_names)
    if name not in table.column_names:
        raise DataError(
            f"{key} = {name!r}: dataset {config.dataset!r} has no such column. Set {key} to one that it "
            f"has. {_column_list(table)}"
        )
    return table.column(name)


def _column_list(table: Any) -> str:
    kinds = {f.name: "image" if _is_image(f.type) else str(f.type) for f in table.schema}
    return "Its columns: " + ", ".join(f"{name} ({kind})" for name, kind in kinds.items())


def _is_image(kind: Any) -> bool:
    """Return whether values are encoded images: bytes, or a struct of bytes and path."""
    if pa.types.is_struct(kind):
        return bool(kind.get_field_index("bytes") >= 0)
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _is_scalar(kind: Any) -> bool:
    numbers = (pa.types.is_integer, pa.types.is_boolean, pa.types.is_floating)
    return bool(is_text(kind) or any(test(kind) for test in numbers))


def decode_images(column: Any, where: str, folders: Sequence[Path]) -> NDArray[np.uint8]:
    """Return the images of an Arrow column of encoded images as uint8 [n, C, H, W].

    If the first image is grey, C = 1; otherwise images become RGB, C = 3. Decoding releases the
    interpreter's lock, so threads use all cores.

    Raises
    ------
    DataError
        An image is missing, unreadable, of another size, or coloured where the first is grey, or is a
        file outside of ``folders``.
    """
    first_record = column[0].as_py()
    first = _decode(first_record, f"{where}, row 0", "", folders)
    mode = "L" if first.mode in GREY else "RGB"
    channels = 1 if mode == "L" else 3
    images = np.empty((len(column), channels, first.height, first.width), np.uint8)

    def fill(start: int) -> None:
        for row, record in enumerate(column.slice(start, ROWS_PER_TASK).to_pylist(), start):
            image = _decode(record, f"{where}, row {row}", mode, folders)
            if image.size != first.size:
                raise DataError(
                    f"{where}: images of mixed sizes: {_size(row, record, image)}, "
                    f"{_size(0, first_record, first)}. Resize all images to one size."
                )
            images[row] = (
                np.asarray(image).reshape(first.height, first.width, channels).transpose(2, 0, 1)
            )

    with ThreadPoolExecutor(min(cores(), MAX_THREADS)) as pool:
        for _ in pool.map(fill, range(0, len(column), ROWS_PER_TASK)):
            pass
    return images


def _size(row: int, record: Any, image: Image.Image) -> str:
    path = record.get("path") if isinstance(record, dict) else None
    file = f" ({path})" if path else ""
    return f"row {row}{file} is {image.width}x{image.height}"


def _decode(record: Any, where: str, mode: str, folders: Sequence[Path]) -> Image.Image:
    """Return one image, converted to ``mode`` unless that is empty."""
    record = {"bytes": record} if isinstance(record, bytes) else record or {}
    data, path = record.get("bytes"), record.get("path")
    if data is None and not path:
        raise DataError(f"{where}: there is no image. Remove the row, or fill it.")
    if data is None and not _is_in(path, folders):
        raise DataError(
            f"{where} ({path}): this file lies outside of the data's folder. Move it there, or save the "
            "images' bytes in the table."
        )
    source = path if data is None else io.BytesIO(data)
    image = open_image(source, f"{where} ({path or 'embedded'})")
    if mode == "L" and image.mode not in GREY:
        raise DataError(
            f"{where} ({path or 'embedded'}): a coloured image ({image.mode}), but the first one "
            "is grey. Convert all images to one mode."
        )
    return image if mode in ("", image.mode) else image.convert(mode)


def _is_in(path: str, folders: Sequence[Path]) -> bool:
    """Return whether a path lies in one of the folders, as both are written, or where links lead."""
    forms: tuple[Callable[[str | Path], str], ...] = (os.path.abspath, os.path.realpath)
    return any(Path(at(path)).is_relative_to(at(folder)) for at in forms for folder in folders)


@functools.cache
def _formats() -> tuple[str, ...]:
    """Return Pillow's formats of ``SUFFIXES``: for some others it starts programs (EPS: Ghostscript)."""
    formats = Image.registered_extensions()
    return tuple(sorted({formats[suffix] for suffix in SUFFIXES if suffix in formats}))


def open_image(source: Any, where: str) -> Image.Image:
    """Return the image in a file or a path, turned as its EXIF data say; ``where`` begins an error.

    Raises
    ------
    DataError
        It cannot be read, or has too many pixels, more than 8 bits a channel or transparent pixels.
    """
    try:
        image: Image.Image = Image.open(source, formats=_formats())
        # Of colours Pillow reads 16 bits a channel as 8. Their form is in the tiles, which load() drops.
        deep = re.search(";16[BL]", str(getattr(image, "tile", [])[:1]))
        image.load()
        if image.getexif().get(Base.Orientation, 1) != 1:
            image = exif_transpose(image)
    except Image.DecompressionBombError as error:
        raise DataError(
            f"{where}: has too many pixels: {error} Resize it, or leave it out."
        ) from error
    except (OSError, SyntaxError, ValueError) as error:
        raise DataError(
            f"{where}: not a readable image, such as PNG or JPEG: {error}. Replace it, or leave it out."
        ) from error
    if deep or image.mode in DEEP:
        mode = image.mode if image.mode in DEEP else f"{image.mode};16"
        raise DataError(f"{where}: {mode} pixels. Convert it to 8 bits a channel.")
    if image.has_transparency_data and any(image.convert("RGBA").getchannel("A").histogram()[:255]):
        raise DataError(
            f"{where}: has transparent pixels, and opacity is no input. Draw it on a background."
        )
    return image
