"""The embedded default: real handwritten digits from scikit-learn's wheel."""

from __future__ import annotations

import gzip
import importlib.util
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedapp.data.dataset import Dataset, Examples, Task
from fedapp.data.embedded.embedded import Embedded
from fedapp.errors import DataError
from fedapp.seeds import generator

TEST_SIZE = 357
"""A fifth of the examples, so that 1,440 remain, which many numbers of clients and shards divide."""


class Digits(Embedded):
    """1,797 real handwritten digits of 8x8 pixels (UCI, in scikit-learn's wheel).

    The split into 1,440 training and 357 test examples is fixed (stratified by class, the same
    for every seed), so that accuracies of different runs are comparable. Pixels are scaled from
    0..16 to [0, 1].
    """

    name: ClassVar[str] = "digits"

    def load(self) -> Dataset:
        """Return the data set; it takes a tenth of a second and needs no cache.

        Raises
        ------
        DataError
            scikit-learn is not installed, or no longer has the file.
        """
        table = _read_table()
        inputs = (table[:, :-1].reshape(-1, 1, 8, 8) / 16).astype(np.float32)
        targets = table[:, -1].astype(np.int64)
        order = generator(0, "digits-split").permutation(len(targets))
        place = np.empty(len(targets))
        for label in range(10):
            members = order[targets[order] == label]
            place[members] = np.arange(len(members)) / len(members)
        test = np.zeros(len(targets), dtype=bool)
        test[np.argsort(place, kind="stable")[:TEST_SIZE]] = True
        return Dataset(
            name="digits",
            task=Task("image", (1, 8, 8), 10, tuple(map(str, range(10)))),
            train=Examples(inputs[~test], targets[~test]),
            test=Examples(inputs[test], targets[test]),
            fingerprint="digits-2",
        )


def _read_table() -> NDArray[np.float64]:
    """Return 1,797 rows of 64 pixels and a label, straight from the wheel's file.

    Importing ``sklearn.datasets`` would take longer than training on the data.
    """
    spec = importlib.util.find_spec("sklearn")
    if spec is None or not spec.submodule_search_locations:
        raise DataError(
            "dataset = 'digits': is part of scikit-learn. Run: pip install scikit-learn"
        )
    path = Path(spec.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz"
    try:
        with gzip.open(path, "rt") as file:
            return np.loadtxt(file, delimiter=",")
    except OSError as error:
        raise DataError(
            f"dataset = 'digits': {path} cannot be read ({error}). Reinstall scikit-learn."
        ) from error
