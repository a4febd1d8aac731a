"""Components: algorithms, models, data sets, partitioners, transforms, samplers and callbacks, by name.

A component is one class in one file. Its ``name`` is the value of the run-config key that chooses
it (``partitioner = "dirichlet"``) and its fields are its parameters, set by the keys
``<name>.<parameter>`` (``dirichlet.alpha = 0.1``). A file in a family's package is known to
the configuration, the CLI, the docs and the tests without any other change. Components from elsewhere
are found by :mod:`fedapp.config.components`.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import inspect
import pkgutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import ValidationError

from fedapp.config.own_code import OwnCode
from fedapp.config.settings import Settings
from fedapp.errors import ConfigError, FedappError, one_line, reason_of

if TYPE_CHECKING:
    from fedapp.config.run_config import RunConfig


class Component(Settings):
    """Base of the classes that the run-config chooses by name; fields are parameters."""

    name: ClassVar[str] = ""

    own_code: ClassVar[OwnCode | None] = None
    """The source of a component that is not part of this package."""

    @classmethod
    def adopt(cls, other: type[Any], name: str) -> type[Self] | None:
        """Return a component called ``name`` that is made of another class; None if it cannot be."""
        return None

    @classmethod
    def title(cls) -> str:
        """Return the first line of the docstring, for tables and help texts."""
        return (cls.__doc__ or cls.name).strip().splitlines()[0]

    @classmethod
    def class_problems(cls) -> Iterable[str]:
        """Return what in a class of one's own does not go together, with what to do, for an error."""
        return ()

    def run_identity(self) -> dict[str, Any]:
        """Return the parameters as they identify a run, by field: a file by a digest of its content."""
        return self.model_dump()

    def config_errors(self, config: RunConfig) -> Iterable[str]:
        """Return a message for each other setting that this component excludes."""
        return ()


@dataclass(frozen=True)
class Family:
    """The components that one run-config key chooses from: those defined in one package."""

    key: str
    package: str
    """The package of those that fedapp has; empty: it has none."""
    base: str
    """The base class of its components, as ``module:Class``."""
    open: bool = False
    """Whether other values than the components' names are allowed (a hub name, a folder)."""
    automatic: tuple[str, ...] = ()
    """Names that leave the choice to the algorithm, as "auto"."""
    several: bool = False
    """Whether a value may name several components, separated by commas, or none."""

    @property
    def kind(self) -> str:
        """What one component is called."""
        return self.key.removesuffix("s") if self.several else self.key

    @property
    def entry_points(self) -> str:
        """The group of entry points by which installed packages add components."""
        return f"fedapp.{self.kind}s"

    def values(self, text: str) -> list[str]:
        """Return the values in a text, each of which names one component."""
        if not self.several:
            return [text]
        return list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))

    def base_class(self) -> type[Component]:
        """Return the base class of the family's components."""
        base: type[Component] = pkgutil.resolve_name(self.base)
        return base

    def components(self) -> Mapping[str, type[Component]]:
        """Return the family's component classes by name, in alphabetical order."""
        return _find_components(self.package) if self.package else {}


FAMILIES = (
    Family("algorithm", "strategies", "fedapp.training.algorithm:Algorithm"),
    Family("model", "fedapp.models", "fedapp.models.model:Model"),
    Family("dataset", "fedapp.data.embedded", "fedapp.data.embedded.embedded:Embedded", open=True),
    Family(
        "partitioner",
        "fedapp.data.partition",
        "fedapp.data.partition.partitioning:Partitioning",
    ),
    Family("transform", "fedapp.data.transforms", "fedapp.data.transforms.transform:Transform"),
    Family(
        "sampler",
        "fedapp.federation.samplers",
        "fedapp.federation.samplers.sampler:Sampler",
        automatic=("auto",),
    ),
    Family("callbacks", "", "fedapp.federation.callback:RunCallback", several=True),
)


def setting_of(component: Component | type[Component]) -> str:
    """Return the run-config key that chooses a component, with its name, as errors begin."""
    kind = component if isinstance(component, type) else type(component)
    key = next(family.key for family in FAMILIES if issubclass(kind, family.base_class()))
    return f"{key} = {component.name!r}"


@contextmanager
def calling(component: Component | type[Component], method: str) -> Iterator[None]:
    """Name the component and the line in what ``method`` of one of the user's own raises.

    Raises
    ------
    ConfigError
        It raises anything but an error that a user can fix.
    """
    try:
        yield
    except FedappError:
        raise
    except Exception as error:
        if component.own_code is None:
            raise
        reason = one_line(reason_of(error)).removesuffix(".")
        problem = _assignment(error) or f"raises {reason}. Correct its code."
        raise ConfigError(f"{setting_of(component)}: {method} {problem}") from error


def _assignment(error: Exception) -> str:
    """Return the problem of an attribute that is set, or ""."""
    details = error.errors() if isinstance(error, ValidationError) else []
    for name in (each["loc"][0] for each in details if each["type"] == "frozen_instance"):
        return (
            f"sets self.{name}, and a component does not change. Use a local variable; what an "
            "algorithm keeps is state, which apply returns, or finalize in ClientExtras."
        )
    return ""


@functools.cache
def source_digest(component: type[Component]) -> str:
    """Return a digest of the files that define a component and its bases in the family's package.

    For a component of one's own these are its files. It is cached, so it describes the code in this
    process also after a file has changed.
    """
    if component.own_code is not None:
        return component.own_code.digest[:16]
    package = component.__module__.rpartition(".")[0]
    modules = [each.__module__ for each in component.__mro__]
    modules_of_family = [
        name for name in dict.fromkeys(modules) if name.rpartition(".")[0] == package
    ]
    sources = [inspect.getsource(sys.modules[name]) for name in modules_of_family]
    return hashlib.sha256("\0".join(sources).encode()).hexdigest()[:16]


@functools.cache
def _find_components(package: str) -> Mapping[str, type[Component]]:
    components: dict[str, type[Component]] = {}
    for info in pkgutil.iter_modules(importlib.import_module(package).__path__):
        name = f"{package}.{info.name}"
        for value in _contents(name):
            if _is_component_of(value, name):
                if value.name in components:
                    raise ValueError(f"two components of {package} are named {value.name!r}")
                components[value.name] = value
    return MappingProxyType(dict(sorted(components.items())))


def _contents(module: str) -> Iterable[Any]:
    """Return what a module defines; nothing if it needs Flower and that is not installed."""
    try:
        return vars(importlib.import_module(module)).values()
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "flwr":
            raise
        return ()


def _is_component_of(value: Any, module: str) -> bool:
    return (
        isinstance(value, type)
        and issubclass(value, Component)
        and value.__module__ == module
        and bool(value.__dict__.get("name"))
    )
