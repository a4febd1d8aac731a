"""The call path of one round, drawn: which package calls which, in order.

``python -m benchmarks.round_picture`` traces a FedProx round in this process and prints its calls across
packages; ``--write`` draws them into ``docs/images/round.svg``. What repeats is drawn once.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Annotated
from xml.sax.saxutils import escape

import typer

from benchmarks.house import ROOT, is_ours, watch_round

PICTURE = ROOT / "docs" / "images" / "round.svg"
LANES = (
    ("runs", ("fedapp.runs",)),
    ("server app", ("fedapp.server",)),
    ("strategy", ("strategies.strategy",)),
    ("federation", ("fedapp.federation",)),
    ("engine", ("fedapp.engines",)),
    ("client app", ("fedapp.node",)),
    ("training", ("fedapp.training",)),
    ("algorithm", ("strategies",)),
    ("data, models", ("fedapp.data", "fedapp.models")),
)
"""The columns from left to right; a module is in the column of its longest prefix."""
HELPERS = (
    "fedapp.federation.arrays",
    "fedapp.federation.callback",
    "fedapp.training.tensors",
)
"""Modules of conversions, of arithmetic and of interfaces, which are not drawn."""
DETAILS = (
    *("algorithm_of", "busy", "get_node_ids", "grace_period", "inputs", "num_correct", "num_steps"),
    *("own_client", "sizes", "targets", "test", "updates"),
)
"""Functions that are not drawn: bounds, deadlines and look-ups beside the path."""


@dataclass(frozen=True)
class Call:
    """A call from one column to another; ``caller`` and ``callee`` are files."""

    caller: str
    caller_lane: str
    callee: str
    lane: str
    function: str

    @property
    def ends(self) -> tuple[str, str, str]:
        """What calls that share a row have in common."""
        return self.caller, self.caller_lane, self.lane


def lane_of(module: str, function: str) -> str:
    """Return the column of a function, or "" if it is not drawn.

    The base class of algorithms, in ``fedapp.training``, stands with the algorithms.
    """
    if module in HELPERS:
        return ""
    if module == "fedapp.training.algorithm" and function.startswith("Algorithm."):
        return "algorithm"
    found = [
        (len(prefix), lane)
        for lane, prefixes in LANES
        for prefix in prefixes
        if module == prefix or module.startswith(f"{prefix}.")
    ]
    return max(found, default=(0, ""))[1]


def name_of(frame: FrameType) -> str:
    """Return a function's name as it is drawn: that of a class method with its class."""
    code = frame.f_code
    parts = code.co_qualname.split(".")
    return ".".join(parts[-2:]) if code.co_varnames[:1] == ("cls",) else parts[-1]


def is_property(frame: FrameType) -> bool:
    """Return whether a frame executes a property."""
    *owners, name = frame.f_code.co_qualname.split(".")
    found: object = sys.modules[frame.f_globals["__name__"]]
    for owner in owners:
        found = inspect.getattr_static(found, owner, None)
    return isinstance(inspect.getattr_static(found, name, None), property)


def call_of(caller: FrameType, callee: FrameType) -> Call | None:
    """Return the call as it is drawn, or None if it is not."""
    (its_lane, its_file), (lane, file) = (
        (lane_of(module, frame.f_code.co_qualname), f"{module.rpartition('.')[2]}.py")
        for frame in (caller, callee)
        for module in [frame.f_globals["__name__"]]
    )
    name = name_of(callee)
    crosses = its_lane and lane and its_lane != lane
    if not crosses or name.startswith(("_", "<")) or name in DETAILS or is_property(callee):
        return None
    return Call(its_file, its_lane, file, lane, name)


def callers(frame: FrameType) -> list[FrameType]:
    """Return ``frame`` and the frames of ours that led to it, the nearest first."""
    found: list[FrameType] = []
    back: FrameType | None = frame
    while back is not None:
        if is_ours(back):
            found.append(back)
        back = back.f_back
    return found


def calls_of_a_round() -> list[Call]:
    """Return the calls of one round across columns, in order; each function once, by its first caller."""
    seen: set[tuple[str, str]] = set()
    found: list[Call] = []

    def note(frame: FrameType) -> None:
        stack = callers(frame)
        new = list(zip(stack[1:], stack, strict=False))
        for caller, callee in new[:1] if seen else reversed(new):
            name = (callee.f_globals["__name__"], callee.f_code.co_qualname)
            call = None if name in seen else call_of(caller, callee)
            seen.add(name)
            if call is not None:
                found.append(call)

    watch_round(note, algorithm="fedprox", trainer="sequential")
    return found


def rows(calls: Iterable[Call]) -> list[list[Call]]:
    """Return the calls, those together that a module makes in a row to the same column."""
    together: list[list[Call]] = []
    for call in calls:
        if together and together[-1][0].ends == call.ends:
            together[-1].append(call)
        else:
            together.append([call])
    return together


def lines_of(row: Sequence[Call]) -> list[tuple[str, bool]]:
    """Return the lines of a row's box, and which of them are modules: each above its functions."""
    functions: dict[str, list[str]] = {}
    for call in row:
        names = functions.setdefault(call.callee, [])
        names += [] if call.function in names else [call.function]
    groups: dict[tuple[str, ...], list[str]] = {}
    for module, names in functions.items():
        groups.setdefault(tuple(names), []).append(module)
    return [
        line
        for names, modules in groups.items()
        for line in (*((m, True) for m in modules), *((f"{name}()", False) for name in names))
    ]


