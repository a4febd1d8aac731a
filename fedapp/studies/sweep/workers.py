"""Worker processes that stay alive from run to run, one thread each."""

from __future__ import annotations

import contextlib
import itertools
import logging
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from multiprocessing.synchronize import Event
from pathlib import Path

from fedapp.studies.sweep.identity import Request
from fedapp.studies.sweep.record import RunRecord

PROCESSES = multiprocessing.get_context("spawn")
PULSE = 0.5
"""Least seconds between two messages about a run's rounds."""
PATIENCE = 15.0
"""Seconds that workers have to end their round when all is stopped."""


@dataclass(frozen=True)
class WorkerEvent:
    """What a worker said: the round that its run is in, or that it is done with it."""

    request: Request
    round: int = 0
    accuracy: float | None = None
    done: bool = False
    problem: str = ""


class Worker:
    """A process that does requested runs, one or several at a time, in the store at ``root``.

    It sees the GPU that it is given, or whatever this process sees.
    """

    def __init__(self, number: int, root: Path, gpu: str = "") -> None:
        self.number, self.root, self.gpu = number, root, gpu
        self.requests: list[Request] = []
        self._start()

    def _start(self) -> None:
        self.stop = PROCESSES.Event()
        self.pipe, theirs = PROCESSES.Pipe()
        log = self.root / f"worker-{self.number}.log"
        self.process: SpawnProcess = PROCESSES.Process(
            target=_work, args=(theirs, self.stop, self.root, log, self.gpu), daemon=True
        )
        with _interrupts_ignored():
            self.process.start()
        theirs.close()

    def give(self, requests: Sequence[Request]) -> None:
        """Start on runs, which train together; a worker that died without one is replaced first."""
        self.requests = list(requests)
        try:
            self.pipe.send(self.requests)
        except OSError:
            self.process.join()
            self._start()
            self.pipe.send(self.requests)

    def events(self) -> list[WorkerEvent]:
        """Return what the worker said; one that died is replaced, and its runs count as failed."""
        try:
            events: list[WorkerEvent] = [self.pipe.recv()]
        except (EOFError, ConnectionResetError):
            self.process.join()
            problem = f"its process ended ({self._ending()})"
            events = [WorkerEvent(request, done=True, problem=problem) for request in self.requests]
            self._start()
        for each in events:
            if each.done:
                self.requests.remove(each.request)
        return events

    def _ending(self) -> str:
        code = self.process.exitcode or 0
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"


class Workers:
    """Up to ``jobs`` workers over one store, who share ``gpus`` evenly, if any are named."""

    def __init__(self, jobs: int, root: Path, gpus: Sequence[str] = ()) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self.jobs, self.root = jobs, root
        self.members: list[Worker] = []
        self._gpus = itertools.cycle(gpus or [""])

    def grow(self, count: int) -> None:
        """Have ``count`` workers, or all there may be: what is to be run shows as runs end."""
        for number in range(len(self.members) + 1, min(count, self.jobs) + 1):
            self.members.append(Worker(number, self.root, next(self._gpus)))

    @property
    def idle(self) -> list[Worker]:
        """The workers without a run."""
        return [worker for worker in self.members if not worker.requests]

    @property
    def busy(self) -> list[Worker]:
        """The workers with a run."""
        return [worker for worker in self.members if worker.requests]

    def events(self, seconds: float | None = None) -> Iterator[WorkerEvent]:
        """Wait until a worker says something, or ``seconds``, and yield what was said."""
        ready = wait([worker.pipe for worker in self.busy], seconds)
        for worker in self.busy:
            if worker.pipe in ready:
                yield from worker.events()

    def close(self, patience: float = PATIENCE) -> None:
        """Let every worker end its round and write a checkpoint, then end it."""
        members, self.members = self.members, []
        for worker in members:
            worker.stop.set()
            worker.pipe.close()
        until = time.monotonic() + patience
        for worker in members:
            worker.process.join(max(until - time.monotonic(), 0.1))
            if worker.process.is_alive():
                worker.process.kill()


@contextlib.contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Have processes that are started here ignore Ctrl-C from their first moment: the parent decides."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _work(
    pipe: Connection[WorkerEvent, list[Request]], stop: Event, root: Path, log: Path, gpu: str
) -> None:
    """Do what the pipe asks for until it closes; a worker whose parent is gone stops by itself."""
    if gpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu  # CUDA looks there when it is first used
    _write_into(log)
    from fedapp.studies.sweep.execute import Job, perform, perform_together
    from fedapp.studies.sweep.store import Store

    logging.getLogger("flwr").setLevel(logging.WARNING)
    parent, store = os.getppid(), Store(root)
    while not stop.is_set():
        try:
            requests = pipe.recv()
        except EOFError:
            return
        pulses = [_Pulse(pipe, stop, parent, request) for request in requests]
        if len(pulses) == 1:
            pulses[0].ended(perform(requests[0], store, pulses[0]))
        else:
            perform_together([Job(each.request, each, each.ended) for each in pulses], store)


def _write_into(log: Path) -> None:
    """Send what the process prints, also from libraries in C, to its log."""
    file = log.open("a")
    for stream in (sys.stdout, sys.stderr):
        os.dup2(file.fileno(), stream.fileno())


class _Pulse:
    """Passes on the round of a run from time to time; says when it is to stop."""

    def __init__(
        self,
        pipe: Connection[WorkerEvent, list[Request]],
        stop: Event,
        parent: int,
        request: Request,
    ) -> None:
        self.pipe, self.stop, self.parent, self.request = pipe, stop, parent, request
        self._last = 0.0

    def __call__(self, round_: int, accuracy: float | None) -> bool:
        if time.monotonic() - self._last > PULSE:
            self._last = time.monotonic()
            self.say(WorkerEvent(self.request, round_, accuracy))
        return self.stop.is_set() or os.getppid() != self.parent

    def ended(self, record: RunRecord | None) -> None:
        """Say that the run is over; without a record it was stopped."""
        self.say(WorkerEvent(self.request, done=True, problem=record.problem if record else ""))

    def say(self, events: WorkerEvent) -> None:
        """Say something, unless nobody listens any more."""
        try:
            self.pipe.send(events)
        except OSError:
            self.stop.set()
