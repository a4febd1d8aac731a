"""The run directory: where it is, what is written there, and when."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from pydantic import Field

from fedapp.config.group import ConfigGroup


class RunDirectoryConfig(ConfigGroup):
    """The run's folder, its checkpoints, records and pictures."""

    title: ClassVar[str] = "The run directory"

    checkpoint_every: int = Field(
        10, ge=0, description="Rounds between checkpoints. 0: none by rounds."
    )
    checkpoint_seconds: float = Field(
        60.0,
        ge=0,
        description="Seconds between checkpoints, made when a round ends. 0: none by time.",
    )
    run_dir: str = Field("", description="The run's folder. Empty: a new one under runs/.")
    record_updates: bool = Field(
        False,
        description="Record the similarity of clients' updates each round; the server then gets each.",
    )
    pictures: bool = Field(
        default=True,
        description="Draw the curves, the partition and the report; `fedapp report` draws them later.",
    )
    resume: bool = Field(False, description="Continue from the last checkpoint in run-dir.")

    def contradictions(self) -> Iterator[str]:
        """Yield also the error of a run to continue without its folder."""
        yield from super().contradictions()
        if self.resume and not self.run_dir:
            yield "resume = true: needs run-dir. Set it to the folder of the run to continue."
