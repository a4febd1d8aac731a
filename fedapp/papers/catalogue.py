"""The items there are: the TOMLs of ``fedapp/papers/items``, read, and chosen by name."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from fedapp.errors import ConfigError
from fedapp.papers.schema import SCALES, Item, ScaleName

ITEMS = Path(__file__).parent / "items"
_READER: TypeAdapter[Item] = TypeAdapter(Annotated[Item, Field(discriminator="kind")])


def read_item(name: str, text: str) -> Item:
    """Return the item that a TOML describes.

    Raises
    ------
    ConfigError
        It is no TOML, or says something that its kind does not know.
    """
    try:
        return _READER.validate_python(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{name}.toml: {error}") from error
    except ValidationError as error:
        said = "; ".join(
            f"{'.'.join(map(str, detail['loc'][1:]))}: {detail['msg']}" for detail in error.errors()
        )
        raise ConfigError(f"{name}.toml: {said}") from error


@cache
def all_items() -> Mapping[str, Item]:
    """Return every item by name, in the papers' order."""
    files = sorted(ITEMS.glob("*.toml"), key=lambda file: _natural(file.stem))
    return {file.stem: read_item(file.stem, file.read_text()) for file in files}


def _natural(name: str) -> list[tuple[bool, int, str]]:
    """Return a sorting key with which fig2 comes before fig10."""
    words = re.split(r"(\d+)", name)
    return [(word.isdigit(), int(word) if word.isdigit() else 0, word) for word in words]


def as_scale(name: str) -> ScaleName:
    """Return a scale by its name.

    Raises
    ------
    ConfigError
        There is no such scale.
    """
    for scale in SCALES:
        if scale == name:
            return scale
    raise ConfigError(f"--scale {name}: there is no such scale. One of: {', '.join(SCALES)}.")


def choose(names: list[str]) -> Iterator[tuple[str, Item]]:
    """Yield the items that are named: ``all``, a name, or the start of names (mcmahan-table1).

    Raises
    ------
    ConfigError
        A name fits nothing.
    """
    items = all_items()
    for wanted in names:
        found = [
            name
            for name in items
            if wanted in ("all", name) or name.startswith(f"{wanted.rstrip('-')}-")
        ]
        if not found:
            near = difflib.get_close_matches(wanted, items, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ConfigError(
                f"{wanted!r}: there is no such table or figure.{hint} One of: all, {', '.join(items)}."
            )
        yield from ((name, items[name]) for name in found)
