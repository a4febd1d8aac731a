"""The cells of an experiment at a scale: the numbers of its tables and the lines of its figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from fedapp.config.components import family_of
from fedapp.config.read import without_unused_parameters
from fedapp.config.settings import Scalar
from fedapp.errors import ConfigError
from fedapp.studies.papers.catalogue import Experiment, all_experiments
from fedapp.studies.papers.claims import Claim, Claims
from fedapp.studies.papers.schema import (
    Base,
    Column,
    Comparison,
    Cut,
    Figure,
    Line,
    Panel,
    Picture,
    Scale,
    ScaleName,
    Sharpness,
    Table,
    TableRow,
    Updates,
)
from fedapp.studies.sweep.identity import RECORD_UPDATES
from fedapp.studies.sweep.search import LEARNING_RATE, Cell, RateGrid

Cells = dict[str, Cell | None]
"""Cells by name; None for a cell that the scale does not run."""
SEPARATOR = " | "
"""Separates row and column in the name of a cell."""
EXPERIMENT_SEPARATOR = ": "
"""Separates an experiment and its cell in the cells of a claim."""
EVALUATIONS = 500
"""The approximate number of evaluations of a table's run of 1,000 rounds or more."""
EXECUTION_DEFAULTS: Mapping[str, Scalar] = {"checkpoint-every": 50}
"""Run-config keys of all runs, under those of the experiment."""


