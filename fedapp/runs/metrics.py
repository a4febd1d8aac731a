"""``metrics.jsonl``: a line of JSON a round."""

from __future__ import annotations

import itertools
import json
import math
import operator
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedapp.federation.callback import RoundMetrics
from fedapp.files import read_json_lines, write_atomically
from fedapp.training.evaluation import SCORE_PREFIXES


def read_metrics(path: Path) -> list[RoundMetrics]:
    """Return the records of ``metrics.jsonl``, without a last line that was cut off.

    Raises
    ------
    CheckpointError
        A line before the last is damaged.
    """
    return read_json_lines(
        path,
        operator.itemgetter("round", "seconds"),
        "Remove this line and those after it: a resumed run then continues from the newest checkpoint "
        "that the remaining lines reach, if there is one.",
    )


def cut_metrics(path: Path, last: int) -> None:
    """Remove the records after round ``last`` from ``metrics.jsonl``, if it exists."""
    if path.exists():
        records = [record for record in read_metrics(path) if record["round"] <= last]
        content = "".join(map(to_line, records)).encode()
        if content != path.read_bytes():
            write_atomically(path, content)


def drop_scores(path: Path, round_: int) -> None:
    """Remove theta's scores from the record of a round."""
    records = [
        {k: v for k, v in record.items() if record["round"] != round_ or not _is_score(k)}
        for record in read_metrics(path)
    ]
    write_atomically(path, "".join(map(to_line, records)).encode())


def _is_score(key: str) -> bool:
    """Return whether a metric is theta's; that of ``record-updates`` is of the clients' training."""
    return key.startswith(SCORE_PREFIXES) and key != "client_train_loss"


def last_whole_round(records: Sequence[RoundMetrics]) -> int:
    """Return the last round up to which no record is missing; -1 if there is none of round 0."""
    rounds = {record["round"] for record in records}
    return next(round_ for round_ in itertools.count() if round_ not in rounds) - 1


def wall_seconds(record: RoundMetrics) -> float:
    """Return the wall-clock seconds of a round; round 0 is only an evaluation."""
    seconds = record["seconds"]
    return float(seconds.get("round", seconds.get("evaluate", 0.0)))


def trained_clients(record: RoundMetrics) -> list[int]:
    """Return the clients whose updates were used, of a round after 0; none if the model stayed."""
    if not record["model_changed"]:
        return []
    unused = {*map(int, record.get("failures", {})), *record.get("surplus", ())}
    return [client for client in map(int, record["clients"]) if client not in unused]


def rounds_without_effect(records: Sequence[RoundMetrics]) -> str:
    """Return ", N without effect" if the model stayed as it was in N of the rounds after 0."""
    idle = sum(not record["model_changed"] for record in records if record["round"] > 0)
    return f", {idle} without effect" if idle else ""


def faults_by_kind(records: Sequence[RoundMetrics]) -> str:
    """Return how many client updates were not used, by kind of fault; "none" if all were."""
    faults: Counter[str] = Counter()
    for record in records:
        faults.update(record.get("faults", {}))
    return ", ".join(f"{kind} {count}" for kind, count in faults.items()) or "none"


def total(records: Sequence[RoundMetrics], key: str) -> float:
    """Return the sum of a number over the rounds that have it."""
    return float(sum(record.get(key) or 0 for record in records))


def to_line(record: RoundMetrics) -> str:
    """Return a record as a line of JSON; nan and infinity, which JSON lacks, become null."""
    return json.dumps(_without_nan(record)) + "\n"


def _without_nan(value: Any) -> Any:
    """Return ``value`` with None in place of nan and infinity."""
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
