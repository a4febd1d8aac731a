"""A ClientApp whose clients do nothing: what a round costs by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedapp import node
from fedapp.training.algorithm import ClientExtras
from fedapp.training.round_plan import RoundPlan
from fedapp.training.trainer import ClientResult, ClientTask, Trainer

app = ClientApp()
app.query()(node.query)


class IdleTrainer:
    """A trainer that gives every client theta back after no step."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._trainer, name)

    def client_updates(self, tasks: Sequence[ClientTask], plan: RoundPlan) -> list[ClientResult]:
        """Return theta for each."""
        return [
            ClientResult(
                dict(task.context.global_params),
                len(task.examples),
                0,
                float("nan"),
                ClientExtras(),
            )
            for task in tasks
        ]


@app.train()
def train(message: Message, context: Context) -> Message:
    """Reply as fedapp's own ClientApp does."""
    return node.train(message, context, lambda trainer: cast("Trainer", IdleTrainer(trainer)))
