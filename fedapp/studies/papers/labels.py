"""Names of lines, cells and claims with the values that ran, where a scale changes them."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from fedapp.config.read import parse_settings
from fedapp.config.run_config import Scalar
from fedapp.studies.papers.catalogue import Item
from fedapp.studies.papers.cells import (
    OF_ITEM,
    Cells,
    Maker,
    cells_without_data,
    make_cells,
    parts_of,
)
from fedapp.studies.papers.results import Results
from fedapp.studies.papers.schema import Scale

KEYS: Mapping[str, str] = {
    "K": "num-clients",
    "E": "local-epochs",
    "B": "batch-size",
    "C": "fraction-train",
    "η": "learning-rate",
}
"""The papers' symbols that stand in names, and the keys of their values; B = ∞ is batch-size 0."""
VALUE = re.compile(rf"\b({'|'.join(KEYS)}) = (∞|\d+(?:\.\d+)?)")


@dataclass(frozen=True)
class AsRun:
    """An item's cells at full scale and as they ran: what names of them are to say."""

    full: Cells
    ran: Cells

    @classmethod
    def of(cls, item: Item, results: Results) -> AsRun:
        """Return the cells of results, with what their command set over the scale's settings."""
        words = shlex.split(results.command)
        chosen = [word for flag, word in itertools.pairwise(words) if flag == "--set"]
        full = make_cells(item, Maker(item, "full", Scale(), {}, lambda name, cut: name))
        return cls(full, cells_without_data(item, results.scale, parse_settings(chosen)))

    def said(self, text: str, *names: str) -> str:
        """Return the text with the values that the cells called ``names`` ran with.

        A value that is theirs at full scale, but not as they ran, has that beside it: ``B = 1 (full
        scale: 5)``. All else stays as it is, also where the scale leaves the cells out.
        """
        return VALUE.sub(lambda found: self._value(found, names), text)

    def values(self, cell: str) -> str:
        """Return the values that a cell's name says, as it ran; "" where they are those of full scale."""
        own = [part for part in parts_of(cell.partition(OF_ITEM)[2]) if VALUE.search(part)]
        said = [self.said(part, cell) for part in own]
        return "" if said == own else ", ".join(said)

    def planned(self, cell: str) -> int:
        """Return how many rounds a cell has at full scale, where it is drawn to its end."""
        full = self.full.get(cell)
        return max(full.draw, full.rounds) if full else 0

    def is_untuned(self, cell: str) -> bool:
        """Return whether one rate ran alone where at full scale the best of several is looked for."""
        full, ran = self.full.get(cell), self.ran.get(cell)
        if full is None or ran is None or full.rates is None:
            return False
        return full.rates.width > 0 and (ran.rates is None or ran.rates.width == 0)

    def _value(self, found: re.Match[str], names: tuple[str, ...]) -> str:
        symbol, value = found.groups()
        key = KEYS[symbol]
        for name in names:
            full, ran = self.full.get(name), self.ran.get(name)
            if full is None or ran is None or _shown(full.settings.get(key), symbol) != value:
                continue
            own = _shown(ran.settings.get(key), symbol)
            if own and own != value:
                return f"{symbol} = {own} (full scale: {value})"
        return found[0]


def _shown(value: Scalar | None, symbol: str) -> str:
    """Return a setting as the names have it; "" where it is not set."""
    if value is None:
        return ""
    return "∞" if symbol == "B" and value == 0 else f"{float(value):.6g}"
