"""The components of one's own that a run-config chooses, or whose parameters it has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from pydantic.fields import FieldInfo

from fedapp.config.app_folder import app_folder
from fedapp.config.components import (
    component_class,
    entry_points,
    is_component,
    parameters,
    refuse_shadowing,
)
from fedapp.config.registry import FAMILIES, Component, Family
from fedapp.config.run_config import RunConfig
from fedapp.errors import ComponentError


def chosen_values(values: Mapping[str, Any]) -> Iterator[tuple[Family, str]]:
    """Yield the families with the values that choose from them.

    Without those that are left to the algorithm, and those of a wrong type, which pydantic refuses.
    """
    for family in FAMILIES:
        default = RunConfig.model_fields[family.key].default
        value = values.get(family.key, default)
        if isinstance(value, str) and (value != default or default in family.components()):
            yield from ((family, each) for each in family.values(value))


class OwnComponents(NamedTuple):
    """The components of one's own that a run chooses, and others whose parameters it has, by name."""

    chosen: dict[str, type[Component]]
    declared: dict[str, type[Component]]
    problems: list[str]

    @property
    def fields(self) -> dict[str, FieldInfo]:
        """The parameters of all, by key."""
        every = (self.chosen | self.declared).values()
        return {key: field for each in every for key, field in parameters(each).items()}


def own_components(values: Mapping[str, Any]) -> OwnComponents:
    """Return the components of one's own; a value that chooses no component at all is a problem."""
    own, folder = OwnComponents({}, {}, []), app_folder()
    for family, value in chosen_values(values):
        try:
            refuse_shadowing(family, value, folder)
            if value not in family.components() and is_component(family, value):
                component = component_class(family, value)
                if own.chosen.setdefault(component.name, component) is not component:
                    own.problems.append(_two_of_a_name(family, value, component.name))
        except ComponentError as error:
            own.problems.append(str(error))
    prefixes = {key.partition(".")[0] for key in values if "." in key}
    for family in FAMILIES if not own.problems else ():
        names = prefixes.intersection(entry_points(family, folder))
        for name in sorted(names.difference(own.chosen)):
            try:
                own.declared[name] = component_class(family, name)
            except ComponentError as error:
                own.problems.append(str(error))
    return own


def _two_of_a_name(family: Family, value: str, name: str) -> str:
    return (
        f"{family.key} = {value!r}: its name {name!r} is that of another component of this run, so that "
        f"keys like {name}.parameter would mean both. Give one of the classes another name."
    )
