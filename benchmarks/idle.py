"""A ClientApp whose clients do nothing: what a round costs by itself."""

from __future__ import annotations

import functools
from typing import Any, cast

import numpy as np
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedapp import client_app
from fedapp.data import Examples
from fedapp.training.algorithm import Finish, Turn
from fedapp.training.plan import LocalPlan
from fedapp.training.sequential import Outcome, SequentialTrainer

app = ClientApp()
app.query()(client_app.query)


class IdleTrainer:
    """A trainer that gives every client theta back after no step."""

    def __init__(self, trainer: SequentialTrainer) -> None:
        self._trainer = trainer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._trainer, name)

    def client_update(
        self, turn: Turn, examples: Examples, plan: LocalPlan, rng: np.random.Generator
    ) -> Outcome:
        """Return theta."""
        return Outcome(dict(turn.anchor), len(examples), 0, float("nan"), Finish())


@app.train()
def train(message: Message, context: Context) -> Message:
    """Reply as fedapp's own ClientApp does."""
    workplace = client_app.workplace_of(context)
    config, holdings = client_app.read_workplace(workplace)
    return client_app.train_with(_idle(workplace), config, holdings, message, context)


@functools.lru_cache(maxsize=4)
def _idle(workplace: client_app.Workplace) -> SequentialTrainer:
    return cast("SequentialTrainer", IdleTrainer(client_app.trainer_of(workplace)))
