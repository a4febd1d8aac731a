"""What came of an item, in a few words: a column of the index."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from fedapp.studies.papers.pages.claims import check_all
from fedapp.studies.papers.pages.entries import (
    Entry,
    counted,
    counted_gains,
    entries,
    gains,
    of_variant,
    standings,
    variants_of,
)
from fedapp.studies.papers.pages.markdown import NOT_RUN, percent
from fedapp.studies.papers.results import Results
from fedapp.studies.papers.schema import Claims, Comparison, Item, Table

ONLY_SMOKE = "smoke alone"
FIRST = 3
"""How many algorithms of a comparison are named."""


def evidence(found: Sequence[Results]) -> Results | None:
    """Return the results of the largest scale, the first of those found; smoke is no evidence."""
    return next((results for results in found if results.scale != "smoke"), None)


def in_short(item: Item, found: Sequence[Results]) -> str:
    """Return what the results of the largest scale say; those of the smoke scale say nothing."""
    results = evidence(found)
    if results is None:
        return ONLY_SMOKE if found else NOT_RUN
    if isinstance(item, Table):
        return _table(item, results)
    if isinstance(item, Claims):
        return _claims(item, results)
    if isinstance(item, Comparison):
        return _comparison(results)
    ran = sum(bool(cell.runs) for cell in results.cells.values())
    return f"{ran} of {len(results.cells)} lines" if results.cells else "drawn"


def _table(item: Table, results: Results) -> str:
    """Speak of the table itself, then of each variant of its columns that was run."""
    cells = entries(item, results)
    return "; ".join(
        said
        for variant in variants_of(item)
        if (said := _variant(of_variant(cells, variant), variant))
    )


def _variant(cells: Sequence[Entry], variant: str) -> str:
    if variant and not any(entry.result.runs for entry in cells):
        return ""
    said = "; ".join(filter(None, (counted(standings(cells)), counted_gains(gains(cells)))))
    return f"with {variant}: {said}" if variant else said


def _claims(item: Claims, results: Results) -> str:
    counts = Counter(each.verdict for each in check_all(item, results))
    hold, fail, unsure = counts["holds"], counts["fails"], counts["inconclusive"]
    others = counts.total() - hold - fail - unsure
    return f"{hold} hold, {fail} fail, {unsure} inconclusive, {others} not judged"


def _comparison(results: Results) -> str:
    final = {name: cell.mean("final") for name, cell in results.cells.items() if cell.runs}
    first = sorted(final, key=lambda name: -final[name])[:FIRST]
    named = [*first, *(["fedavg"] if "fedavg" in final and "fedavg" not in first else [])]
    return ", ".join(f"{name} {percent(final[name])}" for name in named)
