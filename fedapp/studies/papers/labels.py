"""Labels of lines, cells and claims with the values that ran, where a scale changes them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from fedapp.config.settings import Scalar
from fedapp.studies.papers.catalogue import Experiment
from fedapp.studies.papers.cells import (
    EXPERIMENT_SEPARATOR,
    Cells,
    Setup,
    cells_without_data,
    make_cells,
    parts_of,
)
from fedapp.studies.papers.results import CellResult, Results
from fedapp.studies.papers.schema import Scale

KEYS: Mapping[str, str] = {
    "K": "num-clients",
    "E": "local-epochs",
    "B": "batch-size",
    "C": "fraction-train",
    "η": "learning-rate",
}
"""The papers' symbols in labels and their run-config keys; B = ∞ is batch-size 0."""
VALUE = re.compile(rf"\b({'|'.join(KEYS)}) = (∞|\d+(?:\.\d+)?)")


@dataclass(frozen=True)
class RunLabels:
    """Adapts labels, which state full-scale values, to the values that ran."""

    full: Cells
    ran: Cells

    @classmethod
    def of(cls, experiment: Experiment, results: Results) -> RunLabels:
        """Compare the full scale with that of the results, including ``--set`` of their command."""
        full = make_cells(
            experiment, Setup(experiment, "full", Scale(), {}, lambda name, cut: name)
        )
        return cls(full, cells_without_data(experiment, results.scale, results.overrides))

    def text(self, text: str, *names: str) -> str:
        """Return ``text`` with the values that the cells ``names`` ran with.

        A value that differs from full scale is followed by it: ``B = 1 (full scale: 5)``. Other
        text, and labels of cells that the scale does not run, are unchanged.
        """
        return VALUE.sub(lambda match: self._replaced(match, names), text)

    def values(self, cell: str) -> str:
        """Return the values in a cell's name as it ran; "" if they are those of full scale."""
        own = [
            part for part in parts_of(cell.partition(EXPERIMENT_SEPARATOR)[2]) if VALUE.search(part)
        ]
        text = [self.text(part, cell) for part in own]
        return "" if text == own else ", ".join(text)

    def planned(self, cell: str) -> int:
        """Return the number of rounds of a cell at full scale."""
        full = self.full.get(cell)
        return max(full.draw, full.rounds) if full else 0

    def line(self, label: str, name: str, cell: CellResult) -> str:
        """Return a line's label in a legend: the values that ran, and the seeds if some are left."""
        shown, seeds = self.text(label, name), self.seeds(name, cell)
        return f"{shown} ({seeds} seeds)" if " of " in seeds else shown

    def seeds(self, name: str, cell: CellResult) -> str:
        """Return the number of seeds of a cell, with those that the scale plans if they are more.

        Failed ones are named.
        """
        ran, failed, planned = len(cell.runs), len(cell.failed), self.ran.get(name)
        most = len(planned.seeds) if planned else 0
        seeds = f"{ran} of {most}" if ran < most and ran + failed else str(ran)
        return f"{seeds}, {failed} failed" if failed else seeds

    def length(self, results: Results) -> str:
        """Return what part of their rounds at full scale the lines have; "" if they have all."""
        parts = {
            (max(run.rounds for run in cell.runs), self.planned(name))
            for name, cell in results.cells.items()
            if cell.runs and not any(run.problem for run in cell.runs)
        }
        if all(ran >= planned for ran, planned in parts):
            return ""
        if len(parts) == 1:
            [(ran, planned)] = parts
            return f"{ran} of {planned} rounds"
        shares = sorted(min(100 * ran / planned, 100) for ran, planned in parts)
        return f"{shares[0]:.0f} to {shares[-1]:.0f} % of the rounds of full scale"

    def is_untuned(self, cell: str) -> bool:
        """Return whether a cell ran with one learning rate that full scale searches."""
        full, ran = self.full.get(cell), self.ran.get(cell)
        if full is None or ran is None or full.rates is None:
            return False
        return full.rates.width > 0 and (ran.rates is None or ran.rates.width == 0)

    def _replaced(self, match: re.Match[str], names: tuple[str, ...]) -> str:
        symbol, value = match.groups()
        key = KEYS[symbol]
        for name in names:
            full, ran = self.full.get(name), self.ran.get(name)
            if full is None or ran is None or _shown(full.settings.get(key), symbol) != value:
                continue
            own = _shown(ran.settings.get(key), symbol)
            if own and own != value:
                return f"{symbol} = {own} (full scale: {value})"
        return match[0]


def _shown(value: Scalar | None, symbol: str) -> str:
    """Format a setting as in labels; "" if it is not set."""
    if value is None:
        return ""
    return "∞" if symbol == "B" and value == 0 else f"{float(value):.6g}"
