"""The server: the algorithm, and what becomes of the clients' updates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import Field

from fedapp.config.group import ConfigGroup

ALGORITHM_DEFAULTS = ("weighting", "server_learning_rate")
"""Fields whose default means the algorithm's own value, its attribute ``default_<field>``."""


class ServerConfig(ConfigGroup):
    """The algorithm, and how the server weights and applies updates."""

    title: ClassVar[str] = "The server"

    algorithm: str = Field("fedavg", description="Algorithm: a file in strategies/.")
    weighting: Literal["auto", "examples", "uniform"] = Field(
        "auto",
        description="'examples': n_k / sum n (FedAvg); 'uniform': naive averaging. 'auto': the "
        "algorithm's own.",
    )
    update: Literal["delta", "model"] = Field(
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
