"""The index of all items, and the summary of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedapp.files import write_atomically
from fedapp.studies.papers.catalogue import Item, all_items
from fedapp.studies.papers.cells import is_among
from fedapp.studies.papers.claims import Claims
from fedapp.studies.papers.pages.claims import check_all
from fedapp.studies.papers.pages.markdown import NOT_RUN, duration, percent, table
from fedapp.studies.papers.pages.page import html, results_of
from fedapp.studies.papers.pages.tables import (
    STANDINGS,
    Entry,
    counted,
    counted_gains,
    entries,
    gains,
    of_variant,
    standings,
    variants_of,
)
from fedapp.studies.papers.results import Results
from fedapp.studies.papers.schema import Comparison, Table

HOW = "[Reproduce and sweep](../reproduce.md)"
INTRODUCTION = f"""# The papers, reproduced

Every table and figure of McMahan et al. 2017 and of Seo et al. 2024, and the algorithms compared: each
from one command, with what is published beside what was measured. `full` is as in the paper; `narrow`, of
Seo et al., has a smaller network and all else as in `full`; `cpu` is what a processor does in hours;
`smoke` only shows that the item can be made. What was not run says so.
What was found is of the largest scale that was run: how many cells need the published rounds, within
25 % both ways (0.8 to 1.25 times as many), claims that hold, the best algorithms, or how many lines of a
figure are drawn.

How to run them, and sweeps of your own: {HOW}.
"""


def all_tables(folder: Path) -> str:
    """Return how the published rounds of all tables came out, as Markdown."""
    return totals(
        {
            name: (item, list(results_of(folder, name)))
            for name, item in all_items().items()
            if isinstance(item, Table)
        }
    )


def write_index(folder: Path) -> Path:
    """Write the index, linking to every item that has a page, and return it as Markdown."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = index_files(folder)
    for path, text in texts.items():
        write_atomically(path, text.encode())
    return next(iter(texts))


def index_files(folder: Path) -> dict[Path, str]:
    """Return ``folder/index.md`` and ``.html``, and what is in them."""
    rows, pages = [], []
    for name, item in all_items().items():
        there = list(results_of(folder, name))
        link = f"[{item.title}]({name}/index.md)" if there else item.title
        pages += [f"{name}/index"] if there else []
        said = [
            f"{r.scale}: {r.runs} runs, {duration(r.seconds)}" if r.runs else r.scale for r in there
        ]
        ran, source = "; ".join(said) or NOT_RUN, item.source.rstrip(".")
        rows.append([link, in_short(item, there), ran, f"`{name}`", source])
    found = table(("item", "found", "run", "name", "source"), rows)
    body = f"{INTRODUCTION}\n{all_tables(folder)}\n\n{found}\n"
    tree = "\n".join(["```{toctree}", ":hidden:", "", *pages, "```"])
    linked = body.replace("/index.md)", "/index.html)").replace(HOW, "`docs/reproduce.md`")
    return {
        folder / "index.md": f"{body}\n{tree}\n",
        folder / "index.html": html(linked, "The papers, reproduced"),
    }


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
