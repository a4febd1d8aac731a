"""The records of runs as tables: Parquet files beside the results, a row a run.

``pandas.read_parquet`` reads them. The columns are the fields of :class:`RunRecord`; ``settings``,
``agreement`` and ``execution`` are JSON, and ``device`` and ``commit`` of the execution are columns.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from filelock import FileLock

from fedapp.errors import CheckpointError
from fedapp.files import write_atomically
from fedapp.studies.sweep.record import RunRecord

TYPES: dict[Any, pa.DataType] = {
    int: pa.int64(),
    float: pa.float64(),
    list[int]: pa.list_(pa.int64()),
    list[float]: pa.list_(pa.float64()),
    list[float | None]: pa.list_(pa.float64()),
}
"""The column types of the record's fields; the others are text."""
JSON_COLUMNS = ("settings", "agreement", "execution")
OF_EXECUTION = ("device", "commit")
COLUMNS = pa.schema(
    [
        *((k, TYPES.get(v.annotation, pa.string())) for k, v in RunRecord.model_fields.items()),
        *((key, pa.string()) for key in OF_EXECUTION),
    ]
)
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


def read_records(*folders: Path) -> dict[str, RunRecord]:
    """Return the records in the folders by name of the run.

    Of two records of a run the longer counts; of equally long ones the last.

    Raises
    ------
    CheckpointError
        A file is damaged.
    """
    records: dict[str, RunRecord] = {}
    for folder in folders:
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
    columns = {key: execution.pop(key, None) for key in OF_EXECUTION}
    row = {**record.model_dump(), "execution": execution, **columns}
    return {key: json.dumps(v) if key in JSON_COLUMNS else v for key, v in row.items()}


def _record(row: dict[str, Any]) -> RunRecord:
    values = {key: json.loads(v) if key in JSON_COLUMNS else v for key, v in row.items()}
    first, last = ({key: v} if (v := values.pop(key)) is not None else {} for key in OF_EXECUTION)
    values["execution"] = {**first, **values["execution"], **last}
    return RunRecord.model_validate(values)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__).rstrip(".")
