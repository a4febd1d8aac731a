"""From the value of a run-config key to a component: one of this package, or of the user's own.

A value names a component of this package, an entry point (of an installed package, or of the app's
``pyproject.toml``), a file (``./signs.py``, ``./signs.py:Signs``) or a module (``package.module:Class``).
"""

from __future__ import annotations

import difflib
import functools
import importlib.metadata
import inspect
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from fedapp.config.app_folder import app_folder, entry_points_of, flower_folder
from fedapp.config.overrides import override_problems
from fedapp.config.own_code import OwnCode, import_file, import_module
from fedapp.config.registry import FAMILIES, Component, Family
from fedapp.config.settings import Scalar, kebab
from fedapp.errors import ComponentError, ConfigError
from fedapp.files import as_path

FILE = re.compile(r"(?P<path>.+\.py)(?::(?P<name>\w+))?")
MODULE = re.compile(r"(?P<module>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):(?P<name>[A-Za-z_]\w*)")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


def family_of(key: str) -> Family:
    """Return the family of components that a run-config key chooses from."""
    return next(family for family in FAMILIES if family.key == key)


def component_class(family: Family, value: str) -> type[Component]:
    """Return the component that ``value`` names.

    Raises
    ------
    ComponentError
        There is none, or its code cannot be used; the message names the key, the value and the fix.
    """
    ours = family.components().get(value)
    return ours if ours is not None else _own_component(family, value, app_folder())


def choices(family: Family, text: str) -> list[str]:
    """Return the values in ``text`` that name a component each: of most families one or none."""
    return [value for value in family.values(text) if is_component(family, value)]


def is_component(family: Family, value: str) -> bool:
    """Return whether ``value`` names a component, and no data set of a hub or folder, nor "auto"."""
    if value in family.automatic:
        return False
    return value in family.components() or not family.open or is_own(family, value)


def is_own(family: Family, value: str) -> bool:
    """Return whether ``value`` names code outside of this package."""
    # Unlike pathlib's, these answer for any text.
    if family.open and os.path.isdir(os.path.expanduser(value)):  # noqa: PTH111, PTH112
        return False
    return _is_reference(value) or value in entry_points(family, app_folder())


def _is_reference(value: str) -> bool:
    """Return whether ``value`` has the form of a file or of a module with a class."""
    return bool(FILE.fullmatch(value) or MODULE.fullmatch(value))


def name_of(family: Family, value: str) -> str:
    """Return the name of the component that ``value`` names, the prefix of its parameters' keys.

    A data set that is no component has its value.
    """
    if value in family.components() or not is_component(family, value):
        return value
    return component_class(family, value).name


def parameters(component: type[Component]) -> dict[str, Any]:
    """Return the field of each parameter of a component, by its key ``name.parameter``."""
    return {f"{component.name}.{kebab(name)}": f for name, f in component.model_fields.items()}


def refuse_shadowing(family: Family, value: str, folder: Path) -> None:
    """Refuse an entry point, of the app in ``folder`` or installed, with the name of a component of ours.

    Raises
    ------
    ComponentError
        There is one called ``value``.
    """
    reference = entry_points(family, folder).get(value)
    if value in family.components() and reference is not None:
        raise ComponentError(
            f"{family.key} = {value!r}: the entry point {value!r} = {reference!r} "
            f"({family.entry_points}) has the name of the {family.kind} {value!r} of fedapp. Give it "
            "another name, or uninstall its package."
        )


@functools.cache
def entry_points(family: Family, folder: Path) -> Mapping[str, str]:
    """Return the ``module:Class`` of a family's entry points, by name; those of the app come first."""
    installed = {each.name: each.value for each in _installed().select(group=family.entry_points)}
    return dict(sorted({**installed, **entry_points_of(folder, family.entry_points)}.items()))


@functools.cache
def _installed() -> Any:
    """Return all entry points of the installed packages: Python 3.11 has another type for them."""
    return importlib.metadata.entry_points()


@functools.cache
def _own_component(family: Family, value: str, folder: Path) -> type[Component]:
    reference = entry_points(family, folder).get(value)
    try:
        if reference is not None and not _is_reference(reference):
            raise ComponentError(
                f"its entry point is {value!r} = {reference!r}, which names no class. Write it as "
                f'{value} = "module:Class".'
            )
        module, code, name = _import(family, value if reference is None else reference, folder)
        expected = value if reference is not None else ""
        if name:
            component = _named_component(family, module, name, expected)
        else:
            component = _only_component(family, module, value)
        _check(family, component, expected)
    except ConfigError as error:
        raise ComponentError(f"{family.key} = {value!r}: {error}") from error
    component.own_code = code
    return component


