"""A table's cells beside what is published of them, and how many of them agree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from fedapp.analysis.curves import speed_up
from fedapp.studies.papers.cells import SEPARATOR
from fedapp.studies.papers.results import CellResult, Results
from fedapp.studies.papers.schema import Column, Published, Table, TableRow

FACTOR = 1.25
"""Two numbers agree within 25 %, both ways: where their ratio lies between 1 / 1.25 = 0.8 and 1.25."""
Standing = Literal["within 25 %", "faster", "slower", "not reached", "not run"]
"""How a cell's rounds stand beside the published ones."""
Gain = Literal["within 25 %", "greater", "smaller"]
"""How a cell's speed-up over the baseline row stands beside the published one."""
WITHIN: Literal["within 25 %"] = "within 25 %"
STANDINGS: tuple[Standing, ...] = get_args(Standing)
GAINS: tuple[Gain, ...] = get_args(Gain)


@dataclass(frozen=True)
class Entry:
    """A cell beside what is published of it."""

    row: TableRow
    column: Column
    published: Published
    result: CellResult
    baseline: float | None
    """Measured rounds of the baseline row in this column."""

    @property
    def name(self) -> str:
        """The cell's row, and the column under which it is published, for a list."""
        return f"{self.row.label}, {self.column.published_as}"

    @property
    def published_name(self) -> str:
        """The name of the cell that is published, which in a variant is not its own."""
        return f"{self.row.label}{SEPARATOR}{self.column.published_as}"

    @property
    def is_numbered(self) -> bool:
        """Whether the paper gives its number of rounds."""
        return not isinstance(self.published, str)

    @property
    def speedup(self) -> float | None:
        """The measured speed-up over the baseline row."""
        return speed_up(self.baseline, self.result.needed)

    @property
    def published_speedup(self) -> float | None:
        """The published one, where there is one."""
        return self.row.speedup.get(self.column.published_as)

    @property
    def ratio(self) -> float | None:
        """Measured rounds over published rounds."""
        if isinstance(self.published, str) or self.result.needed is None:
            return None
        return self.result.needed / self.published

    @property
    def standing(self) -> Standing:
        """How its rounds stand beside the published ones."""
        if not self.result.runs:
            return "not run"
        if self.ratio is None:
            return "not reached"
        if is_near(self.ratio):
            return "within 25 %"
        return "faster" if self.ratio < 1 else "slower"

    @property
    def gain(self) -> Gain | None:
        """How its speed-up stands beside the published one, where there are both."""
        mine, theirs = self.speedup, self.published_speedup
        if not mine or not theirs:
            return None
        if is_near(mine / theirs):
            return "within 25 %"
        return "greater" if mine > theirs else "smaller"


def is_near(ratio: float) -> bool:
    """Return whether a measured number agrees with a published one, from their ratio."""
    return 1 / FACTOR <= ratio <= FACTOR


def entries(item: Table, results: Results) -> list[Entry]:
    """Return the table's cells, row by row."""
    return [
        Entry(
            row,
            column,
            row.published[column.published_as],
            _result(results, row.label, column),
            _result(results, item.baseline, column).needed,
        )
        for row in item.rows
        for column in item.columns
        if column.published_as in row.published
    ]


def _result(results: Results, label: str, column: Column) -> CellResult:
    return results.cells.get(f"{label} | {column.label}", CellResult())


def variants_of(item: Table) -> list[str]:
    """Return what columns are run again with; "" stands for the table itself and comes first."""
    return list(dict.fromkeys(["", *(column.variant for column in item.columns)]))


def of_variant(cells: Sequence[Entry], variant: str) -> list[Entry]:
    """Return the cells of the columns of one variant that the paper gives a number of, or a word."""
    return [entry for entry in cells if entry.column.variant == variant]


def numbered_among(cells: Sequence[Entry]) -> list[Entry]:
    """Return the cells that have a published number, run or not."""
    return [entry for entry in cells if entry.is_numbered]


def standings(cells: Sequence[Entry]) -> Mapping[Standing, int]:
    """Count how the cells with a published number stand."""
    return Counter(entry.standing for entry in numbered_among(cells))


def gains(cells: Sequence[Entry]) -> Mapping[Gain, int]:
    """Count how the speed-ups stand that are both published and measured."""
    return Counter(entry.gain for entry in numbered_among(cells) if entry.gain)


def counted(counts: Mapping[Standing, int]) -> str:
    """Say how many cells agree of those that were run, and what the others do."""
    ran = sum(counts.values()) - counts["not run"]
    others = (*STANDINGS[1:3], *(each for each in STANDINGS[3:] if counts[each]))
    return f"{counts[WITHIN]} of {ran} cells within 25 % of the published rounds, " + ", ".join(
        f"{counts[standing]} {standing}" for standing in others
    )


def counted_gains(counts: Mapping[Gain, int]) -> str:
    """Say how many speed-ups agree, and what the others do; "" where there are none."""
    if not counts:
        return ""
    said = f"{counts[WITHIN]} of {sum(counts.values())} speed-ups within 25 %"
    return ", ".join([said, *(f"{counts[g]} {g}" for g in GAINS[1:] if counts[g])])
