"""Image folders, ``<split>/<class>/*.png``.

A class is a folder, also an empty one or the only one: so a node that has no example of a class
can agree with the others on the label set.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedapp.config import RunConfig
from fedapp.data.sources.base import Source
from fedapp.data.sources.tables import source_from_tables

SUFFIXES = frozenset(
    {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"}
)


def is_image_folder(config: RunConfig, folder: Path) -> bool:
    """Return whether the training split is a folder of class folders with only images."""
    classes = _class_folders(folder / config.train_split)
    files = [path for path in (folder / config.train_split).rglob("*") if path.is_file()]
    return bool(classes and files) and all(path.suffix.lower() in SUFFIXES for path in files)


def read_image_folder(config: RunConfig, folder: Path, *, test_required: bool) -> Source:
    """Return the images of all splits; labels count the class folders of all splits by name.

    Raises
    ------
    DataError
        A split is missing or empty, or images are unreadable or of mixed sizes.
    """
    splits = sorted(path for path in folder.iterdir() if _class_folders(path))
    names = sorted({path.name for split in splits for path in _class_folders(split)})
    tables = {split.name: _table(split, names) for split in splits}
    return source_from_tables(config, tables, {"label": tuple(names)}, test_required=test_required)


def _class_folders(split: Path) -> list[Path]:
    if not split.is_dir():
        return []
    return sorted(
        path for path in split.iterdir() if path.is_dir() and not path.name.startswith(".")
    )


def _table(split: Path, names: list[str]) -> Any:
    import pyarrow as pa

    files = [
        (str(path), names.index(folder.name))
        for folder in _class_folders(split)
        for path in sorted(folder.rglob("*"))
        if path.suffix.lower() in SUFFIXES
    ]
    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    records = pa.array([{"bytes": None, "path": path} for path, _ in files], image)
    return pa.table(
        {"image": records, "label": pa.array([label for _, label in files], pa.int64())}
    )
