"""The embedded default: real handwritten digits from scikit-learn's wheel."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from fedapp.data.base import Dataset, Examples, Task
from fedapp.data.embedded.base import Embedded
from fedapp.seeds import generator

TEST_SHARE = 5
"""Every class gives one fifth of its examples to the test split."""


class Digits(Embedded):
    """1,797 real handwritten digits of 8x8 pixels (UCI, in scikit-learn's wheel).

    The split into 1,433 training and 364 test examples is fixed (stratified by class, the same
    for every seed), so that accuracies of different runs are comparable. Pixels are scaled from
    0..16 to [0, 1].
    """

    name: ClassVar[str] = "digits"

    def load(self) -> Dataset:
        """Return the data set; it takes a tenth of a second and needs no cache."""
        from sklearn.datasets import load_digits

        bunch = load_digits()
        inputs = (bunch.images / 16).astype(np.float32)[:, None]
        targets = bunch.target.astype(np.int64)
        order = generator(0, "digits-split").permutation(len(targets))
        rank = np.empty(len(targets), dtype=np.int64)
        for label in range(10):
            members = order[targets[order] == label]
            rank[members] = np.arange(len(members))
        test = rank % TEST_SHARE == 0
        return Dataset(
            name="digits",
            task=Task("image", (1, 8, 8), 10, tuple(map(str, range(10)))),
            train=Examples(inputs[~test], targets[~test]),
            test=Examples(inputs[test], targets[test]),
            fingerprint="digits-1",
        )
