"""An item's page, as Markdown and HTML, from its results at each scale."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt

from fedapp.config.run_config import Scalar
from fedapp.files import write_atomically
from fedapp.runs.html import page as html_page
from fedapp.studies.papers.catalogue import Item, all_items
from fedapp.studies.papers.cells import EVALUATIONS
from fedapp.studies.papers.claims import Claims
from fedapp.studies.papers.labels import AsRun
from fedapp.studies.papers.pages.claims import claims_section
from fedapp.studies.papers.pages.figure_tables import (
    agreement_section,
    comparison_section,
    lines_section,
    sharpness_section,
)
from fedapp.studies.papers.pages.markdown import duration, table
from fedapp.studies.papers.pages.tables import table_section
from fedapp.studies.papers.results import Results, read_results
from fedapp.studies.papers.schema import SCALES, Comparison, ScaleName, Sharpness, Table, Updates
from fedapp.studies.sweep.store import Archive

HEADINGS: Mapping[ScaleName, str] = {
    "full": "Full scale",
    "narrow": "Narrow scale",
    "cpu": "Processor scale",
    "smoke": "Smoke scale",
}


def write_page(folder: Path, name: str) -> list[Path]:
    """Write an item's page from the results that are there, and return its files."""
    texts = page_files(folder, name)
    for path, text in texts.items():
        write_atomically(path, text.encode())
    return list(texts)


def page_files(folder: Path, name: str) -> dict[Path, str]:
    """Return ``folder/name/index.md`` and ``.html``, and what is in them."""
    item = all_items()[name]
    text = page(item, list(results_of(folder, name)), Archive(folder))
    files = folder / name / "index.md", folder / name / "index.html"
    return {files[0]: text, files[1]: html(text, item.title)}


def results_of(folder: Path, name: str) -> Iterator[Results]:
    """Yield an item's results that are there, those of the largest scale first."""
    for scale in reversed(SCALES):
        if found := read_results(folder, name, scale):
            yield found


def page(item: Item, found: Sequence[Results], archive: Archive | None = None) -> str:
    """Return the page as Markdown: what the paper shows, what was measured, what differs.

    Above smoke scale it says from which code the runs are, with the records in ``archive``.
    """
    parts = [f"# {item.title}", "", f"{item.source}.", "", item.about.strip()]
    for place, results in enumerate(found):
        section = _only_how if place and results.scale == "smoke" else _scale
        parts += ["", f"## {HEADINGS[results.scale]}", "", *section(item, results)]
        if archive and results.scale != "smoke" and (said := provenance(results, archive)):
            parts[-1] = f"{parts[-1]} {said}"
    if item.differs:
        parts += ["", "## What differs, and why", "", item.differs.strip()]
    return "\n".join(parts) + "\n"


def _only_how(item: Item, results: Results) -> list[str]:
    """Return how the item is made in minutes, where a larger scale has what comes out."""
    drawn = not isinstance(item, Table | Claims)
    seen = f"[Its picture]({results.scale}.png)" if drawn else "It"
    shows = f"{seen} shows that the item can be made, and nothing of what comes out."
    return [*_command(item, results), shows]


def _command(item: Item, results: Results) -> list[str]:
    """Return what the scale is, and what was typed."""
    note = item.at(results.scale).note or "As in the paper."
    return [note, "", "```bash", results.command, "```", ""]


def _scale(item: Item, results: Results) -> list[str]:
    parts = _command(item, results)
    if isinstance(item, Table):
        parts += [table_section(item, results), "", *_evaluations(results), _grids(results)]
    elif isinstance(item, Claims):
        parts.append(claims_section(item, results))
    else:
        parts.append(f"![{item.title}]({results.scale}.png)")
        if isinstance(item, Comparison):
            parts += ["", comparison_section(item, results)]
        elif isinstance(item, Sharpness):
            parts += ["", sharpness_section(item, results)]
        elif results.cells:
            parts += ["", lines_section(results, AsRun.of(item, results))]
        if isinstance(item, Updates):
            parts += ["", agreement_section(item, results)]
    return [*parts, "", _colophon(results)]


