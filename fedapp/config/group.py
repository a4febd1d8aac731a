"""ConfigGroup: keys of the run-config that belong together, and the checks between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self, cast

from pydantic import ConfigDict, Field, model_validator
from pydantic.fields import FieldInfo

from fedapp.config.components import choices, component_class, family_of, name_of, parameters
from fedapp.config.registry import Component, Family
from fedapp.config.settings import Scalar, Settings, kebab, no_effect
from fedapp.errors import ConfigError


@dataclass(frozen=True)
class Case:
    """A case in which keys have no effect: ``program: Annotated[str, UnusedIf(SEQUENTIAL)]``.

    ``because`` says why and what else to set, with values of fields in braces. ``holds`` returns whether
    the case applies to a configuration. A case that depends on the data or the algorithm has none, and is
    given to :meth:`ConfigGroup.unused`.
    """

    because: str
    holds: Callable[[Any], bool] = lambda _: False


class UnusedIf:
    """The cases in which a field has no effect, in the metadata of the field."""

    def __init__(self, *cases: Case) -> None:
        self.cases = cases


def cases_of(field: FieldInfo) -> tuple[Case, ...]:
    """Return the cases in which ``field`` has no effect."""
    return tuple(
        case for each in field.metadata if isinstance(each, UnusedIf) for case in each.cases
    )


class ConfigGroup(Settings):
    """Base of the groups. A function takes the group whose keys it reads, or the whole RunConfig."""

    model_config = ConfigDict(alias_generator=kebab, validate_by_name=True)

    title: ClassVar[str] = ""

    options: Mapping[str, Any] = Field(
        default_factory=dict,
        exclude=True,
        description="Parameters of components, as name.parameter.",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if errors := list(self.contradictions()):
            raise ValueError("\n".join(errors))
        return self

    def contradictions(self) -> Iterator[str]:
        """Yield an error for each key that others exclude, or leave without effect."""
        cases = [case for field in type(self).model_fields.values() for case in cases_of(field)]
        yield from self.unused(*(case for case in cases if case.holds(self)))

    def unused(self, *cases: Case) -> Iterator[str]:
        """Yield an error for each key that is set though it has no effect in one of ``cases``."""
        for name, field in type(self).model_fields.items():
            case = next((case for case in cases_of(field) if case in cases), None)
            value = getattr(self, name)
            if case is not None and value != field.default:
                yield no_effect(kebab(name), value, case.because.format_map(vars(self)))

    def refuse_unused(self, *cases: Case) -> None:
        """Raise ConfigError if a key is set though it has no effect in one of ``cases``."""
        if errors := list(self.unused(*cases)):
            raise ConfigError("\n".join(errors))

    def component(self, key: str) -> Component:
        """Return the component that ``key`` chooses, with this run's parameters."""
        return self._component(family_of(key), self._value(key))

    def components(self, key: str) -> list[Component]:
        """Return the components that ``key`` chooses: of most families one, or none."""
        family = family_of(key)
        return [self._component(family, value) for value in choices(family, self._value(key))]

    def _component(self, family: Family, value: str) -> Component:
        component = component_class(family, value)
        return component.model_validate(self.options_of(component))

    def options_of(self, component: type[Component]) -> dict[str, Scalar]:
        """Return the parameters of ``component`` among the options, by field."""
        keys = zip(component.model_fields, parameters(component), strict=True)
        return {field: self.options[key] for field, key in keys if key in self.options}

    def name_of(self, key: str) -> str:
        """Return the name of the component that ``key`` chooses; of other data, the folder's or hub's."""
        return name_of(family_of(key), self._value(key))

    def _value(self, key: str) -> str:
        return cast("str", getattr(self, key))


def keys_of(group: type[ConfigGroup]) -> tuple[str, ...]:
    """Return the keys of a group, or of the whole RunConfig."""
    return tuple(kebab(name) for name in group.model_fields if name != "options")
