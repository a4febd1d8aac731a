"""What makes two runs the same run: their settings, without how and where they are carried out."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from fedapp.config.read import read_config
from fedapp.config.registry import FAMILIES
from fedapp.config.run_config import RunConfig, Scalar, kebab
from fedapp.config.unused_options import READING
from fedapp.data import load_dataset
from fedapp.data.embedded.embedded import Embedded
from fedapp.runs.initial_model import weights_digest

FORMAT = 1
"""Version of the identity; raise it when the default of a setting changes."""

LENGTH = ("num-server-rounds", "target-accuracy")
EXECUTION = frozenset(
    {
        *LENGTH,
        *("run-dir", "resume", "pictures", "data-cache"),
        *("checkpoint-every", "checkpoint-seconds"),
        *(
            "device",
            "threads",
            "trainer",
            "program",
            "clients-together",
            "min-nodes",
            "node-timeout",
            "round-deadline",
        ),
    }
)
"""Keys that say how a run is carried out, and how long, but not which model follows which."""


STACKED = ("learning-rate", "seed")
"""Keys in which runs may differ whose clients train in one program."""


@dataclass(frozen=True)
class Request:
    """A run that somebody wants: its settings, and how far.

    It has what it wants when the test accuracy reaches ``target`` (0: never) or after ``rounds``.
    Requests that differ only in that share one run, which is continued if need be.
    """

    settings: tuple[tuple[str, Scalar], ...]
    rounds: int
    target: float = 0.0

    @classmethod
    def of(cls, settings: Mapping[str, Scalar], rounds: int, target: float = 0.0) -> Request:
        """Return the request for a run with ``settings`` (run-config keys)."""
        kept = {key: value for key, value in settings.items() if key not in LENGTH}
        return cls(tuple(sorted(kept.items())), rounds, target)

    @property
    def canonical(self) -> dict[str, Scalar]:
        """The settings that make the run what it is, data by content.

        Those are left out that are as in a run of federated averaging with no key set. What a run leaves
        to its algorithm is the algorithm's own value here.
        """
        return dict(_canonical(self.settings))

    @property
    def common(self) -> tuple[tuple[str, Scalar], ...] | None:
        """What stacked runs have in common: all but learning rate and seed; None: runs by itself."""
        if ("trainer", "sequential") in self.settings:
            return None
        return tuple(pair for pair in self.settings if pair[0] not in STACKED)

    @property
    def run(self) -> str:
        """The run's name: a hash of its canonical settings."""
        return _name(self.settings)


@functools.cache
def _name(settings: tuple[tuple[str, Scalar], ...]) -> str:
    content = json.dumps([FORMAT, _canonical(settings)], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


@functools.cache
def _canonical(settings: tuple[tuple[str, Scalar], ...]) -> dict[str, Scalar]:
    config = read_config(dict(settings))
    values = {**config.to_run_config(), **_chosen_parameters(config)}
    standard = read_config({}).to_run_config()
    chosen = {k: v for k, v in values.items() if k not in EXECUTION and v != standard[k]}
    if config.initial_model:
        chosen["initial-model"] = weights_digest(config)[:12]
    return {**chosen, "dataset": data_name(config)}


def _chosen_parameters(config: RunConfig) -> dict[str, Scalar]:
    """Return the components' parameters as their types have them: 1 and 1.0 are the same."""
    return {
        f"{getattr(config, family.key)}.{kebab(field)}": value
        for family in FAMILIES
        if getattr(config, family.key) in family.components()
        for field, value in config.component(family.key).model_dump().items()
    }


def data_name(config: RunConfig) -> str:
    """Return the data set's name, without its path, and a digest of its content."""
    embedded = next(family for family in FAMILIES if family.key == "dataset").components()
    if config.dataset in embedded:
        return config.dataset + _embedded_content(cast("Embedded", config.component("dataset")))
    return f"{Path(config.dataset).name}@{_fingerprint(*_shape(config))[:12]}"


@functools.cache
def _embedded_content(embedded: Embedded) -> str:
    """Return a digest of what a data set of a user's own reads; nothing where its code has it all.

    Then its fingerprint is its name and a version.
    """
    fingerprint = embedded.load().fingerprint
    if fingerprint.startswith(f"{embedded.name}-"):
        return ""
    return f"@{hashlib.sha256(fingerprint.encode()).hexdigest()[:12]}"


def _shape(config: RunConfig) -> tuple[tuple[str, Scalar], ...]:
    keys = ("dataset", "data_cache", *READING)
    return tuple((kebab(key), getattr(config, key)) for key in keys)


@functools.cache
def _fingerprint(*shape: tuple[str, Scalar]) -> str:
    return load_dataset(read_config(dict(shape))).fingerprint