@dataclass(frozen=True)
class Setup:
    """An experiment at one scale: the settings, rounds, seeds and learning rates of its cells."""

    experiment: Base
    scale_name: ScaleName
    scale: Scale
    overrides: Mapping[str, Scalar]
    """Settings that take precedence over all others (``--set``)."""
    locate: Callable[[str, Cut | None], str]
    """Maps a data set's name and the part of it that is used to its location."""

    def settings(self, *layers: Mapping[str, Scalar]) -> dict[str, Scalar]:
        """Return the experiment's settings, overridden by the layers, the scale and ``overrides``."""
        merged: dict[str, Scalar] = {**EXECUTION_DEFAULTS, **self.experiment.settings}
        for layer in (*layers, self.scale.settings):
            merged |= layer
        merged = {**self._scaled(merged), **self.overrides}
        place = self.locate(str(merged.get("dataset", "digits")), self.scale.cut)
        # A scale may choose another component than the experiment sets parameters for.
        return without_unused_parameters({**merged, "dataset": place})

    def _scaled(self, settings: Mapping[str, Scalar]) -> dict[str, Scalar]:
        """Apply the scale's factors and swaps."""
        swap = self.scale.swap
        merged = {k: swap.get(v, v) if isinstance(v, str) else v for k, v in settings.items()}
        size = int(merged.get("batch-size", 0))
        if size and "batch-size" not in self.scale.settings:
            merged["batch-size"] = max(size // self.scale.batch_divisor, 1)
        if "learning-rate" in merged:
            merged["learning-rate"] = float(merged["learning-rate"]) * self.scale.rate_factor
        return merged

    def runs(self, name: str) -> bool:
        """Return whether the scale runs the cell ``name``."""
        return self.scale.only is None or is_among(name, self.scale.only)

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds of the chosen candidate's runs."""
        return self.scale.seeds or self.experiment.seeds

    def rounds(self, own: int | None = None) -> int:
        """Return the maximum number of rounds of a run."""
        return self.scale.rounds or own or self.experiment.rounds

    def options(self, own: Mapping[str, Sequence[Scalar]]) -> dict[str, Sequence[Scalar]]:
        """Return the values to try, without keys that the scale or ``overrides`` set."""
        given = {**self.scale.settings, **self.overrides}
        return {key: values for key, values in own.items() if key not in given}

    def rates(self, own: Mapping[str, Any]) -> RateGrid | None:
        """Return the grid of learning rates, overridden by the cell's ``own`` and the scale's values.

        None if the experiment has no search, or ``overrides`` set the rate.
        """
        if self.experiment.learning_rate_search is None or LEARNING_RATE in self.overrides:
            return None
        base = self.experiment.learning_rate_search.model_dump()
        merged = {**base, **own, **self.scale.learning_rate_search}
        return RateGrid.model_validate(merged)


def is_among(name: str, chosen: Sequence[str]) -> bool:
    """Return whether ``chosen`` has the cell's name or a part of it (its row, its column)."""
    return not {name, *parts_of(name)}.isdisjoint(chosen)


def parts_of(name: str) -> list[str]:
    """Split a cell's name into row and column, or set of lines and line."""
    return name.split(SEPARATOR)


def make_cells(experiment: Experiment, setup: Setup) -> Cells:
    """Return the cells of an experiment, by name.

    Raises
    ------
    ConfigError
        The scale's ``only`` names a cell that the experiment does not have.
    """
    cells = _all_cells(experiment, setup)
    for chosen in setup.scale.only or ():
        if not any(is_among(name, (chosen,)) for name in cells):
            parts = dict.fromkeys(part for name in cells for part in (name, *parts_of(name)))
            raise ConfigError(
                f"scales.{setup.scale_name}.only = {chosen!r}: {experiment.title!r} has no such "
                f"row, column or cell. One of: {'; '.join(parts)}."
            )
    return cells


def cells_without_data(
    experiment: Experiment, scale: ScaleName, overrides: Mapping[str, Scalar]
) -> Cells:
    """Return an experiment's cells with names of data sets in place of folders."""
    own = experiment.at(scale)
    return make_cells(experiment, Setup(experiment, scale, own, overrides, _cut_name))


def is_same_run(first: tuple[str, str], second: tuple[str, str], scale: ScaleName) -> bool:
    """Return whether cells of two experiments, (name, label), are the same runs at a scale."""
    cells = [
        _runs_without_data(experiment, scale).get(label) for experiment, label in (first, second)
    ]
    return first == second or (cells[0] is not None and cells[0] == cells[1])


@cache
def _runs_without_data(experiment: str, scale: ScaleName) -> Mapping[str, Cell | None]:
    """Return an experiment's cells without what does not change the numbers of a run."""
    cells = cells_without_data(all_experiments()[experiment], scale, {})
    return {
        label: cell and replace(cell, settings=without_records(cell.settings), seeds=())
        for label, cell in cells.items()
    }


def without_records(settings: Mapping[str, Scalar]) -> Mapping[str, Scalar]:
    """Return the settings of runs but for what does not change their numbers."""
    return {key: value for key, value in settings.items() if key != RECORD_UPDATES}


def _cut_name(dataset: str, cut: Cut | None) -> str:
    """Return a data set's name and cut as ``name:train:test``."""
    return f"{dataset}:{cut.train}:{cut.test}" if cut else dataset


def _all_cells(experiment: Experiment, setup: Setup) -> Cells:
    match experiment:
        case Table():
            return {
                cell_name(row, column): _table_cell(experiment, setup, row, column)
                for row in experiment.rows
                for column in experiment.columns
                if column.published_as in row.published
            }
        case Comparison():
            return {name: _algorithm_cell(experiment, setup, name) for name in compared(experiment)}
        case Figure():
            return {
                line_name(panel, line): _line_cell(experiment, setup, panel, line)
                for panel in experiment.panels
                for line in experiment.lines[panel.lines]
            }
        case Updates():
            return {line.label: _fixed(setup, line) for line in experiment.lines}
        case Claims():
            names = [
                name
                for claim in experiment.claims
                for own in (cells_of(claim), *repeats_of(claim).values())
                for name in own
            ]
            return _of_others(names, setup)
        case Sharpness():
            return _of_others(experiment.cells, setup)
        case Picture():
            return {}


def cell_name(row: TableRow, column: Column) -> str:
    """Return the name of a table's cell."""
    return f"{row.label}{SEPARATOR}{column.label}"


def compared(experiment: Comparison) -> list[str]:
    """Return the names of the compared algorithms."""
    algorithms = family_of("algorithm").components()
    return [name for name in algorithms if name not in experiment.leave_out]


def line_name(panel: Panel, line: Line) -> str:
    """Return the name of a line's cell; panels that differ only in what they draw share it."""
    own = ", ".join(f"{key}={value}" for key, value in sorted(panel.settings.items()))
    return SEPARATOR.join(part for part in (panel.lines, line.label, own) if part)


def _table_cell(experiment: Table, setup: Setup, row: TableRow, column: Column) -> Cell | None:
    if not setup.runs(cell_name(row, column)):
        return None
    own = {**experiment.settings, **row.settings, **column.settings}
    every = {
        "eval-every": max(
            int(own.get("eval-every", 1)), _rounds_between(experiment, setup, row, column)
        )
    }
    return Cell(
        settings=setup.settings(row.settings, column.settings, every),
        rounds=_most_rounds(experiment, setup, row, column),
        target=setup.scale.target or column.target or experiment.target,
        seeds=setup.seeds,
        rates=setup.rates({**column.learning_rate_search, **row.learning_rate_search}),
        options=setup.options(row.options),
    )


def _most_rounds(experiment: Table, setup: Setup, row: TableRow, column: Column) -> int:
    """Return the maximum number of rounds of a cell."""
    rounds = setup.rounds(row.rounds)
    allowed = experiment.allowed if setup.scale.allowed is None else setup.scale.allowed
    published = row.published[column.published_as]
    if allowed and not isinstance(published, str):
        return min(rounds, math.ceil(allowed * published))
    return rounds


def _rounds_between(experiment: Table, setup: Setup, row: TableRow, column: Column) -> int:
    """Return the rounds between two evaluations; columns that differ only in the target share runs."""
    sharing = [
        other
        for other in experiment.columns
        if other.settings == column.settings and other.published_as in row.published
    ]
    longest = max(_most_rounds(experiment, setup, row, other) for other in sharing)
    return max(longest // EVALUATIONS, 1)


def _algorithm_cell(experiment: Comparison, setup: Setup, name: str) -> Cell | None:
    own = experiment.algorithms.get(name)
    if not setup.runs(name):
        return None
    return Cell(
        settings=setup.settings(own.settings if own else {}, {"algorithm": name}),
        rounds=setup.rounds(),
        seeds=setup.seeds,
        rates=setup.rates({}),
        options=setup.options(own.options if own else {}),
        measure="accuracy",
        window=setup.scale.window or experiment.window,
    )


def _line_cell(experiment: Figure, setup: Setup, panel: Panel, line: Line) -> Cell | None:
    if not setup.runs(line_name(panel, line)):
        return None
    target = line.target if line.target is not None else experiment.target
    target = (setup.scale.target or target) if target else 0.0
    rounds = setup.rounds(line.rounds)
    tuned = min(experiment.tune_rounds or rounds, rounds)
    rates = setup.rates(line.learning_rate_search)
    return Cell(
        settings=setup.settings(line.settings, panel.settings),
        rounds=tuned if rates else rounds,
        target=target,
        seeds=setup.seeds,
        rates=rates,
        measure="rounds" if target else "accuracy",
        draw=rounds,
    )


def cells_of(claim: Claim) -> tuple[str, ...]:
    """Return the names of a claim's cells, as ``experiment: cell``.

    A row or column stands for all of its cells, except those in columns that repeat another one.

    Raises
    ------
    ConfigError
        There is no such experiment, or it has no such cell.
    """
    return tuple(name for name in claim.cells for name in _matching_cells(name, claim))


def repeats_of(claim: Claim) -> dict[str, tuple[str, ...]]:
    """Return the cells that repeat a claim's in a variant of their columns, by the variant."""
    repeats = [_repeats_of_cell(name) for name in cells_of(claim)]
    return {
        variant: tuple(own[variant] for own in repeats)
        for variant in repeats[0]
        if all(variant in own for own in repeats)
    }


@cache
def _repeats_of_cell(name: str) -> Mapping[str, str]:
    """Return the cells of a table that repeat one of its cells, by the variant."""
    experiment, _, label = name.partition(EXPERIMENT_SEPARATOR)
    own = all_experiments()[experiment]
    if not isinstance(own, Table):
        return {}
    row, column = parts_of(label)
    return {
        other.variant: f"{experiment}{EXPERIMENT_SEPARATOR}{row}{SEPARATOR}{other.label}"
        for other in own.columns
        if other.repeats == column
    }


def _matching_cells(cell: str, claim: Claim) -> list[str]:
    """Return the names of the cells that ``cell``, one of a claim's ``cells``, stands for."""
    name, _, label = cell.partition(EXPERIMENT_SEPARATOR)
    if name not in all_experiments():
        raise ConfigError(
            f"cells = {cell!r} of the claim {claim.text!r}: there is no experiment {name!r}. One of: "
            f"{', '.join(all_experiments())}."
        )
    labels = _labels(name)
    if label in labels:
        return [cell]
    repeated = _repeated_columns(name) - {label}
    matches = [
        each
        for each in labels
        if claim.takes_any and is_among(each, (label,)) and repeated.isdisjoint(parts_of(each))
    ]
    if not matches:
        parts = [*labels, *(part for each in labels for part in parts_of(each) if claim.takes_any)]
        raise ConfigError(
            f"cells = {cell!r} of the claim {claim.text!r}: {name!r} has no {label!r} that "
            f"measure = {claim.measure!r} takes. One of: {'; '.join(dict.fromkeys(parts))}."
        )
    return [f"{name}{EXPERIMENT_SEPARATOR}{each}" for each in matches]


@cache
def _labels(name: str) -> tuple[str, ...]:
    """Return the names of an experiment's cells, whether a scale runs them or not."""
    experiment = all_experiments()[name]
    setup = Setup(experiment, "full", Scale(only=()), {}, lambda dataset, cut: dataset)
    return tuple(make_cells(experiment, setup))


def _repeated_columns(name: str) -> set[str]:
    """Return the labels of the columns that repeat another one in a variant."""
    experiment = all_experiments()[name]
    columns = experiment.columns if isinstance(experiment, Table) else ()
    return {column.label for column in columns if column.repeats}


def _of_others(names: Iterable[str], setup: Setup) -> Cells:
    """Return cells of other experiments, named as ``experiment: cell``, at the same scale."""
    made: dict[str, Cells] = {}

    def cell(name: str) -> Cell | None:
        other, _, label = name.partition(EXPERIMENT_SEPARATOR)
        if other not in made:
            experiment = all_experiments()[other]
            scale = experiment.at(setup.scale_name)
            made[other] = make_cells(experiment, replace(setup, experiment=experiment, scale=scale))
        return made[other][label]

    return {name: cell(name) for name in names}


def _fixed(setup: Setup, line: Line) -> Cell | None:
    if not setup.runs(line.label):
        return None
    rounds = setup.rounds(line.rounds)
    return Cell(setup.settings(line.settings), rounds, seeds=setup.seeds)
