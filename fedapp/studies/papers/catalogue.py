"""The catalogue of experiments: the TOML files in ``fedapp/studies/papers/items``."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from fedapp.errors import ConfigError
from fedapp.files import natural_order
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

Experiment = Table | Comparison | Figure | Picture | Updates | Sharpness | Claims
EXPERIMENTS = Path(__file__).parent / "items"
_READER: TypeAdapter[Experiment] = TypeAdapter(Annotated[Experiment, Field(discriminator="kind")])


def read_experiment(name: str, text: str) -> Experiment:
    """Parse the TOML of an experiment.

    Raises
    ------
    ConfigError
        The text is not valid TOML, or has a key or value that its kind does not allow.
    """
    try:
        return _READER.validate_python(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{name}.toml: {error}") from error
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, detail['loc'][1:]))}: {detail['msg']}" for detail in error.errors()
        )
        raise ConfigError(f"{name}.toml: {problems}") from error


@cache
def all_experiments() -> Mapping[str, Experiment]:
    """Return all experiments by name, in the papers' order, with ``as-in`` resolved."""
    files = sorted(EXPERIMENTS.glob("*.toml"), key=lambda file: natural_order(file.stem))
    return with_scales_of_others({f.stem: read_experiment(f.stem, f.read_text()) for f in files})


def with_scales_of_others(experiments: Mapping[str, Experiment]) -> dict[str, Experiment]:
    """Resolve ``as-in``: scales take what they leave out from another experiment's scale.

    Raises
    ------
    ConfigError
        ``as-in`` names no experiment whose scale of that name is complete in itself.
    """
    return {
        name: experiment.model_copy(
            update={
                "scales": {
                    k: _complete_scale(f"{name}.toml", k, v, experiments)
                    for k, v in experiment.scales.items()
                }
            }
        )
        for name, experiment in experiments.items()
    }


def _complete_scale(
    file: str, name: ScaleName, scale: Scale, experiments: Mapping[str, Experiment]
) -> Scale:
    """Fill a scale from the scale that its ``as-in`` names."""
    if not scale.as_in:
        return scale
    held = [
        key
        for key, experiment in experiments.items()
        if name in experiment.scales and not experiment.scales[name].as_in
    ]
    if scale.as_in not in held:
        raise ConfigError(
            f"{file}: scales.{name}.as-in = {scale.as_in!r}: no experiment of that name has a scale "
            f"{name!r} of its own. One of: {', '.join(held)}."
        )
    other = experiments[scale.as_in].scales[name]
    given, own = (each.model_dump(exclude_unset=True, by_alias=True) for each in (other, scale))
    settings = {**other.settings, **scale.settings}
    return Scale.model_validate({**given, **own, "settings": settings})


def as_scale(name: str) -> ScaleName:
    """Check the name of a scale.

    Raises
    ------
    ConfigError
        There is no such scale.
    """
    for scale in SCALES:
        if scale == name:
            return scale
    raise ConfigError(f"--scale {name}: there is no such scale. One of: {', '.join(SCALES)}.")


def choose_at(names: list[str], scale: ScaleName) -> dict[str, Experiment]:
    """Return those of the experiments that :func:`choose` yields which have the scale.

    Raises
    ------
    ConfigError
        A name matches no experiment, or none of the experiments has the scale.
    """
    chosen = dict(choose(names))
    having = {name: experiment for name, experiment in chosen.items() if scale in experiment.scales}
    if not having:
        known = dict.fromkeys(each for experiment in chosen.values() for each in experiment.scales)
        raise ConfigError(
            f"--scale {scale}: {', '.join(chosen)} has no such scale. One of: "
            f"{', '.join(each for each in SCALES if each in known)}."
        )
    return having


def choose(names: list[str]) -> Iterator[tuple[str, Experiment]]:
    """Yield the named experiments; a name is ``all``, a full name or a prefix (mcmahan-table1).

    Raises
    ------
    ConfigError
        A name matches no experiment.
    """
    experiments = all_experiments()
    for query in names:
        matches = [
            name
            for name in experiments
            if query in ("all", name) or name.startswith(f"{query.rstrip('-')}-")
        ]
        if not matches:
            near = difflib.get_close_matches(query, experiments, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ConfigError(
                f"{query!r}: there is no such table or figure.{hint} One of: "
                f"all, {', '.join(experiments)}."
            )
        yield from ((name, experiments[name]) for name in matches)