LINE, GAP, PAD, TOP = 16, 14, 6, 44
"""Sizes in pixels: of a line, between rows, around text, of the columns' heads."""
ADVANCE, BOLD = 7.3, 8.4
"""Width of a letter, as a wide font has it: the picture does not depend on the fonts of this machine."""
STYLE = """<style>
text { font: 13px Helvetica, Arial, "Liberation Sans", sans-serif; fill: #222 }
.lane { font-weight: bold; font-size: 14px; text-anchor: middle }
.module { font-weight: bold }
.caller { fill: #555; font-size: 11px; text-anchor: middle }
.number { fill: #fff; font-size: 10px; text-anchor: middle }
.box { fill: #fff; stroke: #0072b2 }
.call { stroke: #0072b2; stroke-width: 1.3; fill: none; marker-end: url(#head) }
.life { stroke: #bbb; stroke-dasharray: 3 4 }
</style>
<defs><marker id="head" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8"
 orient="auto"><path d="M0 0 L8 4 L0 8 z" fill="#0072b2"/></marker></defs>"""


def width_of(lines: Iterable[tuple[str, bool]]) -> float:
    """Return the width of a box in pixels."""
    return max(len(text) * (BOLD if bold else ADVANCE) for text, bold in lines) + 2 * PAD


def columns(table: Sequence[Sequence[Call]]) -> dict[str, tuple[float, float]]:
    """Return each column's centre and width: as wide as its widest box or caller needs."""
    found, left = {}, 0.0
    for lane, _ in LANES:
        widths = [len(lane) * 8.0]
        widths += [width_of(lines_of(row)) for row in table if row[0].lane == lane]
        width = max(widths) + 2 * PAD
        found[lane] = (left + width / 2, width)
        left += width
    return found


def drawn_row(
    number: int, row: Sequence[Call], top: float, places: dict[str, tuple[float, float]]
) -> str:
    """Return one row: the caller with the call's number, the arrow, and the box that it calls."""
    lines = lines_of(row)
    (start, _), (centre, _) = places[row[0].caller_lane], places[row[0].lane]
    width, height = width_of(lines), len(lines) * LINE + PAD
    left, middle = centre - width / 2, top + height / 2
    side = 1 if start < centre else -1
    end = left if side > 0 else left + width
    parts = [
        f'<path class="call" d="M{start + 9 * side:.0f} {middle:.1f} H{end:.0f}"/>',
        f'<circle cx="{start:.0f}" cy="{middle:.1f}" r="9" fill="#0072b2"/>',
        f'<text class="number" x="{start:.0f}" y="{middle + 3.5:.1f}">{number}</text>',
        f'<text class="caller" x="{start:.0f}" y="{middle + 20:.1f}">{row[0].caller}</text>',
        f'<rect class="box" x="{left:.0f}" y="{top:.1f}" width="{width:.0f}" height="{height}" rx="4"/>',
    ]
    for index, (text, is_module) in enumerate(lines, start=1):
        kind = ' class="module"' if is_module else ""
        y = top + index * LINE - 1
        parts.append(f'<text{kind} x="{left + PAD:.0f}" y="{y:.1f}">{escape(text)}</text>')
    return "\n".join(parts)


def picture(calls: Iterable[Call]) -> str:
    """Return the calls as an SVG: a column a package, a row an arrow, from top to bottom."""
    table = rows(calls)
    places = columns(table)
    top, body = float(TOP), []
    for number, row in enumerate(table, start=1):
        body.append(drawn_row(number, row, top, places))
        top += len(lines_of(row)) * LINE + PAD + GAP
    width = sum(width for _, width in places.values())
    lanes = []
    for index, (lane, (centre, wide)) in enumerate(places.items()):
        fill = "#f2f5f8" if index % 2 else "#fff"
        lanes += [
            f'<rect x="{centre - wide / 2:.0f}" width="{wide:.0f}" height="{top:.0f}" fill="{fill}"/>',
            f'<text class="lane" x="{centre:.0f}" y="24">{lane}</text>',
            f'<path class="life" d="M{centre:.0f} 34 V{top:.0f}"/>',
        ]
    size = f'viewBox="0 0 {width:.0f} {top:.0f}" width="{width:.0f}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size}>'
    title = "<title>The calls of one round across packages, in order</title>"
    return "\n".join([head, title, STYLE, *lanes, *body, "</svg>", ""])


def main(
    write: Annotated[bool, typer.Option(help="Write docs/images/round.svg.")] = False,
) -> None:
    """Print the calls of one round across packages, and draw them."""
    calls = calls_of_a_round()
    for number, row in enumerate(rows(calls), start=1):
        for call in row:
            typer.echo(
                f"{number:>2} {call.caller_lane:<12} {call.caller:<16} -> "
                f"{call.lane:<12} {call.callee:<18} {call.function}"
            )
    if write:
        PICTURE.write_text(picture(calls))


if __name__ == "__main__":
    typer.run(main)
