"""Files that are there whole or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def write_atomically(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Write ``content`` so that a reader, also after a crash, sees the old file or the new one.

    Nobody but whom ``mode`` names, less the process's umask, can read it at any time.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        number = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        with os.fdopen(number, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        # What is there of it would keep a full disk full.
        temporary.unlink(missing_ok=True)
        raise
    temporary.replace(path)


def keep_written(path: Path) -> None:
    """Wait until what was appended to a file, if there is one, would outlast a power cut."""
    if path.exists():
        with path.open("rb") as file:
            os.fsync(file.fileno())


def append_whole(path: Path, text: str) -> None:
    """Append ``text``, or leave the file as it was where there is no room for all of it."""
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


def what_is_wrong(error: Exception) -> str:
    """Return why a JSON file is not what it should be, in words."""
    if isinstance(error, KeyError):
        return f"it has no {error}"
    if isinstance(error, json.JSONDecodeError):
        return f"it is not whole JSON ({error})"
    return str(error).rstrip(".")
