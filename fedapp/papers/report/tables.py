"""Tables of rounds to a target: published and measured, side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fedapp.analysis.curves import communication, speed_up
from fedapp.papers.report.markdown import NOT_RUN, duration, number, rounds, size, table, times
from fedapp.papers.results import CellResult, Results
from fedapp.papers.schema import Column, Published, Table, TableRow

WITHIN_ROUNDS = 1.25
WITHIN_SPEEDUP = 1 / 3


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
    def is_near(self) -> bool:
        """Whether no more than 1.25 times the published rounds were needed."""
        return self.ratio is not None and self.ratio <= WITHIN_ROUNDS

    @property
    def gain_over_published(self) -> float | None:
        """The measured speed-up over the published one, where there are both."""
        mine, theirs = self.speedup, self.published_speedup
        return mine / theirs if mine and theirs else None

    @property
    def gains_alike(self) -> bool:
        """Whether the speed-up lies within a third of the published one."""
        ratio = self.gain_over_published
        return ratio is not None and abs(ratio - 1) <= WITHIN_SPEEDUP

    def measured(self) -> str:
        """Return the measured rounds in words."""
        if not self.result.runs:
            return NOT_RUN
        if self.result.needed is not None:
            return rounds(self.result.needed)
        best = max(run.best for run in self.result.runs)
        most = max(run.rounds for run in self.result.runs)
        return f"not in {most} rounds (best {100 * best:.2f} %)"


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


def variants_of(item: Table) -> list[str]:
    """Return what columns are run again with; "" stands for the table itself and comes first."""
    return list(dict.fromkeys(["", *(column.variant for column in item.columns)]))


def of_variant(cells: Sequence[Entry], variant: str) -> list[Entry]:
    """Return the cells of the columns of one variant."""
    return [entry for entry in cells if entry.column.variant == variant]


def numbered_among(cells: Sequence[Entry]) -> list[Entry]:
    """Return the cells that were run and have a published number."""
    return [e for e in cells if not isinstance(e.published, str) and e.result.runs]


def _result(results: Results, label: str, column: Column) -> CellResult:
    return results.cells.get(f"{label} | {column.label}", CellResult())


def table_section(item: Table, results: Results) -> str:
    """Return the overview in the paper's layout and the verdict, both for each variant, and details."""
    cells = entries(item, results)
    parts = [
        part
        for variant in variants_of(item)
        for part in _overview_and_verdict(item, of_variant(cells, variant), variant, results)
    ]
    for column in item.columns:
        own = [entry for entry in cells if entry.column is column]
        if any(entry.result.runs for entry in own):
            parts += [f"**{column.label}**", "", _details(own), ""]
    return "\n".join(parts[:-1])


def _overview_and_verdict(
    item: Table, cells: Sequence[Entry], variant: str, results: Results
) -> list[str]:
    if not variant:
        return [_overview(item, cells), "", _verdict(item, cells, results), ""]
    if not any(entry.result.runs for entry in cells):
        return [f"With {variant}: {NOT_RUN} at this scale.", ""]
    return [
        f"The same with {variant}:",
        "",
        _overview(item, cells),
        "",
        _verdict(item, cells, results),
        "",
    ]


def _overview(item: Table, cells: Sequence[Entry]) -> str:
    shown = list(item.rows[0].shown)
    columns = list(dict.fromkeys(entry.column.published_as for entry in cells))
    head = ["", *shown, *(f"{column}: published → here" for column in columns)]
    body = []
    for row in item.rows:
        own = {entry.column.published_as: entry for entry in cells if entry.row is row}
        body.append(
            [
                row.label,
                *(row.shown[key] for key in shown),
                *(_pair(own.get(column)) for column in columns),
            ]
        )
    return table(head, body)


def _pair(entry: Entry | None) -> str:
    if entry is None:
        return ""
    said = entry.published if isinstance(entry.published, str) else rounds(entry.published)
    published = f"{said} ({times(entry.published_speedup)})" if entry.published_speedup else said
    is_baseline = entry.result.needed is not None and entry.baseline == entry.result.needed
    gain = None if is_baseline and not entry.published_speedup else entry.speedup
    measured = f"{entry.measured()} ({times(gain)})" if gain else entry.measured()
    return f"{published} → **{measured}**"


def _details(cells: Sequence[Entry]) -> str:
    head = (
        *("row", "published", "measured", "ratio", "speed-up published", "measured", "η"),
        *("inside", "seeds: min - max", "u, weighted", "communication", "wall time"),
    )
    return table(head, [_detail(entry) for entry in cells])


def _detail(entry: Entry) -> list[str]:
    result = entry.result
    said = entry.published if isinstance(entry.published, str) else rounds(entry.published)
    if not result.runs:
        return [entry.row.label, said, NOT_RUN, *[""] * 9]
    needed = [run.needed for run in result.runs if run.needed is not None]
    return [
        entry.row.label,
        said,
        entry.measured(),
        number(entry.ratio, 2),
        times(entry.published_speedup),
        times(entry.speedup),
        number(result.rate),
        "yes" if result.inside else "**no**",
        f"{len(result.runs)}: {rounds(min(needed))} - {rounds(max(needed))}" if needed else "",
        number(result.mean("updates")),
        _communication(result),
        duration(sum(run.seconds for run in result.runs)),
    ]


def _communication(result: CellResult) -> str:
    if result.needed is None:
        return ""
    run = result.runs[0]
    return size(communication(result.needed, result.participants, run.bytes_down, run.bytes_up))


def _verdict(item: Table, cells: Sequence[Entry], results: Results) -> str:
    """Count the cells that need no more than 1.25 times the published rounds, and the speed-ups.

    Of what the paper gives no number of, the cells that are quicker than the baseline.
    """
    if results.scale == "smoke":
        return "At this scale the numbers only show that the table can be made."
    numbered = numbered_among(cells)
    if not numbered:
        return "Nothing was run at this scale."
    near = [e for e in numbered if e.is_near]
    reached = (
        f"{len(near)} of {len(numbered)} cells reach the target within {WITHIN_ROUNDS} times the "
        "published rounds"
    )
    missed = [f"{e.row.label}, {e.column.published_as}" for e in _missed(numbered)]
    parts = [f"{reached}; {_speedups(item, numbered)}.", _not_given(item, cells)]
    parts += [f"Beyond: {'; '.join(missed)}."] if missed else []
    return " ".join(part for part in parts if part)


def _speedups(item: Table, cells: Sequence[Entry]) -> str:
    """Say how many of the published speed-ups come out."""
    if not any(row.speedup for row in item.rows):
        return "no speed-ups are published"
    gains = [e for e in cells if e.gain_over_published]
    if not gains:
        return f"there are no speed-ups without the row {item.baseline}"
    alike = [e for e in gains if e.gains_alike]
    return (
        f"{len(alike)} of {len(gains)} speed-ups over the row {item.baseline} lie within a third of the "
        "published ones"
    )


def _not_given(item: Table, cells: Sequence[Entry]) -> str:
    """Say how many of the cells of which nothing is published need fewer rounds than the baseline."""
    own = [e for e in cells if e.published == "not given" and e.result.runs and e.baseline]
    if not own:
        return ""
    quicker = sum((e.speedup or 0.0) > 1 for e in own)
    return (
        f"{quicker} of {len(own)} cells without published rounds need fewer rounds than the row "
        f"{item.baseline}."
    )


def _missed(cells: Sequence[Entry]) -> Iterator[Entry]:
    for entry in cells:
        if not entry.is_near or (entry.gain_over_published and not entry.gains_alike):
            yield entry
