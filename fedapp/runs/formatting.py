"""Numbers as people read them."""

from __future__ import annotations

from collections.abc import Sequence

from fedapp.config.settings import Scalar


def number(value: float | None, digits: int = 3) -> str:
    """Format a number with significant digits, from 100,000,000 on by its exponent; "" for none, nan."""
    if value is None or value != value:
        return ""
    if 10 ** (digits - 1) <= abs(value) < 1e8:
        return f"{value:.0f}"
    return f"{value:.{digits}g}"


def rounds(value: float) -> str:
    """Format a number of rounds, with one decimal below 1,000."""
    return f"{value:.0f}" if value >= 1000 or value == int(value) else f"{value:.1f}"


def percent(value: float | None, digits: int = 2) -> str:
    """Format a fraction in percent."""
    return "" if value is None or value != value else f"{100 * value:.{digits}f} %"


def stated_percent(value: float) -> str:
    """Format a published fraction in percent, with the digits that it was published with."""
    return f"{100 * value:.6g} %"


def times(value: float | None) -> str:
    """Format a speed-up."""
    return "" if value is None else f"{value:.1f}×"


def duration(seconds: float) -> str:
    """Format a duration in seconds, minutes or hours."""
    if seconds < 120:
        return f"{seconds:.0f} s" if seconds >= 1 else "< 1 s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def size(bytes_: float) -> str:
    """Format a number of bytes."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if bytes_ >= scale:
            return f"{number(bytes_ / scale)} {unit}"
    return f"{bytes_:.0f} B"


def setting(value: Scalar | None) -> str:
    """Format a setting's value as in a run-config, without quotes; empty without one."""
    if value is None:
        return ""
    if isinstance(value, float):
        return str(value).removesuffix(".0")
    return str(value).lower() if isinstance(value, bool) else str(value)


def aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    """Return lines of cells as text, in columns; the last cell of a line may be of any length."""
    columns = max(map(len, lines), default=0)
    widths = [
        max((len(line[column]) for line in lines if column < len(line) - 1), default=0) + 2
        for column in range(columns)
    ]
    return [
        "".join(f"{cell:{width}}" for cell, width in zip(line, widths, strict=False)).rstrip()
        for line in lines
    ]
