"""The data cache: arrays decoded once and mapped by every process, and partitions split once.

A data set is a folder named by the hash of its content and of the settings that shape the arrays. It
is written to a temporary folder and then renamed, so a reader sees all of it or nothing; processes that
start together wait for the first one instead of decoding as well. A partition is one file in
``partitions/``: the SHA-256 of its content, then the index sets and those of the test examples as NumPy
arrays. An entry that is damaged, or that an older version has read otherwise, is made again.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from fedapp.config.data import DataConfig
from fedapp.config.registry import source_digest
from fedapp.data.dataset import Dataset, Examples, Partition, Task
from fedapp.data.partition.partitioning import Partitioning
from fedapp.data.table import Table
from fedapp.errors import DataError
from fedapp.files import as_path, write_atomically

READING = 4
"""Version of the layout and of the reading; raise it when files become other arrays, or are refused.

An older entry is made again under the same name, so that the fingerprint that runs note stays.
"""
PARTITION_FORMAT = 1
"""Version of the layout, and of how sets are taken from flwr-datasets; raise it when either changes."""

MANIFEST = "dataset.json"

logger = logging.getLogger(__name__)


class CacheDamageError(Exception):
    """An entry does not match its manifest, or an older version has read it."""


def cache_folder(config: DataConfig) -> Path:
    """Return the folder of the cache: `data-cache`, $FEDAPP_CACHE, or ~/.cache/fedapp."""
    given = config.data_cache or os.environ.get("FEDAPP_CACHE") or "~/.cache/fedapp"
    key = "data-cache" if config.data_cache else "FEDAPP_CACHE"
    return as_path(given, f"{key} = {given!r}")


def cached_dataset(
    config: DataConfig, key: dict[str, Any], build: Callable[[Path], Dataset]
) -> Dataset:
    """Return the data set of ``key`` from the cache, or else what ``build(scratch folder)`` returns.

    Where ``key`` says that it is a node's own, only its owner can read the entry; others have the mode of
    the cache, which may be shared.

    Raises
    ------
    DataError
        The cache folder cannot be used, or ``build`` raises it.
    """
    # The 1 stays, whatever READING is: runs note the name as the data's fingerprint.
    name = hashlib.sha256(json.dumps([1, key], sort_keys=True).encode()).hexdigest()
    folder = cache_folder(config)
    try:
        dataset = _read_dataset(config, folder / name, name)
        return dataset or _build_entry(config, folder, name, build, private=key["node"])
    except OSError as error:
        raise DataError(
            f"data-cache = {config.data_cache!r}: the folder {folder} cannot be used: {error}. "
            "Set data-cache (or the environment variable FEDAPP_CACHE) to a folder you may write."
        ) from error


def _build_entry(
    config: DataConfig,
    folder: Path,
    name: str,
    build: Callable[[Path], Dataset],
    *,
    private: bool,
) -> Dataset:
    from filelock import FileLock

    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / f"{name}.lock"):
        # Another process may have made it while this one waited.
        if dataset := _read_dataset(config, folder / name, name):
            return dataset
        prefix = f".new-{name}-"
        for left_by_a_killed_process in folder.glob(f"{prefix}*"):
            shutil.rmtree(left_by_a_killed_process)
        with tempfile.TemporaryDirectory(dir=folder, prefix=prefix) as temporary:
            scratch, entry = Path(temporary) / "scratch", Path(temporary) / "entry"
            scratch.mkdir()
            _write_dataset(build(scratch), entry)
            entry.chmod(0o700 if private else stat.S_IMODE(folder.stat().st_mode))
            if (folder / name).exists():
                (folder / name).rename(Path(temporary) / "damaged")
            entry.rename(folder / name)
    made = _read_dataset(config, folder / name, name)
    if made is None:
        raise OSError(f"{folder / name} vanished while it was written")
    return made


def _write_dataset(dataset: Dataset, entry: Path) -> None:
    """Write every array as an .npy file, and the manifest that describes them."""
    entry.mkdir()
    manifest: dict[str, Any] = {"reading": READING, "task": asdict(dataset.task), "splits": {}}
    if dataset.table is not None:
        manifest["table"] = asdict(dataset.table)
    for split in ("train", "test"):
        examples: Examples = getattr(dataset, split)
        arrays = {"inputs": examples.inputs, "targets": examples.targets}
        described = {
            part: _save(entry / f"{split}-{part}.npy", array) for part, array in arrays.items()
        }
        groups = [
            {"name": group, **_save(entry / f"{split}-group-{number}.npy", array)}
            for number, (group, array) in enumerate(examples.groups.items())
        ]
        columns = {"names": examples.group_names, "left_out": examples.left_out}
        manifest["splits"][split] = {**described, "groups": groups, **columns}
    (entry / MANIFEST).write_text(json.dumps(manifest))


def _save(path: Path, array: NDArray[Any]) -> dict[str, Any]:
    np.save(path, array, allow_pickle=False)
    return {
        "file": path.name,
        "dtype": array.dtype.str,
        "shape": array.shape,
        "bytes": path.stat().st_size,
    }


def _read_dataset(config: DataConfig, entry: Path, name: str) -> Dataset | None:
    """Return the entry's data set, or None where there is none, a damaged or an older one."""
    if not entry.exists():
        return None
    try:
        manifest = json.loads((entry / MANIFEST).read_text())
        if manifest.get("reading", 1) < READING:
            raise CacheDamageError("an older version has read them")
        return Dataset(
            name=config.dataset,
            task=Task(**_with_tuples(manifest["task"])),
            train=_shared_examples("train", entry, manifest),
            test=_shared_examples("test", entry, manifest),
            fingerprint=name,
            table=Table(**_with_tuples(manifest["table"])) if "table" in manifest else None,
        )
    except (CacheDamageError, FileNotFoundError, ValueError, KeyError, TypeError) as error:
        logger.warning("The cached data in %s are made again: %s.", entry, error)
        return None


