"""The items there are: the TOMLs of ``fedapp/studies/papers/items``, read, and chosen by name."""

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
from fedapp.studies.papers.claims import Claims
from fedapp.studies.papers.schema import (
    SCALES,
    Comparison,
    Figure,
    Picture,
    Scale,
    ScaleName,
    Sharpness,
    Table,
    Updates,
)

Item = Table | Comparison | Figure | Picture | Updates | Sharpness | Claims
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
    """Return every item by name, in the papers' order, its scales with what they have of others."""
    files = sorted(ITEMS.glob("*.toml"), key=lambda file: _natural(file.stem))
    return with_scales_of_others({f.stem: read_item(f.stem, f.read_text()) for f in files})


def with_scales_of_others(items: Mapping[str, Item]) -> dict[str, Item]:
    """Return the items with what ``as-in`` of their scales takes from other items.

    Raises
    ------
    ConfigError
        There is no such item, or it has no such scale, or has it from another itself.
    """
    return {
        name: item.model_copy(
            update={
                "scales": {k: _whole(f"{name}.toml", k, v, items) for k, v in item.scales.items()}
            }
        )
        for name, item in items.items()
    }


def _whole(file: str, name: ScaleName, scale: Scale, items: Mapping[str, Item]) -> Scale:
    """Return a scale with what it has of another item's of that name."""
    if not scale.as_in:
        return scale
    held = [
        key for key, item in items.items() if name in item.scales and not item.scales[name].as_in
    ]
    if scale.as_in not in held:
        raise ConfigError(
            f"{file}: scales.{name}.as-in = {scale.as_in!r}: no item of that name says itself what its "
            f"scale {name!r} is. One of: {', '.join(held)}."
        )
    other = items[scale.as_in].scales[name]
    given, own = (each.model_dump(exclude_unset=True, by_alias=True) for each in (other, scale))
    settings = {**other.settings, **scale.settings}
    return Scale.model_validate({**given, **own, "settings": settings})


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


def choose_at(names: list[str], scale: ScaleName) -> dict[str, Item]:
    """Return the items that are named as for :func:`choose` and have the scale.

    Raises
    ------
    ConfigError
        A name fits nothing, or none of the items has the scale.
    """
    chosen = dict(choose(names))
    found = {name: item for name, item in chosen.items() if scale in item.scales}
    if not found:
        known = dict.fromkeys(each for item in chosen.values() for each in item.scales)
        raise ConfigError(
            f"--scale {scale}: {', '.join(chosen)}: there is no such scale of it. One of: "
            f"{', '.join(each for each in SCALES if each in known)}."
        )
    return found


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
