"""What the architecture page and CONTRIBUTING.md say of the repository is true of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.house import ROOT, files, module_of
from benchmarks.round_picture import PICTURE, Call, calls_of_a_round, lines_of, picture, rows
from tests.test_imports import ORDER

PAGES = (ROOT / "docs" / "architecture.md", ROOT / "CONTRIBUTING.md")
PLACES = (ROOT, ROOT / "fedapp", ROOT / "strategies", ROOT / "fedapp" / "data" / "partition")
"""A path in backticks is one from here."""
NEW = ("slices.py", "narrow.py", "negative.py", "cycle.py", "flowers.py", "signs.py", "halfway.py")
"""Files that the recipes of CONTRIBUTING.md make."""


def paths_in(page: str) -> list[str]:
    """Return the paths in backticks outside code blocks: what ends in a slash or a file's ending."""
    prose = re.sub(r"```.*?```", "", page, flags=re.DOTALL)
    found = re.findall(r"`([\w./-]+(?:/|\.(?:py|md|toml|txt|yml|svg)))`", prose)
    return [path for path in found if not path.endswith(NEW)]


def exists(path: str) -> bool:
    """Return whether a path is one of the repository."""
    return any((place / path).exists() for place in PLACES)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_path_that_a_page_names_exists(page: Path) -> None:
    found = paths_in(page.read_text())
    assert len(found) >= 10
    assert [path for path in found if not exists(path)] == []


def test_the_packages_stand_in_the_order_of_imports() -> None:
    section = PAGES[0].read_text().partition("## Packages")[2].partition("\n## ")[0]
    table = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    listed = [
        {
            module_of(ROOT / path if (ROOT / path).exists() else ROOT / "fedapp" / path)
            for path in row
        }
        for row in (re.findall("`(.*?)`", cell) for cell in table)
    ]
    assert listed == [set(packages) for packages in ORDER]


@pytest.mark.slow
def test_the_picture_of_a_round_is_current() -> None:
    calls = calls_of_a_round()
    assert {call.callee for call in calls} <= {path.name for path in files()}
    assert 15 <= len(rows(calls)) <= 30
    assert PICTURE.read_text() == picture(calls), (
        "Draw it again: python -m benchmarks.round_picture --write"
    )


def test_a_box_names_each_module_and_function_once() -> None:
    calls = [
        Call("a.py", "strategy", module, "runs", function)
        for module, function in [("b.py", "f"), ("c.py", "f"), ("b.py", "f"), ("d.py", "g")]
    ]
    assert [text for text, _ in lines_of(calls)] == ["b.py", "c.py", "f()", "d.py", "g()"]
    assert rows([*calls, Call("z.py", "strategy", "b.py", "runs", "f")]) == [
        calls,
        [Call("z.py", "strategy", "b.py", "runs", "f")],
    ]
