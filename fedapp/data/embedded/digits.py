"""Real handwritten digits from scikit-learn's wheel, and a variant with feature skew."""

from __future__ import annotations

import functools
import gzip
import importlib.util
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedapp.data.dataset import Dataset, Examples, Task
from fedapp.data.embedded.embedded import Embedded
from fedapp.errors import DataError
from fedapp.seeds import generator

TEST_SIZE = 357
"""A fifth of the examples: 1,440 remain, a multiple of many numbers of clients and shards."""


class Digits(Embedded):
    """1,797 real handwritten digits of 8x8 pixels (UCI, in scikit-learn's wheel).

    The split into 1,440 training and 357 test examples is fixed (stratified by class, the same
    for every seed), so that accuracies of different runs are comparable. Pixels are scaled from
    0..16 to [0, 1].
    """

    name: ClassVar[str] = "digits"

    def load(self) -> Dataset:
        """Return the data set.

        Raises
        ------
        DataError
            scikit-learn is not installed, or no longer has the file.
        """
        table = _read_table()
        inputs = (table[:, :-1].reshape(-1, 1, 8, 8) / 16).astype(np.float32)
        targets = table[:, -1].astype(np.int64)
        order = generator(0, "digits-split").permutation(len(targets))
        rank = np.empty(len(targets))
        for label in range(10):
            members = order[targets[order] == label]
            rank[members] = np.arange(len(members)) / len(members)
        test = np.zeros(len(targets), dtype=bool)
        test[np.argsort(rank, kind="stable")[:TEST_SIZE]] = True
        return Dataset(
            name="digits",
            task=Task("image", (1, 8, 8), 10, tuple(map(str, range(10)))),
            train=Examples(inputs[~test], targets[~test]),
            test=Examples(inputs[test], targets[test]),
            fingerprint="digits-2",
        )


class SkewedDigits(Embedded):
    """The digits with feature skew: every client has its own contrast and brightness.

    Client k's images are a_k x + b_k, in training and in test: a_k is drawn log-uniformly from
    [1 / (1 + skew), 1 + skew] and b_k uniformly from [-skew, skew]. Examples are assigned
    at random and evenly, so clients differ only in how images look, as the five sources
    of digits of Li et al. 2021 (FedBN) do. `skew = 0` leaves the digits unchanged. The column
    ``client`` is the client of an example: use partitioner = "natural" with as many clients.
    """

    name: ClassVar[str] = "skewed-digits"

    clients: int = Field(20, ge=1, le=357, description="Clients that the column client names.")
    skew: float = Field(
        1.0, ge=0, le=1e6, description="Spread of the clients' contrasts and brightnesses."
    )

    def load(self) -> Dataset:
        """Return the data set; it is the same for every seed of a run."""
        digits = Digits().load()
        names = tuple(map(str, range(self.clients)))
        splits = {}
        for split in ("train", "test"):
            examples: Examples = getattr(digits, split)
            owner = generator(0, f"skewed-digits-{split}").permutation(len(examples)) % self.clients
            inputs = self._with_skew(examples.inputs, owner)
            splits[split] = Examples(inputs, examples.targets, {"client": owner}, {"client": names})
        return Dataset(
            name=self.name,
            task=digits.task,
            train=splits["train"],
            test=splits["test"],
            fingerprint=f"skewed-digits-1-{self.model_dump_json()}",
        )

    def _with_skew(self, images: NDArray[Any], owner: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the images [n, 1, 8, 8] with the contrast and brightness of their owners [n]."""
        random = [generator(0, "skewed-digits", 0, k).random(2) for k in range(self.clients)]
        uniform = 2 * np.stack(random) - 1
        contrast, brightness = (1 + self.skew) ** uniform[:, 0], self.skew * uniform[:, 1]
        gain, shift = (each[owner, None, None, None] for each in (contrast, brightness))
        return np.asarray(gain * images + shift, np.float32)


@functools.cache
def _read_table() -> NDArray[np.float64]:
    """Return 1,797 rows of 64 pixels and a label, read from the file in the wheel once.

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
            table = np.loadtxt(file, delimiter=",")
    except OSError as error:
        raise DataError(
            f"dataset = 'digits': {path} cannot be read ({error}). Reinstall scikit-learn."
        ) from error
    table.flags.writeable = False  # all callers share it
    return table
