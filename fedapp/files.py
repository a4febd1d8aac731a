"""Atomic and durable writes, places to write to, and the order of names."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fedapp.errors import CheckpointError, ConfigError, RunError


def natural_order(name: str) -> list[tuple[float, str]]:
    """Return a sort key that places fig2 before fig10, and 0.1 before 0.25."""
    parts = re.split(r"(\d+(?:\.\d+)?)", name)
    return [(float(part), "") if part[:1].isdigit() else (-1.0, part) for part in parts]


def as_path(value: str | Path, setting: str) -> Path:
    """Return ``value`` as a path, with the home folder for ``~``; ``setting`` begins the error.

    Raises
    ------
    ConfigError
        It is no possible path: too long, for instance, or in the home folder of an unknown user.
    """
    try:
        path = Path(value).expanduser()
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):
            path.stat()
        return path
    except RuntimeError:
        reason = "there is no home folder of this user"
    except (OSError, ValueError) as error:
        reason = str(getattr(error, "strerror", None) or error)
    raise ConfigError(f"{setting}: is no possible path ({reason}). Choose another.")


def as_folder(path: Path, option: str) -> Path:
    """Return the absolute path of a writable folder; create it if necessary.

    Raises
    ------
    ConfigError
        It is a file or inside one, or cannot be created or written.
    """
    path = as_path(path, f"{option} {path}").absolute()
    try:
        there = next(each for each in (path, *path.parents) if each.exists())
        if not there.is_dir():
            raise ConfigError(
                f"{option} {path}: must be a folder, and {there} is a file. Choose another."
            )
        path.mkdir(parents=True, exist_ok=True)
        if not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise ConfigError(
            f"{option} {path}: cannot be written ({error.strerror}). Choose another folder."
        ) from error
    return path


def as_file(path: Path, option: str) -> Path:
    """Return the absolute path of a file to write; create its folder if necessary.

    Raises
    ------
    ConfigError
        It is a folder, or its folder is none that can be written.
    """
    path = as_path(path, f"{option} {path}").absolute()
    if path.is_dir():
        raise ConfigError(f"{option} {path}: must be a file, and is a folder. Name a file in it.")
    as_folder(path.parent, option)
    return path


def write_atomically(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Write ``content`` so that a reader, also after a crash, sees the old file or the new one.

    The temporary file has the permissions ``mode``, less the process's umask, from the start. It is
    always a new one: of its name there may be another's file, or a link.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.unlink(missing_ok=True)
        number = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(number, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        # On a full disk the partial file would take up space.
        temporary.unlink(missing_ok=True)
        error.filename = str(path)
        raise
    temporary.replace(path)


@contextlib.contextmanager
def disk_space_needed(place: Path, then: str) -> Iterator[None]:
    """Turn a write error in ``place`` into a RunError: which file, what to mend, and ``then``."""
    try:
        yield
    except OSError as error:
        denied = error.errno in (errno.EACCES, errno.EPERM, errno.EROFS)
        fix = "Let this user write there" if denied else "Free disk space"
        raise RunError(
            f"{error.filename or place} cannot be written ({error.strerror}). {fix}, {then}."
        ) from error


def flush_to_disk(path: Path) -> None:
    """Flush a file, if it exists, to the disk (fsync)."""
    if path.exists():
        with path.open("rb") as file:
            os.fsync(file.fileno())


def append_or_restore(path: Path, text: str) -> None:
    """Append ``text``, or leave the file unchanged where the disk has no space for all of it."""
    size = path.stat().st_size if path.exists() else 0
    try:
        with path.open("a") as file:
            file.write(text)
    except OSError:
        if path.exists():
            os.truncate(path, size)
        raise


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as indented JSON, atomically."""
    write_atomically(path, (json.dumps(value, indent=2) + "\n").encode())


def read_json_lines(
    path: Path, check: Callable[[Any], object], advice: str
) -> list[dict[str, Any]]:
    """Return the records of a file of JSON lines, without a last line that was cut off.

    ``check`` raises KeyError, TypeError or ValueError for a record that is not whole.

    Raises
    ------
    CheckpointError
        A line before the last is damaged; the message ends with ``advice``.
    """
    lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    records: list[dict[str, Any]] = []
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            check(record)
            records.append(record)
        except (ValueError, KeyError, TypeError) as error:
            if number < len(lines):
                problem = f"{path}, line {number}, is damaged: {json_problem(error)}"
                raise CheckpointError(f"{problem}. {advice}") from error
    return records


def json_problem(error: Exception) -> str:
    """Return as a phrase why a JSON file cannot be used."""
    if isinstance(error, KeyError):
        return f"it has no {error}"
    if isinstance(error, json.JSONDecodeError):
        return f"it is not whole JSON ({error})"
    return str(error).rstrip(".")
