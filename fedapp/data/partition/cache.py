"""Partitions in the data cache: the next process neither splits nor imports what splits.

An entry is one file, the SHA-256 of its content before the content: the index sets, and those of the
test examples, as NumPy arrays. It is written whole or not at all, and one that is damaged is made again.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from fedapp.config.registry import source_of
from fedapp.config.run_config import RunConfig
from fedapp.data.cache import cache_folder
from fedapp.data.dataset import Dataset, Examples, Partition
from fedapp.data.partition.partitioning import Partitioning
from fedapp.files import write_atomically

FORMAT = 1
"""Version of the layout, and of how sets are taken from flwr-datasets; raise it when either changes."""

logger = logging.getLogger(__name__)


def partition_key(
    partitioner: Partitioning, dataset: Dataset, num_clients: int, seed: int
) -> list[Any]:
    """Return what the sets depend on: data, scheme, parameters, K and seed, and the code that splits."""
    return [
        *(FORMAT, version("flwr-datasets"), np.__version__, source_of(type(partitioner))),
        *(partitioner.name, partitioner.model_dump(mode="json"), num_clients, seed),
        # A data set of one's own may have changed behind the same fingerprint.
        *(dataset.fingerprint, _digest(dataset.train), _digest(dataset.test)),
    ]


def cached_partition(
    config: RunConfig, key: list[Any], split: Callable[[], Partition]
) -> Partition:
    """Return the partition of ``key`` from the data cache; ``split()`` makes it if need be.

    Where the cache cannot be written it is made all the same, with a warning.
    """
    name = hashlib.sha256(json.dumps(key).encode()).hexdigest()
    path = cache_folder(config) / "partitions" / name
    if found := _read(path):
        return found
    with _alone(config, path):
        if found := _read(path):  # another process may have made it meanwhile
            return found
        partition = split()
        try:
            write_atomically(path, _pack(partition))
        except OSError as error:
            _warn(config, error)
        return partition


@contextmanager
def _alone(config: RunConfig, path: Path) -> Iterator[None]:
    """Let one process at a time make the entry ``path``, where the cache can be written."""
    from filelock import FileLock

    lock = FileLock(f"{path}.lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except OSError as error:
        _warn(config, error)
    try:
        yield
    finally:
        lock.release()


def _warn(config: RunConfig, error: OSError) -> None:
    logger.warning(
        "data-cache = %r: the partition cannot be kept in %s (%s), and each process makes it anew. "
        "Set data-cache (or the environment variable FEDAPP_CACHE) to a folder you may write.",
        config.data_cache,
        cache_folder(config),
        error,
    )


def _digest(examples: Examples) -> str:
    """Return the SHA-256 of what examples are split by: targets and columns of ids."""
    total = hashlib.sha256()
    for name, array in (("", examples.targets), *sorted(examples.groups.items())):
        total.update(f"{name} {array.dtype.str} {array.shape} ".encode())
        plain = array.dtype.kind != "O"
        total.update(array.tobytes() if plain else json.dumps(array.tolist()).encode())
    return total.hexdigest()


def _pack(partition: Partition) -> bytes:
    file = io.BytesIO()
    for part in (partition, partition.test):
        if part is not None:
            np.save(file, part.indices, allow_pickle=False)
            np.save(file, part.offsets, allow_pickle=False)
    content = file.getvalue()
    return hashlib.sha256(content).digest() + content


def _read(path: Path) -> Partition | None:
    """Return the entry's partition, or None where there is none or a damaged one."""
    try:
        packed = path.read_bytes()
    except OSError:
        return None
    size = hashlib.sha256().digest_size
    if hashlib.sha256(packed[size:]).digest() != packed[:size]:
        logger.warning("The cached partition %s is damaged: it is made again.", path)
        return None
    file = io.BytesIO(packed[size:])
    arrays = []
    while file.tell() < len(packed) - size:
        arrays.append(np.load(file, allow_pickle=False))
    return Partition(arrays[0], arrays[1], Partition(*arrays[2:]) if arrays[2:] else None)