def _evaluations(results: Results) -> list[str]:
    """Return which cells are evaluated how often, if not after every round."""
    cells = {name: cell.every for name, cell in results.cells.items() if cell.every > 1}
    if not cells:
        return []
    rows = [[name, str(every)] for name, every in cells.items()]
    said = (
        "The test accuracy is measured after every round, but less often where an evaluation takes long, "
        f"and in long runs (1,000 rounds and more) only about {EVALUATIONS} times in all; rounds to the "
        "target are interpolated between two evaluations, and a run that is looked at less often is seen "
        "to reach it later, if at all:"
    )
    return [said, "", table(("cell", "rounds between evaluations"), rows), ""]


def _grids(results: Results) -> str:
    """Return the rates that were tried, with the rounds that each needed."""
    rows = []
    for name, cell in results.cells.items():
        for tried in cell.tried:
            rate = _said(tried.settings)
            best = "**" if tried.settings == cell.chosen else ""
            outcome = (
                f"{tried.needed:.1f}"
                if tried.needed is not None
                else tried.problem
                or f"given up after {tried.rounds}, best {100 * tried.best:.2f} %"
            )
            rows.append([name, f"{best}{rate}{best}", outcome])
    if not rows:
        return ""
    return f"Rates that were tried:\n\n{table(('cell', 'η', 'rounds to target'), rows)}"


def _said(settings: Mapping[str, Scalar]) -> str:
    """Return a rate, and what else was tried beside it."""
    others = [f"{key} {value}" for key, value in settings.items() if key != "learning-rate"]
    return ", ".join([str(settings.get("learning-rate", "")), *others])


def _colophon(results: Results) -> str:
    how = ", ".join(_carried_out(results.execution))
    if not results.runs:
        return f"Written {results.written}."
    return (
        f"{results.runs} runs, {duration(results.seconds)} of wall time in all, "
        f"written {results.written}. {how}."
    )


def _carried_out(execution: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Say on what and with what the runs were made, and of each all that some of them had."""
    for name in dict.fromkeys(name for each in execution for name, said in each.items() if said):
        had = [str(each[name]) for each in execution if each.get(name)]
        some = "" if len(had) == len(execution) else " for some of them"
        yield f"{name} {' and '.join(dict.fromkeys(had))}{some}"


def html(text: str, title: str) -> str:
    """Return a page of Markdown as HTML, whose pictures are the vector drawings beside it."""
    body = MarkdownIt("commonmark").enable("table").render(text)
    for scale in SCALES:
        body = body.replace(f'src="{scale}.png"', f'src="{scale}.svg"')
    return html_page(title, body)


CLEAN = "from a commit as it is"
KINDS = (
    CLEAN,
    "from a commit with changes",
    "from code that their record does not name",
    "without a record",
)


def provenance(results: Results, archive: Archive) -> str:
    """Say how many of the runs whose numbers are shown are from a clean commit; "" if all are.

    The runs are those of the chosen candidates, not all that a search tried.
    """
    runs = {run.run for cell in results.cells.values() for run in cell.runs}
    found = Counter(_kind(run, archive) for run in runs)
    if found[CLEAN] == len(runs):
        return ""
    said = ", ".join(f"{found[kind]} {kind}" for kind in KINDS if found[kind] or kind == CLEAN)
    return f"Of the {len(runs)} runs whose numbers are shown: {said}."


def _kind(run: str, archive: Archive) -> str:
    record = archive.find(run)
    if record is None:
        return KINDS[3]
    commit = str(record.execution.get("commit") or "")
    if not commit:
        return KINDS[2]
    return KINDS[1] if commit.endswith("-dirty") else CLEAN
