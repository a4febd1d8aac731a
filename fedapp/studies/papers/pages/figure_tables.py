"""Tables of the numbers in figures: lines, algorithms, sharpness, losses and similarity of updates."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from fedapp.runs.formatting import duration, number, percent, setting, stated_percent
from fedapp.runs.model_sharpness import Measurement
from fedapp.studies.papers.catalogue import all_experiments
from fedapp.studies.papers.cells import EXPERIMENT_SEPARATOR, SEPARATOR, is_same_run
from fedapp.studies.papers.claims import Claims, shares_of_rounds, similarity
from fedapp.studies.papers.figures.sharpness import SYMBOLS, Point, points
from fedapp.studies.papers.labels import RunLabels
from fedapp.studies.papers.noise import CONFIDENCE, SEEDS, Interval, contrast
from fedapp.studies.papers.pages.markdown import NOT_RUN, span, table
from fedapp.studies.papers.results import CellResult, Results
from fedapp.studies.papers.schema import BASE, Comparison, Sharpness, SharpnessPanel, Updates


def comparison_section(experiment: Comparison, results: Results) -> str:
    """Return the table of algorithms, the best first, and which differ from federated averaging."""
    ran = sorted(results.cells.items(), key=lambda pair: -_final(pair[1]))
    gains = gains_over_base(results.cells)
    head = (
        *("algorithm", "accuracy at the end", "seeds: min - max", f"less {BASE}'s, points"),
        *("best of any round", "η", "further", "inside", "tried", "wall time of a run"),
    )
    rows = [_algorithm_row(name, cell, gains.get(name)) for name, cell in ran]
    left_out = [[name, f"left out: {why}", *[""] * 8] for name, why in experiment.leave_out.items()]
    return "\n\n".join(filter(None, (table(head, [*rows, *left_out]), _differing(gains))))


def gains_over_base(cells: Mapping[str, CellResult]) -> dict[str, Interval]:
    """Return each algorithm's final accuracy less federated averaging's, seed by seed, in points."""
    finals = {
        name: {run.seed: 100 * run.final for run in cell.runs} for name, cell in cells.items()
    }
    base, gains = finals.pop(BASE, {}), dict[str, Interval]()
    for name, own in finals.items():
        if len(own.keys() & base.keys()) >= SEEDS:
            value, half = contrast([own, base], {0: 1, 1: -1})
            if half is not None:
                gains[name] = Interval(value - half, value, value + half)
    return gains


def _differing(gains: Mapping[str, Interval]) -> str:
    """Return which algorithms end above federated averaging, and which below."""
    if not gains:
        return ""
    order = sorted(gains, key=lambda name: -gains[name].value)
    above = [name for name in order if gains[name].low > 0]
    below = [name for name in order if gains[name].high < 0]
    chance = (1 - CONFIDENCE) * len(gains)
    return (
        f"Seed by seed, above {BASE} (the 95 % interval of the difference is above 0): "
        f"{', '.join(above) or 'none'}. Below: {', '.join(below) or 'none'}. The others are open. Of "
        f"{len(gains)} such intervals about {chance:.1g} would exclude 0 by chance."
    )


def _final(cell: CellResult) -> float:
    return cell.mean("final") if cell.runs else -1.0


def _algorithm_row(name: str, cell: CellResult, gain: Interval | None) -> list[str]:
    if not cell.runs:
        return [name, next(iter(cell.problems), NOT_RUN), *[""] * 8]
    low, high = cell.final_range
    further = [f"{k}={setting(v)}" for k, v in cell.chosen.items() if k != "learning-rate"]
    return [
        name,
        percent(cell.mean("final")),
        f"{len(cell.runs)}: {span(percent(low), percent(high))}",
        f"{gain.value:+.2f}; {gain.low:+.2f} to {gain.high:+.2f}" if gain else "",
        percent(cell.mean("best")),
        number(cell.rate),
        ", ".join([*further, *cell.problems[:1]]),
        "yes" if cell.inside else "**no**",
        str(len(cell.tried)),
        duration(cell.mean("seconds")),
    ]


MARK = " †"


def sharpness_section(experiment: Sharpness, results: Results) -> str:
    """Return whether minima are flatter with larger η and smaller B, and the numbers of all cells.

    The first is left out at smoke scale.
    """
    head = ("panel", "line", "largest eigenvalues", "flatter at")
    judged = results.scale != "smoke"
    rows = [
        [panel.title, label, _listed(panel, own), _flatter(panel, own) if judged else ""]
        for panel in experiment.panels
        for label, own in points(panel, results).items()
    ]
    way = Measurement(examples=experiment.examples)
    how = (
        f"The loss is the mean over {way.examples} training examples, drawn by the run's seed; ± is the "
        f"maximum distance of the number from an eigenvalue; the loss rises over {way.distance:g} of the "
        f"length of θ, the mean of {way.directions} random directions. A run marked † ends at less than "
        "half of its best accuracy, and is left out of the steps."
    )
    return f"{table(head, rows)}\n\n{how}\n\n{_cells(experiment, results)}"


def _listed(panel: SharpnessPanel, own: dict[str, Point]) -> str:
    """Format the eigenvalues by setting."""
    symbol = SYMBOLS[panel.key]
    eigenvalues = [
        f"{number(point.eigenvalue)} ({symbol} = {point.x:g}){MARK if point.collapsed else ''}"
        for point in own.values()
    ]
    return ", ".join(eigenvalues) or "not measured"


def _flatter(panel: SharpnessPanel, own: dict[str, Point]) -> str:
    """Return at how many steps to larger η, or smaller B, the minimum is flatter."""
    sound = [point for point in own.values() if not point.collapsed]
    ordered = sound if panel.key == "learning-rate" else sound[::-1]
    steps = [after.eigenvalue < before.eigenvalue for before, after in itertools.pairwise(ordered)]
    return f"{sum(steps)} of {len(steps)} steps" if steps else ""


def _cells(experiment: Sharpness, results: Results) -> str:
    """Return the table of all cells."""
    head = (
        *("run", "η", "B", "rounds", "final", "training loss", "largest eigenvalue", "±"),
        *("times η", "times |θ|²", "rise of the loss"),
    )
    rows, run_labels = [], RunLabels.of(experiment, results)
    for panel in experiment.panels:
        for own in points(panel, results).values():
            rows += [
                _sharpness_row(run_labels.text(name, name), name, point, results)
                for name, point in own.items()
            ]
    missing = [name for name in experiment.cells if not results.numbers.get(name)]
    for name in missing:
        why = "no model" if results.cells[name].runs else NOT_RUN
        rows.append([run_labels.text(name, name), why, *[""] * 9])
    return table(head, list(dict.fromkeys(map(tuple, rows))))


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


def updates_section(experiment: Updates, results: Results) -> str:
    """Return the table of losses or of similarities of the lines that were run."""
    cells = {
        name: cell
        for name, cell in results.cells.items()
        if cell.runs and all(run.agreement for run in cell.runs)
    }
    if not cells:
        return ""
    return _losses(cells) if experiment.shows == "losses" else _similarities(cells)


def _losses(cells: dict[str, CellResult]) -> str:
    """Return the range of the clients' losses in the last round, and their spread."""
    text = (
        "The training losses of all clients in the last round, and their relative spread: the "
        "standard deviation over the mean, of the last half of the rounds; means over the seeds. The "
        "figure shows five clients of seed 0."
    )
    head = ("line", "least", "mean", "greatest", "relative spread")
    rows = [[name, *_ends(cell), _spread(cell)] for name, cell in cells.items()]
    return f"{text}\n\n{table(head, rows)}"


