"""The engine of Ray workers: nodes that are processes, on this machine or on a Ray cluster.

Records that the messages of a round share, such as theta, are put once into Ray's object store, from
where each machine's workers read them. Ray reports a finished reply, so nothing is polled.
"""

from __future__ import annotations

import copy
import pkgutil
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import ServerApp
from ray.exceptions import RayActorError, RayError

from fedapp.config.read import read_config
from fedapp.config.settings import Scalar
from fedapp.engines.grid import (
    LocalGrid,
    error_reply,
    partition_node_configs,
    run_client_app,
    run_server,
    set_identity,
)
from fedapp.engines.ray_actors import ActorPool, PoolActor
from fedapp.engines.ray_cluster import LOCAL, Cluster, connected
from fedapp.engines.ray_placement import WorkerPlacement, WorkerRequest, place_workers

CLIENT_APP = "fedapp.client_app:app"

MAX_WAIT_SECONDS = 3600.0
"""Longest wait of one call in seconds, since Ray takes no infinite number."""

MAX_INLINE_BYTES = 100_000
"""Largest record in bytes that is sent with the call, and not through the object store."""


class Worker(PoolActor):
    """A Ray actor: one node and its ClientApp, given as ``module:attribute``."""

    def __init__(self, client_app: str, context: Context, folder: str) -> None:
        super().__init__(folder)
        set_identity(context.node_id)
        self.client_app = pkgutil.resolve_name(client_app)
        self.context = context

    def answer(self, message: Message, names: Sequence[str], *records: Any) -> Message:
        """Return the reply to a message whose ``records`` come from the object store."""
        message.content = RecordDict({**message.content, **dict(zip(names, records, strict=True))})
        return run_client_app(self.client_app, message, self.context)


@dataclass(frozen=True)
class _SentMessage:
    """A message that was sent; without a ``result`` its worker had died before."""

    message: Message
    worker: Any
    result: Any


class WorkerGrid(LocalGrid):
    """Nodes that are Ray actors; one that dies leaves, its reply is an error, and it may join again."""

    option = "--workers"
    shares_evaluation = True

    def __init__(
        self,
        run_config: Mapping[str, Scalar],
        node_configs: Sequence[Mapping[str, Scalar]],
        placement: WorkerPlacement,
        client_app: str = CLIENT_APP,
        folder: str = "",
    ) -> None:
        super().__init__(run_config, node_configs)
        self.location = placement.description
        self._pool = ActorPool(
            placement, Worker, lambda node: (client_app, self.contexts[node], folder)
        )
        self._sent: dict[str, _SentMessage] = {}
        self._stored: dict[int, tuple[ArrayRecord, Any]] = {}

    @property
    def run_info(self) -> dict[str, Any]:
        """The engine's name and the number of workers."""
        return {"engine": "workers", "workers": len(self.contexts)}

    def get_node_ids(self) -> list[int]:
        """Return the nodes whose workers are alive."""
        return list(self._pool.alive())

    def get_nodes(self) -> list[NodeInfo]:
        """Return the nodes whose workers are alive; one that was started again is another connection."""
        alive = self._pool.alive().items()
        return [NodeInfo(node_id=node, last_activated_at=str(starts)) for node, starts in alive]

    def require_shared(self, folder: Path, option: str, because: str) -> None:
        """Raise ConfigError if workers and server do not see each other's files in a folder."""
        self._pool.require_shared(folder, option, because)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Send messages to their workers; records that several share are stored once.

        So are records that the messages sent before had already, as theta, which is evaluated first.
        """
        self._forget_expired()
        messages = list(messages)
        records = {id(r) for m in messages for r in m.content.array_records.values()}
        self._stored = {key: entry for key, entry in self._stored.items() if key in records}
        return super().push_messages(messages)

    def push(self, message_id: str, message: Message) -> None:
        """Send one message to its worker."""
        arrays = message.content.array_records
        rest = {key: record for key, record in message.content.items() if key not in arrays}
        light = copy.copy(message)
        light.content = RecordDict(rest)
        worker = self._pool.handle(message.metadata.dst_node_id)
        result = None
        if worker is not None:
            stored = [self._to_object_store(record) for record in arrays.values()]
            result = worker.answer.remote(light, list(arrays), *stored)
        self._sent[message_id] = _SentMessage(light, worker, result)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return the replies that have arrived."""
        calls = {key: self._sent[key] for key in message_ids if key in self._sent}
        results = [call.result for call in calls.values() if call.result is not None]
        ready, _ = ray.wait(results, num_returns=len(results), timeout=0) if results else ([], [])
        arrived = {None, *ready}
        keys = [key for key, call in calls.items() if call.result in arrived]
        return [self._reply(self._sent.pop(key)) for key in keys]

    def wait_for_replies(self, message_ids: Collection[str], seconds: float) -> None:
        """Return when one of the messages has its reply, or after ``seconds``."""
        results = [self._sent[key].result for key in message_ids if key in self._sent]
        if results and None not in results:
            ray.wait(results, timeout=min(seconds, MAX_WAIT_SECONDS))

    def _reply(self, call: _SentMessage) -> Message:
        if call.result is None:
            return error_reply(call.message, "its worker has died", ErrorCode.CLIENT_APP_CRASHED)
        try:
            reply: Message = ray.get(call.result)
        except RayActorError as error:
            self._pool.restart(call.message.metadata.dst_node_id, call.worker, error)
            return error_reply(call.message, "its worker died", ErrorCode.CLIENT_APP_CRASHED)
        except RayError as error:
            return error_reply(call.message, f"its worker failed: {str(error).strip()}")
        return reply

    def _to_object_store(self, record: ArrayRecord) -> Any:
        """Return the record's reference in the object store; a small record is sent faster by itself."""
        if sum(len(array.data) for array in record.values()) < MAX_INLINE_BYTES:
            return record
        if id(record) not in self._stored:
            self._stored[id(record)] = record, ray.put(record)
        return self._stored[id(record)][1]

    def _forget_expired(self) -> None:
        """Drop the expired messages, whose replies nobody will pull."""
        now = time.time()
        for key, call in list(self._sent.items()):
            if call.message.metadata.created_at + call.message.metadata.ttl < now:
                del self._sent[key]


def run_workers(
    server_app: ServerApp,
    run_config: Mapping[str, Scalar],
    request: WorkerRequest,
    cluster: Cluster = LOCAL,
    client_app: str = CLIENT_APP,
) -> None:
    """Run the ServerApp over the Ray actors of the request to its end.

    Raises
    ------
    RunError
        There is no cluster at the address, the workers' resources were not free in time, or a worker
        does not start.
    """
    config = read_config(run_config)
    with (
        connected(cluster, config.own_code().values()) as folder,
        place_workers(cluster, request, gpu=config.device != "cpu") as placement,
    ):
        nodes = partition_node_configs(request.workers)
        grid = WorkerGrid(run_config, nodes, placement, client_app, folder)
        grid.on_this_machine = not cluster.address
        run_server(server_app, grid, run_config)
