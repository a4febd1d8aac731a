"""The binary version of CIFAR-10 and CIFAR-100, as A. Krizhevsky distributes it.

The Python version is refused, because it is pickled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedapp.config.data import DataConfig
from fedapp.data.readers.source import Source, Split, choose_splits
from fedapp.errors import ConfigError, DataError

PIXELS = 3 * 32 * 32
TEN_BATCHES = {
    "train": tuple(f"data_batch_{number}" for number in range(1, 6)),
    "test": ("test_batch",),
}
HUNDRED_BATCHES = {"train": ("train",), "test": ("test",)}


@dataclass(frozen=True)
class Layout:
    """The files of CIFAR-10 or CIFAR-100.

    ``batches``: their names by split, without ``.bin``. ``labels``: the label columns by name, the finest
    last, each with its file of class names, in the order of a record's bytes.
    """

    name: str
    batches: Mapping[str, tuple[str, ...]]
    labels: dict[str, str]


LAYOUTS = (
    Layout("cifar-10", TEN_BATCHES, {"label": "batches.meta.txt"}),
    Layout(
        "cifar-100",
        HUNDRED_BATCHES,
        {"coarse_label": "coarse_label_names.txt", "fine_label": "fine_label_names.txt"},
    ),
)


def cifar_layout(config: DataConfig, folder: Path) -> tuple[Layout, Path] | None:
    """Return the layout of the CIFAR batches in ``folder`` or a folder in it, and that folder.

    None where there are no CIFAR batches.

    Raises
    ------
    ConfigError
        There are only batches of the Python version.
    DataError
        There are batches of several data sets.
    """
    candidates = [
        (layout, each) for each in (folder, *sorted(folder.glob("cifar-*"))) for layout in LAYOUTS
    ]
    layouts = [(layout, each) for layout, each in candidates if _has_batches(layout, each)]
    if len(layouts) > 1:
        sets = ", ".join(f"{layout.name} in {each}" for layout, each in layouts)
        raise DataError(
            f"dataset = {config.dataset!r}: holds several data sets: {sets}. "
            "Set dataset to a folder that holds one of them only."
        )
    if layouts:
        return layouts[0]
    for layout, each in candidates:
        # Batches without an ending, beside "batches.meta" or "meta".
        if (each / layout.batches["train"][0]).is_file() and any(each.glob("*meta")):
            raise ConfigError(
                f"dataset = {config.dataset!r}: {each} holds the Python version of {layout.name}, "
                "which is pickled, and nothing pickled is read. The binary version and Parquet "
                f"files are allowed. Set dataset to the folder of an unpacked {layout.name}-binary"
                ".tar.gz from https://www.cs.toronto.edu/~kriz/cifar.html, or to the hub name "
                f"'uoft-cs/{layout.name.replace('-', '')}'."
            )
    return None


def _has_batches(layout: Layout, folder: Path) -> bool:
    names, first = next(iter(layout.labels.values())), layout.batches["train"][0]
    return (folder / names).is_file() and (folder / f"{first}.bin").is_file()


def read_cifar(config: DataConfig, layout: Layout, folder: Path, *, test_required: bool) -> Source:
    """Return the splits "train" and "test".

    Raises
    ------
    DataError
        A batch is missing or damaged, class names are not UTF-8, or `label-key` names no label
        column of this distribution.
    """
    key = config.label_key or [*layout.labels][-1]
    if key not in layout.labels:
        raise DataError(
            f"label-key = {key!r}: {folder} has no such labels. One of: {', '.join(layout.labels)}."
        )
    batches = {
        split: [folder / f"{name}.bin" for name in names] for split, names in layout.batches.items()
    }
    present = {
        split: paths for split, paths in batches.items() if any(path.is_file() for path in paths)
    }
    chosen = choose_splits(config, present, test_required=test_required)
    for path in chain(*chosen):
        if not path.is_file():
            raise DataError(f"{path}: is missing beside the other batches. Copy or download it.")
    splits = (_split(layout, key, paths) for paths in chosen)
    return Source(*splits, class_names=_class_names(folder / layout.labels[key]))


def _split(layout: Layout, key: str, paths: list[Path]) -> Split:
    import pyarrow as pa

    records = np.concatenate([_read_records(path, len(layout.labels) + PIXELS) for path in paths])
    labels = {name: records[:, i].astype(np.int64) for i, name in enumerate(layout.labels)}
    return Split(
        inputs=records[:, len(layout.labels) :].reshape(-1, 3, 32, 32),
        labels=labels[key],
        columns={
            name: pa.chunked_array([pa.array(labels[name])])
            for name in layout.labels
            if name != key
        },
    )


def _read_records(path: Path, width: int) -> NDArray[np.uint8]:
    """Return records [n, width]: the label bytes, and then the red, the green and the blue plane."""
    data = np.fromfile(path, np.uint8)
    if not len(data) or len(data) % width:
        raise DataError(
            f"{path}: truncated: {len(data)} bytes are not a multiple of a record's {width}. "
            "Copy or download it again."
        )
    return data.reshape(-1, width)


def _class_names(path: Path) -> tuple[str, ...]:
    try:
        return tuple(path.read_text(encoding="utf-8").split()) if path.is_file() else ()
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: is not UTF-8: {error}. Save it as UTF-8.") from error
