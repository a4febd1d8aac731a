"""Training: ClientUpdate (McMahan et al. 2017, Algorithm 1), the algorithm and the server's update."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from fedapp.config.group import Case, ConfigGroup, UnusedIf

COUNTED_STEPS = Case(
    "local-steps counts steps instead of epochs. Set local-steps=0",
    lambda config: config.local_steps > 0,
)
ONE_EPOCH = Case(
    "local-epochs = 1 is the least. Raise local-epochs",
    lambda config: config.local_steps == 0 and config.local_epochs == 1,
)
ALL_DATA = Case(
    "batch-size = 0 is all local data. Set a batch-size, for example batch-size=10",
    lambda config: config.batch_size == 0,
)
ONE_GRADIENT = Case("the clients of {algorithm!r} take no steps. Set algorithm='fedavg'")
"""A client computes one gradient at theta, in batches: no setting of local steps is used."""
OWN_UPDATE = Case(
    "the clients of {algorithm!r} send neither theta_k - theta nor theta_k. Set algorithm='fedavg'"
)
LARGEST = 1e30
"""Bound of factors of tensors: a larger number than 3.4e38 is none of float32."""
ALGORITHM_DEFAULTS = ("sampler", "weighting", "server_learning_rate")
"""Fields whose default means the algorithm's own value, its attribute ``default_<field>``."""


class ClientUpdateConfig(ConfigGroup):
    """What a client does in a round, whatever the algorithm."""

    title: ClassVar[str] = "ClientUpdate"

    local_epochs: int = Field(5, ge=1, description="Local epochs, E; 1 with fedsgd.")
    local_epochs_decay: Annotated[float, UnusedIf(COUNTED_STEPS, ONE_EPOCH, ONE_GRADIENT)] = Field(
        1.0, gt=0, le=1, description="Factor on E after every round; E is rounded, and at least 1."
    )
    local_steps: Annotated[int, UnusedIf(ONE_GRADIENT)] = Field(
        0, ge=0, description="Local steps instead of epochs (synchronisation period). 0: use E."
    )
    batch_size: int = Field(
        10, ge=0, description="Local batch size, B. 0: all local data (infinity)."
    )
    batch_size_growth: Annotated[float, UnusedIf(ALL_DATA, ONE_GRADIENT)] = Field(
        1.0, ge=1, le=10, description="Factor on B after every round; B is rounded."
    )
    batch_sampling: Annotated[Literal["epoch", "uniform"], UnusedIf(ALL_DATA, ONE_GRADIENT)] = (
        Field(
            "epoch",
            description="'epoch': reshuffled passes over the data; 'uniform': a random mini-batch a "
            "step.",
        )
    )
    learning_rate: float = Field(0.2, gt=0, le=LARGEST, description="Client learning rate, eta.")
    learning_rate_decay: float = Field(
        1.0, gt=0, le=1, description="Factor on eta after every round."
    )
    momentum: Annotated[float, UnusedIf(ONE_GRADIENT)] = Field(
        0.0, ge=0, lt=1, description="Client momentum, reset every round."
    )
    nesterov: Annotated[bool, UnusedIf(ONE_GRADIENT)] = Field(
        False, description="Nesterov's form of the client momentum."
    )
    weight_decay: Annotated[float, UnusedIf(ONE_GRADIENT)] = Field(
        0.0, ge=0, le=LARGEST, description="Factor of the L2 term in a client's gradient."
    )
    clip_norm: Annotated[float, UnusedIf(ONE_GRADIENT)] = Field(
        0.0, ge=0, description="Largest L2 norm of a client's step gradient. 0: no clipping."
    )

    def contradictions(self) -> Iterator[str]:
        """Yield also the errors of momentum without its factor, and of steps beside epochs."""
        yield from super().contradictions()
        if self.nesterov and self.momentum == 0:
            yield "nesterov = true: needs momentum above 0. Set momentum=0.9, or nesterov=false."
        default = ClientUpdateConfig.model_fields["local_epochs"].default
        if self.local_steps and self.local_epochs != default:
            yield (
                f"local-steps = {self.local_steps}: counts steps instead of epochs, so it excludes "
                f"local-epochs = {self.local_epochs}. Leave one of them out."
            )


class ServerConfig(ConfigGroup):
    """The algorithm, and how the server weights and applies updates."""

    title: ClassVar[str] = "The server"

    algorithm: str = Field("fedavg", description="Algorithm: a file in strategies/.")
    weighting: Literal["auto", "examples", "uniform"] = Field(
        "auto",
        description="'examples': n_k / sum n (FedAvg); 'uniform': naive averaging. 'auto': the "
        "algorithm's own.",
    )
    update: Annotated[Literal["delta", "model"], UnusedIf(OWN_UPDATE)] = Field(
        "delta",
        description="'delta': clients send theta_k - theta (Option I); 'model': theta_k (II).",
    )
    server_learning_rate: float = Field(
        0.0, ge=0, description="Server learning rate, eta_g. 0: the algorithm's own."
    )

    def option_two_errors(self, own: float) -> Iterator[str]:
        """Yield the error of another rate than 1 or the algorithm's ``own`` with Option II.

        It takes the mean model as it is.
        """
        rate = self.server_learning_rate
        if self.update == "model" and rate not in (1, own):
            only = " or ".join(f"{value:g}" for value in dict.fromkeys((own, 1.0)))
            yield (
                f"server-learning-rate = {rate}: with update = 'model' (Option II) "
                f"the server takes the mean model as it is, so only {only} is allowed. "
                f"Set update='delta' (Option I), or leave server-learning-rate out."
            )
