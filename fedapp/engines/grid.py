"""The base of the engines of ``fedapp run``: Flower's ``Grid`` interface without a SuperLink."""

from __future__ import annotations

import itertools
import math
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.serverapp import Grid, ServerApp
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from fedapp.config.settings import Scalar
from fedapp.errors import reason_of
from fedapp.federation.delivery import Delivery
from fedapp.machine import sigterm_interrupts

RUN_ID = 1


class LocalGrid(Grid):
    """Nodes 1 .. N, each with one of the ``node_configs``."""

    on_this_machine = True
    """Whether all nodes are on this machine."""
    location = ""
    """A line for the log about the machines of the nodes, or nothing."""
    option = "--nodes"
    """The option of ``fedapp run`` that sets the number of nodes."""

    def __init__(
        self, run_config: Mapping[str, Scalar], node_configs: Sequence[Mapping[str, Scalar]]
    ) -> None:
        self.contexts = {
            node: Context(RUN_ID, node, dict(config), RecordDict(), dict(run_config))
            for node, config in enumerate(node_configs, start=1)
        }
        self._run = Run.create_empty(RUN_ID)
        self._ids = itertools.count(1)
        set_identity(SUPERLINK_NODE_ID)

    @property
    def num_nodes(self) -> int | None:
        """The nodes of the run, of which some may be away; None if they have data of their own."""
        configs = [context.node_config for context in self.contexts.values()]
        if "data-path" in configs[0]:
            return None
        return int(configs[0].get("num-partitions", len(configs)))

    @property
    @abstractmethod
    def run_info(self) -> dict[str, Any]:
        """The engine's entries of ``config.json``, from which a resume takes the same engine."""

    def require_shared(self, folder: Path, option: str, because: str) -> None:
        """Raise ConfigError if nodes and server do not see each other's files in a folder."""

    @abstractmethod
    def push(self, message_id: str, message: Message) -> None:
        """Accept one message."""

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Accept messages and return their ids."""
        ids = []
        for message in messages:
            message_id = f"message-{next(self._ids)}"
            message.metadata.__dict__["_message_id"] = message_id
            self.push(message_id, message)
            ids.append(message_id)
        return ids

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Return the replies that come within ``timeout`` seconds."""
        seconds = math.inf if timeout is None else timeout
        replies = (reply for _, reply in Delivery().exchange(self, list(messages), seconds))
        return [reply for reply in replies if isinstance(reply, Message)]

    def set_run(self, run: Run) -> None:
        """Set the run."""
        self._run = run

    @property
    def run(self) -> Run:
        """The run that this grid belongs to."""
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Return a new message."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> list[int]:
        """Return the node ids 1 .. N."""
        return list(self.contexts)


def set_identity(node: int) -> None:
    """Set the sender of this process's messages, which only Flower's own runtime sets."""
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = RUN_ID, node, 1


def run_client_app(client_app: ClientApp, message: Message, context: Context) -> Message:
    """Run the ClientApp; an exception becomes an error reply, as on a SuperNode."""
    try:
        return client_app(message, context)
    except Exception as error:
        return error_reply(message, reason_of(error))


def error_reply(
    message: Message, reason: str, code: int = ErrorCode.CLIENT_APP_RAISED_EXCEPTION
) -> Message:
    """Return the error reply of a node whose ClientApp failed."""
    return Message(Error(code, reason), reply_to=message)


def run_server(server_app: ServerApp, grid: LocalGrid, run_config: Mapping[str, Scalar]) -> None:
    """Run the ServerApp over the grid's nodes to its end, or until Ctrl-C or SIGTERM interrupts it."""
    with sigterm_interrupts():
        server_app(grid, Context(RUN_ID, SUPERLINK_NODE_ID, {}, RecordDict(), dict(run_config)))


def partition_node_configs(num_nodes: int) -> list[dict[str, Scalar]]:
    """Return node-configs with which ``num_nodes`` nodes are clients, one partition each."""
    return [{"partition-id": i, "num-partitions": num_nodes} for i in range(num_nodes)]
