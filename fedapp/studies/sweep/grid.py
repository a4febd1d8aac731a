"""Grids over run-config keys, and the table of their results."""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedapp.config.read import parse_settings, read_config
from fedapp.config.settings import Scalar
from fedapp.errors import ConfigError
from fedapp.files import write_atomically, write_json
from fedapp.runs.formatting import aligned
from fedapp.studies.sweep.record import RunRecord

Values = Mapping[str, Scalar]


def split_grid(settings: Sequence[str]) -> tuple[list[str], dict[str, list[Scalar]]]:
    """Split settings into single values and lists, as ``KEY=[a, b]``; later ones win.

    Raises
    ------
    ConfigError
        A list is empty or has values other than words, numbers, true and false.
    """
    plain: list[str] = []
    grid: dict[str, list[Scalar]] = {}
    for setting in settings:
        key, separator, text = (part.strip() for part in setting.partition("="))
        if separator and text.startswith("["):
            grid[key] = _list(key, text)
        else:
            for each in parse_settings([setting]):  # a file has several
                grid.pop(each, None)
            plain.append(setting)
    return plain, grid


def _list(key: str, text: str) -> list[Scalar]:
    if not text.endswith("]"):
        raise ConfigError(
            f"{key} = {text}: the list is not closed. Write it with its brackets and in quotation "
            f'marks, as in "{key}=[1, 2]".'
        )
    values: Any = []
    if {"'", '"'}.intersection(text):
        with contextlib.suppress(tomllib.TOMLDecodeError):
            values = tomllib.loads(f"value = {text}")["value"]
    elif "[" not in text[1:]:
        words = [word.strip() for word in text[1:-1].split(",") if word.strip()]
        values = [parse_settings([f"{key}={word}"])[key] for word in words]
    if not values or not all(isinstance(value, bool | int | float | str) for value in values):
        raise ConfigError(
            f"{key} = {text}: must be a list of values, as in {key}=[1, 2] or {key}=[one, two]."
        )
    return list(values)


def expand(base: Values, grid: Mapping[str, Sequence[Scalar]]) -> list[dict[str, Scalar]]:
    """Return the distinct, validated points of the grid; the last key varies fastest.

    Raises
    ------
    ConfigError
        A point is not a valid configuration; the message names it.
    """
    points: list[dict[str, Scalar]] = []
    for values in itertools.product(*grid.values()):
        point = dict(zip(grid, values, strict=True))
        try:
            read_config({**base, **point})
        except ConfigError as error:
            settings = ", ".join(f"{key}={value}" for key, value in point.items())
            raise ConfigError(f"at {settings}: {error}" if settings else str(error)) from error
        if point not in points:
            points.append(point)
    return points


