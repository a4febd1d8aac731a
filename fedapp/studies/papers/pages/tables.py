"""Tables of rounds to a target: published and measured, side by side."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from fedapp.analysis.curves import communication
from fedapp.runs.formatting import duration, number, rounds, size, times
from fedapp.studies.papers.cells import SEPARATOR, cell_name
from fedapp.studies.papers.labels import RunLabels
from fedapp.studies.papers.noise import SEEDS, contrast
from fedapp.studies.papers.pages.markdown import NOT_RUN, span, table
from fedapp.studies.papers.results import CellResult, Results, RunResult, speed_up
from fedapp.studies.papers.schema import Column, Published, Table, TableRow

FACTOR = 1.25
"""Numbers are within 25 % if their ratio is between 1 / 1.25 = 0.8 and 1.25."""
Standing = Literal["within 25 %", "faster", "slower", "not reached", "not run"]
"""A cell's rounds compared to the published ones."""
Gain = Literal["within 25 %", "greater", "smaller"]
"""A cell's speed-up over the baseline row compared to the published one."""
WITHIN: Literal["within 25 %"] = "within 25 %"
STANDINGS: tuple[Standing, ...] = get_args(Standing)
GAINS: tuple[Gain, ...] = get_args(Gain)


@dataclass(frozen=True)
class Entry:
    """A cell of a table with its published numbers."""

    row: TableRow
    column: Column
    published: Published
    result: CellResult
    baseline: CellResult
    """The cell of the baseline row in this column."""

    @property
    def name(self) -> str:
        """The row and the column of the published number."""
        return f"{self.row.label}, {self.column.published_as}"

    @property
    def published_name(self) -> str:
        """The name of the published cell, which differs from the cell's own in a variant."""
        return f"{self.row.label}{SEPARATOR}{self.column.published_as}"

    @property
    def is_numbered(self) -> bool:
        """Whether the paper publishes a number of rounds."""
        return not isinstance(self.published, str)

    @property
    def speedup(self) -> float | None:
        """The measured speed-up over the baseline row, of the seeds that both have."""
        return speed_up(self.baseline, self.result)

    @property
    def published_speedup(self) -> float | None:
        """The published speed-up, if there is one."""
        return self.row.speedup.get(self.column.published_as)

    @property
    def ratio(self) -> float | None:
        """Measured rounds over published rounds."""
        if isinstance(self.published, str) or self.result.needed is None:
            return None
        return self.result.needed / self.published

    @property
    def ratios(self) -> dict[int, float]:
        """Measured rounds over published rounds by seed; infinite if a run did not reach its target."""
        if isinstance(self.published, str):
            return {}
        needed = {run.seed: run.needed for run in self.result.runs}
        return {s: math.inf if own is None else own / self.published for s, own in needed.items()}

    @property
    def is_surely_within(self) -> bool | None:
        """Whether the interval of the mean over three seeds is within 25 %.

        None if a part of it is, or if some of the seeds alone reached the target.
        """
        ratios = self.ratios
        if len(ratios) < SEEDS or math.inf in ratios.values():
            return False if ratios and all(map(math.isinf, ratios.values())) else None
        value, half = contrast([ratios], {0: 1}, logarithm=True)
        low, high = (math.exp(value + sign * (half or 0.0)) for sign in (-1, 1))
        if is_near(low) and is_near(high):
            return True
        return None if low <= FACTOR and high >= 1 / FACTOR else False

    @property
    def standing(self) -> Standing:
        """The rounds compared to the published ones."""
        if not self.result.runs:
            return "not run"
        if self.ratio is None:
            return "not reached"
        if is_near(self.ratio):
            return "within 25 %"
        return "faster" if self.ratio < 1 else "slower"

    @property
    def gain(self) -> Gain | None:
        """The speed-up compared to the published one, if both exist."""
        mine, theirs = self.speedup, self.published_speedup
        if not mine or not theirs:
            return None
        if is_near(mine / theirs):
            return "within 25 %"
        return "greater" if mine > theirs else "smaller"


def is_near(ratio: float) -> bool:
    """Return whether a ratio is within 25 %."""
    return 1 / FACTOR <= ratio <= FACTOR


def entries(experiment: Table, results: Results) -> list[Entry]:
    """Return the table's cells, row by row."""
    return [
        Entry(
            row,
            column,
            row.published[column.published_as],
            _result(results, row.label, column),
            _result(results, experiment.baseline, column),
        )
        for row in experiment.rows
        for column in experiment.columns
        if column.published_as in row.published
    ]


def _result(results: Results, label: str, column: Column) -> CellResult:
    return results.cells.get(f"{label}{SEPARATOR}{column.label}", CellResult())


