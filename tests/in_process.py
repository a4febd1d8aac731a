"""Small runs on the embedded digits, in this process, and what they leave behind."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import safetensors.torch
from flwr.app import Context, Message

from fedapp.client_app import app as client_app
from fedapp.config.read import read_config
from fedapp.config.settings import Scalar
from fedapp.engines.in_process import InlineGrid
from fedapp.server import run as run_server

ClientCall = Callable[[Message, Context], Message]

SMALL: dict[str, Scalar] = {
    "num-clients": 10,
    "fraction-train": 0.5,
    "local-epochs": 1,
    "num-server-rounds": 3,
    "2nn.hidden": 16,
    "device": "cpu",
    "pictures": False,
}
"""K = 10, C = 0.5, E = 1, B = 10: a round takes a few hundredths of a second."""

TWENTY: dict[str, Scalar] = {
    **SMALL,
    "num-server-rounds": 20,
    "min-nodes": 2,
    "node-timeout": 240.0,
}
"""Twenty rounds on two nodes, in every engine."""


class LastFirstGrid(InlineGrid):
    """Answers the message sent last before the others."""

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Work on the last of the messages."""
        return super().pull_messages(sorted(message_ids)[-1:])


def run(
    folder: Path,
    nodes: int = 2,
    call: ClientCall = client_app,
    grid: type[InlineGrid] = InlineGrid,
    **settings: Scalar,
) -> Path:
    """Run to the end in `folder` and return it; settings have underscores for hyphens.

    A run without effect is returned as well, which the ServerApp calls failed.
    """
    given = {key.replace("_", "-"): value for key, value in settings.items()}
    values = {**SMALL, "run-dir": str(folder), **given}
    run_server(grid(call, values, [{}] * nodes), read_config(values))
    return folder


def metrics(folder: Path) -> list[dict[str, Any]]:
    """Return the records of a run without what the clock wrote."""
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in record.items() if k != "seconds"} for record in records]


def model(folder: Path) -> dict[str, Any]:
    """Return the final parameters of a run."""
    return safetensors.torch.load_file(folder / "model.safetensors")
