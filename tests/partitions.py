"""Examples and checks for tests of partitions."""

from __future__ import annotations

import hashlib

import numpy as np

from fedapp.data.dataset import Examples, Partition
from fedapp.data.partition.partitioning import Partitioning


def labelled(targets) -> Examples:
    targets = np.asarray(targets, dtype=np.int64)
    return Examples(np.zeros((len(targets), 1), dtype=np.uint8), targets)


def cycle(n: int, labels: int = 10) -> Examples:
    """n examples whose labels go round: 0, 1, ..., 9, 0, ..."""
    return labelled(np.arange(n) % labels)


def split_test(
    partitioner: Partitioning, test: Examples, train: Examples, num_clients: int, seed: int
) -> Partition | None:
    """The test sets of the clients that ``partitioner`` makes of ``train``."""
    partition = partitioner.split(train, num_clients, seed)
    return partitioner.split_test(test, train, partition, seed)


def assert_each_at_most_once(partition: Partition, n: int) -> None:
    counts = np.bincount(partition.indices, minlength=n)
    assert len(counts) == n
    assert counts.max(initial=0) <= 1
    assert partition.offsets[0] == 0
    assert partition.offsets[-1] == len(partition.indices)
    assert (partition.sizes >= 0).all()


def digest(partition: Partition) -> str:
    little = [partition.indices.astype("<i8"), partition.offsets.astype("<i8")]
    return hashlib.sha256(b"".join(part.tobytes() for part in little)).hexdigest()[:16]
