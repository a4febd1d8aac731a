"""From flat settings to a RunConfig, and from command lines and TOML files to settings."""

from __future__ import annotations

import difflib
import functools
import re
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from fedapp.config.app_folder import app_folder
from fedapp.config.components import entry_points, family_of, name_of, parameters
from fedapp.config.data import EMBEDDED
from fedapp.config.group import keys_of
from fedapp.config.own_components import OwnComponents, chosen_values, own_components
from fedapp.config.registry import FAMILIES, Component, Family, calling, setting_of
from fedapp.config.run_config import RunConfig
from fedapp.config.settings import Scalar, kebab, no_effect, shown, snake
from fedapp.config.training import ALGORITHM_DEFAULTS, OWN_UPDATE
from fedapp.errors import ConfigError, one_line

if TYPE_CHECKING:
    from fedapp.training.algorithm import Algorithm

QUOTED = r"""'[^']*'|"[^"]*\""""
SETTING = re.compile(rf"[^\s=]+=(?:{QUOTED}|\[(?:{QUOTED}|[^\]])*\])(?!\S)|\S+")
TYPES = {
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "string_type": "must be a text",
}
"""What is allowed, by pydantic's name of a type's error."""

SHARE = re.compile(r"\b(share|fraction|accuracy)\b", re.IGNORECASE)
"""What a key or its meaning says of a number that may be thought of in percent."""

Items = tuple[tuple[str, Scalar, type], ...]
"""A run-config as a cache key; with types, since 1, 1.0 and True are equal."""


def items_of(values: Mapping[str, Scalar]) -> Items:
    """Return a run-config as a cache key, whatever the order of its keys."""
    return tuple(sorted((key, value, type(value)) for key, value in values.items()))


@functools.lru_cache(maxsize=1024)
def config_of(items: Items) -> RunConfig:
    """Return the configuration of :func:`items_of`; a process reads it once."""
    return _read({key: value for key, value, _ in items})


def read_config(values: Mapping[str, Any]) -> RunConfig:
    """Return the configuration of a flat Flower run-config (kebab-case keys, dotted for components).

    Fields that are left to the algorithm have the algorithm's values.

    Raises
    ------
    ConfigError
        One message for every wrong key: its value, what is allowed and how to fix it.
    """
    only_scalars = all(isinstance(value, Scalar) for value in values.values())
    return config_of(items_of(values)) if only_scalars else _read(values)


def _read(values: Mapping[str, Any]) -> RunConfig:
    options = {key: value for key, value in values.items() if "." in key}
    keys = {key: value for key, value in values.items() if "." not in key}
    own = own_components(values)
    fields = option_fields() | own.fields
    allowed = (*keys_of(RunConfig), *fields)
    # Which parameters a component has that cannot be imported is not known.
    named = {k: v for k, v in values.items() if "." not in k or not own.problems}
    names = {*own.chosen, *(name for family in FAMILIES for name in family.components())}
    problems = [*_unknown_keys(named, allowed, names), *_not_scalar(options, fields)]
    options = {key: value for key, value in options.items() if isinstance(value, Scalar)}
    config = None
    try:
        known = {key: value for key, value in keys.items() if key in allowed}
        complete = {key: field.get_default() for key, field in fields.items()} | options
        config = RunConfig.model_validate({**known, "options": complete})
    except ValidationError as error:
        problems += [_message(detail, RunConfig) for detail in error.errors()]
    problems += dict.fromkeys(own.problems)  # those of a pyproject.toml are those of every family
    if config is not None:
        problems += _option_problems_of(config, own)
        if not problems:
            config = _with_algorithm_defaults(config)
            problems += _config_errors(config)
    if problems or config is None:
        raise ConfigError("\n".join(problems))
    return config


def _with_algorithm_defaults(config: RunConfig) -> RunConfig:
    """Return ``config`` with the algorithm's value of each field that is left to it."""
    values = algorithm_defaults(config)
    unset = {k: v for k, v in values.items() if getattr(config, k) == _default(k)}
    return config.model_copy(update=unset)


def algorithm_defaults(config: RunConfig) -> dict[str, Scalar]:
    """Return by field the defaults that are the algorithm's."""
    algorithm = cast("Algorithm", config.component("algorithm"))
    values = {field: getattr(algorithm, f"default_{field}") for field in ALGORITHM_DEFAULTS}
    return values | ({"local_epochs": 1} if algorithm.one_gradient else {})


