"""From an item and a scale to cells: the numbers and lines that runs are made for."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from fedapp.config.registry import FAMILIES
from fedapp.config.run_config import Scalar
from fedapp.errors import ConfigError
from fedapp.studies.papers.catalogue import Item, all_items
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
    Tuning,
    Updates,
)
from fedapp.studies.sweep.search import Cell, Rates

Cells = dict[str, Cell | None]
"""Cells by their name in the item; None where the scale does not run it."""
SEPARATOR = " | "
"""Between a row and a column in a cell's name."""
OF_ITEM = ": "
"""Between an item and its cell, where a claim names one."""
EVALUATIONS = 500
"""How often a table's run of 1,000 rounds and more is evaluated in all, roughly."""
CARRIED_OUT: Mapping[str, Scalar] = {"checkpoint-every": 50, "pictures": False, "threads": 1}
"""How the papers' runs are carried out, unless an item says otherwise."""


@dataclass(frozen=True)
class Maker:
    """Makes an item's cells at one scale."""

    item: Base
    scale_name: ScaleName
    scale: Scale
    overrides: Mapping[str, Scalar]
    """Settings over all others: how runs are carried out."""
    locate: Callable[[str, Cut | None], str]
    """From the name of a data set, and how much of it is used, to where it is."""

    def settings(self, *layers: Mapping[str, Scalar]) -> dict[str, Scalar]:
        """Return the item's settings with the layers, then the scale's, then the order's over them."""
        merged: dict[str, Scalar] = {**CARRIED_OUT, **self.item.settings}
        for layer in (*layers, self.scale.settings):
            merged |= layer
        merged = {**self._scaled(merged), **self.overrides}
        place = self.locate(str(merged.get("dataset", "digits")), self.scale.cut)
        return without_effect_removed({**merged, "dataset": place})

    def _scaled(self, settings: Mapping[str, Scalar]) -> dict[str, Scalar]:
        """Return the settings with the scale's factors and swaps."""
        swap = self.scale.swap
        merged = {k: swap.get(v, v) if isinstance(v, str) else v for k, v in settings.items()}
        size = int(merged.get("batch-size", 0))
        if size and "batch-size" not in self.scale.settings:
            merged["batch-size"] = max(size // self.scale.batch_divisor, 1)
        if "learning-rate" in merged:
            merged["learning-rate"] = float(merged["learning-rate"]) * self.scale.rate_factor
        return merged

    def runs(self, name: str) -> bool:
        """Return whether the cell ``name`` runs at this scale."""
        return self.scale.only is None or is_among(name, self.scale.only)

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds of every chosen run."""
        return self.scale.seeds or self.item.seeds

    def rounds(self, own: int | None = None) -> int:
        """Return how many rounds a run takes at most."""
        return self.scale.rounds or own or self.item.rounds

    def options(self, own: Mapping[str, Sequence[Scalar]]) -> dict[str, Sequence[Scalar]]:
        """Return the values to try of keys that neither the scale nor the order sets."""
        given = {**self.scale.settings, **self.overrides}
        return {key: values for key, values in own.items() if key not in given}

    def rates(self, own: Mapping[str, Any]) -> Rates | None:
        """Return the grid of rates, with the cell's own wishes and then the scale's over it.

        None where nothing is tuned, or the order sets the rate.
        """
        if self.item.tuning is None or Rates.key in self.overrides:
            return None
        base = self.item.tuning.model_dump(by_alias=True)
        return Rates(**Tuning.model_validate({**base, **own, **self.scale.tuning}).model_dump())


def without_effect_removed(settings: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Leave out the parameters of components that are not chosen.

    A scale may choose another data set, model or partition than the one that the item has set
    parameters for.
    """
    chosen = {settings.get(family.key) for family in FAMILIES}
    return {k: v for k, v in settings.items() if "." not in k or k.split(".")[0] in chosen}


def is_among(name: str, chosen: Sequence[str]) -> bool:
    """Return whether a cell is chosen, by its name or by a part of it (its row, its column)."""
    return not {name, *parts_of(name)}.isdisjoint(chosen)


def parts_of(name: str) -> list[str]:
    """Return the row and column that a cell's name is made of, or the lines and the line."""
    return name.split(SEPARATOR)


def make_cells(item: Item, maker: Maker) -> Cells:
    """Return the cells of an item, by name.

    Raises
    ------
    ConfigError
        The scale's ``only`` names what the item has not.
    """
    cells = _all_cells(item, maker)
    for chosen in maker.scale.only or ():
        if not any(is_among(name, (chosen,)) for name in cells):
            parts = dict.fromkeys(part for name in cells for part in (name, *parts_of(name)))
            raise ConfigError(
                f"scales.{maker.scale_name}.only = {chosen!r}: nothing of {item.title!r} is called so. "
                f"One of: {'; '.join(parts)}."
            )
    return cells


def cells_without_data(item: Item, scale: ScaleName, overrides: Mapping[str, Scalar]) -> Cells:
    """Return an item's cells, with names in the place of the folders that their data would be in."""
    own = item.at(scale)
    return make_cells(item, Maker(item, scale, own, overrides, _cut_name))


def _cut_name(dataset: str, cut: Cut | None) -> str:
    """Return a data set's name with what is cut of it, in place of a folder."""
    return f"{dataset}:{cut.train}:{cut.test}" if cut else dataset


def _all_cells(item: Item, maker: Maker) -> Cells:
    match item:
        case Table():
            return {
                cell_name(row, column): _table_cell(item, maker, row, column)
                for row in item.rows
                for column in item.columns
                if column.published_as in row.published
            }
        case Comparison():
            return {name: _contender(item, maker, name) for name in compared(item)}
        case Figure():
            return {
                line_name(panel, line): _line_cell(item, maker, panel, line)
                for panel in item.panels
                for line in item.lines[panel.lines]
            }
        case Updates():
            return {line.label: _fixed(maker, line) for line in item.lines}
        case Claims():
            names = [name for claim in item.claims for name in cells_of(claim)]
            return {name: _cell_of(name, maker) for name in names}
        case Sharpness():
            return {name: _cell_of(name, maker) for name in item.cells}
        case Picture():
            return {}


def cell_name(row: TableRow, column: Column) -> str:
    """Return the name of a table's cell."""
    return f"{row.label}{SEPARATOR}{column.label}"


def compared(item: Comparison) -> list[str]:
    """Return the algorithms that a comparison compares."""
    algorithms = next(family for family in FAMILIES if family.key == "algorithm").components()
    return [name for name in algorithms if name not in item.leave_out]


def line_name(panel: Panel, line: Line) -> str:
    """Return the name of a line's cell: panels that differ only in what they draw share it."""
    own = ", ".join(f"{key}={value}" for key, value in sorted(panel.settings.items()))
    return SEPARATOR.join(part for part in (panel.lines, line.label, own) if part)


def _table_cell(item: Table, maker: Maker, row: TableRow, column: Column) -> Cell | None:
    if not maker.runs(cell_name(row, column)):
        return None
    own = {**item.settings, **row.settings, **column.settings}
    every = {
        "eval-every": max(int(own.get("eval-every", 1)), _rounds_between(item, maker, row, column))
    }
    return Cell(
        settings=maker.settings(row.settings, column.settings, every),
        rounds=_most_rounds(item, maker, row, column),
        target=maker.scale.target or column.target or item.target,
        seeds=maker.seeds,
        rates=maker.rates({**column.tuning, **row.tuning}),
        options=maker.options(row.options),
    )


def _most_rounds(item: Table, maker: Maker, row: TableRow, column: Column) -> int:
    """Return how many rounds a cell may take."""
    rounds = maker.rounds(row.rounds)
    allowed = item.allowed if maker.scale.allowed is None else maker.scale.allowed
    published = row.published[column.published_as]
    if allowed and not isinstance(published, str):
        return min(rounds, math.ceil(allowed * published))
    return rounds


def _rounds_between(item: Table, maker: Maker, row: TableRow, column: Column) -> int:
    """Return the rounds between two evaluations; columns whose targets alone differ share runs."""
    sharing = [
        other
        for other in item.columns
        if other.settings == column.settings and other.published_as in row.published
    ]
    longest = max(_most_rounds(item, maker, row, other) for other in sharing)
    return max(longest // EVALUATIONS, 1)


def _contender(item: Comparison, maker: Maker, name: str) -> Cell | None:
    own = item.algorithms.get(name)
    if not maker.runs(name):
        return None
    return Cell(
        settings=maker.settings(own.settings if own else {}, {"algorithm": name}),
        rounds=maker.rounds(),
        seeds=maker.seeds,
        rates=maker.rates(own.tuning if own else {}),
        options=maker.options(own.options if own else {}),
        measure="accuracy",
        window=maker.scale.window or item.window,
    )


def _line_cell(item: Figure, maker: Maker, panel: Panel, line: Line) -> Cell | None:
    if not maker.runs(line_name(panel, line)):
        return None
    target = line.target if line.target is not None else item.target
    target = (maker.scale.target or target) if target else 0.0
    rounds = maker.rounds(line.rounds)
    tuned = min(item.tune_rounds or rounds, rounds)
    rates = maker.rates(line.tuning)
    return Cell(
        settings=maker.settings(line.settings, panel.settings),
        rounds=tuned if rates else rounds,
        target=target,
        seeds=maker.seeds,
        rates=rates,
        options=maker.options(line.options),
        measure="rounds" if target else "accuracy",
        window=maker.scale.window or item.window,
        draw=rounds,
    )


def cells_of(claim: Claim) -> tuple[str, ...]:
    """Return the names of a claim's cells, as ``item: cell``; a row or column is all of its cells.

    What a row has in columns that are run again in a variant is not among them.

    Raises
    ------
    ConfigError
        There is no such item, or nothing in it is called so.
    """
    return tuple(name for said in claim.cells for name in _meant(said, claim))


def _meant(said: str, claim: Claim) -> list[str]:
    """Return the names of the cells that a claim means by one of its ``cells``."""
    item_name, _, label = said.partition(OF_ITEM)
    if item_name not in all_items():
        raise ConfigError(
            f"cells = {said!r} of the claim {claim.says!r}: there is no item {item_name!r}. One of: "
            f"{', '.join(all_items())}."
        )
    labels = _labels(item_name)
    if label in labels:
        return [said]
    varied = _varied(item_name) - {label}
    found = [
        name
        for name in labels
        if claim.takes_any and is_among(name, (label,)) and varied.isdisjoint(parts_of(name))
    ]
    if not found:
        parts = [*labels, *(part for name in labels for part in parts_of(name) if claim.takes_any)]
        raise ConfigError(
            f"cells = {said!r} of the claim {claim.says!r}: nothing of {item_name!r} is called "
            f"{label!r} that measure = {claim.measure!r} takes. One of: "
            f"{'; '.join(dict.fromkeys(parts))}."
        )
    return [f"{item_name}{OF_ITEM}{name}" for name in found]


@cache
def _labels(item_name: str) -> tuple[str, ...]:
    """Return the names of an item's cells; that none of them runs is of no matter here."""
    item = all_items()[item_name]
    return tuple(make_cells(item, Maker(item, "full", Scale(only=()), {}, lambda name, cut: name)))


def _varied(item_name: str) -> set[str]:
    """Return the labels of the columns that run another one again."""
    item = all_items()[item_name]
    return {c.label for c in item.columns if c.again} if isinstance(item, Table) else set()


def _cell_of(name: str, maker: Maker) -> Cell | None:
    """Return the cell of another item, named as ``item: cell``, at the same scale."""
    item_name, _, label = name.partition(OF_ITEM)
    item = all_items()[item_name]
    scale = item.at(maker.scale_name)
    return make_cells(item, replace(maker, item=item, scale=scale))[label]


def _fixed(maker: Maker, line: Line) -> Cell | None:
    if not maker.runs(line.label):
        return None
    rounds = maker.rounds(line.rounds)
    return Cell(maker.settings(line.settings), rounds, seeds=maker.seeds)