@dataclass(frozen=True)
class Row:
    """The runs of a point of the grid over its seeds."""

    point: Values
    records: Sequence[RunRecord]
    target: float

    @property
    def status(self) -> str:
        """``failed`` or ``diverged`` if a run is, otherwise ``complete``."""
        statuses = {record.status for record in self.records}
        return next((s for s in ("failed", "diverged") if s in statuses), "complete")

    @property
    def accuracies(self) -> list[float]:
        """The last test accuracy of each complete run that has one."""
        return [record.final_accuracy() for record in self._whole if record.has_accuracy]

    @property
    def losses(self) -> list[float]:
        """The last test loss of each complete run that has one."""
        return [loss for record in self._whole if (loss := record.final_loss) is not None]

    @property
    def mean(self) -> float | None:
        """The mean accuracy over the seeds; None if a run failed or diverged, or has none."""
        return self._mean(self.accuracies)

    @property
    def loss(self) -> float | None:
        """The mean test loss over the seeds; None if a run failed or diverged, or has none."""
        return self._mean(self.losses)

    def _mean(self, values: Sequence[float]) -> float | None:
        return sum(values) / len(values) if values and self.status == "complete" else None

    @property
    def needed(self) -> float | None:
        """The mean rounds to the target; None if a run did not reach it."""
        needed = [record.rounds_to(self.target) if self.target else None for record in self.records]
        reached = [value for value in needed if value is not None]
        return sum(reached) / len(reached) if len(reached) == len(needed) else None

    @property
    def _whole(self) -> list[RunRecord]:
        return [record for record in self.records if record.status == "complete"]

    def sorting(self) -> tuple[bool, float, float]:
        """Return the sort key: rounds to the target if there is one, then accuracy, or else the loss.

        Rows with a run that failed or diverged come last.
        """
        needed, value = self.needed, self.loss if self.mean is None else -self.mean
        return (value is None, math.inf if needed is None else needed, value or 0.0)

    def flat(self) -> dict[str, Any]:
        """Return the row as a flat dictionary; None for missing numbers."""
        best = [record.best_accuracy for record in self.records if record.has_accuracy]
        return {
            **self.point,
            "runs": len(self.records),
            "accuracy": None if self.mean is None else round(self.mean, 5),
            "accuracy-min": min(self.accuracies, default=None),
            "accuracy-max": max(self.accuracies, default=None),
            "best-accuracy": max(best, default=None),
            "loss": None if self.loss is None else float(f"{self.loss:.5g}"),
            "rounds": max(record.last_round for record in self.records),
            "rounds-to-target": self.needed,
            "seconds": round(sum(record.seconds for record in self.records), 1),
            "status": self.status,
            "problems": "; ".join(record.problem for record in self.records if record.problem),
        }

    def cells(self, seeds: int = 0) -> list[str]:
        """Format the row for the terminal; it says if it has fewer runs than ``seeds``."""
        flat = self.flat()
        count = len(self.records) - len(self._whole)
        of_all = f" ({count} of {len(self.records)})" if len(self.records) > 1 else ""
        value, ends = self.mean, self.accuracies
        if not ends:
            value, ends = self.loss, self.losses
        needed = flat["rounds-to-target"]
        part = f" ({len(self.records)} of {seeds})" if len(self.records) < seeds else ""
        return [
            *(str(flat[key]) for key in self.point),
            self.status + of_all if value is None else f"{value:.4f}{part}",
            f"{min(ends):.4f} - {max(ends):.4f}" if ends else "-",
            str(flat["rounds"]),
            "-" if needed is None else f"{needed:.1f}",
            f"{flat['seconds']:.0f}",
        ]


def make_rows(
    points: Sequence[Values],
    records: Sequence[RunRecord],
    targets: Sequence[float],
    best_of: str = "",
) -> list[Row]:
    """Return the rows, best first; runs that differ only in the seed share a row.

    ``targets`` are the points' target accuracies (0: none). With ``best_of``, of rows that differ only
    in that key the best remains.
    """
    groups: dict[tuple[Any, ...], list[RunRecord]] = {}
    target_of: dict[tuple[Any, ...], float] = {}
    for point, record, target in zip(points, records, targets, strict=True):
        key = tuple((k, v) for k, v in point.items() if k != "seed")
        groups.setdefault(key, []).append(record)
        target_of[key] = target
    rows = sorted((Row(dict(k), v, target_of[k]) for k, v in groups.items()), key=Row.sorting)
    first: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        first.setdefault(tuple((k, v) for k, v in row.point.items() if k != best_of), row)
    return list(first.values()) if best_of else rows


def as_lines(rows: Sequence[Row]) -> list[str]:
    """Return the table for the terminal, a line a row."""
    keys = list(rows[0].point) if rows else []
    loss_alone = all(row.mean is None for row in rows) and any(row.loss is not None for row in rows)
    shown = "test loss" if loss_alone else "test accuracy"
    header = [*keys, shown, "min - max", "rounds", "to target", "seconds"]
    seeds = max((len(row.records) for row in rows), default=0)
    return aligned([header, *(row.cells(seeds) for row in rows)])


def write_rows(rows: Sequence[Row], folder: Path, base: Values) -> list[Path]:
    """Write ``sweep.json`` (with the common settings) and ``sweep.csv``."""
    flat = [row.flat() for row in rows]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(flat[0]) if flat else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    files = [folder / "sweep.json", folder / "sweep.csv"]
    runs = [[record.run for record in row.records] for row in rows]
    named = [{**each, "names": own} for each, own in zip(flat, runs, strict=True)]
    write_json(files[0], {"settings": dict(base), "rows": named})
    write_atomically(files[1], text.getvalue().encode())
    return files
