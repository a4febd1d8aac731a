"""A ClientApp whose second node dies in its first round 2, as a process that the kernel kills."""

from __future__ import annotations

from pathlib import Path

from flwr.app import Context, Message

from fedapp.client_app import app as fedapp_client
from tests.killed import die


def app(message: Message, context: Context) -> Message:
    """Answer as fedapp's own app does, but for that one time."""
    plan = message.content.config_records.get("plan", {})
    if context.node_id == 2 and plan.get("round") == 2:
        died = Path(str(context.run_config["run-dir"])) / "died"
        if not died.exists():
            died.touch()
            die()
    return fedapp_client(message, context)
