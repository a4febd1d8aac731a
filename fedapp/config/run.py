"""The run: what executes it, when the model is evaluated, and what it writes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from fedapp.config.group import Case, ConfigGroup, UnusedIf

TrainerName = Literal["auto", "sequential", "batched"]

SEQUENTIAL = Case(
    "trainer is 'sequential'. Set trainer='batched'",
    lambda config: config.trainer == "sequential",
)

BY_CLIENTS = Case(
    "evaluation is 'clients'. Set evaluation='both'",
    lambda config: config.evaluation == "clients",
)


class ExecutionConfig(ConfigGroup):
    """The seed, and what executes the run."""

    title: ClassVar[str] = "Execution"

    seed: int = Field(0, ge=0, lt=2**63, description="Seed of all random draws.")
    device: str = Field(
        "auto",
        pattern=r"^(auto|cpu|cuda(:\d+)?)$",
        description="'auto', 'cpu', 'cuda' or 'cuda:N'.",
    )
    precision: Literal["float32", "float64"] = Field("float32", description="Parameters' type.")
    threads: int = Field(
        0,
        ge=0,
        description="CPU threads of a training process. 0: one, or from 5,000 local steps on the "
        "fastest number, measured once.",
    )
    trainer: TrainerName = Field(
        "auto",
        description="What executes ClientUpdate. auto: batched on a GPU, and on a CPU in long runs "
        "(docs/performance.md), else sequential.",
    )
    program: Annotated[
        Literal["auto", "record", "compile", "capture"],
        UnusedIf(SEQUENTIAL),
    ] = Field(
        "auto",
        description="How the batched trainer runs a local step: each operation, compiled, or as a "
        "CUDA graph. auto: capture on a GPU, compile on a CPU where it pays.",
    )
    clients_together: Annotated[int, UnusedIf(SEQUENTIAL)] = Field(
        0,
        ge=0,
        description="Clients in one program of the batched trainer. 0: on a GPU the cohort, on a CPU "
        "one, or five a thread of a small network with B up to 20.",
    )


class EvaluationConfig(ConfigGroup):
    """Where, when and on what the global model is evaluated."""

    title: ClassVar[str] = "Evaluation"

    evaluation: Literal["server", "clients", "both"] = Field(
        "server",
        description="Where the global model is evaluated. Clients test the model from which they start.",
    )
    eval_every: int = Field(
        1,
        ge=0,
        description="Rounds between evaluations. 0: before the first and after the last only.",
    )
    eval_train_examples: Annotated[int, UnusedIf(BY_CLIENTS)] = Field(
        0,
        ge=0,
        description="Size of a fixed sample of training examples to evaluate on. 0: none.",
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
        description="Record the similarity of clients' updates; the server then gets each.",
    )
    pictures: bool = Field(
        default=True,
        description="Draw curves, partition and report; `fedapp report` does so later.",
    )
    callbacks: str = Field(
        "",
        description="What else follows the rounds: files, classes or entry points, with commas.",
    )
    resume: bool = Field(False, description="Continue from the last checkpoint in run-dir.")

    def contradictions(self) -> Iterator[str]:
        """Yield also the error of a run to continue without its folder."""
        yield from super().contradictions()
        if self.resume and not self.run_dir:
            yield "resume = true: needs run-dir. Set it to the folder of the run to continue."
