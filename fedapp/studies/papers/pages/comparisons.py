"""The table of a comparison of algorithms."""

from __future__ import annotations

from fedapp.config.run_config import Scalar
from fedapp.studies.papers.pages.markdown import NOT_RUN, duration, number, percent, table
from fedapp.studies.papers.results import CellResult, Results
from fedapp.studies.papers.schema import Comparison


def comparison_section(item: Comparison, results: Results) -> str:
    """Return the algorithms, the best first, with what was found for each."""
    ran = sorted(results.cells.items(), key=lambda pair: -_final(pair[1]))
    head = (
        *("algorithm", "accuracy at the end", "seeds: min - max", "best of any round", "η"),
        *("further", "inside", "tried", "wall time of a run"),
    )
    rows = [_row(name, cell) for name, cell in ran]
    left_out = [[name, f"left out: {why}", *[""] * 7] for name, why in item.leave_out.items()]
    return table(head, [*rows, *left_out])


def _final(cell: CellResult) -> float:
    return cell.mean("final") if cell.runs else -1.0


def _row(name: str, cell: CellResult) -> list[str]:
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
