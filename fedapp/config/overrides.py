"""What a class of one's own defines over its family's base: names, arguments and values."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterator
from typing import Any, ClassVar, get_args, get_origin

from pydantic import BaseModel, TypeAdapter, ValidationError

from fedapp.config.registry import Component

CLOSE = 0.8
"""How alike two names are, from 0 to 1, of which one is taken for the other misspelled."""


def override_problems(component: type[Component], base: type[Component]) -> Iterator[str]:
    """Yield what a component defines that nothing reads, or that cannot be called as its base's."""
    inherited = dir(base)
    hooks = [name for name in inherited if name[0] != "_" and name not in dir(BaseModel)]
    own = {
        name: value
        for each in component.__mro__
        if each not in base.__mro__
        for name, value in vars(each).items()
        if name[0] != "_"
    }
    yield from _constructor_problems(component, base)
    annotations = inspect.get_annotations(base, eval_str=True)
    for name, value in own.items():
        if name not in inherited:
            for similar in difflib.get_close_matches(name, hooks, n=1, cutoff=CLOSE):
                yield (
                    f"has {name}, which nothing reads. Did you mean {similar!r}? If not, call it "
                    f"_{name}."
                )
        elif get_origin(annotations.get(name)) is ClassVar:
            yield from _value_problems(name, value, *get_args(annotations[name]))
        else:
            yield from _method_problems(name, value, inspect.getattr_static(base, name))


def _constructor_problems(component: type[Component], base: type[Component]) -> Iterator[str]:
    """Yield the problem of a constructor with arguments of its own: it is called with all parameters."""
    constructor = inspect.getattr_static(component, "__init__")
    if constructor is inspect.getattr_static(base, "__init__"):
        return
    _, *arguments = inspect.signature(constructor).parameters.values()
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    named = [argument.name for argument in arguments if argument.kind not in variable]
    takes_all = any(argument.kind is variable[1] for argument in arguments)
    if not takes_all or not component.model_fields.keys() >= set(named):
        names = ", ".join(["self", *(argument.name for argument in arguments)])
        example = named[0] if named else "mu"
        yield (
            f"has __init__({names}), and parameters are fields. Write them into the class, as "
            f"{example}: float = Field(0.1, ge=0), and leave __init__ out."
        )


def _value_problems(name: str, value: object, allowed: Any) -> Iterator[str]:
    """Yield the problem of a class attribute whose value the type of its base's excludes."""
    if isinstance(value, property):  # known only of an instance
        return
    try:
        TypeAdapter(allowed).validate_python(value, strict=get_origin(allowed) is not frozenset)
    except ValidationError as error:
        (problem, *_) = error.errors()
        given = f"{problem['input']!r} in {name}" if problem["loc"] else f"{name} = {value!r}"
        rule = problem["msg"].replace("Input should be", "must be")
        yield f"has {given}, which {rule}. Correct it."


def _method_problems(name: str, own: object, theirs: object) -> Iterator[str]:
    """Yield the problem of a method that cannot be called, or a property not read, as its base's."""
    if isinstance(theirs, property) and inspect.isfunction(own):
        yield f"has the method {name}, which is read as a property. Put @property above it."
    method = theirs.__func__ if isinstance(theirs, classmethod) else theirs
    if not inspect.isfunction(method):
        return
    arguments = list(inspect.signature(method).parameters)
    if isinstance(own, property):
        yield (
            f"has the property {name}, which is called with ({', '.join(arguments)}). Make it a method: "
            "leave @property out."
        )
    if isinstance(own, staticmethod):
        arguments = arguments[1:]
    function = own.__func__ if isinstance(own, staticmethod | classmethod) else own
    if inspect.isfunction(function):
        yield from _argument_problems(name, inspect.signature(function), arguments)


def _argument_problems(
    name: str, signature: inspect.Signature, arguments: list[str]
) -> Iterator[str]:
    """Yield the problem of a method that does not take the arguments with which it is called."""
    try:
        signature.bind(*arguments)
    except TypeError:
        yield (
            f"has {name}({', '.join(signature.parameters)}), and is called with "
            f"({', '.join(arguments)}). Give it these arguments."
        )
