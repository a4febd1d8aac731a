"""The model and its initial weights."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from fedapp.config.group import Case, ConfigGroup, UnusedIf

GIVEN_WEIGHTS = Case(
    "initial-model = {initial_model!r} has the weights. Leave that out",
    lambda config: config.initial_model != "",
)


class ModelConfig(ConfigGroup):
    """The network and its initial weights."""

    title: ClassVar[str] = "The model"

    model: str = Field("2nn", description="Network: a component of fedapp/models/.")
    initial_model: str = Field(
        "",
        description="Initial weights: a run's folder, or a safetensors file. Empty: drawn from the "
        "seed.",
    )
    initial_weights: Annotated[
        Literal["model", "truncated-normal", "glorot", "he"], UnusedIf(GIVEN_WEIGHTS)
    ] = Field(
        "model",
        description="How linear and convolutional layers are drawn. model: as the network defines. "
        "truncated-normal: sigma and biases 0.1, as TensorFlow's MNIST tutorial but for conv1's bias. "
        "glorot, he: biases 0.",
    )
