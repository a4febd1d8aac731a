"""Tables and paragraphs in Markdown."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from itertools import compress

NOT_RUN = "not run"
WIDTH = 120
FENCED = re.compile(r"(^ *```.*?^ *```$|^ *\$\$$.*?^ *\$\$$)", re.MULTILINE | re.DOTALL)
INDENT = re.compile(r" *(?:(?:[-*:]|\d+\.) +)?")
KEPT = ("|", "#", "!", "<")
MARKS = re.compile(r" (?=[>|%]|(?:[-+*:=]|#+|\d+\.)(?: |$))")
"""Spaces after which a new line would begin an item, a heading, or the sign of a percentage."""


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
    """Return a Markdown table without the columns that no row fills; bars in cells are escaped."""
    filled = [any(column) for column in zip(*rows, strict=True)] or [True] * len(head)
    lines = [list(compress(line, filled)) for line in (head, ["---"] * len(head), *rows)]
    return "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines)


def span(low: str, high: str) -> str:
    """Return a range, or the number if its ends are shown alike."""
    return low if low == high else f"{low} - {high}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
