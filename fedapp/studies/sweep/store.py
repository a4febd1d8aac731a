"""The folder of run directories, with the record of each finished run."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path

from filelock import FileLock
from pydantic import ValidationError

from fedapp.errors import CheckpointError
from fedapp.files import as_folder, disk_space_needed, write_atomically
from fedapp.studies.sweep.identity import Request
from fedapp.studies.sweep.record import RunRecord


class Store:
    """The records of runs under ``root``, which several processes may share.

    ``root/<run>/`` is a run directory, with ``record.json`` once the run is finished. Records of
    sufficient length in ``recorded``, which has them by name of the run, are used, too.

    Raises
    ------
    ConfigError
        ``root`` cannot be created or written.
    """

    def __init__(self, root: Path, recorded: Mapping[str, RunRecord] | None = None) -> None:
        self.root = as_folder(root, "--runs")
        self.known: dict[str, RunRecord] = {}
        """The full records of the runs found so far, by name."""
        self._recorded = recorded or {}

    def folder(self, run: str) -> Path:
        """Return the run's directory."""
        return self.root / run

    def find(self, request: Request) -> RunRecord | None:
        """Return the record that satisfies ``request``, cut to it, or None.

        A run that recorded its updates satisfies a request that does not ask for them. A run that failed
        counts if there is no other.
        """
        cut: RunRecord | None = None
        for each in (request, request.with_updates):
            for read in (self.known.get, self._read, self._recorded.get):
                record = read(each.run)
                if record is None or (record.status == "failed" and each != request):
                    continue
                if record.satisfies(request):
                    self.known[request.run] = record
                    cut = record.until(request)
                    if cut.status != "failed":
                        return cut
        return cut

    def keep(self, record: RunRecord) -> None:
        """Write the record of a run, atomically."""
        path = self.folder(record.run) / "record.json"
        with disk_space_needed(path, "and run the same command again"):
            write_atomically(path, (record.model_dump_json() + "\n").encode())

    def forget(self, run: str) -> None:
        """Drop the cached record; the next ``find`` reads the file."""
        self.known.pop(run, None)

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
