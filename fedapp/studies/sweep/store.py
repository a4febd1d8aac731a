"""Records of runs: the archive beside published results, and the folder of run directories."""

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
    """``<folder>/records/<run>.json.gz``: the record of each run, without the digests of its code.

    The name of a run is a hash of its settings and data, so records are valid on any machine. The same
    record gives the same bytes.
    """

    def __init__(self, folder: Path) -> None:
        self.root = folder.expanduser().absolute() / NAME

    def find(self, run: str) -> RunRecord | None:
        """Return the run's record, or None if there is none or the run failed.

        Raises
        ------
        CheckpointError
            The file is damaged.
        """
        path = self.root / f"{run}.json.gz"
        try:
            record = RunRecord.model_validate_json(gzip.decompress(path.read_bytes()))
        except FileNotFoundError:
            return None
        except (OSError, EOFError, zlib.error, ValidationError) as error:
            raise CheckpointError(
                f"{path} is damaged: {error}. Delete the file or leave --from out, and "
                "the run is repeated."
            ) from error
        return record if record.status != "failed" else None

    def keep(self, records: Iterable[RunRecord]) -> None:
        """Write records of runs that did not fail and are longer than the stored record."""
        for record in {r.run: r for r in records if r.status != "failed"}.values():
            stored = self.find(record.run)
            if stored is None or stored.last_round < record.last_round:
                self.root.mkdir(parents=True, exist_ok=True)
                content = gzip.compress(record.published.model_dump_json().encode(), mtime=0)
                write_atomically(self.root / f"{record.run}.json.gz", content)


def as_folder(path: Path, option: str) -> Path:
    """Return the absolute path of a writable folder; create it if necessary.

    Raises
    ------
    ConfigError
        It is a file or inside one, or cannot be created or written.
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
    """The records of runs under ``root``, which several processes may share.

    ``root/<run>/`` is a run directory, with ``record.json`` once the run is finished. Records of
    sufficient length in ``archive`` are used, too.

    Raises
    ------
    ConfigError
        ``root`` cannot be created or written.
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
        """The full records of the runs found so far."""
        return list(self._known.values())

    def keep(self, record: RunRecord) -> None:
        """Write the record of a run, atomically."""
        path = self.folder(record.run) / "record.json"
        write_atomically(path, (record.model_dump_json() + "\n").encode())

    def forget(self, run: str) -> None:
        """Drop the cached record; the next ``find`` reads the file."""
        self._known.pop(run, None)

    def retry(self, run: str) -> None:
        """Delete the record of a run that failed, so that the run is repeated."""
        self.forget(run)
        (self.folder(run) / "record.json").unlink(missing_ok=True)

    def lock(self, run: str) -> FileLock:
        """Return the run's lock file, which the operating system releases when the process ends."""
        locks = self.root / ".locks"
        locks.mkdir(parents=True, exist_ok=True)
        return FileLock(locks / run, thread_local=False)

    def note(self, event: str, run: str, round_: int) -> None:
        """Append an event of a run after ``round_`` rounds to ``journal.jsonl``."""
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
                f"{path} is damaged: {error.errors()[0]['msg']}. Delete the file; it is "
                "written again from the run directory."
            ) from error
        return record

    def _recorded(self, run: str) -> RunRecord | None:
        return self.archive.find(run) if self.archive else None
