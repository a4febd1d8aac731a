"""Image folders, ``<split>/<class>/*.png``.

Every class folder is a class, also an empty one, so that a node without examples of a class has the same
label set as the others.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedapp.config.data import DataConfig
from fedapp.data.readers.source import Source, visible_files
from fedapp.data.readers.tables import SUFFIXES, source_from_tables
from fedapp.errors import DataError

TABLES = frozenset({".parquet", ".csv", ".json", ".jsonl"})
"""Suffixes of the files that are read if there are as many of them as images."""


def is_image_folder(config: DataConfig, folder: Path) -> bool:
    """Return whether the training split has class folders and, beside images, only stray files.

    A "metadata" file gives images other labels than their folders: `datasets` reads it.
    """
    split = folder / config.train_split
    files = [*visible_files(split)] if _visible_folders(split) else []
    images = sum(path.suffix.lower() in SUFFIXES for path in files)
    tables = [path for path in files if path.suffix.lower() in TABLES]
    return images > len(tables) and all(path.stem != "metadata" for path in tables)


def read_image_folder(config: DataConfig, folder: Path, *, test_required: bool) -> Source:
    """Return the images; a label is the position of its class folder among those of both splits, by name.

    Raises
    ------
    DataError
        A split is missing or empty, an image is outside the class folders, or images are
        unreadable or of mixed sizes.
    """
    splits = [path for path in _visible_folders(folder) if _visible_folders(path)]
    used = [folder / name for name in (config.train_split, config.test_split)]
    for split in used:
        _check_all_in_classes(split)
    names = sorted({path.name for split in used for path in _visible_folders(split)})
    tables = {split.name: _table(split, names) for split in splits}
    class_names = {"label": tuple(names)}
    return source_from_tables(
        config, tables, class_names, test_required=test_required, folders=[folder]
    )


def _check_all_in_classes(split: Path) -> None:
    inside = sorted(split.iterdir()) if split.is_dir() else []
    loose = [p for p in inside if p.suffix.lower() in SUFFIXES and p.is_file() and p.name[0] != "."]
    if loose:
        raise DataError(
            f"{loose[0]}: is beside the class folders of split {split.name!r}, so it has no class"
            + (f", like {len(loose) - 1} more" if loose[1:] else "")
            + ". Move it into one of them, or away."
        )


def _visible_folders(parent: Path) -> list[Path]:
    """Return the folders in ``parent`` without hidden ones; none where it is not a folder."""
    if not parent.is_dir():
        return []
    return sorted(
        path for path in parent.iterdir() if path.is_dir() and not path.name.startswith(".")
    )


def _table(split: Path, names: list[str]) -> Any:
    import pyarrow as pa

    files = [
        (str(path), names.index(folder.name))
        for folder in _visible_folders(split)
        if folder.name in names
        for path in visible_files(folder)
        if path.suffix.lower() in SUFFIXES
    ]
    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    records = pa.array([{"bytes": None, "path": path} for path, _ in files], image)
    return pa.table(
        {"image": records, "label": pa.array([label for _, label in files], pa.int64())}
    )
