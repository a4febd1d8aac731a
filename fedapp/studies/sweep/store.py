"""Records of runs: the archive beside published results, and the folder of runs."""

from __future__ import annotations

import errno
import gzip
import json
import os
import time
import zlib
from collections.abc import Iterable
from pathlib import Path

from filelock import FileLock
from pydantic import ValidationError

from fedapp.errors import CheckpointError, ConfigError
from fedapp.files import write_atomically
from fedapp.studies.sweep.identity import Request
from fedapp.studies.sweep.record import RunRecord

NAME = "records"


class Archive:
    """``<folder>/records/<run>.json.gz``: the whole record of each run, the same bytes each time.

    A run's name is a hash of its settings and of its data, so a record found here is of the run
    that is looked for, whichever machine did it. What it leaves out is the digests of the code.
    """

    def __init__(self, folder: Path) -> None:
        self.root = folder.expanduser().absolute() / NAME

    def find(self, run: str) -> RunRecord | None:
        """Return the run's record, or None; one that failed is no result for others to take.

        Raises
        ------
        CheckpointError
            Its file is damaged.
        """
        path = self.root / f"{run}.json.gz"
        try:
            record = RunRecord.model_validate_json(gzip.decompress(path.read_bytes()))
        except FileNotFoundError:
            return None
        except (OSError, EOFError, zlib.error, ValidationError) as error:
            raise CheckpointError(
                f"{path} is damaged: {error}. Delete the file, or leave --from out; the run is "
                "then done again."
            ) from error
        return record if record.status != "failed" else None

    def keep(self, records: Iterable[RunRecord]) -> None:
        """Write the records of runs that went further than what is kept of them, and did not fail."""
        for record in {r.run: r for r in records if r.status != "failed"}.values():
            kept = self.find(record.run)
            if kept is None or kept.last_round < record.last_round:
                self.root.mkdir(parents=True, exist_ok=True)
                content = gzip.compress(record.published.model_dump_json().encode(), mtime=0)
                write_atomically(self.root / f"{record.run}.json.gz", content)


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