def variants_of(experiment: Table) -> list[str]:
    """Return the variants of the columns, after "" for the table itself."""
    return list(dict.fromkeys(["", *(column.variant for column in experiment.columns)]))


def of_variant(cells: Sequence[Entry], variant: str) -> list[Entry]:
    """Return the cells of the columns of a variant."""
    return [entry for entry in cells if entry.column.variant == variant]


def numbered_among(cells: Sequence[Entry]) -> list[Entry]:
    """Return the cells with a published number, run or not."""
    return [entry for entry in cells if entry.is_numbered]


def standings(cells: Sequence[Entry]) -> Mapping[Standing, int]:
    """Count the standings of cells with a published number."""
    return Counter(entry.standing for entry in numbered_among(cells))


def gains(cells: Sequence[Entry]) -> Mapping[Gain, int]:
    """Count the standings of speed-ups that are published and measured."""
    return Counter(entry.gain for entry in numbered_among(cells) if entry.gain)


def describe_standings(counts: Mapping[Standing, int]) -> str:
    """Format the counts of standings; "" if no number is published."""
    if not counts:
        return ""
    ran = sum(counts.values()) - counts["not run"]
    others = (*STANDINGS[1:3], *(each for each in STANDINGS[3:] if counts[each]))
    return f"{counts[WITHIN]} of {ran} cells within 25 % of the published rounds, " + ", ".join(
        f"{counts[standing]} {standing}" for standing in others
    )


def describe_speedups(counts: Mapping[Gain, int]) -> str:
    """Format the counts of speed-ups; "" if there are none."""
    if not counts:
        return ""
    text = f"{counts[WITHIN]} of {sum(counts.values())} speed-ups within 25 %"
    return ", ".join([text, *(f"{counts[g]} {g}" for g in GAINS[1:] if counts[g])])


def table_section(experiment: Table, results: Results) -> str:
    """Return the overview in the paper's layout and the totals of each variant, then details."""
    cells, run_labels = entries(experiment, results), RunLabels.of(experiment, results)
    parts = [
        part
        for variant in variants_of(experiment)
        for part in _overview_and_verdict(experiment, of_variant(cells, variant), variant, results)
    ]
    for column in experiment.columns:
        own = [entry for entry in cells if entry.column is column]
        if any(entry.result.runs for entry in own):
            parts += [f"**{column.label}**", "", _details(own, run_labels), ""]
    return "\n".join(parts[:-1])


def _overview_and_verdict(
    experiment: Table, cells: Sequence[Entry], variant: str, results: Results
) -> list[str]:
    if variant and not any(entry.result.runs for entry in cells):
        return [f"With {variant}: {NOT_RUN} at this scale.", ""]
    title = [f"The same with {variant}:", ""] if variant else []
    return [*title, _overview(experiment, cells), "", _verdict(experiment, cells, results), ""]


def _overview(experiment: Table, cells: Sequence[Entry]) -> str:
    shown = list(experiment.rows[0].shown)
    columns = list(dict.fromkeys(entry.column.published_as for entry in cells))
    head = ["", *shown, *(f"{column}: published → here" for column in columns)]
    body = []
    for row in experiment.rows:
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
    is_baseline = entry.baseline is entry.result
    gain = None if is_baseline and not entry.published_speedup else entry.speedup
    published = _with_gain(_published(entry), entry.published_speedup)
    return f"{published} → **{_with_gain(_measured(entry), gain)}**"


def _with_gain(text: str, gain: float | None) -> str:
    return f"{text} ({times(gain)})" if gain else text


def _published(entry: Entry) -> str:
    return entry.published if isinstance(entry.published, str) else rounds(entry.published)


def _measured(entry: Entry) -> str:
    """Format the measured rounds, or why there are none."""
    result = entry.result
    if not result.runs:
        return next(iter(result.problems), NOT_RUN)
    if result.needed is not None:
        return rounds(result.needed)
    missed = [run for run in result.runs if run.needed is None]
    seeds = (
        "" if len(missed) == len(result.runs) else f"{len(missed)} of {len(result.runs)} seeds, "
    )
    best = max(run.best for run in missed)
    return f"not in {max(run.rounds for run in missed)} rounds ({seeds}best {100 * best:.2f} %)"


def _details(cells: Sequence[Entry], run_labels: RunLabels) -> str:
    head = (
        *("row", "published", "measured", "ratio", "speed-up published", "here", "η"),
        *("inside the grid", "seeds: min - max", "u, weighted", "communication", "wall time"),
    )
    return table(head, [_detail(entry, run_labels) for entry in cells])


