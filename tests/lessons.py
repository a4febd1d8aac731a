"""The lessons of docs/lessons: ``python -m tests.lessons [NAME ...]`` runs them and writes their outputs.

What a block of Python or shell prints stands in the block of text after it, without paths, hashes
and times. The first lesson is also a notebook, whose cells are written from the page.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import math
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import nbformat

from tests.printed import ROOT, Shell, pieces

LESSONS = ROOT / "docs" / "lessons"
NOTEBOOK = LESSONS / "sgd-to-fedavg.ipynb"
NUMBER = re.compile(r"[+-]?\d[\d,]*(?:\.\d+)?")
END = "--- end of a block"
LEFT_OUT = re.compile(r"[0-9a-f]{16}|/checkout|seconds a round|from Arrow format|^\s*$")
"""Lines that another machine or another time would print otherwise."""
ABSOLUTE, RELATIVE = 0.03, 0.05
"""How far a number may be from the printed one: rounding alone moves an accuracy by a few examples."""


def outputs(page: Path, shell: Shell | None) -> list[tuple[str, str, str]]:
    """Run the blocks of a page; return each one's code, what is printed of it, and what it says."""
    parts = [*pieces(page), ("", "")]
    rows = [
        (code, parts[i + 2][1] if parts[i + 2][0] == "text" else "")
        for i, (language, code) in enumerate(parts)
        if language in ("python", "bash")
    ]
    codes = [code for code, _ in rows]
    said = _in_bash(codes, shell) if shell else _in_python(codes)
    return [(*row, output) for row, output in zip(rows, said, strict=True)]


def _in_python(codes: list[str]) -> Iterator[str]:
    names: dict[str, Any] = {"__name__": "__main__"}
    for code in codes:
        with contextlib.redirect_stdout(io.StringIO()) as said:
            exec(code, names)
        yield said.getvalue()


def _in_bash(codes: list[str], shell: Shell) -> list[str]:
    """Run the blocks in one shell, so that they share a folder, variables and jobs."""
    return shell.run(f"echo {END}\n".join(codes)).split(f"{END}\n")


def disagreements(printed: str, said: str) -> list[str]:
    """Return the printed lines that the output does not have up to its numbers; near ones may swap."""
    missing, lines, timed = [], said.splitlines(), False
    for line in filter(str.strip, printed.splitlines()):
        timed = timed or line.split()[-1] == "seconds"
        alike = next((other for other in lines if _alike(line, other, timed)), None)
        if alike is None:
            missing.append(line)
        else:
            lines.remove(alike)
    return missing


def _alike(printed: str, said: str, timed: bool) -> bool:
    """Return whether two lines have the same words and near numbers; of times, only words count."""
    a, b = printed.split(), said.split()
    if len(a) != len(b):
        return False
    pairs = list(zip(a, b, strict=True))
    if timed and NUMBER.fullmatch(a[-1]):
        pairs.pop()
    return all(map(_near, *zip(*pairs, strict=True)))


def _near(a: str, b: str) -> bool:
    if NUMBER.sub("", a) != NUMBER.sub("", b):
        return False
    numbers = [[float(n.replace(",", "")) for n in NUMBER.findall(word)] for word in (a, b)]
    return len(numbers[0]) == len(numbers[1]) and all(
        math.isclose(x, y, abs_tol=ABSOLUTE, rel_tol=RELATIVE)
        for x, y in zip(*numbers, strict=True)
    )


def notebook(page: Path) -> Any:
    """Return a lesson in Python as a notebook, with what the page prints as its outputs."""
    cells: list[Any] = []
    for language, text in pieces(page):
        if language == "markdown" and text.strip():
            cells.append(nbformat.v4.new_markdown_cell(text.strip()))
        elif language == "python":
            cells.append(nbformat.v4.new_code_cell(text.rstrip("\n")))
        elif language == "text":
            cells[-1].outputs = [nbformat.v4.new_output("stream", name="stdout", text=text)]
    for number, cell in enumerate(cells):
        cell.id = f"cell-{number}"
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})


def shown(output: str) -> str:
    """Return the lines of an output that a page shows."""
    lines = (line.rstrip() for line in output.splitlines() if not LEFT_OUT.search(line))
    return "".join(f"{line}\n" for line in lines)


def write(page: Path, said: Mapping[str, str]) -> None:
    """Put what was said after each block into the page."""
    text = page.read_text()
    for code, output in said.items():
        before, found, after = text.partition(f"{code}```\n\n```text\n")
        if found:
            _, _, rest = after.partition("```\n")
            text = f"{before}{found}{shown(output)}```\n{rest}"
    page.write_text(text)


def main(arguments: list[str]) -> None:
    """Run the lessons, write their outputs, and the notebook."""
    pages = {page.stem: page for page in sorted(LESSONS.glob("*.md"))}
    parser = argparse.ArgumentParser(prog="python -m tests.lessons", description=main.__doc__)
    parser.add_argument("names", nargs="*")
    names = parser.parse_args(arguments).names or [*pages]
    if not {*names} <= {*pages}:
        parser.error(f"the lessons are {', '.join(pages)}")
    for page in map(pages.__getitem__, names):
        with tempfile.TemporaryDirectory() as folder:
            shell = Shell(Path(folder)) if "```bash" in page.read_text() else None
            try:
                said = {code: out for code, _, out in outputs(page, shell)}
            finally:
                if shell:
                    shell.stop()
        write(page, said)
        if page.with_suffix(".ipynb") == NOTEBOOK:
            nbformat.write(notebook(page), NOTEBOOK)


if __name__ == "__main__":
    main(sys.argv[1:])
