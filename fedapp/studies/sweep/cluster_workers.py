"""Workers of a sweep on a Ray cluster: actors that execute one run after another."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError

from fedapp.config.read import read_config
from fedapp.engines.ray_actors import ActorPool, PoolActor
from fedapp.engines.ray_cluster import Cluster, connected
from fedapp.engines.ray_placement import WorkerRequest, place_workers
from fedapp.errors import one_line, reason_of
from fedapp.runs.own_code import own_code_of
from fedapp.studies.sweep.identity import Request
from fedapp.studies.sweep.workers import (
    REPORT_SECONDS,
    STOP_TIMEOUT,
    WorkerEvent,
    execute,
    write_into,
)

MAX_LOSSES = 3
"""Workers that a run may lose before it has failed: with machines that end, or by its own fault."""
LOOK_SECONDS = 5.0
"""Longest wait for messages, after which workers that have joined get runs."""


class RunActor(PoolActor):
    """Executes requested runs in the store at ``root``, in a thread, and returns their messages."""

    def __init__(self, number: int, root: Path, folder: str) -> None:
        super().__init__(folder)
        self._root, self._stop, self._raylet = root, threading.Event(), os.getppid()
        self._events: queue.Queue[WorkerEvent] = queue.Queue()
        self._thread = threading.Thread()
        write_into(root / f"worker-{number}.log")

    def assign(self, named: Sequence[tuple[Request, str]]) -> None:
        """Start runs, given with their names, which train in one program."""
        self._thread = threading.Thread(target=self._execute, args=(named,), daemon=True)
        self._thread.start()

    def _execute(self, named: Sequence[tuple[Request, str]]) -> None:
        """Execute the runs; an error of all (the disk is full, say) is one of each that has not ended."""
        left = [request for request, _ in named]

        def put(event: WorkerEvent) -> None:
            if event.done:
                left.remove(event.request)
            self._events.put(event)

        try:
            execute(named, self._root, put, self._stop, self._raylet)
        except BaseException as error:  # also a SystemExit, which would end this thread alone
            for request in [*left]:
                put(WorkerEvent(request, done=True, problem=one_line(reason_of(error))))

    def events(self) -> list[WorkerEvent]:
        """Return messages, after a short wait for the first one."""
        events = []
        with contextlib.suppress(queue.Empty):
            events.append(self._events.get(timeout=REPORT_SECONDS))
            while True:
                events.append(self._events.get_nowait())
        return events

    def close(self) -> None:
        """Let the runs finish their round and write a checkpoint."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()


class ClusterWorker:
    """The place of one worker: the runs of the actor that is there."""

    def __init__(self, number: int, pool: ActorPool, losses: Counter[str]) -> None:
        self.number, self.requests = number, list[Request]()
        self._pool, self._losses = pool, losses
        self._actor: Any = None
        self.messages: Any = None

    def assign(self, requests: Sequence[Request]) -> None:
        """Start runs, which train in one program."""
        self.requests, self._actor = list(requests), self._pool.handle(self.number)
        self._actor.assign.remote([(each, each.run) for each in requests])
        self.messages = self._actor.events.remote()

    def events(self) -> list[WorkerEvent]:
        """Return the messages that have arrived; a run whose worker died is not done, up to a limit."""
        try:
            events: list[WorkerEvent] = ray.get(self.messages)
        except RayActorError as error:
            self._pool.restart(self.number, self._actor, error)
            self._losses.update(request.run for request in self.requests)
            events = [
                WorkerEvent(request, done=True, problem=self._problem(request))
                for request in self.requests
            ]
        for each in events:
            if each.done:
                self.requests.remove(each.request)
        if self.requests:
            self.messages = self._actor.events.remote()
        return events

    def _problem(self, request: Request) -> str:
        lost = self._losses[request.run]
        return f"its worker died {lost} times" if lost >= MAX_LOSSES else ""


class ClusterWorkers:
    """Workers on a Ray cluster, for ``requests`` in the store at ``root``, which all nodes see.

    Raises
    ------
    RunError
        There is no cluster at the address, or no room for the workers.
    ConfigError
        Not all nodes see the store.
    """

    def __init__(
        self, cluster: Cluster, request: WorkerRequest, root: Path, requests: Sequence[Request]
    ) -> None:
        configs = [read_config(dict(each.settings)) for each in requests]
        # Also those of callbacks: a worker is its runs' server.
        codes = {code.digest: code for each in configs for _, _, code in own_code_of(each)}
        on_gpu = any(config.device != "cpu" for config in configs)
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(connected(cluster, codes.values()))
            placement = stack.enter_context(place_workers(cluster, request, gpu=on_gpu))
            self._pool = ActorPool(placement, RunActor, lambda number: (number, root, folder))
            self._pool.require_shared(root, "--runs", "The runs are there")
            self.location = placement.description
            self._stack = stack.pop_all()
        losses = Counter[str]()
        numbers = range(1, placement.workers + 1)
        self.members = [ClusterWorker(number, self._pool, losses) for number in numbers]

    def grow(self, count: int) -> None:
        """Do nothing: all workers are there from the start."""

    @property
    def idle(self) -> list[ClusterWorker]:
        """The workers that are alive, and without runs."""
        alive = self._pool.alive()
        return [each for each in self.members if not each.requests and each.number in alive]

    @property
    def busy(self) -> list[ClusterWorker]:
        """The workers with runs."""
        return [worker for worker in self.members if worker.requests]

    def events(self, seconds: float | None = None) -> Iterator[WorkerEvent]:
        """Wait for messages, at most ``seconds``, and yield them."""
        most = LOOK_SECONDS if seconds is None else min(seconds, LOOK_SECONDS)
        waiting = {worker.messages: worker for worker in self.busy}
        if not waiting:
            time.sleep(min(most, REPORT_SECONDS))
            return
        ready, _ = ray.wait(list(waiting), timeout=most)
        for messages in ready:
            yield from waiting[messages].events()

    def close(self, timeout: float = STOP_TIMEOUT) -> None:
        """Let every worker finish its round and write a checkpoint, then end it."""
        members, self.members = self.members, []
        if members:  # a second call finds Ray shut down, and would start it again
            with contextlib.suppress(RayError):
                alive = self._pool.alive()
                ended = [self._pool.handle(number).close.remote() for number in alive]
                ray.get(ended, timeout=timeout)
        self._stack.close()