def _ends(cell: CellResult) -> list[str]:
    """Return minimum, mean and maximum of the clients' losses in the last round, as means over seeds."""
    last = [losses for run in cell.runs if (losses := run.client_losses[-1])]
    if not last:
        return [""] * 3
    return [number(float(np.mean([of(losses) for losses in last]))) for of in (min, np.mean, max)]


def _spread(cell: CellResult) -> str:
    known = [run.loss_spread for run in cell.runs if run.loss_spread is not None]
    return percent(float(np.mean(known)), 1) if known else ""


def _similarities(cells: dict[str, CellResult]) -> str:
    """Return the similarity of each layer, and the difference of two lines."""
    by_line = {name: similarity(cell.runs) for name, cell in cells.items()}
    layers = list(dict.fromkeys(layer for own in by_line.values() for layer in own))
    rows = [[name, *(number(own.get(layer)) for layer in layers)] for name, own in by_line.items()]
    if len(by_line) == 2:
        first, second = by_line
        gains = [_gain(by_line[first].get(layer), by_line[second].get(layer)) for layer in layers]
        rows.append([f"{first} less {second}", *gains])
        shares = list(shares_of_rounds(cells[first], cells[second]).values())
        rows.append(
            [f"rounds in which {first} is higher", *(_share(shares, own) for own in layers)]
        )
    text = (
        "The mean cosine similarity of all pairs of clients, over the recorded rounds and seeds, by "
        "layer. The figure shows seed 0."
    )
    return f"{text}\n\n{table(('line', *layers), rows)}"


