"""CIFAR-10 and CIFAR-100 as A. Krizhevsky distributes them: the binary and the Python version."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedapp.config.run_config import RunConfig
from fedapp.data.readers.plain_pickle import read_plain_pickle
from fedapp.data.readers.source import Source, Split, choose_splits
from fedapp.errors import DataError

PIXELS = 3 * 32 * 32
TEN_BATCHES = {
    "train": tuple(f"data_batch_{number}" for number in range(1, 6)),
    "test": ("test_batch",),
}
HUNDRED_BATCHES = {"train": ("train",), "test": ("test",)}


@dataclass(frozen=True)
class Layout:
    """One of the four distributions. ``labels``: its label columns by name and file of names."""

    batches: Mapping[str, tuple[str, ...]]
    suffix: str
    labels: dict[str, str]

    @property
    def default_label(self) -> str:
        """The finest labels."""
        return next(reversed(self.labels))


LAYOUTS = (
    Layout(TEN_BATCHES, ".bin", {"label": "batches.meta.txt"}),
    Layout(TEN_BATCHES, "", {"label": "batches.meta:label_names"}),
    Layout(
        HUNDRED_BATCHES,
        ".bin",
        {"coarse_label": "coarse_label_names.txt", "fine_label": "fine_label_names.txt"},
    ),
    Layout(
        HUNDRED_BATCHES,
        "",
        {"coarse_label": "meta:coarse_label_names", "fine_label": "meta:fine_label_names"},
    ),
)


def cifar_layout(folder: Path) -> tuple[Layout, Path] | None:
    """Return the distribution and its folder, ``folder`` itself or one in it, or None."""
    for place in (folder, *sorted(folder.glob("cifar-*"))):
        for layout in LAYOUTS:
            names = [next(iter(layout.labels.values())).partition(":")[0]]
            names += [layout.batches["train"][0] + layout.suffix]
            if all((place / name).is_file() for name in names):
                return layout, place
    return None


def read_cifar(config: RunConfig, layout: Layout, folder: Path, *, test_required: bool) -> Source:
    """Return the splits "train" and "test".

    Raises
    ------
    DataError
        A batch is missing or damaged, or `label-key` names no label column of this distribution.
    """
    key = config.label_key or layout.default_label
    if key not in layout.labels:
        raise DataError(
            f"label-key = {key!r}: {folder} has no such labels. One of: {', '.join(layout.labels)}."
        )
    batches = {
        split: [folder / (name + layout.suffix) for name in names]
        for split, names in layout.batches.items()
    }
    present = {
        split: paths for split, paths in batches.items() if any(path.is_file() for path in paths)
    }
    train, test = choose_splits(config, present, test_required=test_required)
    for path in (*train, *(test or ())):
        if not path.is_file():
            raise DataError(f"{path}: is missing beside the other batches. Copy or download it.")
    return Source(
        train=_split(layout, key, train),
        test=None if test is None else _split(layout, key, test),
        class_names=_class_names(folder, layout.labels[key]),
    )


def _split(layout: Layout, key: str, paths: list[Path]) -> Split:
    import pyarrow as pa

    read: Callable[[Layout, Path], _Batch] = _read_binary if layout.suffix else _read_python
    batches = [read(layout, path) for path in paths]
    labels = {
        name: np.concatenate([labels[name] for _, labels in batches]) for name in layout.labels
    }
    return Split(
        inputs=np.concatenate([pixels for pixels, _ in batches]).reshape(-1, 3, 32, 32),
        labels=labels[key],
        columns={
            name: pa.chunked_array([pa.array(labels[name])])
            for name in layout.labels
            if name != key
        },
    )


_Batch = tuple[NDArray[np.uint8], dict[str, NDArray[np.int64]]]
"""Pixels [n, 3072] and labels [n] by column."""


def _read_binary(layout: Layout, path: Path) -> _Batch:
    """Read records of the label bytes and then the red, the green and the blue plane."""
    data, width = np.fromfile(path, np.uint8), len(layout.labels) + PIXELS
    if not len(data) or len(data) % width:
        raise DataError(
            f"{path}: truncated: {len(data)} bytes are no whole number of {width}-byte records. "
            "Copy or download it again."
        )
    records = data.reshape(-1, width)
    labels = {name: records[:, i].astype(np.int64) for i, name in enumerate(layout.labels)}
    return records[:, len(layout.labels) :], labels


def _read_python(layout: Layout, path: Path) -> _Batch:
    batch = read_plain_pickle(path)
    pixels = batch.get("data")
    labels = {name: np.asarray(batch.get(f"{name}s", ()), np.int64) for name in layout.labels}
    if not isinstance(pixels, np.ndarray) or pixels.shape[1:] != (PIXELS,):
        raise DataError(f"{path}: not a CIFAR batch: it has no array 'data' of n x {PIXELS} bytes.")
    if any(column.shape != pixels.shape[:1] for column in labels.values()):
        raise DataError(f"{path}: not a CIFAR batch: it lacks labels ({', '.join(layout.labels)}).")
    return pixels, labels


def _class_names(folder: Path, where: str) -> tuple[str, ...]:
    name, _, key = where.partition(":")
    if key:
        names: Any = read_plain_pickle(folder / name).get(key, ())
        return tuple(map(str, names))
    if not (folder / name).is_file():
        return ()
    return tuple((folder / name).read_text(encoding="utf-8").split())