def without_unused_parameters(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return run-config values without the parameters of components that they do not choose.

    These have no effect, and a run directory may hold another version's defaults of them.

    Raises
    ------
    ComponentError
        A component that they choose is not there.
    """
    chosen = {name_of(family, value) for family, value in chosen_values(values)}
    return {
        key: value
        for key, value in values.items()
        if "." not in key or key.partition(".")[0] in chosen
    }


def without_callbacks(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return run-config values without callbacks, where their code is not needed, and need not be."""
    return without_unused_parameters({**values, "callbacks": ""})


def read_by_nodes(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the run-config as nodes read it: without callbacks, if there can be any."""
    family = family_of("callbacks")
    if values.get(family.key) or entry_points(family, app_folder()):
        return without_callbacks(values)
    return values


def callback_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return those run-config values that :func:`without_callbacks` leaves out: of callbacks alone."""
    others = without_callbacks(values)
    return {
        key: value
        for key, value in without_unused_parameters(values).items()
        if value != others.get(key)
    }


def defaults() -> dict[str, Scalar]:
    """Return every key with its default, the components' parameters included.

    Fields that are left to the algorithm have their own default ("auto" or 0).
    """
    left = {kebab(field): _default(field) for field in ALGORITHM_DEFAULTS}
    return {**read_config({}).to_run_config(), **left}


def _default(field: str) -> Scalar:
    return cast("Scalar", RunConfig.model_fields[field].default)


@functools.cache
def option_fields() -> dict[str, FieldInfo]:
    """Return the field of every component's parameter, by the key ``name.parameter``."""
    components = (each for family in FAMILIES for each in family.components().values())
    return {key: field for each in components for key, field in parameters(each).items()}


def field_of(key: str) -> FieldInfo:
    """Return the field of a run-config key, of RunConfig or of a component."""
    options = option_fields()
    return options[key] if key in options else RunConfig.model_fields[snake(key)]


def _unknown_keys(
    values: Mapping[str, Any], allowed: Sequence[str], names: Collection[str]
) -> Iterator[str]:
    """Yield an error for each key that is not allowed; ``names`` are those of known components."""
    for key, value in values.items():
        if key not in allowed:
            name, dot, _ = key.partition(".")
            similar = _similar(key, allowed, values)
            hint = f"Did you mean {similar!r}? " if similar else ""
            if dot and not similar and name in names:
                hint = f"{name!r} has no such parameter. "
            elif dot and not similar:
                hint = f"Choose a component called {name!r} that has it, as in algorithm='./{name}.py'. "
            yield (
                f"{key} = {shown(value)}: there is no such key. {hint}`fedapp keys` lists them all."
            )


def _similar(key: str, allowed: Sequence[str], values: Mapping[str, Any]) -> str:
    """Return the key that was most likely meant, or ""."""
    last = key.rpartition(".")[2]
    same = [each for each in allowed if each.rpartition(".")[2] == last]
    chosen = [each for each in same if each.partition(".")[0] in values.values()]
    ending = [each for each in allowed if f"-{each}".endswith(f"-{last}") and "." not in each]
    for likely in (chosen, ending):
        if len(likely) == 1:
            return likely[0]
    prefix = key.rpartition(".")[0]
    likely = [each for each in allowed if not prefix or _alike(each, prefix, last)]
    close = difflib.get_close_matches(key, likely, n=1, cutoff=0.6 if prefix else 0.5)
    return close[0] if close else ""


def _alike(key: str, prefix: str, last: str) -> bool:
    """Return whether a key has this component's name, or a parameter that is called much like it."""
    name, _, parameter = key.rpartition(".")
    return name == prefix or bool(difflib.get_close_matches(parameter, [last]))


def _not_scalar(options: Mapping[str, Any], fields: Mapping[str, FieldInfo]) -> Iterator[str]:
    for key, field in fields.items():
        if key in options and not isinstance(options[key], Scalar):
            yield (
                f"{key} = {options[key]!r}: must be one value: a number, a text, true or false. "
                f"{_meaning(field)}"
            )


def _option_problems_of(config: RunConfig, own: OwnComponents) -> Iterator[str]:
    """Yield the errors of parameters, of all components of this package and of one's own."""
    chosen = {getattr(config, family.key) for family in FAMILIES} | own.chosen.keys()
    every = [*own.chosen.values(), *own.declared.values()]
    for family in FAMILIES:
        base = family.base_class() if every else Component
        for component in (
            *family.components().values(),
            *(c for c in every if issubclass(c, base)),
        ):
            unused = component.name not in chosen
            yield from _option_problems(config, family, component, unused=unused)


def _config_errors(config: RunConfig) -> Iterator[str]:
    algorithm = cast("Algorithm", config.component("algorithm"))
    if algorithm.takes_mean_model:
        yield from config.option_two_errors(algorithm.default_server_learning_rate)
    if algorithm.one_gradient:
        yield from config.one_gradient_errors()
    if algorithm.custom_update:
        yield from config.unused(OWN_UPDATE)
    for family in FAMILIES:
        for component in config.components(family.key):
            yield from _errors_of(component, config)
            if family.key == "dataset":
                yield from config.unused(EMBEDDED)


def _errors_of(component: Component, config: RunConfig) -> list[str]:
    """Return the errors of a component; one text of one of the user's own is one error.

    Raises
    ------
    ConfigError
        One of the user's own raises, or returns no texts.
    """
    with calling(component, "config_errors"):
        returned: Any = component.config_errors(config)
        several = isinstance(returned, Iterable) and not isinstance(returned, str)
        errors = list(returned) if several else [returned]
    for other in (each for each in errors if not isinstance(each, str)):
        raise ConfigError(
            f"{setting_of(component)}: config_errors returns {one_line(repr(other))}. Let it return a "
            "list of texts, one for each error."
        )
    return errors


def _option_problems(
    config: RunConfig, family: Family, component: type[Component], *, unused: bool
) -> Iterator[str]:
    prefix = f"{component.name}."
    values = config.options_of(component)
    with calling(component, "a validator"):
        try:
            instance = component.model_validate(values)
        except ValidationError as error:
            if error.errors()[0]["type"] == "frozen_instance":
                raise
            yield from (_message(detail, component, prefix) for detail in error.errors())
            return
        default = component()
    for field in values:
        if unused and getattr(instance, field) != getattr(default, field):
            fix = f"Set {family.key}='{component.name}'"
            because = f"{family.key} is {getattr(config, family.key)!r}. {fix}"
            yield no_effect(f"{prefix}{kebab(field)}", values[field], because)


def _message(detail: ErrorDetails, model: type[BaseModel], prefix: str = "") -> str:
    """Return a pydantic error as: key = value: what is allowed. Meaning. Default."""
    message = detail["msg"].removeprefix("Value error, ")
    message = message if not detail["loc"] else message.rstrip(".")
    if not detail["loc"]:
        return message if not prefix else f"{prefix.rstrip('.')}: {message}"
    key = str(detail["loc"][0])
    field = model.model_fields[snake(key)]
    rule = message[0].lower() + message[1:]
    rule = TYPES.get(detail["type"], rule)
    rule = rule.replace("input should be", "must be").replace("string should", "must")
    if detail["type"] == "less_than_equal":
        bound, value = detail["ctx"]["le"], detail["input"]
        if isinstance(bound, float):  # pydantic writes 1e30 with all of its zeros
            rule = f"must be less than or equal to {bound:g}"
        if bound == 1 and 2 <= value <= 100 and SHARE.search(f"{key} {field.description}"):
            rule += f"; {value:g} % is {value / 100:g}"
    return f"{prefix}{kebab(key)} = {shown(detail['input'])}: {rule}. {_meaning(field)}"


def _meaning(field: FieldInfo) -> str:
    """Return what a key means, as far as that is described, and its default."""
    description = f"{field.description} " if field.description else ""
    return f"{description}The default is {shown(field.get_default())}."


def split_settings(run_config: list[str] | None, settings: list[str] | None) -> list[str]:
    """Return the settings of ``--run-config`` texts, and then ``settings``.

    Settings are separated by spaces outside of quotes and brackets: ``"seed=[0, 1] dataset='my data'"``
    has two. A text that ends with .toml is the name of one file, also with spaces, if it has no = or
    there is such a file.
    """
    words = list[str]()
    for text in run_config or []:
        stripped = text.strip()
        words += [stripped] if _is_file(stripped) else SETTING.findall(stripped)
    return words + (settings or [])


def parse_settings(settings: list[str] | None) -> dict[str, Scalar]:
    """Return KEY=VALUE arguments and TOML files as run-config values.

    A value is TOML (0.1, true, "text"); anything else is text.

    Raises
    ------
    ConfigError
        An argument is neither KEY=VALUE nor a TOML file.
    """
    values: dict[str, Scalar] = {}
    all_defaults = defaults()
    for setting in settings or []:
        key, separator, text = setting.partition("=")
        if _is_file(setting):
            values |= dotted(_read_toml(Path(setting)))
        elif separator:
            values[key.strip()] = _value(text.strip(), all_defaults.get(key.strip()))
        else:
            raise ConfigError(
                f"{setting!r}: must be KEY=VALUE, as in learning-rate=0.1, or a .toml file."
            )
    return values


def _is_file(word: str) -> bool:
    """Return whether a word is meant as a TOML file; one with an = is where there is such a file."""
    if not word.endswith(".toml"):
        return False
    try:
        return "=" not in word or Path(word).is_file()
    except OSError:  # longer than names of files
        return False


def _value(text: str, default: Scalar | None) -> Scalar:
    """Return a TOML value, or the text itself; True and False are booleans as in Python.

    Where the default is text, a number is text too: a folder called 1.10 is not 1.1.
    """
    if text in ("True", "False"):
        return text == "True"
    try:
        value: Any = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    if not isinstance(value, bool | int | float | str):
        return text
    return text if isinstance(default, str) and not isinstance(value, bool | str) else value


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(
            f"{path}: cannot be read as TOML: {error}. Name a file of settings, such as seed = 3, or "
            "correct it."
        ) from error


def dotted(values: dict[str, Any], prefix: str = "") -> dict[str, Scalar]:
    """Return the keys of nested TOML tables with dots."""
    flat: dict[str, Scalar] = {}
    for key, value in values.items():
        flat |= (
            dotted(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
        )
    return flat
