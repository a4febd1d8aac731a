"""Tables of rounds to a target: published and measured, side by side."""

from __future__ import annotations

from collections.abc import Sequence

from fedapp.analysis.curves import communication
from fedapp.studies.papers.pages.entries import (
    GAINS,
    STANDINGS,
    WITHIN,
    Entry,
    counted,
    counted_gains,
    entries,
    gains,
    numbered_among,
    of_variant,
    standings,
    variants_of,
)
from fedapp.studies.papers.pages.markdown import (
    NOT_RUN,
    duration,
    number,
    rounds,
    size,
    table,
    times,
)
from fedapp.studies.papers.results import CellResult, Results
from fedapp.studies.papers.schema import Table


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
    measured = f"{_measured(entry)} ({times(gain)})" if gain else _measured(entry)
    return f"{published} → **{measured}**"


def _measured(entry: Entry) -> str:
    """Return the measured rounds in words."""
    result = entry.result
    if not result.runs:
        return NOT_RUN
    if result.needed is not None:
        return rounds(result.needed)
    best = max(run.best for run in result.runs)
    return f"not in {max(run.rounds for run in result.runs)} rounds (best {100 * best:.2f} %)"


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
        _measured(entry),
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
    """Count the cells within 25 % of the published rounds, those faster and slower, and the speed-ups.

    Of what the paper gives no number of, the cells that are quicker than the baseline.
    """
    if results.scale == "smoke":
        return "At this scale the numbers only show that the table can be made."
    counts = standings(cells)
    if not counts or set(counts) == {"not run"}:
        return "Nothing was run at this scale."
    parts = [f"{counted(counts)}; {_speedups(item, cells)}.", _not_given(item, cells)]
    return " ".join(part for part in [*parts, _outside(cells)] if part)


def _speedups(item: Table, cells: Sequence[Entry]) -> str:
    """Say how many of the published speed-ups come out."""
    if not any(row.speedup for row in item.rows):
        return "no speed-ups are published"
    said = counted_gains(gains(cells))
    if not said:
        return f"there are no speed-ups without the row {item.baseline}"
    return f"over the row {item.baseline} {said}"


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


def _outside(cells: Sequence[Entry]) -> str:
    """Name the cells that are not within 25 %, but not where all that were run are of one kind."""
    ran = [entry for entry in numbered_among(cells) if entry.result.runs]
    said = [
        *((kind, [e for e in ran if e.standing == kind]) for kind in STANDINGS if kind != WITHIN),
        *((f"speed-up {kind}", [e for e in ran if e.gain == kind]) for kind in GAINS[1:]),
    ]
    named = [
        f"{kind}: {'all' if own == ran else '; '.join(e.name for e in own)}"
        for kind, own in said
        if own
    ]
    return ". ".join(each[0].upper() + each[1:] for each in named) + ("." if named else "")
