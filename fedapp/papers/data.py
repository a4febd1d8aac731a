"""Where the papers' data sets are: a folder of local copies, or the hub; and cuts of them."""

from __future__ import annotations

from pathlib import Path

from fedapp.errors import ConfigError
from fedapp.files import write_atomically
from fedapp.papers.schema import Cut

HUB = {"mnist": "ylecun/mnist", "cifar10": "uoft-cs/cifar10", "shakespeare": "flwrlabs/shakespeare"}
"""The papers' data sets, and where they are without a local copy."""


def locate(dataset: str, data: Path | None, cut: Cut | None, cuts: Path) -> str:
    """Return the ``dataset`` setting for a name in an item's TOML.

    ``cut`` keeps the first examples only; the copy is written into the folder ``cuts``.

    Raises
    ------
    ConfigError
        A cut is wanted of data of which there is no local copy.
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
    """Write the first examples of each split, once; the schema says what the columns are."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    copy = cuts / f"{folder.name}-{cut.train}-{cut.test}"
    copy.mkdir(parents=True, exist_ok=True)
    for split, count in (("train", cut.train), ("test", cut.test)):
        path = copy / f"{split}.parquet"
        if not path.exists():
            tables = [pq.read_table(file) for file in sorted(folder.glob(f"{split}-*.parquet"))]
            buffer = pa.BufferOutputStream()
            pq.write_table(pa.concat_tables(tables).slice(0, count), buffer)
            write_atomically(path, buffer.getvalue().to_pybytes())
    return copy
