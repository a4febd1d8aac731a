"""Records of runs beside published results: so that a run done elsewhere need not be done again."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterable
from pathlib import Path

from pydantic import ValidationError

from fedapp.errors import CheckpointError
from fedapp.files import write_atomically
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
