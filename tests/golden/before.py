"""A run's folder as it was when it was killed, kept in ``run-before``: a later fedapp resumes it.

    python -m tests.golden.before FOLDER

made it. It is not to be made again when names or packages change: that is what it is for.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from flwr.app import Context, Message, MessageType

import fedapp.client_app
from tests.golden.driver import command, words
from tests.golden.runs import resumed

FOLDER = Path(__file__).parent / "run-before"
RUN = resumed("scaffold", 1)
"""Four rounds on the quadratic, whose clients keep a state; killed while node 2 trains for round 3."""


def make(folder: Path) -> None:
    """Run into ``folder``, and die in the third round, as `kill -9` would have it."""
    train = fedapp.client_app.app

    def dying(message: Message, context: Context) -> Message:
        is_train = message.metadata.message_type == MessageType.TRAIN
        if is_train and message.metadata.group_id == "3" and context.node_id == 2:
            os._exit(9)
        return train(message, context)

    fedapp.client_app.app = dying  # type: ignore[assignment]
    settings = {**RUN.settings, "precision": "float64", "run-dir": str(folder)}
    command(["run", *words(settings), "--nodes", str(RUN.nodes)])


if __name__ == "__main__":
    make(Path(sys.argv[1]))
