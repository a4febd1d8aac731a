"""Locations of the papers' data sets: local copies, the hub, or copies of their first examples."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from fedapp.errors import ConfigError
from fedapp.files import write_atomically
from fedapp.studies.papers.schema import Cut

HUB = {"mnist": "ylecun/mnist", "cifar10": "uoft-cs/cifar10", "shakespeare": ""}
"""Names of the papers' data sets on the Hugging Face hub; "" where it has another edition."""
MAKES_SHAKESPEARE = "python -m fedapp.studies.papers.shakespeare"


def locate(dataset: str, data: Path | None, cut: Cut | None, cuts: Path) -> str:
    """Return the value of ``dataset`` for a name in an experiment's TOML.

    ``cut`` keeps the first examples; their copy is written to the folder ``cuts``.

    Raises
    ------
    ConfigError
        There is a ``cut``, or the hub does not have the data, and no local copy in Parquet files.
    """
    if dataset not in HUB:
        return dataset
    folder = None if data is None else data / dataset
    if folder is None or not folder.is_dir():
        if cut is None and HUB[dataset]:
            return HUB[dataset]
        because = (
            f"this scale uses {cut.train} of its examples" if cut else "the hub does not have it"
        )
        raise ConfigError(
            f"dataset = {dataset!r}: {because}, so a local copy is needed: the Parquet files "
            f"{origin(dataset)} in DIR/{dataset}. Name DIR with --data, or in the environment variable "
            "FEDAPP_DATA."
        )
    return str(folder) if cut is None else str(_cut(folder, cut, cuts))


def origin(dataset: str) -> str:
    """Return where a data set of the papers comes from, for a message."""
    return f"of {HUB[dataset]}" if HUB[dataset] else f"that `{MAKES_SHAKESPEARE} DIR` writes"


def _cut(folder: Path, cut: Cut, cuts: Path) -> Path:
    """Write the first examples of each split, unless they are there, and return their folder.

    The parent folder is named by a hash of the original files. The name of the folder itself is part
    of the names of runs, so it depends on the data set and the cut only.
    """
    files = {split: _files(folder, split) for split in ("train", "test")}
    copy = cuts / _digest([*files["train"], *files["test"]])[:12]
    copy /= f"{folder.name}-{cut.train}-{cut.test}"
    copy.mkdir(parents=True, exist_ok=True)
    for split, count in (("train", cut.train), ("test", cut.test)):
        path = copy / f"{split}.parquet"
        if not path.exists():
            tables = [pq.read_table(file) for file in files[split]]
            write_parquet(pa.concat_tables(tables).slice(0, count), path)
    return copy


def write_parquet(table: pa.Table, path: Path) -> None:
    """Write a table atomically."""
    content = pa.BufferOutputStream()
    pq.write_table(table, content)
    write_atomically(path, content.getvalue().to_pybytes())


def _files(folder: Path, split: str) -> list[Path]:
    """Return the Parquet files of a split, in order.

    Raises
    ------
    ConfigError
        There are none.
    """
    files = sorted(folder.glob(f"{split}*.parquet"))
    if not files:
        raise ConfigError(
            f"--data {str(folder.parent)!r}: {str(folder)!r} has no Parquet files of the {split} split "
            f"({split}.parquet or {split}-00000-of-00001.parquet), of which this scale uses the first "
            f"examples. Put those {origin(folder.name)} there, or take --scale full, which reads any "
            "format."
        )
    return files


def _digest(files: Sequence[Path]) -> str:
    """Return a hash of the files' names and content."""
    together = hashlib.sha256()
    for file in files:
        stat = file.stat()
        together.update(f"{file.name} {_hash(file, stat.st_size, stat.st_mtime_ns)}\n".encode())
    return together.hexdigest()


@functools.cache
def _hash(file: Path, size: int, changed: int) -> str:
    """Return the SHA-256 of a file; size and modification time are part of the cache key."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