def _import(family: Family, value: str, folder: Path) -> tuple[ModuleType, OwnCode, str]:
    """Return the module of a reference, its source, and the name of the class ("": the only one)."""
    if match := FILE.fullmatch(value):
        return (*import_file(_path(match["path"], folder), folder), match["name"] or "")
    if match := MODULE.fullmatch(value):
        return (*import_module(match["module"], folder), match["name"])
    names = [*family.automatic, *family.components(), *entry_points(family, folder)]
    similar = difflib.get_close_matches(value, names, n=1)
    if (folder / f"{value}.py").is_file():
        similar = [f"./{value}.py"]
    hint = f" Did you mean {similar[0]!r}?" if similar else ""
    known = f"One of: {', '.join(names)}." if names else "Name a file, as in './file.py'."
    raise ComponentError(f"there is no such {family.kind}. {known}{hint}")


def _path(text: str, folder: Path) -> Path:
    """Return the file of a reference; a process of Flower reads only files of the app."""
    path = (folder / as_path(text, text)).resolve()
    if flower_folder() is not None and not path.is_relative_to(folder):
        raise ComponentError(
            f"{path} is not in the app's folder {folder}, and an app that runs on a SuperLink or a "
            "SuperNode uses no other files. Put the file into the app's folder and name it from there, "
            f"as in './{path.name}'."
        )
    if not path.is_file():
        bundle = "with Flower, one that fab-include in the app's pyproject.toml names"
        how = bundle if flower_folder() is not None else f"from {folder} or as a full path"
        raise ComponentError(f"there is no such file ({path}). Name a .py file, {how}.")
    return path


def _named_component(family: Family, module: ModuleType, name: str, entry: str) -> type[Component]:
    """Return the class ``name`` of a module as a component; ``entry``: the entry point's name or ""."""
    base, named_class = family.base_class(), vars(module).get(name)
    if not isinstance(named_class, type):
        classes = ", ".join(_classes(module)) or "none"
        raise ComponentError(f"there is no class {name!r}. Name one of its classes: {classes}.")
    if issubclass(named_class, base):
        return named_class
    adopted = base.adopt(named_class, entry or _with_hyphens(name))
    if adopted is None:
        raise ComponentError(
            f"the class {name} is no {family.kind}. Derive it from {_dotted(family)}."
        )
    return adopted


def _only_component(family: Family, module: ModuleType, value: str) -> type[Component]:
    """Return the component of a file that has one of the family, or one class that can be adopted."""
    base, classes = family.base_class(), _classes(module).values()
    derived = [each for each in classes if issubclass(each, base)]
    candidates = [each for each in derived if each.__dict__.get("name")] or derived
    if not candidates:
        made = (base.adopt(each, _with_hyphens(each.__name__)) for each in classes)
        candidates = [each for each in made if each is not None]
    if not candidates:
        raise ComponentError(
            f"the file defines no {family.kind}. Derive a class from {_dotted(family)}"
            + (", or from torch.nn.Module." if family.key == "model" else ".")
        )
    if len(candidates) > 1:
        settings = " or ".join(f"{family.key}='{value}:{each.__name__}'" for each in candidates)
        raise ComponentError(f"the file defines several. Set {settings}.")
    return candidates[0]


def _dotted(family: Family) -> str:
    """Return the base class of a family, as a text names it."""
    return family.base.replace(":", ".")


def _classes(module: ModuleType) -> dict[str, type[Any]]:
    """Return the classes that a module defines itself, by name."""
    return {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, type) and value.__module__ == module.__name__
    }


def _with_hyphens(name: str) -> str:
    """Return a class's name as a component's: ``WideNet`` is ``wide-net``."""
    return kebab(re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).lower()).strip("-")


def _check(family: Family, component: type[Component], expected: str) -> None:
    """Refuse a component without a name of its own, with methods missing, or without defaults."""
    problem = next(_problems(family, component, expected), "")
    if problem:
        raise ComponentError(f"the class {component.__name__} {problem}")


def _problems(family: Family, component: type[Component], expected: str) -> Iterator[str]:
    name = component.name
    if not (isinstance(name, str) and NAME.fullmatch(name)):
        yield (
            f"has name = {name!r}, which must be a text of letters, digits, hyphens and underscores. "
            f'Give it a name: ClassVar[str] = "{_with_hyphens(component.__name__)}".'
        )
    if expected and name != expected:
        yield f"has name = {name!r}, and its entry point is {expected!r}. Give both the same name."
    for other in FAMILIES:
        if name in other.components():
            yield (
                f"has the name of the {other.kind} {name!r} of fedapp, so that keys like "
                f"{name}.parameter would mean both. Give it another name."
            )
    if inspect.isabstract(component):
        missing = ", ".join(sorted(component.__abstractmethods__))
        yield f"lacks the method {missing} of {_dotted(family)}. Define it."
    yield from override_problems(component, family.base_class())
    yield from component.class_problems()
    for key, field in parameters(component).items():
        if field.is_required() or not isinstance(field.get_default(), Scalar):
            yield (
                f"has the parameter {key}, whose default is no number, text, true or false. Give it "
                "one, as in Field(0.5, ...)."
            )
