"""The allowed values of a run-config key, for the reference and the CLI."""

from __future__ import annotations

import json
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from fedapp.config.components import component_class, is_component, is_own
from fedapp.config.read import field_of
from fedapp.config.registry import FAMILIES, Component
from fedapp.errors import ComponentError

SIGNS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
TYPES: dict[Any, str] = {bool: "true or false", int: "whole number", float: "number"}


def allowed(key: str) -> str:
    """Return the allowed values of ``key``: components, choices, or a type with bounds."""
    for family in FAMILIES:
        if family.key == key and not family.several:
            others = ", a name on the hub, a folder" if key == "dataset" else ""
            return ", ".join([*family.automatic, *family.components()]) + others
    return allowed_of(field_of(key))


def allowed_of(field: FieldInfo) -> str:
    """Return the choices of a field, or its type with bounds."""
    return ", ".join(words_of(field)) or bounded_type(field)


def describe(value: str) -> list[tuple[type[Component], str]]:
    """Return the components that ``value`` names, each with a line about it.

    Raises
    ------
    ComponentError
        There is none.
    """
    described = []
    errors = []
    for family in FAMILIES:
        if is_component(family, value):
            try:
                component = component_class(family, value)
            except ComponentError as error:
                errors.append(str(error))
            else:
                code = component.own_code
                source = f" ({', '.join(code.files)}, SHA-256 {code.digest})" if code else ""
                line = f"{family.key} = {component.name!r}: {component.title()}{source}"
                described.append((component, line))
    if not described and any(is_own(family, value) for family in FAMILIES):
        raise ComponentError(errors[0])
    if not described:
        raise ComponentError(
            f"{value!r}: there is no component of this name. `fedapp keys` lists what keys allow."
        )
    return described


def words_of(info: FieldInfo) -> list[str]:
    """Return the choices of a field as TOML values; none if it is no choice."""
    if get_origin(info.annotation) is not Literal:
        return []
    return [json.dumps(choice) for choice in get_args(info.annotation)]


def bounded_type(info: FieldInfo) -> str:
    """Return the type of a field and its bounds."""
    bounds = bounds_of(info)
    between = " in " if "," in bounds else " "
    return f"{TYPES.get(info.annotation, 'text')}{between}{bounds}".strip()


def bounds_of(info: FieldInfo) -> str:
    """Return the bounds of a field: one as ``≥ 0``, two as ``[0, 1)``, none as an empty text."""
    bounds = {
        name: f"{getattr(bound, name):g}"
        for bound in info.metadata
        for name in SIGNS
        if getattr(bound, name, None) is not None
    }
    if len(bounds) < 2:
        return "".join(f"{SIGNS[name]} {value}" for name, value in bounds.items())
    lower = f"[{bounds['ge']}" if "ge" in bounds else f"({bounds['gt']}"
    upper = f"{bounds['le']}]" if "le" in bounds else f"{bounds['lt']})"
    return f"{lower}, {upper}"
