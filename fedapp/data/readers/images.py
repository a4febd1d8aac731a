"""Encoded images to arrays."""

from __future__ import annotations

import io
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedapp.errors import DataError
from fedapp.machine import cores

GREY = ("1", "L", "LA")
DEEP = ("I", "I;16", "I;16B", "I;16L", "F")
ROWS_A_TASK = 512
MOST_THREADS = 16


def decode_images(column: Any, where: str) -> NDArray[np.uint8]:
    """Return the images of an Arrow column of encoded images as uint8 [n, C, H, W].

    The first image decides: grey gives C = 1, anything else becomes RGB, C = 3. Decoding releases
    the interpreter's lock, so threads use all cores.

    Raises
    ------
    DataError
        An image is missing, unreadable, of another size, or coloured where the first is grey.
    """
    first = _decode(column[0].as_py(), f"{where}, row 0", "")
    mode = "L" if first.mode in GREY else "RGB"
    channels = 1 if mode == "L" else 3
    images = np.empty((len(column), channels, first.height, first.width), np.uint8)

    def fill(start: int) -> None:
        for row, record in enumerate(column.slice(start, ROWS_A_TASK).to_pylist(), start):
            image = _decode(record, f"{where}, row {row}", mode)
            if image.size != first.size:
                raise DataError(_size_message(where, row, image.size, first.size))
            images[row] = (
                np.asarray(image).reshape(first.height, first.width, channels).transpose(2, 0, 1)
            )

    with ThreadPoolExecutor(min(cores(), MOST_THREADS)) as pool:
        for _ in pool.map(fill, range(0, len(column), ROWS_A_TASK)):
            pass
    return images


def _decode(record: Any, where: str, mode: str) -> Image.Image:
    """Return one image, in ``mode`` if that is given."""
    record = {"bytes": record} if isinstance(record, bytes) else record or {}
    data, path = record.get("bytes"), record.get("path")
    if data is None and not path:
        raise DataError(f"{where}: there is no image. Remove the row, or fill it.")
    try:
        image = Image.open(io.BytesIO(data) if data is not None else path)
        image.load()
    except (OSError, SyntaxError, ValueError) as error:
        raise DataError(f"{where} ({path or 'embedded'}): not a readable image: {error}") from error
    if image.mode in DEEP:
        raise DataError(
            f"{where} ({path}): {image.mode} pixels. Convert the images to 8 bits a channel."
        )
    if mode == "L" and image.mode not in GREY:
        raise DataError(
            f"{where} ({path or 'embedded'}): a coloured image ({image.mode}), but the first one "
            "is grey. Convert all images to one mode."
        )
    return image if mode in ("", image.mode) else image.convert(mode)


def _size_message(where: str, row: int, found: tuple[int, int], first: tuple[int, int]) -> str:
    return (
        f"{where}: images of mixed sizes: row {row} is {found[0]}x{found[1]}, row 0 is "
        f"{first[0]}x{first[1]}. Resize all images to one size."
    )
