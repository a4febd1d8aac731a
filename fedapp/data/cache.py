"""The cache: arrays decoded once, then mapped by every process.

An entry is a folder named by the hash of the content and of the settings that shape the arrays. It
is written beside its place and moved there as a whole, so a reader sees all of it or nothing;
processes that start together wait for the first one instead of decoding as well.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from fedapp.config.run_config import RunConfig
from fedapp.data.dataset import Dataset, Examples, Task
from fedapp.errors import DataError

FORMAT = 1
"""Version of the layout and of the decoding; raise it when either changes."""

MANIFEST = "dataset.json"

logger = logging.getLogger(__name__)


class CacheDamageError(Exception):
    """An entry is there but is not what its manifest says; it is rebuilt."""


def cache_folder(config: RunConfig) -> Path:
    """Return the folder of the cache: `data-cache`, $FEDAPP_CACHE, or ~/.cache/fedapp."""
    return Path(
        config.data_cache or os.environ.get("FEDAPP_CACHE") or "~/.cache/fedapp"
    ).expanduser()


def cached(config: RunConfig, key: dict[str, Any], build: Callable[[Path], Dataset]) -> Dataset:
    """Return the data set of ``key`` from the cache; ``build(scratch folder)`` makes it if need be.

    Raises
    ------
    DataError
        The cache folder cannot be used, or ``build`` raises it.
    """
    name = hashlib.sha256(json.dumps([FORMAT, key], sort_keys=True).encode()).hexdigest()
    folder = cache_folder(config)
    try:
        found = _read(config, folder / name, name)
        return found or _make(config, folder, name, build)
    except OSError as error:
        raise DataError(
            f"data-cache = {config.data_cache!r}: the folder {folder} cannot be used: {error}. "
            "Set data-cache (or the environment variable FEDAPP_CACHE) to a folder you may write."
        ) from error


def _make(config: RunConfig, folder: Path, name: str, build: Callable[[Path], Dataset]) -> Dataset:
    from filelock import FileLock

    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / f"{name}.lock"):
        found = _read(config, folder / name, name)  # another process may have made it meanwhile
        if found:
            return found
        prefix = f".new-{name}-"
        for left_by_a_killed_process in folder.glob(f"{prefix}*"):
            shutil.rmtree(left_by_a_killed_process)
        with tempfile.TemporaryDirectory(dir=folder, prefix=prefix) as temporary:
            scratch, entry = Path(temporary) / "scratch", Path(temporary) / "entry"
            scratch.mkdir()
            _write(build(scratch), entry)
            if (folder / name).exists():
                (folder / name).rename(Path(temporary) / "damaged")
            entry.rename(folder / name)
    made = _read(config, folder / name, name)
    if made is None:
        raise OSError(f"{folder / name} vanished while it was written")
    return made


def _write(dataset: Dataset, entry: Path) -> None:
    """Write every array as an .npy file, and the manifest that describes them."""
    entry.mkdir()
    manifest: dict[str, Any] = {"task": asdict(dataset.task), "splits": {}}
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
        manifest["splits"][split] = {**described, "groups": groups, "names": examples.group_names}
    (entry / MANIFEST).write_text(json.dumps(manifest))
    shutil.copymode(
        entry.parent.parent, entry
    )  # a temporary folder is private, the cache may be shared


def _save(path: Path, array: NDArray[Any]) -> dict[str, Any]:
    np.save(path, array, allow_pickle=False)
    return {
        "file": path.name,
        "dtype": array.dtype.str,
        "shape": array.shape,
        "bytes": path.stat().st_size,
    }


def _read(config: RunConfig, entry: Path, name: str) -> Dataset | None:
    """Return the entry's data set, or None where there is none or a damaged one."""
    if not entry.exists():
        return None
    try:
        manifest = json.loads((entry / MANIFEST).read_text())
        return Dataset(
            name=config.dataset,
            task=_task(manifest["task"]),
            train=_only("train", entry, manifest),
            test=_only("test", entry, manifest),
            fingerprint=name,
        )
    except (CacheDamageError, FileNotFoundError, ValueError, KeyError, TypeError) as error:
        logger.warning("The cached data in %s are damaged (%s): they are made again.", entry, error)
        return None


def _task(fields: dict[str, Any]) -> Task:
    """Undo JSON's lists."""
    lists = {name: tuple(fields[name]) for name in ("input_shape", "labels")}
    return Task(**{**fields, **lists})


_READ: WeakValueDictionary[tuple[Path, str], Examples] = WeakValueDictionary()
"""The examples of entries and splits that somebody in this process works with."""


def _only(split: str, entry: Path, manifest: dict[str, Any]) -> Examples:
    """Return the same object to all who work with it: stacked runs have it on a GPU once."""
    return _READ.setdefault((entry, split), _examples(entry, manifest["splits"][split]))


def _examples(entry: Path, described: dict[str, Any]) -> Examples:
    return Examples(
        inputs=_load(entry, described["inputs"]),
        targets=_load(entry, described["targets"]),
        groups={group["name"]: _load(entry, group) for group in described["groups"]},
        group_names={name: tuple(values) for name, values in described["names"].items()},
    )


def _load(entry: Path, described: dict[str, Any]) -> NDArray[Any]:
    path = entry / described["file"]
    if path.stat().st_size != described["bytes"]:
        raise CacheDamageError(
            f"{path.name} has {path.stat().st_size} bytes, not {described['bytes']}"
        )
    # Copy on write: PyTorch ignores that an array is read-only, and a stray write would kill the
    # process. So it changes one page of this process and never the file. Empty arrays cannot be mapped.
    array = np.load(path, mmap_mode=None if 0 in described["shape"] else "c", allow_pickle=False)
    if array.shape != tuple(described["shape"]) or array.dtype.str != described["dtype"]:
        raise CacheDamageError(f"{path.name} holds {array.dtype} {array.shape}")
    return np.asarray(array)
