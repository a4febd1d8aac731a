"""The engine of Ray workers: nodes that are processes, on this machine or on a Ray cluster.

What every message of a round shares, theta first of all, is put once into Ray's object store, from
where each machine's workers read it. A reply is taken when it comes; nothing polls.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import os
import pkgutil
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from logging import WARNING
from typing import Any

import ray
from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.common.logger import log
from flwr.serverapp import ServerApp
from ray.exceptions import RayActorError, RayError

from fedapp.config import Scalar
from fedapp.engines.local import LocalGrid, answer, failed, identify, places, run_server
from fedapp.errors import RunError

CLIENT_APP = "fedapp.client_app:app"

LONGEST_WAIT = 3600.0
"""Seconds after which a wait comes back without a reply; Ray takes no infinite number."""

SMALL = 100_000
"""Bytes up to which Ray sends an argument with the call."""

ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",  # nothing is reported to anybody
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # Ray's future default; without it, it warns
}


class Worker:
    """What runs in a Ray actor: one node and its ClientApp, given as ``module:attribute``."""

    def __init__(self, client_app: str, context: Context) -> None:
        identify(context.node_id)
        self.client_app = pkgutil.resolve_name(client_app)
        self.context = context

    def answer(self, message: Message, names: Sequence[str], *records: Any) -> Message:
        """Return the reply to a message whose ``records`` come from the object store."""
        message.content = RecordDict({**message.content, **dict(zip(names, records, strict=True))})
        return answer(self.client_app, message, self.context)


@dataclass(frozen=True)
class Share:
    """What a worker has of a machine: cores and GPUs, or parts of one."""

    cpus: float
    gpus: float

    @classmethod
    def of(cls, resources: Mapping[str, float], workers: int, *, gpu: bool) -> Share:
        """Return the largest share with which all ``workers`` find a place in the cluster.

        A whole core if there is one for each, else a half, a third ... so that as many share each
        core; of the GPUs, where the run may use them, the same.
        """
        gpus = resources.get("GPU", 0.0) if gpu else 0.0
        return cls(_part(resources.get("CPU", 1.0), workers), _part(gpus, workers) if gpus else 0.0)


def _part(units: float, workers: int) -> float:
    sharing = -(-workers // max(int(units), 1))
    return int(10_000 / sharing) / 10_000  # Ray counts in ten-thousandths


class WorkerGrid(LocalGrid):
    """Nodes that are Ray actors; one that dies is replaced, and its reply counts as failed."""

    option = "--workers"

    def __init__(
        self,
        run_config: Mapping[str, Scalar],
        node_configs: Sequence[Mapping[str, Scalar]],
        share: Share,
        client_app: str = CLIENT_APP,
    ) -> None:
        super().__init__(run_config, node_configs)
        self.client_app = client_app
        self._actor = ray.remote(Worker).options(
            num_cpus=share.cpus, num_gpus=share.gpus, scheduling_strategy="SPREAD"
        )
        self._workers = {node: self._start(node) for node in self.contexts}
        self._sent: dict[str, tuple[Message, Any]] = {}
        self._stored: dict[int, Any] = {}

    @property
    def found(self) -> dict[str, Any]:
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
        stored = [self._store(record) for record in arrays.values()]
        worker = self._workers[message.metadata.dst_node_id]
        self._sent[message_id] = (light, worker.answer.remote(light, list(arrays), *stored))

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return the replies that are there."""
        ids = {self._sent[key][1]: key for key in message_ids if key in self._sent}
        ready, _ = ray.wait(list(ids), num_returns=len(ids), timeout=0) if ids else ([], [])
        return [self._reply(*self._sent.pop(ids[result])) for result in ready]

    def wait_for_replies(self, message_ids: Collection[str], seconds: float) -> None:
        """Return when one of the messages has its reply, or after ``seconds``."""
        results = [self._sent[key][1] for key in message_ids if key in self._sent]
        if results:
            ray.wait(results, timeout=min(seconds, LONGEST_WAIT))

    def _reply(self, message: Message, result: Any) -> Message:
        try:
            reply: Message = ray.get(result)
        except RayActorError as error:
            node = message.metadata.dst_node_id
            log(WARNING, "The worker of node %d died and is replaced", node)
            self._workers[node] = self._start(node)
            reason = f"its worker died: {str(error).strip()}"
            return failed(message, reason, ErrorCode.CLIENT_APP_CRASHED)
        except RayError as error:
            return failed(message, f"its worker failed: {str(error).strip()}")
        return reply

    def _start(self, node: int) -> Any:
        return self._actor.remote(self.client_app, self.contexts[node])

    def _store(self, record: ArrayRecord) -> Any:
        """Return the record's place in the object store; a small one is quicker sent by itself."""
        if sum(len(array.data) for array in record.values()) < SMALL:
            return record
        if id(record) not in self._stored:
            self._stored[id(record)] = ray.put(record)
        return self._stored[id(record)]

    def _forget_expired(self) -> None:
        """Let go of replies that came after their round's deadline: nobody will ask for them."""
        now = time.time()
        for key, (message, _) in list(self._sent.items()):
            if message.metadata.created_at + message.metadata.ttl < now:
                del self._sent[key]


@contextlib.contextmanager
def connected(address: str) -> Iterator[None]:
    """Be connected to the Ray cluster at ``address``; empty: one of this process, on this machine.

    A connection that is there already is used, and left as it is.

    Raises
    ------
    RunError
        There is no cluster at the address, or none starts here.
    """
    if ray.is_initialized():
        yield
        return
    for key, value in ENVIRONMENT.items():
        os.environ.setdefault(key, value)
    try:
        ray.init(address or "local", include_dashboard=None, logging_level=logging.WARNING)
    except Exception as error:  # Ray has no class of its own for it
        raise RunError(
            f"--ray-address {address!r}: there is no Ray cluster ({error}). Start one with `ray start "
            "--head`, use the address that it prints, or leave the option out."
            if address
            else f"--workers: Ray does not start on this machine ({error}). Leave the option out."
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


def run_workers(
    server_app: ServerApp,
    run_config: Mapping[str, Scalar],
    workers: int,
    address: str = "",
    client_app: str = CLIENT_APP,
) -> None:
    """Run the ServerApp over ``workers`` Ray actors to its end.

    Raises
    ------
    RunError
        There is no cluster at ``address``.
    """
    with connected(address):
        resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        share = Share.of(resources, workers, gpu=run_config.get("device") != "cpu")
        grid = WorkerGrid(run_config, places(workers), share, client_app)
        grid.here = not address
        run_server(server_app, grid, run_config)
