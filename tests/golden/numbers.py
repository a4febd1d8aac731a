"""The committed numbers of the pinned runs, and how they are compared."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.golden.driver import Run, execute, numbers
from tests.golden.runs import BY_NAME, LOOSE, SAME, VARIANTS

TABLE = Path(__file__).parent / "numbers.jsonl"
RELATIVE, LOOSELY = 1e-9, 1e-6
"""Differences that the order of additions makes (other BLAS, threads and instructions), and other
initial weights. In three to five rounds of float64 the former stay below 1e-12."""
NOTHING = 1e-12

_OF_VARIANT = {run.name: name for name, runs in VARIANTS.items() for run in runs}


def golden(name: str) -> str:
    """Return the run whose numbers a run must give: mostly its own."""
    same = SAME.get(name, name)
    same = _OF_VARIANT.get(same, same)
    return VARIANTS[same][0].name if same in VARIANTS else same


def found(run: Run, folder: Path) -> dict[str, Any]:
    """Carry out a run in float64, and what it begins with; return its numbers."""
    exact = replace(run, settings={**run.settings, "precision": "float64"})
    if run.after and not (folder / run.after).exists():
        found(BY_NAME[run.after], folder)
    return numbers(execute(exact, folder))


def read() -> dict[str, Any]:
    """Return the numbers by the name of their run."""
    lines = map(json.loads, TABLE.read_text().splitlines())
    return {line.pop("run"): line for line in lines}


def write_anew(wanted: Sequence[str], folder: Path) -> None:
    """Carry out the runs that are wanted, or all, and write their numbers, a run a line."""
    names = [name for name in BY_NAME if name == golden(name)]
    pinned = read() if wanted else {}
    for name in wanted or names:
        pinned[name] = found(BY_NAME[name], folder)
    lines = (json.dumps({"run": name, **pinned[name]}) for name in names if name in pinned)
    TABLE.write_text("\n".join(lines) + "\n")


def tolerance(name: str) -> float:
    """Return the relative difference that a run may have."""
    same = golden(name)
    return LOOSELY if {same, _OF_VARIANT.get(same)} & LOOSE else RELATIVE


def differences(
    pinned: Any, now: Any, relative: float = RELATIVE, where: str = "", scale: float = 0.0
) -> Iterator[str]:
    """Say where two runs' numbers differ by more than rounding; ``scale`` is that of a vector."""
    if isinstance(pinned, dict) and isinstance(now, dict):
        for key in [*pinned, *(key for key in now if key not in pinned)]:
            if key not in pinned or key not in now:
                yield f"{where}.{key}: only {'now' if key in now else 'before'}"
            else:
                norm = float(pinned["norm"]) if key == "projections" else scale
                yield from differences(pinned[key], now[key], relative, f"{where}.{key}", norm)
    elif isinstance(pinned, list) and isinstance(now, list) and len(pinned) == len(now):
        for index, (one, other) in enumerate(zip(pinned, now, strict=True)):
            yield from differences(one, other, relative, f"{where}[{index}]", scale)
    elif isinstance(pinned, float) and isinstance(now, float):
        if not _close(pinned, now, relative, scale):
            yield f"{where}: {now!r}, pinned is {pinned!r}"
    elif pinned != now or isinstance(pinned, bool) != isinstance(now, bool):
        yield f"{where}: {now!r}, pinned is {pinned!r}"


def _close(pinned: float, now: float, relative: float, scale: float) -> bool:
    if math.isnan(pinned) or math.isnan(now):
        return math.isnan(pinned) and math.isnan(now)
    return math.isclose(pinned, now, rel_tol=relative, abs_tol=max(NOTHING, relative * scale))
