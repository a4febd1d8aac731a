"""A ClientApp that takes its node down, as a machine that loses its power, unless it is the head."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import ray
from flwr.app import Context, Message

from fedapp.client_app import app as fedapp_client
from fedapp.federation.shared_evaluation import is_part
from tests.killed import die


def is_head() -> bool:
    """Return whether this process runs on the head of the cluster."""
    here = ray.get_runtime_context().get_node_id()
    (node,) = (node for node in ray.nodes() if node["NodeID"] == here)
    return "node:__internal_head__" in node["Resources"]


def app(message: Message, context: Context) -> Message:
    """Answer as fedapp's own app does, but for one time in round 2: then kill the raylet."""
    if message.content.config_records.get("plan", {}).get("round") == 2:
        _die_once(context)
    return fedapp_client(message, context)


def evaluating(message: Message, context: Context) -> Message:
    """Kill the raylet in the third evaluation, which is that after round 2."""
    if is_part(message.content):
        evaluating.calls = getattr(evaluating, "calls", 0) + 1
        if evaluating.calls == 3:
            _die_once(context)
    return fedapp_client(message, context)


def _die_once(context: Context) -> None:
    died = Path(str(context.run_config["run-dir"])) / "died"
    if not is_head():
        with contextlib.suppress(FileExistsError):
            died.touch(exist_ok=False)
            os.kill(os.getppid(), signal.SIGKILL)
            die()
