"""The records of runs as tables: Parquet files beside the results, a row a run.

``pandas.read_parquet`` reads them. The columns are the fields of :class:`RunRecord`; ``settings``,
``agreement`` and ``execution`` are JSON, and ``device`` and ``commit`` of the execution are columns.
"""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from filelock import FileLock
from pydantic import ValidationError

from fedapp.errors import CheckpointError
from fedapp.files import write_atomically
from fedapp.studies.sweep.record import RunRecord

_INTS, _FLOATS = pa.list_(pa.int64()), pa.list_(pa.float64())
COLUMNS = pa.schema(
    {
        "run": pa.string(),
        "settings": pa.string(),
        "status": pa.string(),
        "problem": pa.string(),
        "rounds": _INTS,
        "accuracy": _FLOATS,
        "loss": _FLOATS,
        "train_loss": _FLOATS,
        "training_set_loss": _FLOATS,
        "gradients": _INTS,
        "updates": pa.float64(),
        "bytes_down": pa.int64(),
        "bytes_up": pa.int64(),
        "seconds": pa.float64(),
        "updates_until": _FLOATS,
        "bytes_down_until": _INTS,
        "bytes_up_until": _INTS,
        "seconds_until": _FLOATS,
        "agreement": pa.string(),
        "execution": pa.string(),
        "device": pa.string(),
        "commit": pa.string(),
    }.items()
)
JSON_COLUMNS = ("settings", "agreement", "execution")
FORMAT = {
    "version": "2.6",
    "compression": "zstd",
    "compression_level": 19,
    "use_dictionary": False,  # plain values compress better
    "write_statistics": False,
    "store_schema": False,
}
"""Options of the writer. Without pandas metadata and times, the same rows give the same bytes; the
footer names the version of pyarrow, and another version of zstd may compress otherwise."""
EARLIER = "records"
"""The folder in which earlier versions had a JSON file for each record."""


def read_records(*folders: Path) -> dict[str, RunRecord]:
    """Return the records in the folders by name of the run, those of earlier versions included.

    Of two records of a run the longer counts; of equally long ones the last.

    Raises
    ------
    CheckpointError
        A file is damaged.
    """
    records: dict[str, RunRecord] = {}
    for folder in folders:
        for path in sorted(folder.glob(f"{EARLIER}/*.json.gz")):
            records = merge(records, _read_json(path))
        for path in sorted(folder.glob("*.parquet")):
            records = merge(records, read_table(path).values())
    return records


def merge(records: Mapping[str, RunRecord], more: Iterable[RunRecord]) -> dict[str, RunRecord]:
    """Add records that are new, or at least as long as those of the same runs; failed runs are not."""
    merged = dict(records)
    for record in more:
        stored = merged.get(record.run)
        if record.status != "failed" and (stored is None or record.last_round >= stored.last_round):
            merged[record.run] = record
    return merged


def update_table(path: Path, more: Iterable[RunRecord]) -> None:
    """Merge records into a table, which is replaced atomically, and left alone if nothing changes.

    The digests of the runs' code are left out. Other processes wait meanwhile.

    Raises
    ------
    CheckpointError
        The table is damaged.
    """
    published = [record.published for record in more]
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.parent / ".lock"):
        before = read_table(path) if path.exists() else {}
        after = merge(before, published)
        if after != before:
            write_atomically(path, table_bytes(after.values()))


def table_bytes(records: Iterable[RunRecord]) -> bytes:
    """Return the Parquet file of records, sorted by the name of the run."""
    rows = [_row(record) for record in sorted(records, key=lambda record: record.run)]
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema=COLUMNS), buffer, **FORMAT)
    return buffer.getvalue()


def read_table(path: Path) -> dict[str, RunRecord]:
    """Return the records in a table by name of the run.

    Raises
    ------
    CheckpointError
        The file is damaged.
    """
    try:
        rows = pq.ParquetFile(path).read().to_pylist()
        return {row["run"]: _record(row) for row in rows}
    except (OSError, pa.ArrowException, KeyError, ValueError) as error:
        raise CheckpointError(
            f"{path} is damaged or no table of records: {_first_line(error)}. Restore it from a copy, or "
            "delete it; without it its runs are repeated."
        ) from error


def _row(record: RunRecord) -> dict[str, Any]:
    execution = dict(record.execution)
    columns = {key: execution.pop(key, None) for key in ("device", "commit")}
    row = {**record.model_dump(), "execution": execution, **columns}
    return {key: json.dumps(v) if key in JSON_COLUMNS else v for key, v in row.items()}


def _record(row: dict[str, Any]) -> RunRecord:
    values = {key: json.loads(v) if key in JSON_COLUMNS else v for key, v in row.items()}
    columns = {key: values.pop(key) for key in ("device", "commit")}
    first, last = ({k: v} if v is not None else {} for k, v in columns.items())
    values["execution"] = {**first, **values["execution"], **last}
    return RunRecord.model_validate(values)


def _read_json(path: Path) -> Iterator[RunRecord]:
    try:
        yield RunRecord.model_validate_json(gzip.decompress(path.read_bytes()))
    except (OSError, EOFError, zlib.error, ValidationError) as error:
        raise CheckpointError(
            f"{path} is damaged: {_first_line(error)}. Delete the file, and the run is repeated."
        ) from error


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__).rstrip(".")
