"""What the groups of the run-config and the components have in common."""

from __future__ import annotations

from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator

Scalar = bool | int | float | str


def kebab(name: str) -> str:
    """Return a field's name as it is written in run-configs and other TOMLs."""
    return name.replace("_", "-")


def snake(name: str) -> str:
    """Return the name of the field that a TOML key sets."""
    return name.replace("-", "_")


class Settings(BaseModel):
    """Base of settings that the run-config sets: immutable, and strict about types."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _numbers_as_text(cls, value: Any, info: ValidationInfo) -> Any:
        """Return a number that is given for a text field as text: ``2024`` may name a folder.

        Also true and false given for a choice of numbers, which refuses them then, though true equals 1.
        """
        annotation = cls.model_fields[str(info.field_name)].annotation
        if isinstance(value, bool) and value in get_args(annotation):
            return shown(value)
        is_text = annotation is str
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return str(value) if is_text and is_number else value


def shown(value: Any) -> str:
    """Return a value as it is written in run-configs and other TOMLs."""
    return str(value).lower() if isinstance(value, bool) else repr(value)


def no_effect(key: str, value: Any, because: str) -> str:
    """Return the error of a key without effect; ``because`` ends with what else to set."""
    return f"{key} = {shown(value)}: has no effect, because {because}, or leave the key out."
