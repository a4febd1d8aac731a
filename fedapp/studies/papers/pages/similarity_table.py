"""Tables of how clients' losses and updates agree: Seo et al. 2024, Figures 12 and 13 in numbers."""

from __future__ import annotations

import numpy as np

from fedapp.studies.papers.pages.markdown import number, percent, table
from fedapp.studies.papers.pages.measures import similarity
from fedapp.studies.papers.results import CellResult, Results
from fedapp.studies.papers.schema import Updates


def agreement_section(item: Updates, results: Results) -> str:
    """Return a table of the lines that were run, with a sentence on what its numbers are."""
    cells = {
        name: cell
        for name, cell in results.cells.items()
        if cell.runs and all(run.agreement for run in cell.runs)
    }
    if not cells:
        return ""
    return _losses(cells) if item.shows == "losses" else _similarities(cells)


def _losses(cells: dict[str, CellResult]) -> str:
    """Return how far the clients' losses lie apart: in the last round, and in the last half."""
    said = (
        "The training losses of all clients in the last round, and how far they lie apart: the "
        "standard deviation over the mean, of the last half of the rounds."
    )
    head = ("line", "least", "mean", "greatest", "relative spread")
    rows = [[name, *_ends(cell), _spread(cell)] for name, cell in cells.items()]
    return f"{said}\n\n{table(head, rows)}"


def _ends(cell: CellResult) -> list[str]:
    """Return least, mean and greatest loss of a client in the last round, over all seeds."""
    last = [loss for run in cell.runs for loss in run.client_losses[-1]]
    if not last:
        return [""] * 3
    return [number(float(value)) for value in (min(last), np.mean(last), max(last))]


def _spread(cell: CellResult) -> str:
    known = [run.loss_spread for run in cell.runs if run.loss_spread is not None]
    return percent(float(np.mean(known)), 1) if known else ""


def _similarities(cells: dict[str, CellResult]) -> str:
    """Return the similarity of each layer, and its excess where there are two lines."""
    found = {name: similarity(cell.runs) for name, cell in cells.items()}
    layers = list(dict.fromkeys(layer for own in found.values() for layer in own))
    rows = [[name, *(number(own.get(layer)) for layer in layers)] for name, own in found.items()]
    if len(found) == 2:
        first, second = found
        gains = [_gain(found[first].get(layer), found[second].get(layer)) for layer in layers]
        rows.append([f"{first} less {second}", *gains])
    said = "The mean cosine similarity of all pairs of clients, over the recorded rounds, by layer."
    return f"{said}\n\n{table(('line', *layers), rows)}"


def _gain(first: float | None, second: float | None) -> str:
    return "" if first is None or second is None else f"{first - second:+.3g}"
