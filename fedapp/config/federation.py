"""The federation: clients, nodes, who takes part in a round, and what to do about failures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from fedapp.config.group import Case, ConfigGroup, UnusedIf


def participants(fraction: float, clients: int) -> int:
    """Return m = max(floor(C*K + 1e-9), 1), the clients of one round (McMahan et al., Algorithm 1)."""
    return max(int(fraction * clients + 1e-9), 1)


ALL_TRAIN = Case(
    "all clients train each round, and no others can be sampled. Lower fraction-train",
    lambda config: (
        config.fraction_train == 1
        or config.num_clients == participants(config.fraction_train, config.num_clients)
    ),
)


class FederationConfig(ConfigGroup):
    """Clients and nodes, the sample of a round, its deadline, and failures."""

    title: ClassVar[str] = "The federation"

    num_server_rounds: int = Field(50, ge=1, description="Rounds of communication, T.")
    num_clients: int = Field(
        20, ge=0, description="Clients, K. 0: each SuperNode is one client with its own data."
    )
    fraction_train: float = Field(
        0.5, ge=0, le=1, description="Client fraction, C: max(floor(C*K), 1) clients a round."
    )
    sampler: str = Field(
        "auto",
        description="How a round's clients are sampled. auto: the algorithm's own.",
    )
    min_nodes: int = Field(1, ge=1, description="Nodes to wait for before the first round.")
    node_timeout: float = Field(
        300.0,
        gt=0,
        description="Longest wait, in seconds, for min-nodes, and for a SuperLink that fails.",
    )
    round_deadline: float = Field(
        3600.0, gt=0, description="Longest wait for a round's replies, in seconds."
    )
    min_replies: int = Field(
        1, ge=1, description="Accepted client replies that a round needs to change the model."
    )
    over_selection: Annotated[float, UnusedIf(ALL_TRAIN)] = Field(
        0.0,
        ge=0,
        le=10,
        description="Share of additional clients sampled; a round ends when m have replied well.",
    )
    max_update_norm: float = Field(
        1e6,
        ge=0,
        description="Largest L2 norm of a reply's (mean) update over max(|theta|, 1). 0: any.",
    )
    on_failure: Literal["continue", "stop"] = Field(
        "continue",
        description="What to do when a client fails or a round has too few accepted replies.",
    )

    def contradictions(self) -> Iterator[str]:
        """Yield also the error of more replies than clients."""
        yield from super().contradictions()
        clients = participants(self.fraction_train, self.num_clients)
        if self.num_clients and self.min_replies > clients:
            yield (
                f"min-replies = {self.min_replies}: the number of clients that train a round is "
                f"{clients} (max(floor(fraction-train * num-clients), 1)). Lower min-replies, or raise "
                "fraction-train or num-clients."
            )