def _share(shares: Sequence[Mapping[str, float]], layer: str) -> str:
    known = [own[layer] for own in shares if layer in own]
    return percent(float(np.mean(known)), 1) if known else ""


def _gain(first: float | None, second: float | None) -> str:
    return "" if first is None or second is None else f"{first - second:+.3g}"


def lines_section(results: Results, run_labels: RunLabels) -> str:
    """Return the table of lines, with the accuracies that the text gives in numbers.

    Rounds below full scale, and seeds below those of the scale, are shown as "n of N".
    """
    head = ["line", "η", "seeds", "rounds", "published final", "final", "published best", "best"]
    head += ["least test loss", "last training loss", "wall time"]
    rows = [_line(name, cell, results, run_labels) for name, cell in results.cells.items()]
    return table(head, rows)


def _line(name: str, cell: CellResult, results: Results, run_labels: RunLabels) -> list[str]:
    shown = run_labels.text(name.replace(SEPARATOR, ": ", 1).replace(SEPARATOR, ", "), name)
    final, best = (_published(results, name, of) for of in ("final", "best"))
    if not cell.runs:
        return [shown, "", next(iter(cell.problems), NOT_RUN), "", final, "", best, *[""] * 4]
    return [
        shown,
        number(cell.rate),
        run_labels.seeds(name, cell),
        _rounds(cell, run_labels.planned(name)),
        final,
        f"{100 * cell.mean('final'):.2f} %",
        best,
        f"{100 * cell.mean('best'):.2f} %",
        _least_loss(cell),
        _training_loss(cell),
        next(iter(cell.problems), duration(cell.mean("seconds"))),
    ]


def _published(results: Results, line: str, of: str) -> str:
    """Format the accuracy that claims have from the text for a line's run; "" if there is none.

    The text has two numbers of one run: claims about lines of the experiment come before others.
    """
    own = results.experiment, line
    values = dict[str, dict[str, None]]()
    for claims in all_experiments().values():
        for claim in claims.claims if isinstance(claims, Claims) else ():
            if (claim.measure, claim.of) != ("value", of) or claim.published is None:
                continue
            experiment, _, label = claim.cells[0].partition(EXPERIMENT_SEPARATOR)
            if is_same_run(own, (experiment, label), results.scale):
                values.setdefault(experiment, {})[stated_percent(claim.published)] = None
    several = [values[own[0]]] if own[0] in values else values.values()
    return " or ".join(dict.fromkeys(value for each in several for value in each))


def _rounds(cell: CellResult, planned: int) -> str:
    """Return the rounds that were run, with those of full scale if they are more."""
    most = max(run.rounds for run in cell.runs)
    return f"{most} of {planned}" if most < planned else str(most)


def _least_loss(cell: CellResult) -> str:
    """Return the mean of the minimum test losses over seeds, and their rounds."""
    rounds = [run.least_loss_round for run in cell.runs if run.least_loss_round is not None]
    if len(rounds) < len(cell.runs):
        return ""
    several = f"rounds {min(rounds)} to {max(rounds)}"
    where = several if min(rounds) < max(rounds) else f"round {rounds[0]}"
    return f"{number(cell.mean('least_loss'))} ({where})"


def _training_loss(cell: CellResult) -> str:
    """Return the mean of the final training-set losses over seeds."""
    if any(run.training_loss is None for run in cell.runs):
        return ""
    return number(cell.mean("training_loss"))
