"""The folder of runs: ``<run>/`` is a run directory, with ``record.json`` once it is done."""

from __future__ import annotations

import errno
import json
import os
import time
from pathlib import Path

from filelock import FileLock
from pydantic import ValidationError

from fedapp.errors import CheckpointError, ConfigError
from fedapp.files import write_atomically
from fedapp.studies.sweep.archive import Archive
from fedapp.studies.sweep.identity import Request
from fedapp.studies.sweep.record import RunRecord


def as_folder(path: Path, option: str) -> Path:
    """Return the absolute path of a folder that can be written, made if it is not there.

    Raises
    ------
    ConfigError
        It is a file, or lies in one, or cannot be made or written.
    """
    path = path.expanduser().absolute()
    there = next(each for each in (path, *path.parents) if each.exists())
    if not there.is_dir():
        raise ConfigError(
            f"{option} {path}: must be a folder, and {there} is a file. Choose another."
        )
    try:
        path.mkdir(parents=True, exist_ok=True)
        if not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise ConfigError(
            f"{option} {path}: cannot be written ({error.strerror}). Choose another folder."
        ) from error
    return path


class Store:
    """Finds and keeps the records of runs under ``root``; several processes may share it.

    A run that went far enough in ``archive`` is taken from there.

    Raises
    ------
    ConfigError
        ``root``, or what it lies in, is a file, or it cannot be written.
    """

    def __init__(self, root: Path, archive: Archive | None = None) -> None:
        self.root = as_folder(root, "--runs")
        self.archive = archive
        self._known: dict[str, RunRecord] = {}

    def folder(self, run: str) -> Path:
        """Return the run's directory."""
        return self.root / run

    def find(self, request: Request) -> RunRecord | None:
        """Return the record that satisfies ``request``, cut to it, or None."""
        for read in (self._known.get, self._read, self._recorded):
            record = read(request.run)
            if record is not None and record.satisfies(request):
                self._known[request.run] = record
                return record.until(request)
        return None

    @property
    def known(self) -> list[RunRecord]:
        """The whole records of the runs that were found."""
        return list(self._known.values())

    def keep(self, record: RunRecord) -> None:
        """Write the record of a run, atomically."""
        path = self.folder(record.run) / "record.json"
        write_atomically(path, (record.model_dump_json() + "\n").encode())

    def forget(self, run: str) -> None:
        """Read the run's record anew when it is asked for next."""
        self._known.pop(run, None)

    def retry(self, run: str) -> None:
        """Forget the record of a run that failed, so that it is done again when it is asked for next."""
        self.forget(run)
        (self.folder(run) / "record.json").unlink(missing_ok=True)

    def lock(self, run: str) -> FileLock:
        """Return what holds the run against others; it ends with the process that holds it."""
        locks = self.root / ".locks"
        locks.mkdir(parents=True, exist_ok=True)
        return FileLock(locks / run, thread_local=False)

    def note(self, event: str, run: str, round_: int) -> None:
        """Append a line to ``journal.jsonl``: what happened to which run after which round."""
        line = {"time": round(time.time(), 2), "event": event, "run": run, "round": round_}
        with (self.root / "journal.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")

    def _read(self, run: str) -> RunRecord | None:
        path = self.folder(run) / "record.json"
        try:
            record = RunRecord.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except ValidationError as error:
            raise CheckpointError(
                f"{path} is damaged: {error.errors()[0]['msg']}. Delete the file; it is made "
                "again from the run beside it."
            ) from error
        return record

    def _recorded(self, run: str) -> RunRecord | None:
        return self.archive.find(run) if self.archive else None
