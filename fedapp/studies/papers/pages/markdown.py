"""Formatting of numbers and tables."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence

NOT_RUN = "not run"
WIDTH = 120
FENCED = re.compile(r"(^ *```.*?^ *```$|^ *\$\$$.*?^ *\$\$$)", re.MULTILINE | re.DOTALL)
INDENT = re.compile(r" *(?:(?:[-*:]|\d+\.) +)?")
KEPT = ("|", "#", "!", "<")
MARKS = re.compile(r" (?=[>|]|(?:[-+*:=]|#+|\d+\.)(?: |$))")
"""Spaces after which a new line would begin an item or a heading."""


def wrapped(text: str) -> str:
    """Wrap paragraphs and items of Markdown that have a line above ``WIDTH``; tables and code stay."""
    parts = FENCED.split(text)
    parts[::2] = ["\n\n".join(map(_wrapped_block, part.split("\n\n"))) for part in parts[::2]]
    return "".join(parts)


def _wrapped_block(block: str) -> str:
    paragraphs: list[list[str]] = []
    for line in block.split("\n"):
        if not paragraphs or not line or line.startswith(KEPT) or _mark(line).strip():
            paragraphs.append([])
        paragraphs[-1].append(line)
    return "\n".join(_wrapped_lines(lines) for lines in paragraphs)


def _wrapped_lines(lines: Sequence[str]) -> str:
    if max(map(len, lines)) <= WIDTH or lines[0].startswith(KEPT):
        return "\n".join(lines)
    text = " ".join([lines[0], *(line.strip() for line in lines[1:])])
    mark = _mark(text)
    broken = textwrap.wrap(
        MARKS.sub("\0", text[len(mark) :]),
        WIDTH,
        initial_indent=mark,
        subsequent_indent=" " * len(mark),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(broken).replace("\0", " ")


def _mark(line: str) -> str:
    """Return what a line is indented by, with the mark of an item of a list."""
    indent = INDENT.match(line)
    return indent[0] if indent else ""


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table; bars in cells are escaped."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def number(value: float | None, digits: int = 3, missing: str = "") -> str:
    """Format a number with significant digits, without an exponent for large numbers."""
    if value is None or value != value:
        return missing
    if abs(value) >= 10 ** (digits - 1):
        return f"{value:.0f}"
    return f"{value:.{digits}g}"


def rounds(value: float) -> str:
    """Format a number of rounds, with one decimal below 1,000."""
    return f"{value:.0f}" if value >= 1000 or value == int(value) else f"{value:.1f}"


def percent(value: float | None, digits: int = 2) -> str:
    """Format a fraction in percent."""
    return "" if value is None or value != value else f"{100 * value:.{digits}f} %"


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
            return f"{bytes_ / scale:.3g} {unit}"
    return f"{bytes_:.0f} B"
