"""Generated files: ``python -m fedapp.cli.generate`` writes them, ``--check`` compares them.

From RunConfig and the components: the table ``[tool.flwr.app.config]`` of ``pyproject.toml`` and
``docs/configuration.md``. From ``constraints.txt``: ``[tool.uv] constraint-dependencies``, since
the environments that Flower makes for an app with ``uv sync`` read no constraints file. From the
papers' experiments and the results that are there: the pages of ``docs/results``, and with
``--figures`` their pictures, of which those of partitions need the data sets.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

from pydantic.fields import FieldInfo

from fedapp.cli.key_table import config_table
from fedapp.config.group import keys_of
from fedapp.config.key_docs import bounded_type, words_of
from fedapp.config.read import field_of
from fedapp.config.registry import FAMILIES, Family
from fedapp.config.run_config import GROUPS, kebab
from fedapp.studies.papers.catalogue import all_experiments
from fedapp.studies.papers.options import data_folder
from fedapp.studies.papers.pages.index import index
from fedapp.studies.papers.pages.page import page_of
from fedapp.studies.papers.publish import redraw
from fedapp.studies.papers.stored import results_of
from fedapp.studies.sweep.table import read_records

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "results"
BEGIN, END = "# --- generated: {} ---", "# --- end of generated: {} ---"


def uv_constraints() -> str:
    """Return the pins of ``constraints.txt`` as uv's setting."""
    pins = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line]
    rows = "".join(f'    "{pin}",\n' for pin in pins)
    return f"[tool.uv]\nconstraint-dependencies = [\n{rows}]"


INTRODUCTION = """# Configuration

*Which settings are there, and what do they allow?* `fedapp run KEY=VALUE` and `flwr run . --run-config
"KEY=VALUE"` take every key here, or a TOML file of keys. Flower wants text in quotes: `--run-config
"model='2nn'"`; `fedapp run`, `sweep`, `partition` and `doctor` take such a text after `-c`.

`algorithm`, `model`, `dataset`, `partitioner`, `transform` and `sampler` also take
[code of your own](own-code.md); [`callbacks`](callbacks.md) are always your own.

`fedapp keys` prints this list, and `fedapp keys NAME` the parameters of one component. `fedapp` refuses a
wrong value or combination before anything starts; Flower starts the run, which then ends with the same
message, so ask `fedapp doctor KEY=VALUE ...` first.

Generated from `RunConfig` and the components: `make generate`.
"""

DESCRIBED = {"algorithm": "[Algorithms](algorithms.md) describes each."}
"""Families whose components have a page of their own."""


def configuration_page() -> str:
    """Return the configuration reference as Markdown."""
    lines = [INTRODUCTION.rstrip()]
    for group in GROUPS:
        rows = [_row(key, field_of(key)) for key in keys_of(group)]
        lines += ["", f"## {group.title}", "", *KEYS_HEADING, *rows]
    for family in FAMILIES:
        lines += _family_section(family) if family.components() else []
    return "\n".join(lines) + "\n"


KEYS_HEADING = ("| key | default | allowed | meaning |", "| --- | --- | --- | --- |")


def _family_section(family: Family) -> list[str]:
    components = family.components()
    titles = [f"| `{name}` | {_cell(each.title())} |" for name, each in components.items()]
    described = DESCRIBED.get(family.key)
    lines = ["", f"## Values of `{family.key}`", ""]
    lines += [described] if described else ["| value | what it is |", "| --- | --- |", *titles]
    keys: dict[tuple[str, ...], list[str]] = {}
    for name, component in components.items():
        for field, info in component.model_fields.items():
            keys.setdefault(_cells(info), []).append(f"`{name}.{kebab(field)}`")
    rows = [f"| {', '.join(alike)} | {' | '.join(cells)} |" for cells, alike in keys.items()]
    return [*lines, "", *KEYS_HEADING, *rows] if rows else lines


def _row(key: str, info: FieldInfo) -> str:
    return f"| `{key}` | {' | '.join(_cells(info))} |"


def _cells(info: FieldInfo) -> tuple[str, ...]:
    """Return a field's default, what it allows and what it means."""
    return (
        f"`{json.dumps(info.get_default())}`",
        _allowed(info),
        _cell(str(info.description)),
    )


def _cell(text: str) -> str:
    """Escape a text for a cell of a Markdown table."""
    return text.replace("|", "\\|")


def _allowed(info: FieldInfo) -> str:
    """Format the allowed values of a field for a Markdown table."""
    words = ", ".join(f"`{word}`" for word in words_of(info))
    return words or bounded_type(info).replace("true or false", "`true` or `false`")


def _between(name: str, make: Callable[[], str]) -> Callable[[str], str]:
    """Return a function that replaces the text between the markers of ``name`` by ``make()``."""

    def put(text: str) -> str:
        begin, end = BEGIN.format(name), END.format(name)
        if begin not in text:
            text = f"{text.rstrip()}\n\n{begin}\n{end}\n"
        head, rest = text.split(begin)
        return f"{head}{begin}\n{make()}\n{end}{rest.split(end)[1]}"

    return put


def targets() -> dict[Path, list[Callable[[str], str]]]:
    """Return the functions that update each generated file."""
    return {
        ROOT / "pyproject.toml": [
            _between("run-config keys", config_table),
            _between("pins of constraints.txt", uv_constraints),
        ],
        ROOT / "docs" / "configuration.md": [lambda _: configuration_page()],
        **{path: [_whole(text)] for path, text in result_pages(RESULTS).items()},
    }


def result_pages(folder: Path) -> dict[Path, str]:
    """Return the current pages of all results in ``folder``."""
    records = read_records(folder)
    pages = {folder / "index.md": index(folder, records)} if folder.is_dir() else {}
    for name in all_experiments():
        if any(results_of(folder, name, records)):
            pages[folder / name / "index.md"] = page_of(folder, name, records)
    return pages


def _whole(text: str) -> Callable[[str], str]:
    """Return a function that replaces a whole file by ``text``."""
    return lambda _: text


def main(arguments: list[str]) -> int:
    """Write the generated files, or with ``--check`` print those that are out of date."""
    if "--figures" in arguments:
        redraw(RESULTS, data_folder(None))
    stale = []
    for path, steps in targets().items():
        before = text = path.read_text() if path.exists() else ""
        for step in steps:
            text = step(text)
        if text != before:
            stale.append(path.relative_to(ROOT))
            if "--check" not in arguments:
                path.write_text(text)
    verb = "out of date, run `make generate`" if "--check" in arguments else "written"
    for path in stale:
        print(f"{path}: {verb}")
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
