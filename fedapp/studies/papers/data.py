"""Where the papers' data sets are: a folder of local copies, or the hub; and cuts of them."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from pathlib import Path

from fedapp.errors import ConfigError
from fedapp.files import write_atomically
from fedapp.studies.papers.schema import Cut

HUB = {"mnist": "ylecun/mnist", "cifar10": "uoft-cs/cifar10", "shakespeare": "flwrlabs/shakespeare"}
"""The papers' data sets, and where they are without a local copy."""


def locate(dataset: str, data: Path | None, cut: Cut | None, cuts: Path) -> str:
    """Return the ``dataset`` setting for a name in an item's TOML.

    ``cut`` keeps the first examples only; the copy is written into the folder ``cuts``.

    Raises
    ------
    ConfigError
        A cut is wanted of data of which there is no local copy in Parquet files.
    """
    if dataset not in HUB:
        return dataset
    folder = None if data is None else data.expanduser().absolute() / dataset
    if folder is None or not folder.is_dir():
        if cut is None:
            return HUB[dataset]
        raise ConfigError(
            f"dataset = {dataset!r}: this scale uses {cut.train} of its examples, which needs a local "
            f"copy: the Parquet files of {HUB[dataset]} in DIR/{dataset}. Name DIR with --data, or in "
            "the environment variable FEDAPP_DATA."
        )
    return str(folder) if cut is None else str(_cut(folder, cut, cuts))


def _cut(folder: Path, cut: Cut, cuts: Path) -> Path:
    """Write the first examples of each split, once; the schema says what the columns are.

    The copy lies in a folder that is named by the content of what it was cut from. Its own name is
    part of a run's identity, and says the same of the same data wherever they were.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    files = {split: _files(folder, split) for split in ("train", "test")}
    copy = cuts / _digest([*files["train"], *files["test"]])[:12]
    copy /= f"{folder.name}-{cut.train}-{cut.test}"
    copy.mkdir(parents=True, exist_ok=True)
    for split, count in (("train", cut.train), ("test", cut.test)):
        path = copy / f"{split}.parquet"
        if not path.exists():
            tables = [pq.read_table(file) for file in files[split]]
            buffer = pa.BufferOutputStream()
            pq.write_table(pa.concat_tables(tables).slice(0, count), buffer)
            write_atomically(path, buffer.getvalue().to_pybytes())
    return copy


def _files(folder: Path, split: str) -> list[Path]:
    """Return the Parquet files of a split, in order.

    Raises
    ------
    ConfigError
        There is none.
    """
    files = sorted(folder.glob(f"{split}*.parquet"))
    if not files:
        raise ConfigError(
            f"--data {str(folder.parent)!r}: {str(folder)!r} has no Parquet files of the {split} split "
            f"({split}.parquet or {split}-00000-of-00001.parquet), of which this scale uses the first "
            f"examples. Put those of {HUB[folder.name]} there, or take --scale full, which reads any "
            "format."
        )
    return files


def _digest(files: Sequence[Path]) -> str:
    """Return a hash of the files' names and content."""
    together = hashlib.sha256()
    for file in files:
        found = file.stat()
        together.update(f"{file.name} {_hash(file, found.st_size, found.st_mtime_ns)}\n".encode())
    return together.hexdigest()


@functools.cache
def _hash(file: Path, size: int, changed: int) -> str:
    """Return the hash of a file that has this size and was changed then."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
