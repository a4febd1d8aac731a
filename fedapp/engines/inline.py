"""The in-process engine: Flower's ``Grid`` interface over ClientApp calls in this very process."""

from __future__ import annotations

import itertools
import traceback
from collections.abc import Iterable, Mapping, Sequence

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.serverapp import Grid, ServerApp
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from fedapp.config import Scalar

RUN_ID = 1


class InlineGrid(Grid):
    """Nodes 1 .. N whose ClientApp runs when its reply is pulled; breakpoints work.

    ``node_configs`` gives each node its node-config.
    """

    def __init__(
        self,
        client_app: ClientApp,
        run_config: Mapping[str, Scalar],
        node_configs: Sequence[Mapping[str, Scalar]],
    ) -> None:
        self.client_app = client_app
        self.contexts = {
            node: Context(RUN_ID, node, dict(config), RecordDict(), dict(run_config))
            for node, config in enumerate(node_configs, start=1)
        }
        self._run = Run.create_empty(RUN_ID)
        self._ids = itertools.count(1)
        self._pending: dict[str, Message] = {}
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = (
            RUN_ID,
            SUPERLINK_NODE_ID,
            1,
        )

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

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Take messages in; they are worked on when their replies are pulled."""
        ids = []
        for message in messages:
            message_id = f"message-{next(self._ids)}"
            message.metadata.__dict__["_message_id"] = message_id
            self._pending[message_id] = message
            ids.append(message_id)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Work on the first of the messages that is still pending and return its reply."""
        wanted = set(message_ids)
        first = next((key for key in self._pending if key in wanted), None)
        return [] if first is None else [self._answer(self._pending.pop(first))]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Work on all messages, one after another, and return their replies."""
        ids = self.push_messages(messages)
        return [reply for message_id in ids for reply in self.pull_messages([message_id])]

    def _answer(self, message: Message) -> Message:
        """Run the ClientApp; an exception becomes an error reply, as on a SuperNode."""
        try:
            return self.client_app(message, self.contexts[message.metadata.dst_node_id])
        except Exception as error:
            reason = "".join(traceback.format_exception_only(error)).strip()
            return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message)


def run_inline(
    server_app: ServerApp,
    client_app: ClientApp,
    run_config: Mapping[str, Scalar],
    num_nodes: int = 1,
    node_configs: Sequence[Mapping[str, Scalar]] | None = None,
) -> None:
    """Run the ServerApp over ``num_nodes`` in-process nodes (or one a node-config) to its end."""
    if node_configs is None:
        node_configs = [{"partition-id": i, "num-partitions": num_nodes} for i in range(num_nodes)]
    grid = InlineGrid(client_app, run_config, node_configs)
    context = Context(RUN_ID, SUPERLINK_NODE_ID, {}, RecordDict(), dict(run_config))
    server_app(grid, context)
