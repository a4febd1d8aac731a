"""Numbers and tables as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

NOT_RUN = "not run"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table; bars in cells are escaped."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def number(value: float | None, digits: int = 3, missing: str = "") -> str:
    """Return a number with so many significant digits, without an exponent where it is readable."""
    if value is None or value != value:
        return missing
    if abs(value) >= 10 ** (digits - 1):
        return f"{value:.0f}"
    return f"{value:.{digits}g}"


def rounds(value: float) -> str:
    """Return a number of rounds: one decimal below a thousand."""
    return f"{value:.0f}" if value >= 1000 or value == int(value) else f"{value:.1f}"


def percent(value: float | None, digits: int = 2) -> str:
    """Return a share in percent."""
    return "" if value is None or value != value else f"{100 * value:.{digits}f} %"


def times(value: float | None) -> str:
    """Return a speed-up as the papers write it."""
    return "" if value is None else f"{value:.1f}×"


def duration(seconds: float) -> str:
    """Return a time in the unit that suits it."""
    if seconds < 120:
        return f"{seconds:.0f} s" if seconds >= 1 else "< 1 s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def size(bytes_: float) -> str:
    """Return a number of bytes in the unit that suits it."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if bytes_ >= scale:
            return f"{bytes_ / scale:.3g} {unit}"
    return f"{bytes_:.0f} B"
