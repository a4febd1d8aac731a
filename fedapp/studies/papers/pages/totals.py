"""How the published rounds of all tables came out, each cell counted once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedapp.studies.papers.cells import is_among
from fedapp.studies.papers.pages.entries import (
    STANDINGS,
    Entry,
    counted_gains,
    entries,
    gains,
    standings,
)
from fedapp.studies.papers.pages.markdown import table
from fedapp.studies.papers.pages.short import evidence
from fedapp.studies.papers.results import Results
from fedapp.studies.papers.schema import Table

AS_READ = "the paper's settings, as read here"
NEAREST = "with them where that was run, else as read here"


def totals(found: Mapping[str, tuple[Table, Sequence[Results]]]) -> str:
    """Return a table of the cells of all tables by how they stand, for each way they were run."""
    cells = [
        entry
        for name, (item, results) in found.items()
        for entry in entries(item, evidence(results) or _nothing(name))
        if entry.is_numbered and not is_among(entry.published_name, item.elsewhere)
    ]
    readings = {AS_READ: [entry for entry in cells if not entry.column.variant]}
    for variant in dict.fromkeys(entry.column.variant for entry in cells if entry.column.variant):
        readings[f"with {variant}"] = [e for e in cells if e.column.variant == variant]
    if len(readings) > 1:
        readings[NEAREST] = _varied_where_run(cells)
    head = ("how", "run", *STANDINGS, "speed-ups")
    rows = [[how, *_row(own)] for how, own in readings.items()]
    published = len(readings[AS_READ])
    said = f"The tables publish {published} numbers of rounds, which were measured as follows:"
    return f"{said}\n\n{table(head, rows)}"


def _nothing(name: str) -> Results:
    return Results(item=name, scale="full", command="", cells={})


def _row(cells: Sequence[Entry]) -> list[str]:
    counts = standings(cells)
    ran = sum(counts.values()) - counts["not run"]
    return [str(ran), *(str(counts[each]) for each in STANDINGS), counted_gains(gains(cells))]


def _varied_where_run(cells: Sequence[Entry]) -> list[Entry]:
    """Return one entry for each published number: a variant's where it was run, else the table's."""
    best: dict[tuple[int, str], Entry] = {}
    for entry in cells:
        key = id(entry.row), entry.column.published_as
        if key not in best or (entry.column.variant and entry.result.runs):
            best[key] = entry
    return list(best.values())
