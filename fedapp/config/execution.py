"""How a run is executed: its seed, device, precision, threads and trainer."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from fedapp.config.group import Case, ConfigGroup, UnusedIf

SEQUENTIAL = Case(
    "trainer is 'sequential'. Set trainer='batched'",
    lambda config: config.trainer == "sequential",
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
        1,
        ge=0,
        description="CPU threads of a training process; 0: the fastest number, measured once.",
    )
    trainer: Literal["auto", "sequential", "batched"] = Field(
        "auto",
        description="What executes ClientUpdate for a cohort. auto: batched on a GPU, else "
        "sequential.",
    )
    program: Annotated[
        Literal["auto", "record", "compile", "capture"],
        UnusedIf(SEQUENTIAL),
    ] = Field(
        "auto",
        description="How the batched trainer runs a local step: operation by operation, compiled, or "
        "captured as a CUDA graph. auto: capture on a GPU, compile on a CPU where it pays.",
    )
    clients_together: Annotated[int, UnusedIf(SEQUENTIAL)] = Field(
        0,
        ge=0,
        description="Clients that the batched trainer trains in one program. 0: on a GPU a whole "
        "cohort, on a CPU one, or five a thread of a small network.",
    )
