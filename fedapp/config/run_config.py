"""RunConfig: every run-config key, its type, its bounds, its meaning and its contradictions.

The keys stand in groups, each beside its checks. The table ``[tool.flwr.app.config]`` in
``pyproject.toml`` and the configuration reference are generated from this class and from the components'
parameters.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from fedapp.config.components import choices, component_class
from fedapp.config.data import DataConfig
from fedapp.config.federation import FederationConfig
from fedapp.config.group import ConfigGroup
from fedapp.config.model import ModelConfig
from fedapp.config.own_code import OwnCode
from fedapp.config.registry import FAMILIES
from fedapp.config.run import EvaluationConfig, ExecutionConfig, RunDirectoryConfig
from fedapp.config.settings import Scalar
from fedapp.config.training import ONE_GRADIENT, ClientUpdateConfig, ServerConfig


# Pydantic lists the fields of the last base first.
class RunConfig(
    RunDirectoryConfig,
    EvaluationConfig,
    ExecutionConfig,
    ModelConfig,
    DataConfig,
    ServerConfig,
    ClientUpdateConfig,
    FederationConfig,
):
    """The settings of one run, immutable; built with :func:`read_config`."""

    def to_run_config(self) -> dict[str, Scalar]:
        """Return every key and value, flat, as Flower's run-config holds them."""
        return {**self.model_dump(by_alias=True), **self.options}

    def own_code(self) -> dict[str, OwnCode]:
        """Return the source of the run's components that are not of this package, by their keys.

        Without callbacks, which neither nodes nor the model need.
        """
        chosen = {
            family.key: component_class(family, value).own_code
            for family in FAMILIES
            if not family.several
            for value in choices(family, self._value(family.key))
        }
        return {key: code for key, code in chosen.items() if code is not None}

    def one_gradient_errors(self) -> Iterator[str]:
        """Yield keys about local steps, for an algorithm whose clients compute one gradient instead."""
        if self.local_epochs != 1:
            yield (
                f"local-epochs = {self.local_epochs}: has no effect, because the clients of "
                f"{self.algorithm!r} take no steps, but compute one gradient. Set algorithm='fedavg', "
                "or local-epochs=1."
            )
        yield from self.unused(ONE_GRADIENT)

    def clipping_errors(self, because: str, instead: str = "algorithm='fedavg'") -> Iterator[str]:
        """Yield `clip-norm`, for an algorithm that depends on the length of local steps."""
        if self.clip_norm:
            yield (
                f"clip-norm = {self.clip_norm!r}: does not go with algorithm = {self.algorithm!r}, "
                f"because {because}. Set {instead}, or leave the key out."
            )


GROUPS = cast("tuple[type[ConfigGroup], ...]", RunConfig.__bases__[::-1])
"""The groups in the order of their keys."""
