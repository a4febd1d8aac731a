"""Tables of how sharp the minima are that runs ended in: Seo et al. 2024, section 6."""

from __future__ import annotations

import itertools

from fedapp.runs.model_sharpness import Measurement
from fedapp.studies.papers.figures.minima import SYMBOLS, Point, points
from fedapp.studies.papers.labels import AsRun
from fedapp.studies.papers.pages.markdown import NOT_RUN, number, percent, table
from fedapp.studies.papers.results import CellResult, Results
from fedapp.studies.papers.schema import Sharpness, SharpnessPanel

MARK = " †"


def sharpness_section(item: Sharpness, results: Results) -> str:
    """Return whether each line is flatter the larger η, the smaller B, and every cell in numbers.

    At smoke scale, which is no evidence, nothing is said of the first.
    """
    head = ("panel", "line", "largest eigenvalues", "flatter at")
    judged = results.scale != "smoke"
    rows = [
        [panel.title, label, _listed(panel, own), _flatter(panel, own) if judged else ""]
        for panel in item.panels
        for label, own in points(panel, results).items()
    ]
    way = Measurement(examples=item.examples)
    how = (
        f"The loss is the mean over {way.examples} training examples, drawn by the run's seed; ± is how "
        f"far from an eigenvalue the number is at most; the loss rises over {way.distance:g} of the "
        f"length of θ, the mean of {way.directions} random directions. A run marked † ends at less than "
        "half of its best accuracy: it has fallen apart, and is left out of the steps."
    )
    return f"{table(head, rows)}\n\n{how}\n\n{_cells(item, results)}"


def _listed(panel: SharpnessPanel, own: dict[str, Point]) -> str:
    """Return the eigenvalues over the setting."""
    symbol = SYMBOLS[panel.key]
    said = [
        f"{number(point.eigenvalue)} ({symbol} = {point.x:g}){MARK if point.collapsed else ''}"
        for point in own.values()
    ]
    return ", ".join(said) or "not measured"


def _flatter(panel: SharpnessPanel, own: dict[str, Point]) -> str:
    """Return at how many steps to a larger η, or a smaller B, the minimum is flatter."""
    sound = [point for point in own.values() if not point.collapsed]
    ordered = sound if panel.key == "learning-rate" else sound[::-1]
    steps = [after.eigenvalue < before.eigenvalue for before, after in itertools.pairwise(ordered)]
    return f"{sum(steps)} of {len(steps)} steps" if steps else ""


def _cells(item: Sharpness, results: Results) -> str:
    """Return the table of all cells."""
    head = (
        *("run", "η", "B", "rounds", "final", "training loss", "largest eigenvalue", "±"),
        *("times η", "times |θ|²", "rise of the loss"),
    )
    rows, as_run = [], AsRun.of(item, results)
    for panel in item.panels:
        for own in points(panel, results).values():
            rows += [
                _row(as_run.said(name, name), name, point, results) for name, point in own.items()
            ]
    missing = [name for name in item.cells if not results.numbers.get(name)]
    rows += [[as_run.said(name, name), _why(results.cells[name]), *[""] * 9] for name in missing]
    return table(head, list(map(list, dict.fromkeys(map(tuple, rows)))))


def _why(cell: CellResult) -> str:
    return "no model" if cell.runs else NOT_RUN


def _row(shown: str, name: str, point: Point, results: Results) -> list[str]:
    cell, entry = results.cells[name], results.numbers[name][0]
    return [
        shown,
        f"{point.step:g}",
        str(entry["batch-size"]),
        str(entry["round"]),
        percent(cell.mean("final")) + (MARK if point.collapsed else ""),
        number(point.loss),
        number(point.eigenvalue),
        number(point.error, 2),
        number(point.eigenvalue * point.step),
        number(point.relative),
        number(point.rise),
    ]
