"""Tables of the numbers in figures: lines, algorithms, sharpness, similarity of updates."""

from __future__ import annotations

import itertools

import numpy as np

from fedapp.config.run_config import Scalar
from fedapp.runs.model_sharpness import Measurement
from fedapp.studies.papers.claims import similarity
from fedapp.studies.papers.figures.sharpness import SYMBOLS, Point, points
from fedapp.studies.papers.labels import AsRun
from fedapp.studies.papers.pages.markdown import NOT_RUN, duration, number, percent, table
from fedapp.studies.papers.results import CellResult, Results
from fedapp.studies.papers.schema import Comparison, Sharpness, SharpnessPanel, Updates


def comparison_section(item: Comparison, results: Results) -> str:
    """Return the algorithms, the best first, with what was found for each."""
    ran = sorted(results.cells.items(), key=lambda pair: -_final(pair[1]))
    head = (
        *("algorithm", "accuracy at the end", "seeds: min - max", "best of any round", "η"),
        *("further", "inside", "tried", "wall time of a run"),
    )
    rows = [_algorithm_row(name, cell) for name, cell in ran]
    left_out = [[name, f"left out: {why}", *[""] * 7] for name, why in item.leave_out.items()]
    return table(head, [*rows, *left_out])


def _final(cell: CellResult) -> float:
    return cell.mean("final") if cell.runs else -1.0


def _algorithm_row(name: str, cell: CellResult) -> list[str]:
    if not cell.runs:
        return [name, NOT_RUN, *[""] * 7]
    low, high = cell.spread("final")
    further = [f"{k}={_value(v)}" for k, v in cell.chosen.items() if k != "learning-rate"]
    problems = [run.problem for run in cell.runs if run.problem]
    return [
        name,
        percent(cell.mean("final")),
        f"{len(cell.runs)}: {percent(low)} - {percent(high)}",
        percent(cell.mean("best")),
        number(cell.rate),
        ", ".join([*further, *problems[:1]]),
        "yes" if cell.inside else "**no**",
        str(len(cell.tried)),
        duration(cell.mean("seconds")),
    ]


def _value(value: Scalar) -> str:
    """Return a setting's value: numbers with no more digits than they have, the rest as it is."""
    return f"{value:g}" if type(value) in (int, float) else str(value)


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
                _sharpness_row(as_run.said(name, name), name, point, results)
                for name, point in own.items()
            ]
    missing = [name for name in item.cells if not results.numbers.get(name)]
    rows += [[as_run.said(name, name), _why(results.cells[name]), *[""] * 9] for name in missing]
    return table(head, list(map(list, dict.fromkeys(map(tuple, rows)))))


def _why(cell: CellResult) -> str:
    return "no model" if cell.runs else NOT_RUN


def _sharpness_row(shown: str, name: str, point: Point, results: Results) -> list[str]:
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


def lines_section(results: Results, as_run: AsRun) -> str:
    """Return each line in numbers, with the last loss on the training set where it was measured.

    A line of fewer rounds than at full scale says of how many.
    """
    runs = [run for cell in results.cells.values() for run in cell.runs]
    losses = any(run.training_loss is not None for run in runs)
    head = ["line", "η", "seeds", "rounds", "final", "best", "least test loss"]
    head += [*(["last training loss"] if losses else []), "wall time"]
    rows = [_line(name, cell, losses, as_run) for name, cell in results.cells.items()]
    return table(head, rows)


def _line(name: str, cell: CellResult, losses: bool, as_run: AsRun) -> list[str]:
    shown = as_run.said(name.replace(" | ", ": ", 1).replace(" | ", ", "), name)
    if not cell.runs:
        return [shown, NOT_RUN, *[""] * (7 if losses else 6)]
    problems = (run.problem for run in cell.runs if run.problem)
    return [
        shown,
        number(cell.rate),
        str(len(cell.runs)),
        _rounds(cell, as_run.planned(name)),
        f"{100 * cell.mean('final'):.2f} %",
        f"{100 * cell.mean('best'):.2f} %",
        _least_loss(cell),
        *([_training_loss(cell)] if losses else []),
        next(problems, duration(cell.mean("seconds"))),
    ]


def _rounds(cell: CellResult, planned: int) -> str:
    """Return how many rounds were run, and of how many at full scale where it is fewer."""
    most = max(run.rounds for run in cell.runs)
    return f"{most} of {planned}" if most < planned else str(most)


def _least_loss(cell: CellResult) -> str:
    """Return the mean of the seeds' least test losses, and in which rounds these are."""
    rounds = [run.least_loss_round for run in cell.runs if run.least_loss_round is not None]
    if len(rounds) < len(cell.runs):
        return ""
    several = f"rounds {min(rounds)} to {max(rounds)}"
    where = several if min(rounds) < max(rounds) else f"round {rounds[0]}"
    return f"{number(cell.mean('least_loss'))} ({where})"


def _training_loss(cell: CellResult) -> str:
    """Return the mean of the seeds' losses on the training set after their last rounds."""
    if any(run.training_loss is None for run in cell.runs):
        return ""
    return number(cell.mean("training_loss"))