def _seeds(result: CellResult, seeds: str) -> str:
    """Format the seeds with their least and most rounds; "" if none reached the target."""
    needed = [run.needed for run in result.runs if run.needed is not None]
    if len(needed) < len(result.runs):
        seeds = f"{len(needed)} of {len(result.runs)} reached"
    return f"{seeds}: {span(rounds(min(needed)), rounds(max(needed)))}" if needed else ""


def _detail(entry: Entry, run_labels: RunLabels) -> list[str]:
    result, name = entry.result, cell_name(entry.row, entry.column)
    first = [entry.row.label, _published(entry), _measured(entry)]
    if not result.runs:
        return [*first, *[""] * 9]
    return [
        *first,
        number(entry.ratio, 2),
        times(entry.published_speedup),
        times(entry.speedup),
        number(result.rate),
        "yes" if result.inside else "**no**",
        _seeds(result, run_labels.seeds(name, result)),
        number(result.mean("updates")),
        _communication(result),
        duration(sum(run.seconds for run in result.runs)),
    ]


def _communication(result: CellResult) -> str:
    if result.needed is None:
        return ""
    run = result.runs[0]
    return size(communication(result.needed, result.participants, run.bytes_down, run.bytes_up))


def _verdict(experiment: Table, cells: Sequence[Entry], results: Results) -> str:
    """Return the counts of standings and speed-ups, and the names of cells that are not within 25 %.

    Of cells without a published number, those faster than the baseline are counted.
    """
    if results.scale == "smoke":
        return "At this scale the numbers only show that the table can be made."
    counts = standings(cells)
    not_given = _not_given(experiment, cells)
    if not counts or set(counts) == {"not run"}:
        return not_given or "Nothing was run at this scale."
    parts = [f"{describe_standings(counts)}; {_speedups(experiment, cells)}.", not_given]
    parts.append(_outside(cells))
    if any(_shares_part(entry) for entry in cells):
        parts.append("Speed-ups are of the seeds that both cells have, rounds of all.")
    return " ".join(part for part in parts if part)


def _shares_part(entry: Entry) -> bool:
    """Return whether a cell and its baseline have some seeds in common, and not all."""
    own, base = ({run.seed for run in cell.runs} for cell in (entry.result, entry.baseline))
    return bool(own & base) and own != base


def _speedups(experiment: Table, cells: Sequence[Entry]) -> str:
    """Format the counts of published speed-ups."""
    if not any(row.speedup for row in experiment.rows):
        return "no speed-ups are published"
    text = describe_speedups(gains(cells))
    if not text:
        return f"there are no speed-ups without the row {experiment.baseline}"
    return f"over the row {experiment.baseline} {text}"


def _not_given(experiment: Table, cells: Sequence[Entry]) -> str:
    """Return how many cells without published rounds need fewer rounds than the baseline."""
    given = [e for e in cells if e.published == "not given" and e.result.runs and e.baseline.runs]
    own = [entry for entry in given if entry.result is not entry.baseline]
    if not own:
        return ""
    quicker = sum(map(_is_quicker, own))
    return (
        f"{quicker} of {len(own)} cells without published rounds need fewer rounds than the row "
        f"{experiment.baseline}, by the seeds that both have."
    )


def _is_quicker(entry: Entry) -> bool:
    """Return whether a cell needs fewer rounds than its baseline, of the seeds that both have."""
    base = {run.seed: _least_rounds(run) for run in entry.baseline.runs}
    own = {run.seed: run.needed for run in entry.result.runs if run.seed in base}
    needed = [rounds for rounds in own.values() if rounds is not None]
    return 0 < len(own) == len(needed) and sum(needed) < sum(base[seed] for seed in own)


def _least_rounds(run: RunResult) -> float:
    """Return the rounds to the target, or how many they are at least; infinite if the run diverged."""
    if run.needed is not None:
        return run.needed
    return math.inf if run.problem else run.rounds


def _outside(cells: Sequence[Entry]) -> str:
    """Name the cells that are not within 25 %, or "all" if they are all that were run."""
    ran = [entry for entry in numbered_among(cells) if entry.result.runs]
    by_kind = [
        *((kind, [e for e in ran if e.standing == kind]) for kind in STANDINGS if kind != WITHIN),
        *((f"speed-up {kind}", [e for e in ran if e.gain == kind]) for kind in GAINS[1:]),
    ]
    named = [
        f"{kind}: {'all' if own == ran else '; '.join(e.name for e in own)}"
        for kind, own in by_kind
        if own
    ]
    return ". ".join(each[0].upper() + each[1:] for each in named) + ("." if named else "")
