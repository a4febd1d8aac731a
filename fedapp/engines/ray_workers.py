"""The engine of Ray workers: nodes that are processes, on this machine or on a Ray cluster.

Records that the messages of a round share, such as theta, are put once into Ray's object store, from
where each machine's workers read them. Ray reports a finished reply, so nothing is polled.
"""

from __future__ import annotations

import copy
import os
import pkgutil
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from logging import WARNING
from typing import Any

import ray
from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.common.logger import log
from flwr.serverapp import ServerApp
from ray.exceptions import RayActorError, RayError
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from fedapp.config.app_folder import VARIABLE, app_folder
from fedapp.config.run_config import Scalar
from fedapp.engines.grid import (
    LocalGrid,
    error_reply,
    partition_node_configs,
    run_client_app,
    run_server,
    set_identity,
)
from fedapp.engines.ray_cluster import (
    LOCAL,
    PLACEMENT_TIMEOUT,
    Cluster,
    WorkerPlacement,
    WorkerResources,
    connected,
    place_workers,
)

CLIENT_APP = "fedapp.client_app:app"

MAX_WAIT_SECONDS = 3600.0
"""Longest wait of one call in seconds, since Ray takes no infinite number."""

MAX_INLINE_BYTES = 100_000
"""Largest record in bytes that is sent with the call, and not through the object store."""


class Worker:
    """A Ray actor: one node and its ClientApp, given as ``module:attribute``.

    ``folder`` is that of the app, in which the run was started.
    """

    def __init__(self, client_app: str, context: Context, folder: str) -> None:
        os.environ[VARIABLE] = folder
        set_identity(context.node_id)
        self.client_app = pkgutil.resolve_name(client_app)
        self.context = context

    def answer(self, message: Message, names: Sequence[str], *records: Any) -> Message:
        """Return the reply to a message whose ``records`` come from the object store."""
        message.content = RecordDict({**message.content, **dict(zip(names, records, strict=True))})
        return run_client_app(self.client_app, message, self.context)


class WorkerGrid(LocalGrid):
    """Nodes that are Ray actors; one that dies is replaced, and its reply is an error."""

    option = "--workers"

    def __init__(
        self,
        run_config: Mapping[str, Scalar],
        node_configs: Sequence[Mapping[str, Scalar]],
        placement: WorkerPlacement,
        client_app: str = CLIENT_APP,
    ) -> None:
        super().__init__(run_config, node_configs)
        self.client_app = client_app
        self.location = placement.description
        self._placement = placement
        self._workers = {node: self._start(node) for node in self.contexts}
        self._sent: dict[str, tuple[Message, Any]] = {}
        self._stored: dict[int, Any] = {}

    @property
    def run_info(self) -> dict[str, Any]:
        """The engine's name and the number of workers."""
        return {"engine": "workers", "workers": len(self.contexts)}

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Send messages to their workers; records that several share are stored once."""
        self._forget_expired()
        self._stored = {}
        return super().push_messages(messages)

    def push(self, message_id: str, message: Message) -> None:
        """Send one message to its worker."""
        arrays = message.content.array_records
        rest = {key: record for key, record in message.content.items() if key not in arrays}
        light = copy.copy(message)
        light.content = RecordDict(rest)
        stored = [self._to_object_store(record) for record in arrays.values()]
        worker = self._workers[message.metadata.dst_node_id]
        self._sent[message_id] = (light, worker.answer.remote(light, list(arrays), *stored))

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return the replies that have arrived."""
        ids = {self._sent[key][1]: key for key in message_ids if key in self._sent}
        ready, _ = ray.wait(list(ids), num_returns=len(ids), timeout=0) if ids else ([], [])
        return [self._reply(*self._sent.pop(ids[result])) for result in ready]

    def wait_for_replies(self, message_ids: Collection[str], seconds: float) -> None:
        """Return when one of the messages has its reply, or after ``seconds``."""
        results = [self._sent[key][1] for key in message_ids if key in self._sent]
        if results:
            ray.wait(results, timeout=min(seconds, MAX_WAIT_SECONDS))

    def _reply(self, message: Message, result: Any) -> Message:
        try:
            reply: Message = ray.get(result)
        except RayActorError as error:
            node = message.metadata.dst_node_id
            log(WARNING, "The worker of node %d died and is replaced", node)
            self._workers[node] = self._start(node)
            reason = f"its worker died: {str(error).strip()}"
            return error_reply(message, reason, ErrorCode.CLIENT_APP_CRASHED)
        except RayError as error:
            return error_reply(message, f"its worker failed: {str(error).strip()}")
        return reply

    def _start(self, node: int) -> Any:
        actor = ray.remote(Worker).options(
            num_cpus=self._placement.resources.cpus,
            num_gpus=self._placement.resources.gpus,
            scheduling_strategy=PlacementGroupSchedulingStrategy(self._placement.group, node - 1),
        )
        return actor.remote(self.client_app, self.contexts[node], str(app_folder()))

    def _to_object_store(self, record: ArrayRecord) -> Any:
        """Return the record's reference in the object store; a small record is sent faster by itself."""
        if sum(len(array.data) for array in record.values()) < MAX_INLINE_BYTES:
            return record
        if id(record) not in self._stored:
            self._stored[id(record)] = ray.put(record)
        return self._stored[id(record)]

    def _forget_expired(self) -> None:
        """Drop the expired messages, whose replies nobody will pull."""
        now = time.time()
        for key, (message, _) in list(self._sent.items()):
            if message.metadata.created_at + message.metadata.ttl < now:
                del self._sent[key]


def run_workers(
    server_app: ServerApp,
    run_config: Mapping[str, Scalar],
    workers: int,
    cluster: Cluster = LOCAL,
    seconds: float = PLACEMENT_TIMEOUT,
    client_app: str = CLIENT_APP,
) -> None:
    """Run the ServerApp over ``workers`` Ray actors to its end.

    Raises
    ------
    RunError
        There is no cluster at the address, or the workers' resources were not free within ``seconds``.
    """
    with connected(cluster):
        resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        each = WorkerResources.of(resources, workers, gpu=run_config.get("device") != "cpu")
        with place_workers(cluster, each, workers, seconds) as placement:
            grid = WorkerGrid(run_config, partition_node_configs(workers), placement, client_app)
            grid.on_this_machine = not cluster.address
            run_server(server_app, grid, run_config)
