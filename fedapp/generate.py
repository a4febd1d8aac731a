"""Generated files: ``python -m fedapp.generate`` writes them, ``--check`` says whether they agree.

From RunConfig and the components: the table ``[tool.flwr.app.config]`` of ``pyproject.toml`` and
``docs/configuration.md``. From ``constraints.txt``: ``[tool.uv] constraint-dependencies``, since
the environments that Flower makes for an app with ``uv sync`` read no constraints file.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

from fedapp.config import RunConfig, defaults, kebab, option_fields
from fedapp.registry import FAMILIES

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "# --- generated: {} ---", "# --- end of generated: {} ---"
SECTIONS = {
    "num-server-rounds": "The federation",
    "local-epochs": "ClientUpdate",
    "algorithm": "The server",
    "dataset": "Data and model",
    "seed": "The run",
}


def config_table() -> str:
    """Return every run-config key with its default and, as a comment, its meaning."""
    lines = ["[tool.flwr.app.config]"]
    for key, value in defaults().items():
        field = _field(key)
        if key in SECTIONS:
            lines.append(f"# {SECTIONS[key]}")
        lines.append(f"{key} = {json.dumps(value)}  # {field}")
    return "\n".join(lines)


def _field(key: str) -> str:
    options = option_fields()
    info = options[key] if key in options else RunConfig.model_fields[key.replace("-", "_")]
    return str(info.description)


def uv_constraints() -> str:
    """Return the pins of ``constraints.txt`` as uv's setting."""
    pins = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line]
    rows = "".join(f'    "{pin}",\n' for pin in pins)
    return f"[tool.uv]\nconstraint-dependencies = [\n{rows}]"


def configuration_page() -> str:
    """Return the configuration reference as Markdown."""
    lines = [
        "# Configuration",
        "",
        "Every run-config key, as `fedapp run KEY=VALUE` and "
        "`flwr run . --run-config \"KEY=VALUE\"` take it (text in quotes for Flower: `model='2nn'`).",
        "This page is generated from `RunConfig` and the components; `fedapp keys` prints the same.",
    ]
    for name, info in RunConfig.model_fields.items():
        if name == "options":
            continue
        key = kebab(name)
        if key in SECTIONS:
            lines += [
                "",
                f"## {SECTIONS[key]}",
                "",
                "| key | default | meaning |",
                "| --- | --- | --- |",
            ]
        lines.append(f"| `{key}` | `{json.dumps(info.get_default())}` | {info.description} |")
    for family in FAMILIES:
        lines += [
            "",
            f"## `{family.key}`",
            "",
            "| value | what it is | parameters |",
            "| --- | --- | --- |",
        ]
        for name, component in family.components().items():
            parameters = "<br>".join(
                f"`{name}.{kebab(f)} = {json.dumps(i.get_default())}` {i.description}"
                for f, i in component.model_fields.items()
            )
            lines.append(f"| `{name}` | {component.title()} | {parameters or '—'} |")
    return "\n".join(lines) + "\n"


def _between(name: str, make: Callable[[], str]) -> Callable[[str], str]:
    """Return a function that puts ``make()`` between the markers of ``name`` in a text."""

    def put(text: str) -> str:
        begin, end = BEGIN.format(name), END.format(name)
        if begin not in text:
            text = f"{text.rstrip()}\n\n{begin}\n{end}\n"
        head, rest = text.split(begin)
        return f"{head}{begin}\n{make()}\n{end}{rest.split(end)[1]}"

    return put


def targets() -> dict[Path, list[Callable[[str], str]]]:
    """Return each generated file with the functions that bring its text up to date."""
    return {
        ROOT / "pyproject.toml": [
            _between("run-config keys", config_table),
            _between("pins of constraints.txt", uv_constraints),
        ],
        ROOT / "docs" / "configuration.md": [lambda _: configuration_page()],
    }


def main(arguments: list[str]) -> int:
    """Write the generated files, or with ``--check`` name those that are out of date."""
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
