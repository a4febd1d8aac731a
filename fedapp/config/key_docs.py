"""The allowed values of a run-config key, for the reference and the CLI."""

from __future__ import annotations

import json
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from fedapp.config.read import field_of
from fedapp.config.registry import FAMILIES

BOUNDS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
TYPES: dict[Any, str] = {bool: "true or false", int: "whole number", float: "number"}


def allowed(key: str) -> str:
    """Return the allowed values of ``key``: components, choices, or a type with bounds."""
    for family in FAMILIES:
        if family.key == key:
            others = ", a name on the hub, a folder" if key == "dataset" else ""
            return ", ".join(family.components()) + others
    return ", ".join(words_of(field_of(key))) or bounded_type(field_of(key))


def words_of(info: FieldInfo) -> list[str]:
    """Return the choices of a field as TOML values; none if it is no choice."""
    if get_origin(info.annotation) is not Literal:
        return []
    return [json.dumps(choice) for choice in get_args(info.annotation)]


def bounded_type(info: FieldInfo) -> str:
    """Return the type of a field and its bounds."""
    bounds = " and ".join(
        f"{sign} {getattr(bound, name):g}"
        for bound in info.metadata
        for name, sign in BOUNDS.items()
        if getattr(bound, name, None) is not None
    )
    return f"{TYPES.get(info.annotation, 'text')} {bounds}".strip()
