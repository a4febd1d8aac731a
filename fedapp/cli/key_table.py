"""The run-config keys as the table ``[tool.flwr.app.config]`` of a ``pyproject.toml``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from pydantic.fields import FieldInfo

from fedapp.config.components import parameters
from fedapp.config.group import keys_of
from fedapp.config.read import defaults, field_of
from fedapp.config.registry import Component
from fedapp.config.run_config import GROUPS
from fedapp.config.settings import Scalar

SECTIONS = {keys_of(group)[0]: group.title for group in GROUPS}
"""The titles of the groups of keys, by the first key."""


def config_table(
    changes: Mapping[str, Scalar] | None = None, own: Iterable[type[Component]] = ()
) -> str:
    """Return every run-config key with its default and, as a comment, its meaning.

    ``changes``: values other than the defaults. ``own``: further components whose parameters follow.
    """
    lines = ["[tool.flwr.app.config]"]
    for key, value in {**defaults(), **(changes or {})}.items():
        if key in SECTIONS:
            lines.append(f"# {SECTIONS[key]}")
        lines.append(_line(key, value, field_of(key)))
    for component in own:
        lines += [_line(k, f.get_default(), f) for k, f in parameters(component).items()]
    return "\n".join(lines)


def _line(key: str, value: Scalar, field: FieldInfo) -> str:
    return f"{key} = {json.dumps(value)}  # {field.description}"