def _with_tuples(value: Any) -> Any:
    """Return a value with tuples in place of JSON's lists."""
    if isinstance(value, dict):
        return {key: _with_tuples(each) for key, each in value.items()}
    return tuple(map(_with_tuples, value)) if isinstance(value, list) else value


_OPEN_EXAMPLES: WeakValueDictionary[tuple[Path, str], Examples] = WeakValueDictionary()
"""The examples of each entry and split that are in use in this process."""


def _shared_examples(split: str, entry: Path, manifest: dict[str, Any]) -> Examples:
    """Return the same object for each use, so that stacked runs copy it to a GPU once."""
    described = manifest["splits"][split]
    examples = Examples(
        inputs=_load(entry, described["inputs"]),
        targets=_load(entry, described["targets"]),
        groups={group["name"]: _load(entry, group) for group in described["groups"]},
        group_names={name: tuple(values) for name, values in described["names"].items()},
        left_out=described["left_out"],
    )
    return _OPEN_EXAMPLES.setdefault((entry, split), examples)


def _load(entry: Path, described: dict[str, Any]) -> NDArray[Any]:
    path = entry / described["file"]
    if path.stat().st_size != described["bytes"]:
        raise CacheDamageError(
            f"{path.name} has {path.stat().st_size} bytes, not {described['bytes']}"
        )
    # Copy on write: PyTorch ignores that an array is read-only, and a stray write to a read-only page
    # would end the process. So it changes a page in memory, not the file. Empty arrays cannot be mapped.
    array = np.load(path, mmap_mode=None if 0 in described["shape"] else "c", allow_pickle=False)
    if array.shape != tuple(described["shape"]) or array.dtype.str != described["dtype"]:
        raise CacheDamageError(f"{path.name} holds {array.dtype} {array.shape}")
    return np.asarray(array)


def partition_key(
    partitioner: Partitioning, dataset: Dataset, num_clients: int, seed: int
) -> list[Any]:
    """Return what the index sets depend on: data, scheme with its code and parameters, K and seed."""
    return [
        *(PARTITION_FORMAT, version("flwr-datasets"), np.__version__),
        source_digest(type(partitioner)),
        *(partitioner.name, partitioner.model_dump(mode="json"), num_clients, seed),
        # A user's data set may have changed under the same fingerprint.
        *(dataset.fingerprint, _digest(dataset.train), _digest(dataset.test)),
    ]


def cached_partition(
    config: DataConfig, key: list[Any], split: Callable[[], Partition]
) -> Partition:
    """Return the partition of ``key`` from the data cache, or else what ``split()`` returns.

    Where the cache cannot be written, each process splits anew, with a warning.
    """
    name = hashlib.sha256(json.dumps(key).encode()).hexdigest()
    path = cache_folder(config) / "partitions" / name
    if partition := _read_partition(path):
        return partition
    with _lock(path):
        if partition := _read_partition(path):  # another process may have made it
            return partition
        partition = split()
        try:
            write_atomically(path, _pack_partition(partition))
        except OSError as error:
            logger.warning(
                "data-cache = %r: the partition cannot be stored in %s (%s), so each process makes it "
                "anew. Set data-cache (or the environment variable FEDAPP_CACHE) to a folder you may "
                "write.",
                *(config.data_cache, cache_folder(config), error),
            )
        return partition


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Hold the lock of the entry ``path``, where the cache can be written."""
    from filelock import FileLock

    lock = FileLock(f"{path}.lock")
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _digest(examples: Examples) -> str:
    """Return the SHA-256 of the targets and the columns of ids, by which examples are split."""
    total = hashlib.sha256()
    for name, array in (("", examples.targets), *sorted(examples.groups.items())):
        total.update(f"{name} {array.dtype.str} {array.shape} ".encode())
        as_json = array.dtype.kind == "O"
        total.update(json.dumps(array.tolist()).encode() if as_json else array.tobytes())
    return total.hexdigest()


def _pack_partition(partition: Partition) -> bytes:
    file = io.BytesIO()
    for part in (partition, partition.test):
        if part is not None:
            np.save(file, part.indices, allow_pickle=False)
            np.save(file, part.offsets, allow_pickle=False)
    content = file.getvalue()
    return hashlib.sha256(content).digest() + content


def _read_partition(path: Path) -> Partition | None:
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
