"""Random images as many and as large as MNIST's or CIFAR-10's: as quick to train on, and never far.

They are written in the data sets' own formats, which need no library to read.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

CLASSES = 10
BATCHES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")
"""Files of CIFAR-10's binary version, all of one size."""


def write_mnist(folder: Path, train: int = 60_000, test: int = 10_000, side: int = 28) -> None:
    """Write IDX files of ``side`` x ``side`` images."""
    draws = np.random.default_rng(0)
    for split, count in {"train": train, "t10k": test}.items():
        images = draws.integers(0, 256, (count, side, side), dtype=np.uint8)
        labels = draws.integers(0, CLASSES, count, dtype=np.uint8)
        _write_idx(folder / f"{split}-images-idx3-ubyte", images)
        _write_idx(folder / f"{split}-labels-idx1-ubyte", labels)


def _write_idx(path: Path, array: NDArray[np.uint8]) -> None:
    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
    path.write_bytes(header + array.tobytes())


def write_cifar10(folder: Path, each: int = 10_000) -> None:
    """Write the binary version's five batches of training images and one of test images."""
    draws = np.random.default_rng(0)
    for name in BATCHES:
        records = draws.integers(0, 256, (each, 1 + 3 * 32 * 32), dtype=np.uint8)
        records[:, 0] %= CLASSES
        (folder / f"{name}.bin").write_bytes(records.tobytes())
    (folder / "batches.meta.txt").write_text("\n".join(f"class-{k}" for k in range(CLASSES)))


WRITERS: dict[str, Callable[[Path], None]] = {"mnist": write_mnist, "cifar10": write_cifar10}
"""By the name of the folder under FEDAPP_DATA for which they stand in."""
