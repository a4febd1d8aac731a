"""What a class of one's own defines over its family's base: names that miss, and other arguments."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterator

from pydantic import BaseModel

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
    for name, value in own.items():
        if name not in inherited:
            for similar in difflib.get_close_matches(name, hooks, n=1, cutoff=CLOSE):
                yield (
                    f"has {name}, which nothing reads. Did you mean {similar!r}? If not, call it "
                    f"_{name}."
                )
        elif inspect.isfunction(value):
            yield from _argument_problems(name, value, getattr(base, name))


def _argument_problems(name: str, own: object, theirs: object) -> Iterator[str]:
    """Yield the problem of a method that does not take the arguments of its base's."""
    if not (inspect.isfunction(own) and inspect.isfunction(theirs)):
        return
    arguments = list(inspect.signature(theirs).parameters)
    signature = inspect.signature(own)
    try:
        signature.bind(*arguments)
    except TypeError:
        yield (
            f"has {name}({', '.join(signature.parameters)}), and is called with "
            f"({', '.join(arguments)}). Give it these arguments."
        )
