"""What the engines of ``fedapp run`` share: nodes and messages of Flower's ``Grid`` interface."""

from __future__ import annotations

import itertools
import math
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.serverapp import Grid, ServerApp
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from fedapp.config.run_config import Scalar
from fedapp.errors import reason_of
from fedapp.federation.delivery import Delivery

RUN_ID = 1


class LocalGrid(Grid):
    """Nodes 1 .. N without a SuperLink; ``node_configs`` gives each its node-config."""

    here = True
    """Whether all nodes are on this machine."""
    where = ""
    """Where they are, in a line for the log, where that is worth one."""
    option = "--nodes"
    """The option of ``fedapp run`` that says how many there are."""

    def __init__(
        self, run_config: Mapping[str, Scalar], node_configs: Sequence[Mapping[str, Scalar]]
    ) -> None:
        self.contexts = {
            node: Context(RUN_ID, node, dict(config), RecordDict(), dict(run_config))
            for node, config in enumerate(node_configs, start=1)
        }
        self._run = Run.create_empty(RUN_ID)
        self._ids = itertools.count(1)
        identify(SUPERLINK_NODE_ID)

    @property
    @abstractmethod
    def run_info(self) -> dict[str, Any]:
        """What ``config.json`` says of this engine, for a resume to take the same."""

    @abstractmethod
    def push(self, message_id: str, message: Message) -> None:
        """Take one message in."""

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Take messages in and return their ids."""
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


def identify(node: int) -> None:
    """Say who makes messages in this process; outside its own runtime Flower does not know."""
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = RUN_ID, node, 1


def answer(client_app: ClientApp, message: Message, context: Context) -> Message:
    """Run the ClientApp; an exception becomes an error reply, as on a SuperNode."""
    try:
        return client_app(message, context)
    except Exception as error:
        return failed(message, reason_of(error))


def failed(
    message: Message, reason: str, code: int = ErrorCode.CLIENT_APP_RAISED_EXCEPTION
) -> Message:
    """Return the reply of a node whose ClientApp failed."""
    return Message(Error(code, reason), reply_to=message)


def run_server(server_app: ServerApp, grid: LocalGrid, run_config: Mapping[str, Scalar]) -> None:
    """Run the ServerApp over the grid's nodes to its end."""
    server_app(grid, Context(RUN_ID, SUPERLINK_NODE_ID, {}, RecordDict(), dict(run_config)))


def places(num_nodes: int) -> list[dict[str, Scalar]]:
    """Return the node-configs of nodes that are the partitions of ``num-clients = 0``."""
    return [{"partition-id": i, "num-partitions": num_nodes} for i in range(num_nodes)]
