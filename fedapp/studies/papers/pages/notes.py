"""Numbers in the notes of experiments, filled from results: ``{{cpu needed of E = 1, B = 10 | IID}}``.

A placeholder is a scale and a number, or two: ``NUMBER of CELL``, ``NUMBER of EXPERIMENT: CELL``, one
of these ``over`` another (a ratio) or ``less`` another (a difference), both at the seeds that both cells
have, and at the end ``~2`` for two decimals. A number is an attribute of a cell's runs, the mean over the
seeds; with ``lowest`` or ``highest`` before it the least or the greatest, and with ``#1`` behind it that
of seed 1; ``accuracy@15`` is that of round 15, and ``needed/10`` the rounds to the experiment's target of
the rounds that are multiples of 10. Accuracies are in percent, their differences in points.
The numbers of a picture have no cell: ``{{full lowest shared}}``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

from fedapp.analysis.curves import rounds_to_target
from fedapp.errors import ConfigError
from fedapp.runs.formatting import number, rounds
from fedapp.studies.papers.catalogue import all_experiments
from fedapp.studies.papers.cells import EXPERIMENT_SEPARATOR
from fedapp.studies.papers.pages.markdown import NOT_RUN
from fedapp.studies.papers.results import Results, RunResult
from fedapp.studies.papers.schema import Figure, ScaleName, Table
from fedapp.studies.papers.stored import read_results, with_curves
from fedapp.studies.sweep.record import RunRecord

PLACEHOLDER = re.compile(
    r"\{\{(?P<scale>\w+) (?P<first>.+?)(?: (?P<how>over|less) (?P<second>.+?))?"
    r"(?: ~(?P<digits>\d))?\}\}"
)
NUMBER = re.compile(
    r"(?:(?P<end>lowest|highest) )?(?P<key>\w+(?: \w+)?)(?:(?P<at>[@/])(?P<round>\d+))?"
    r"(?:#(?P<seed>\d+))?$"
)
ACCURACIES = ("final", "best", "fluctuation", "accuracy")
FindResults = Callable[[str, ScaleName], Results | None]
"""Returns an experiment's results at a scale; the name "" is the experiment of the note."""


def finder(folder: Path, name: str, records: Mapping[str, RunRecord]) -> FindResults:
    """Return what finds results in ``folder`` for the notes of the experiment ``name``."""

    @cache
    def find(experiment: str, scale: ScaleName) -> Results | None:
        own = experiment or name
        if own not in all_experiments():
            raise ConfigError(f"{name}: its note names {own!r}, and there is no such experiment.")
        results = read_results(folder, own, scale)
        return with_curves(results, records) if results else None

    return find


def fill(text: str, find: FindResults) -> str:
    """Return a note with its placeholders filled; what was not run says so.

    Raises
    ------
    ConfigError
        A placeholder is not of this form, or names an experiment, cell or number that is not there.
    """
    filled = PLACEHOLDER.sub(lambda match: _filled(match, find), text)
    if "{{" in filled:
        wrong = filled[filled.index("{{") :].partition("\n")[0][:60]
        raise ConfigError(f"a note has {wrong!r}. Write it as {{{{SCALE NUMBER of CELL}}}}.")
    return filled


def _filled(match: re.Match[str], find: FindResults) -> str:
    sides = [match[side] for side in ("first", "second") if match[side]]
    values = [_values(side, match["scale"], find) for side in sides]  # type: ignore[arg-type]
    if not all(values):
        return NOT_RUN
    shared = set.intersection(*map(set, values))
    known = [
        _combined(own, shared or set(own), side) for own, side in zip(values, sides, strict=True)
    ]
    key = sides[0].partition(" of ")[0]
    percents = any(name in key for name in ACCURACIES)
    factor = 100 if percents else 1
    match match["how"]:
        case "over":
            value, digits = known[0] / known[1], "1"
        case "less":
            value, digits = (known[0] - known[1]) * factor, "2"
        case _:
            value, digits = known[0] * factor, "2" if percents else ""
    if digits := match["digits"] or digits:
        return f"{value:.{digits}f}"
    return rounds(value) if key.startswith("needed") else number(value)


def _values(text: str, scale: ScaleName, find: FindResults) -> dict[int, float]:
    """Return the number that one side of a placeholder names by seed; {} if it was not run."""
    key, _, place = text.partition(" of ")
    experiment, separator, cell_name = place.partition(EXPERIMENT_SEPARATOR)
    if not separator:
        experiment, cell_name = "", place
    named = NUMBER.match(key)
    results = find(experiment, scale)
    if results is None:
        return {}
    if named and not place and (numbers := results.numbers.get(named["key"])):
        return dict(enumerate(numbers))
    cell = results.cells.get(cell_name)
    absent = ConfigError(f"a note asks for {text!r}, and there is no such number or cell.")
    if named is None or cell is None or (named["at"] == "/" and named["key"] != "needed"):
        raise absent
    runs = [run for run in cell.runs if named["seed"] is None or run.seed == int(named["seed"])]
    try:
        if named["at"] == "/":
            values = {run.seed: _needed(results, run, int(named["round"])) for run in runs}
        else:
            values = {run.seed: _of_run(run, named["key"], named["round"]) for run in runs}
    except AttributeError as error:
        raise absent from error
    known = {seed: float(value) for seed, value in values.items() if value is not None}
    return known if len(known) == len(values) else {}


def _combined(values: Mapping[int, float], seeds: set[int], text: str) -> float:
    """Return the mean over the seeds, or what the side of a placeholder names instead."""
    own = [values[seed] for seed in values if seed in seeds]
    if text.startswith("lowest "):
        return min(own)
    if text.startswith("highest "):
        return max(own)
    return sum(own) / len(own)


def _of_run(run: RunResult, key: str, round_: str | None) -> float | None:
    if round_ is None:
        value: float | None = getattr(run, key)
        return value
    if run.curve is None:
        return None
    return dict(zip(run.curve.rounds, getattr(run.curve, key), strict=True)).get(int(round_))


def _needed(results: Results, run: RunResult, every: int) -> float | None:
    """Return the rounds to the target of a run as if it had been evaluated ``every`` so many rounds."""
    experiment = all_experiments()[results.experiment]
    if run.curve is None or not isinstance(experiment, Figure | Table):
        return None
    points = zip(run.curve.rounds, run.curve.accuracy, strict=True)
    evaluated, values = zip(*((r, v) for r, v in points if r % every == 0), strict=True)
    return rounds_to_target(evaluated, values, experiment.target)
