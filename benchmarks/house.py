"""How large the code is, and what a reader has to go through to follow one round.

``python -m benchmarks.house`` prints one table; run it at two commits to compare them. Lines are code
lines: without blanks, comments and docstrings.
"""

from __future__ import annotations

import ast
import io
import sys
import tempfile
import tokenize
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import typer

ROOT = Path(__file__).parents[1]
PACKAGES = ("fedapp", "strategies")
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
RATE = ("learning_rate", "learning-rate", "rate")
QUIET = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
ROUND: dict[str, Any] = {
    "num-server-rounds": 4,
    "num-clients": 10,
    "2nn.hidden": 16,
    "device": "cpu",
    "pictures": False,
    "local-epochs": 1,
}
"""A small run, of which the third round is traced: the first ones build what later ones keep."""


def files() -> list[Path]:
    """Return the Python files of the packages."""
    return sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def module_of(path: Path) -> str:
    """Return the dotted name of a file's module."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def docstrings(tree: ast.Module) -> set[int]:
    """Return the numbers of the lines that are docstrings, of modules, classes, functions and fields."""
    return {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | Definition)
        for each in node.body
        if isinstance(each, ast.Expr)
        and isinstance(each.value, ast.Constant)
        and isinstance(each.value.value, str)
        for line in range(each.lineno, (each.end_lineno or each.lineno) + 1)
    }


def code_lines(text: str) -> set[int]:
    """Return the numbers of the lines that hold code."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    lines = {
        line
        for token in tokens
        if token.type not in QUIET and token.string.strip()
        for line in range(token.start[0], token.end[0] + 1)
    }
    return lines - docstrings(ast.parse(text))


def single_references(texts: dict[str, str]) -> int:
    """Return how many functions and classes are named once in the packages beside where they stand."""
    defined: Counter[str] = Counter()
    used: Counter[str] = Counter()
    for text in texts.values():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, Definition):
                defined[node.name] += 1
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        used.update(token.string for token in tokens if token.type == tokenize.NAME)
    return sum(1 for name, times in defined.items() if times == 1 and used[name] - times == 1)


def imports(text: str) -> Iterator[str]:
    """Yield the modules that a file imports, also inside functions, but not for annotations alone."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            node.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            yield from (f"{base}.{alias.name}" for alias in node.names)
            yield base


def circles(texts: dict[str, str]) -> list[list[str]]:
    """Return the groups of modules that import each other in a circle."""
    direct = {
        module: {n for n in imports(text) if n in texts and n != module}
        for module, text in texts.items()
    }
    reached = {module: set(found) for module, found in direct.items()}
    for through in texts:  # Warshall's closure
        for found in reached.values():
            if through in found:
                found |= reached[through]
    groups = {
        tuple(sorted(other for other in reached[module] if module in reached[other]))
        for module in texts
        if module in reached[module]
    }
    return sorted(map(list, groups))


def carriers(texts: dict[str, str]) -> list[str]:
    """Return where the learning rate is held: fields of classes, and keys of mappings by module."""
    found = set()
    for module, text in texts.items():
        if "studies" in module:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef):
                names = [
                    n.target.id
                    for n in node.body
                    if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)
                ]
                found |= {f"{node.name}.{name}" for name in names if name == "learning_rate"}
            keys = [key for key in node.keys if key] if isinstance(node, ast.Dict) else []
            if isinstance(node, ast.Subscript):
                keys.append(node.slice)
            values = [key.value for key in keys if isinstance(key, ast.Constant)]
            found |= {f"{module}[{value!r}]" for value in values if value in RATE}
    return sorted(found)


def watch_round(note: Callable[[FrameType], None], **settings: Any) -> None:
    """Give ``note`` the frame of each call to a function of ours in the third round of a small run."""
    from fedapp.client_app import app as client_app
    from fedapp.config.read import read_config
    from fedapp.engines.in_process import InlineGrid
    from fedapp.server import run
    from strategies.strategy import FederatedStrategy

    parts = {"_round": 2, "_give_to_callbacks": 3}  # and the number of rounds done before each
    whole = {name: getattr(FederatedStrategy, name) for name in parts}

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and is_ours(frame):
            note(frame)

    def watched(name: str) -> Callable[..., Any]:
        def call(self: FederatedStrategy, *args: Any) -> Any:
            sys.setprofile(profile if self.state.round == parts[name] else None)
            try:
                return whole[name](self, *args)
            finally:
                sys.setprofile(None)

        return call

    with tempfile.TemporaryDirectory() as folder:
        values = {**ROUND, **settings, "run-dir": f"{folder}/run"}
        for name in parts:
            setattr(FederatedStrategy, name, watched(name))
        try:
            run(InlineGrid(client_app, values, [{}]), read_config(values))
        finally:
            for name, method in whole.items():
                setattr(FederatedStrategy, name, method)


def is_ours(frame: FrameType) -> bool:
    """Return whether a frame executes code of the packages."""
    return frame.f_code.co_filename.startswith(tuple(str(ROOT / p) for p in PACKAGES))


def traced(**settings: Any) -> tuple[set[str], set[str]]:
    """Return the files and functions of ours that the third round of a small run executes."""
    executed: set[tuple[str, str]] = set()

    def note(frame: FrameType) -> None:
        executed.add((frame.f_code.co_filename, frame.f_code.co_qualname))

    watch_round(note, **settings)
    functions = {f"{path}:{name}" for path, name in executed if "<" not in name.split(".")[-1]}
    return {path for path, _ in executed}, functions


def table() -> dict[str, object]:
    """Return what is measured, by its name."""
    texts = {module_of(path): path.read_text() for path in files()}
    lengths = {module: len(code_lines(text)) for module, text in texts.items()}
    functions = [
        node
        for text in texts.values()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    flat = [path for path in (ROOT / "fedapp").glob("*.py") if path.stem != "__init__"]
    sequential, batched = traced(trainer="sequential"), traced(trainer="batched")
    once = [*sequential[0]]
    modules = [module_of(Path(path)) for path in once]
    return {
        "code lines": sum(lengths.values()),
        "files": len(texts),
        "files above 350 lines (all lines)": sum(t.count("\n") > 350 for t in texts.values()),
        "functions": len(functions),
        "functions and classes with a single reference": single_references(texts),
        "modules flat in fedapp/": len(flat),
        "circles of imports": len(circles(texts)),
        "carriers of the learning rate": len(carriers(texts)),
        "files of a round": len(sequential[0]),
        "code lines of these files": sum(lengths[module] for module in modules),
        "functions of a round": len(sequential[1]),
        "files of a round, batched": len(batched[0]),
        "functions of a round, batched": len(batched[1]),
    }


def main() -> None:
    """Print the table, and what the circles and the carriers are."""
    for name, value in table().items():
        typer.echo(f"{name:<50} {value}")
    texts = {module_of(path): path.read_text() for path in files()}
    typer.echo(f"carriers: {', '.join(carriers(texts))}")
    for circle in circles(texts):
        typer.echo(f"circle: {', '.join(circle)}")


if __name__ == "__main__":
    typer.run(main)
