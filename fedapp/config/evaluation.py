"""Evaluation of the global model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import Field

from fedapp.config.group import ConfigGroup


class EvaluationConfig(ConfigGroup):
    """Where, when and on what the global model is evaluated."""

    title: ClassVar[str] = "Evaluation"

    evaluation: Literal["server", "clients", "both"] = Field(
        "server", description="Where the global model is evaluated."
    )
    eval_every: int = Field(1, ge=0, description="Rounds between evaluations. 0: only at the end.")
    eval_train_examples: int = Field(
        0,
        ge=0,
        description="Training examples, a fixed sample, on which the global model is evaluated too. "
        "0: none.",
    )
    target_accuracy: float = Field(
        0.0, ge=0, le=1, description="Stop when the test accuracy reaches this. 0: never."
    )

    def contradictions(self) -> Iterator[str]:
        """Yield also the error of a target that is never tested."""
        yield from super().contradictions()
        if self.target_accuracy and not self.eval_every:
            yield (
                f"target-accuracy = {self.target_accuracy}: is never tested with eval-every = 0. "
                "Set eval-every=1."
            )
