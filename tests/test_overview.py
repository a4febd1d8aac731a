"""The picture of all tables: each published number once, measured or not run."""

from __future__ import annotations

import pytest
from PIL import Image

from fedapp.cli.generate import RESULTS
from fedapp.runs.figures import COLORS
from fedapp.studies.papers.figures.overview import not_run, overview
from fedapp.studies.papers.pages.index import PICTURE, counted_cells, index, tables_of, totals
from fedapp.studies.papers.results import CellResult
from fedapp.studies.sweep.table import read_records
from tests.paper_results import TABLES, cell, run_result, table_results


def test_a_mark_is_a_cell_and_a_tick_one_that_was_not_run() -> None:
    """Of 18 published numbers two were run, one of them also as a variant, and one did not get there."""
    results = table_results(
        {
            "E = 1, B = ∞ | IID": cell(run_result(734.0)),
            "E = 1, B = ∞ | IID, tutorial": cell(run_result(1468.0)),
            "E = 20, B = 10 | IID": cell(run_result(None, rounds=64)),
        }
    )
    tables = {"mcmahan-table4": (TABLES["mcmahan-table4"], [results])}
    axes, strip = overview(tables).axes
    marks = {
        (float(line.get_xdata()[0]), float(line.get_ydata()[0])): line
        for line in axes.lines
        if len(line.get_xdata()) == 1
    }
    assert set(marks) == {(1468, 734), (1468, 1468), (32, 64)}
    fills = {place: (line.get_marker(), line.get_fillstyle()) for place, line in marks.items()}
    assert fills[1468, 734] == ("o", "none")
    assert fills[1468, 1468] == ("o", "full")
    assert fills[32, 64] == ("^", "none")
    assert {line.get_color() for line in marks.values()} == {COLORS[0]}
    [band] = axes.collections
    corners = band.get_paths()[0].vertices
    assert max(y / x for x, y in corners) == pytest.approx(1.25)
    assert min(y / x for x, y in corners) == pytest.approx(0.8)
    assert len(strip.lines[0].get_xdata()) == 16
    assert [text.get_text() for text in strip.get_yticklabels()] == ["Table 4: 16 of 18"]


def test_cells_are_counted_by_seed_and_by_their_interval() -> None:
    """Of ratios 1, 1.1 and 1.2 the interval ends at 1.1 exp(4.3 * 0.091 / sqrt(3)) = 1.38.

    Where some seeds did not reach the target it is not known; where none did, it is outside.
    """

    def seeds(*needed: float | None) -> CellResult:
        return cell(*(run_result(n, seed=seed) for seed, n in enumerate(needed)))

    cells = {
        "E = 1, B = ∞ | IID": seeds(1468.0, 1614.8, 1761.6),
        "E = 10, B = ∞ | IID": seeds(156.0, 150.0, 160.0),
        "E = 20, B = 10 | IID": seeds(32.0, None, 60.0),
        "E = 10, B = 10 | IID": seeds(10.0, 10.1, 10.2),
        "E = 20, B = ∞ | IID": seeds(300.0, 301.0, 302.0),
        "E = 10, B = 50 | IID": seeds(None, None, None),
        "E = 1, B = 10 | IID": seeds(90.0, 20.0),
        "E = 1, B = ∞ | Non-IID": seeds(1817.0),
    }
    tables = {"mcmahan-table4": (TABLES["mcmahan-table4"], [table_results(cells)])}
    [row] = [line for line in totals(tables).splitlines() if "2NN, IID" in line]
    assert row.endswith("| 2NN, IID | 4 of 7 | 2 of 7 | 2 of 6 | 2 of 6 | 1 | 2 | 3 |")
    assert "2NN, non-IID" not in totals(tables)


def test_all_91_published_numbers_are_in_the_picture() -> None:
    cells = counted_cells(tables_of(RESULTS, read_records(RESULTS)))
    ran = {
        (name, entry.published_name)
        for name, own in cells.items()
        for entry in own
        if entry.result.runs
    }
    assert len(ran) + sum(len(not_run(own)) for own in cells.values()) == 91


def test_the_index_has_the_picture_where_a_cell_was_run(tmp_path) -> None:
    assert f"]({PICTURE}.png)" not in index(tmp_path, {})
    assert f"]({PICTURE}.png)" in (RESULTS / "index.md").read_text()
    path = RESULTS / f"{PICTURE}.png"
    assert path.stat().st_size < 60_000
    with Image.open(path) as image:
        assert image.mode == "P"
