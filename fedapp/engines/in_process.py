"""The in-process engine: Flower's ``Grid`` interface over direct calls of the ClientApp."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from flwr.app import Message
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from fedapp.config.settings import Scalar
from fedapp.engines.grid import LocalGrid, partition_node_configs, run_client_app, run_server
from fedapp.seeds import generator


class InlineGrid(LocalGrid):
    """Nodes whose ClientApp runs in this process when its reply is pulled; breakpoints work."""

    def __init__(
        self,
        client_app: ClientApp,
        run_config: Mapping[str, Scalar],
        node_configs: Sequence[Mapping[str, Scalar]],
    ) -> None:
        super().__init__(run_config, node_configs)
        self.client_app = client_app
        self.seed = int(run_config.get("seed", 0))
        self._pending: dict[str, Message] = {}

    @property
    def run_info(self) -> dict[str, Any]:
        """The engine's name."""
        return {"engine": "inline"}

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Accept messages, which are answered in an order that is drawn.

        No clock decides whose reply comes first, and with ``over-selection`` not all are waited for.
        """
        ids = super().push_messages(messages)
        new = [key for key in ids if key in self._pending]
        if new:
            group = self._pending[new[0]].metadata.group_id
            rng = generator(self.seed, "arrival", int(group) if group.isdigit() else 0)
            for place in rng.permutation(len(new)):
                self._pending[new[place]] = self._pending.pop(new[place])
        return ids

    def push(self, message_id: str, message: Message) -> None:
        """Accept a message; the ClientApp gets it when its reply is pulled."""
        self._pending[message_id] = message

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Run the ClientApp on the first pending one of the messages and return its reply."""
        wanted = set(message_ids)
        first = next((key for key in self._pending if key in wanted), None)
        if first is None:
            return []
        return [self._answer(self._pending.pop(first))]

    def _answer(self, message: Message) -> Message:
        """Return the reply of the message's node; tests override this."""
        return run_client_app(self.client_app, message, self.contexts[message.metadata.dst_node_id])

    def cancel_messages(self, message_ids: Collection[str]) -> list[str]:
        """Drop the pending ones of the messages, and return their ids."""
        return [key for key in message_ids if self._pending.pop(key, None)]


def run_inline(
    server_app: ServerApp,
    client_app: ClientApp,
    run_config: Mapping[str, Scalar],
    num_nodes: int = 1,
    node_configs: Sequence[Mapping[str, Scalar]] | None = None,
) -> None:
    """Run the ServerApp over ``num_nodes`` nodes in this process (or one a node-config) to its end."""
    grid = InlineGrid(client_app, run_config, node_configs or partition_node_configs(num_nodes))
    run_server(server_app, grid, run_config)
