"""IDX files, the format of MNIST, EMNIST and Fashion-MNIST, uncompressed or .gz."""

from __future__ import annotations

import gzip
import math
import re
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedapp.config.data import DataConfig
from fedapp.data.readers.source import (
    Source,
    Split,
    choose_splits,
    chosen_sets,
    several_sets,
    visible_files,
)
from fedapp.errors import DataError

NAME = re.compile(r"(?P<stem>.*)(?P<part>images|labels)[-.]idx[13][-.]ubyte(?:\.gz)?")
UNSIGNED_BYTES = 0x08


def is_idx_folder(folder: Path) -> bool:
    """Return whether the folder, or a folder in it, holds IDX files."""
    return any(NAME.fullmatch(path.name) for path in visible_files(folder))


def read_idx_folder(config: DataConfig, folder: Path, *, test_required: bool) -> Source:
    """Return MNIST's splits: "train", and "test" from the files named t10k or test.

    Raises
    ------
    DataError
        A file is missing, damaged, or `dataset-subset` does not choose one of several sets.
    """
    sets = _sets(config, folder)
    splits = {
        name: files
        for name, words in (("train", ("train",)), ("test", ("t10k", "test")))
        if (files := _files(config, sets, words))
    }
    return Source(*map(_split, choose_splits(config, splits, test_required=test_required)))


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Return the array of bytes that an IDX file holds.

    Raises
    ------
    DataError
        It is not an IDX file of unsigned bytes, or it is truncated.
    """
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (EOFError, OSError, zlib.error) as error:
        raise DataError(
            f"{path}: damaged or truncated: {error}. Copy or download it again."
        ) from error
    rank = data[3] if len(data) > 3 else 0
    start = 4 + 4 * rank
    if len(data) < start or data[:3] != bytes([0, 0, UNSIGNED_BYTES]):
        raise DataError(f"{path}: not an IDX file of unsigned bytes.")
    shape = tuple(np.frombuffer(data, ">u4", rank, 4).tolist())
    if len(data) != start + math.prod(shape):
        raise DataError(
            f"{path}: truncated: {len(data)} bytes instead of {start + math.prod(shape)}. "
            "Copy or download it again."
        )
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


Files = dict[str, Path]
"""A set's file of images and its file of labels, by "images" and "labels"."""


def _sets(config: DataConfig, folder: Path) -> dict[str, Files]:
    """Return the files of each set that `dataset-subset` chooses, by the path that its files share."""
    files_of_set: dict[str, Files] = {}
    for path in sorted(visible_files(folder), reverse=True):  # the unpacked file comes last
        match = NAME.fullmatch(path.name)
        if match is not None:
            name = (path.parent.relative_to(folder) / match["stem"]).as_posix()
            files_of_set.setdefault(name, {})[match["part"]] = path
    return {name: files_of_set[name] for name in chosen_sets(config, folder, files_of_set)}


def _files(config: DataConfig, sets: dict[str, Files], words: tuple[str, ...]) -> Files:
    """Return the image file and the label file of one split; empty where it has neither."""
    candidates = {
        name: files
        for name, files in sets.items()
        if any(word in name.rpartition("/")[2] for word in words)
    }
    complete = [name for name, files in candidates.items() if len(files) > 1]
    if len(complete) > 1:
        raise several_sets(config, complete)
    if candidates and not complete:
        single = next(iter(next(iter(candidates.values())).values()))
        raise DataError(f"{single}: the file of images or labels beside it is missing.")
    return candidates[complete[0]] if complete else {}


def _split(files: Files) -> Split:
    images, labels = read_idx(files["images"]), read_idx(files["labels"])
    if images.ndim != 3 or labels.ndim != 1 or len(images) != len(labels):
        raise DataError(
            f"{files['labels']}: {labels.shape} labels do not belong to {images.shape} images in "
            f"{files['images'].name}."
        )
    if not len(images):
        raise DataError(f"{files['images']}: has no images. Copy or download it again.")
    return Split(images[:, None], labels.astype(np.int64))
