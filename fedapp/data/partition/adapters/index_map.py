"""The index sets of all clients from a partitioner of flwr-datasets, taken at once."""

from __future__ import annotations

import contextlib
import io
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

BY = "by"
"""The column that a partitioner is to split by (its ``partition_by``)."""


def index_sets(partitioner: Any, values: NDArray[Any]) -> list[NDArray[np.int64]]:
    """Return the index set of every client, each in the order that ``partitioner`` gives it.

    ``partitioner`` is a new one of ``flwr_datasets.partitioner`` that splits by the column ``BY``;
    ``values`` [n] are that column, a label or an id for each example. By ``load_partition`` the
    sets of 1,000 clients are 1,000 data sets, which take seconds, so this reads the map itself, a
    private attribute; ``tests/test_partition_flower.py`` holds it to ``load_partition``.

    Raises
    ------
    ValueError
        The partitioner cannot split these values.
    """
    import datasets

    columns = {"index": np.arange(len(values)), BY: values}
    partitioner.dataset = datasets.Dataset.from_dict(columns)
    # NaturalIdPartitioner draws a progress bar, and others warn of what is checked here before.
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        partitioner.load_partition(0)
    sets = partitioner._partition_id_to_indices
    # A partitioner may have sorted its data set: then the map is of positions in the sorted one.
    rows = np.asarray(partitioner.dataset.with_format("numpy")["index"][:], dtype=np.int64)
    return [rows[np.asarray(sets[k], dtype=np.int64)] for k in range(len(sets))]
