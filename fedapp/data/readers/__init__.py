"""Readers of hub data sets and local folders; the format of a folder is recognised."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

from fedapp.config.components import family_of, is_component
from fedapp.config.data import CIFAR, CLASS_FOLDERS, IDX, DataConfig
from fedapp.config.group import Case
from fedapp.data.readers.source import CSV_FORMAT, Source, visible_paths
from fedapp.errors import ConfigError, DataError
from fedapp.files import as_path

HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")

PHOTOS = (".jpg", ".jpeg", ".tif", ".tiff", ".webp")
PHOTO_FORMAT, SAVED_FORMAT = b"photo 2", b"saved 2"
"""Parts of the hash of folders with PHOTOS, and of what save_to_disk wrote; as ``CSV_FORMAT`` is."""


def local_folder(config: DataConfig) -> Path | None:
    """Return the folder that `dataset` names, or None where it is a hub name.

    Raises
    ------
    ConfigError, DataError
        It is neither a folder nor a possible hub name.
    """
    path = as_path(config.dataset, f"dataset = {config.dataset!r}")
    if path.is_dir():
        return path.resolve()
    if path.is_file():
        raise DataError(
            f"dataset = {config.dataset!r}: is a file. Set dataset to its folder, {path.parent}."
        )
    if not HUB_NAME.fullmatch(config.dataset):
        raise DataError(
            f"dataset = {config.dataset!r}: there is no such folder. Set dataset to an existing "
            "folder, a hub name such as 'ylecun/mnist', or an embedded data set such as 'digits'."
        )
    return None


def require_outside(config: DataConfig, path: Path, where: str) -> None:
    """Raise ConfigError, which begins with ``where``, if what is in ``path`` is hashed with the data."""
    embedded = is_component(family_of("dataset"), config.dataset)
    folder = None if embedded else local_folder(config)
    place = path.expanduser().resolve()
    if folder is None or not place.is_relative_to(folder):
        return
    if not any(part.startswith(".") for part in place.relative_to(folder).parts):
        raise ConfigError(
            f"{where}: lies in dataset = {config.dataset!r}, whose files would change during the run. "
            "Move the data into a folder of their own, or choose a folder outside of it."
        )


def content_key(config: DataConfig) -> str:
    """Return an identifier of the content: the hash of a folder's files, or a hub revision."""
    folder = local_folder(config)
    if folder is None:
        from fedapp.data.readers.hugging import hub_key

        return hub_key(config)
    try:
        return _folder_hash(folder)
    except OSError as error:
        raise DataError(f"dataset = {config.dataset!r}: a file cannot be read: {error}.") from error


def read_source(config: DataConfig, scratch: Path, *, test_required: bool) -> Source:
    """Return the data set that `dataset` names, with images decoded; ``scratch`` is an empty folder.

    Without ``test_required`` it is a node's own folder, and keys without effect are not refused.

    Raises
    ------
    ConfigError
        A key has no effect on what `dataset` names, or it names the pickled version of CIFAR.
    DataError
        It cannot be found, read or understood; the message names the key or file.
    """
    from fedapp.data.readers import cifar, hugging, idx, image_folder

    def refuse_unread(case: Case) -> None:
        if test_required:
            config.refuse_unused(case)

    folder = local_folder(config)
    if folder is None:
        return hugging.read_hub(config, test_required=test_required)
    if idx.is_idx_folder(folder):
        refuse_unread(IDX)
        return idx.read_idx_folder(config, folder, test_required=test_required)
    if layout := cifar.cifar_layout(config, folder):
        refuse_unread(CIFAR)
        return cifar.read_cifar(config, *layout, test_required=test_required)
    if image_folder.is_image_folder(config, folder):
        refuse_unread(CLASS_FOLDERS)
        return image_folder.read_image_folder(config, folder, test_required=test_required)
    return hugging.read_folder(config, folder, scratch, test_required=test_required)


def _folder_hash(folder: Path) -> str:
    """Return the SHA-256 of the names and bytes of all files, and of the names of empty folders.

    An empty folder may be a class.
    """
    total = hashlib.sha256()
    paths = list(visible_paths(folder))
    if any({".csv", ".tsv"}.intersection(path.suffixes) for path in paths):
        total.update(CSV_FORMAT)
    if any(path.suffix.lower() in PHOTOS for path in paths):
        total.update(PHOTO_FORMAT)
    if any(path.name == "dataset_info.json" for path in paths):
        total.update(SAVED_FORMAT)
    filled = {path.parent for path in paths}
    for path in paths:
        name = os.fsencode(path.relative_to(folder).as_posix())
        if path.is_file():
            with path.open("rb") as file:
                total.update(name + b"\0" + hashlib.file_digest(file, "sha256").digest())
        elif path.is_dir() and path not in filled:
            total.update(name + b"/\0")
    return total.hexdigest()
