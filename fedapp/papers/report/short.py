"""What came of an item, in a few words: a column of the index."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from fedapp.papers.report.claims import check_all
from fedapp.papers.report.markdown import NOT_RUN, percent
from fedapp.papers.report.tables import WITHIN_ROUNDS, entries, numbered_among, of_variant
from fedapp.papers.results import Results
from fedapp.papers.schema import Claims, Comparison, Item, Table

ONLY_SMOKE = "smoke alone"
FIRST = 3
"""How many algorithms of a comparison are named."""


def in_short(item: Item, found: Sequence[Results]) -> str:
    """Return what the results of the largest scale say; those of the smoke scale say nothing."""
    evidence = [results for results in found if results.scale != "smoke"]
    if not evidence:
        return ONLY_SMOKE if found else NOT_RUN
    results = evidence[0]
    if isinstance(item, Table):
        return _table(item, results)
    if isinstance(item, Claims):
        return _claims(item, results)
    if isinstance(item, Comparison):
        return _comparison(results)
    ran = sum(bool(cell.runs) for cell in results.cells.values())
    return f"{ran} of {len(results.cells)} lines" if results.cells else "drawn"


def _table(item: Table, results: Results) -> str:
    """Speak of the table itself; what a variant of its columns gave is on the page."""
    cells = of_variant(entries(item, results), "")
    ran, published = numbered_among(cells), [e for e in cells if not isinstance(e.published, str)]
    near = sum(e.is_near for e in ran)
    said = f"{near} of {len(ran)} cells within {WITHIN_ROUNDS} times the published rounds"
    if gains := [e for e in ran if e.gain_over_published]:
        said += f", {sum(e.gains_alike for e in gains)} of {len(gains)} speed-ups within a third"
    left = len(published) - len(ran)
    return f"{said}; {left} cells {NOT_RUN}" if left else said


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
