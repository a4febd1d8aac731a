"""What ``fedapp compare`` prints and writes."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from fedapp.files import as_folder, write_atomically
from fedapp.runs.figures import save
from fedapp.runs.formatting import aligned
from fedapp.studies.compare.comparison import ComparedRuns
from fedapp.studies.compare.figure import draw_all
from fedapp.studies.compare.page import (
    comparison_page,
    number_columns,
    number_rows,
    setting_rows,
)


def as_lines(comparison: ComparedRuns) -> Iterator[str]:
    """Yield what the terminal shows: settings that differ, numbers, and notes."""
    labels = [run.label for run in comparison.runs]
    if comparison.differing:
        names = [run.name for run in comparison.runs]
        yield from _table(["run", *comparison.differing], names, setting_rows(comparison))
    else:
        yield "All runs have the same settings."
    yield ""
    numbers = [[cell.text for cell in row] for row in number_rows(comparison)]
    yield from _table(["run", *number_columns(comparison)], labels, numbers)
    yield from ("", *comparison.notes) if comparison.notes else ()


def _table(head: list[str], first: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return aligned([head, *([name, *row] for name, row in zip(first, rows, strict=True))])


def write_comparison(comparison: ComparedRuns, paths: Sequence[Path], folder: Path) -> list[Path]:
    """Write ``comparison.html``, ``.png`` and ``.svg`` of ``paths`` into ``folder``; return the files.

    Raises
    ------
    ConfigError
        The folder cannot be written.
    """
    stem = as_folder(folder, "--to") / "comparison"
    words = ["fedapp", "compare", *(str(path.absolute()) for path in paths)]
    words += [] if comparison.target is None else ["--target", f"{comparison.target:g}"]
    page = stem.with_suffix(".html")
    write_atomically(page, comparison_page(comparison, shlex.join(words)).encode())
    return [page, *save(draw_all(comparison), stem, dpi=150)]
