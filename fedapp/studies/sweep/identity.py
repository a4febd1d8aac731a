"""The identity of runs: the settings and data that determine the trained model."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from fedapp.config.components import family_of, is_component
from fedapp.config.data import READING_FIELDS
from fedapp.config.read import read_config, without_callbacks
from fedapp.config.registry import FAMILIES
from fedapp.config.run_config import RunConfig
from fedapp.config.settings import Scalar, kebab
from fedapp.data.embedded.embedded import Embedded
from fedapp.data.load import load_dataset
from fedapp.runs.initial_model import weights_digest
from fedapp.training.algorithm import algorithm_of

FORMAT = 1
"""Version of the identity; increment it when the default of a setting changes."""

LENGTH = ("num-server-rounds", "target-accuracy")
ONE_OF_MANY: Mapping[str, Scalar] = {"pictures": False, "threads": 1}
"""Defaults of execution for runs that share a machine."""

EXECUTION = frozenset(
    {
        *LENGTH,
        *("run-dir", "resume", "pictures", "callbacks", "data-cache"),
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
"""Keys of execution and length, which are not part of a run's identity."""


RECORD_UPDATES = "record-updates"
"""The key that has a run measure its clients' updates; the model is the same."""

STACKED = ("learning-rate", "seed")
"""Keys that may differ between runs in one program."""


@dataclass(frozen=True)
class Request:
    """A request for a run with given settings, up to ``rounds`` or a test accuracy of ``target``.

    A target of 0 is never reached. Requests that differ only in rounds and target share one run, which
    is continued when necessary.
    """

    settings: tuple[tuple[str, Scalar], ...]
    rounds: int
    target: float = 0.0

    @classmethod
    def of(cls, settings: Mapping[str, Scalar], rounds: int, target: float = 0.0) -> Request:
        """Return a request; keys of length in ``settings`` are ignored."""
        identifying = {key: value for key, value in settings.items() if key not in LENGTH}
        return cls(tuple(sorted(identifying.items())), rounds, target)

    @property
    def canonical(self) -> dict[str, Scalar]:
        """The settings that identify the run, with the data set by content.

        Defaults of federated averaging are left out; keys left to the algorithm have its value.
        """
        return dict(_canonical(self.settings))

    @property
    def files(self) -> dict[str, Scalar]:
        """The components' parameters that are files, whose content identifies the run."""
        config = read_config(without_callbacks(dict(self.settings)))
        values = config.to_run_config()
        return {k: values[k] for k, v in _chosen_parameters(config).items() if v != values[k]}

    @property
    def with_updates(self) -> Request:
        """The same run with its updates recorded, whose record satisfies this request, too."""
        settings = {**dict(self.settings), RECORD_UPDATES: True}
        return Request.of(settings, self.rounds, self.target)

    @property
    def common(self) -> tuple[tuple[str, Scalar], ...] | None:
        """The settings that runs in one program share; None if the run cannot share a program."""
        if ("trainer", "sequential") in self.settings:
            return None
        return tuple(pair for pair in self.settings if pair[0] not in STACKED)

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return int(dict(self.settings).get("seed", 0))

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
    used = {**standard, **without_callbacks(values)}
    chosen = {k: v for k, v in values.items() if k not in EXECUTION and v != standard.get(k)}
    chosen = {key: value for key, value in chosen.items() if key in used}
    chosen |= {
        key: f"{config.name_of(key)}@{code.digest[:12]}" for key, code in config.own_code().items()
    }
    if config.initial_model:
        chosen["initial-model"] = weights_digest(config)[:12]
    if config.sampler == algorithm_of(config).default_sampler:
        chosen.pop("sampler", None)  # not in the name, as keys that are not set
    return {**chosen, "dataset": data_name(config)}


def _chosen_parameters(config: RunConfig) -> dict[str, Scalar]:
    """Return the components' parameters, converted to their types: 1 and 1.0 are equal.

    A file is a digest of its content.
    """
    return {
        f"{component.name}.{kebab(field)}": value
        for family in FAMILIES
        for component in config.components(family.key)
        for field, value in component.run_identity().items()
    }


def data_name(config: RunConfig) -> str:
    """Return the data set's name, without its path, and a digest of its content."""
    if is_component(family_of("dataset"), config.dataset):
        code = config.own_code().get("dataset")
        name = config.name_of("dataset") + (f"@{code.digest[:12]}" if code else "")
        return name + _embedded_content(cast("Embedded", config.component("dataset")))
    return f"{Path(config.dataset).name}@{_fingerprint(*_shape(config))[:12]}"


@functools.cache
def _embedded_content(embedded: Embedded) -> str:
    """Return a digest of the files that a user's own data set reads; "" if its code has all data.

    The fingerprint of the latter is its name and a version.
    """
    fingerprint = embedded.load().fingerprint
    if fingerprint.startswith(f"{embedded.name}-"):
        return ""
    return f"@{hashlib.sha256(fingerprint.encode()).hexdigest()[:12]}"


def _shape(config: RunConfig) -> tuple[tuple[str, Scalar], ...]:
    keys = ("dataset", "data_cache", *READING_FIELDS)
    return tuple((kebab(key), getattr(config, key)) for key in keys)


@functools.cache
def _fingerprint(*shape: tuple[str, Scalar]) -> str:
    return load_dataset(read_config(dict(shape))).fingerprint
