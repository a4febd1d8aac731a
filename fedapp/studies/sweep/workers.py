"""Worker processes, each with one thread, that execute one run after another."""

from __future__ import annotations

import contextlib
import itertools
import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import TYPE_CHECKING

from fedapp.errors import FedappError, one_line
from fedapp.studies.sweep.identity import Request
from fedapp.studies.sweep.record import RunRecord

PROCESSES = multiprocessing.get_context("spawn")
REPORT_SECONDS = 0.5
"""Minimum seconds between two messages about the rounds of a run."""
STOP_TIMEOUT = 15.0
"""Seconds that workers have to finish their round when they are stopped."""


CHANGED = (
    "the code of its own components, or its data, changed while the sweep ran. Start the command again, "
    "which then makes runs of the new code"
)


@dataclass(frozen=True)
class WorkerEvent:
    """A message of a worker: the round of its run, or the end of the run."""

    request: Request
    round: int = 0
    accuracy: float | None = None
    done: bool = False
    problem: str = ""


if TYPE_CHECKING:
    Pipe = Connection[WorkerEvent, list[tuple[Request, str]]]
    """The worker's end: it receives requests with the names of their runs."""


class Worker:
    """A process that executes requested runs in the store at ``root``, one or several at a time.

    It sees the GPU ``gpu``, or without it the GPUs of this process.
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

    def assign(self, requests: Sequence[Request]) -> None:
        """Start runs, which train in one program; a worker that died while idle is replaced first."""
        self.requests = list(requests)
        try:
            self.pipe.send([(each, each.run) for each in requests])
        except OSError:
            self.process.join()
            self._start()
            self.pipe.send([(each, each.run) for each in requests])

    def events(self) -> list[WorkerEvent]:
        """Return the worker's messages; a worker that died is replaced, and its runs have failed."""
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
    """Up to ``jobs`` workers on one store, evenly distributed over ``gpus``."""

    def __init__(self, jobs: int, root: Path, gpus: Sequence[str] = ()) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self.jobs, self.root = jobs, root
        self.members: list[Worker] = []
        self._gpus = itertools.cycle(gpus or [""])

    def grow(self, count: int) -> None:
        """Start workers until there are ``count``, or ``jobs``."""
        for number in range(len(self.members) + 1, min(count, self.jobs) + 1):
            self.members.append(Worker(number, self.root, next(self._gpus)))

    @property
    def idle(self) -> list[Worker]:
        """The workers without runs."""
        return [worker for worker in self.members if not worker.requests]

    @property
    def busy(self) -> list[Worker]:
        """The workers with runs."""
        return [worker for worker in self.members if worker.requests]

    def events(self, seconds: float | None = None) -> Iterator[WorkerEvent]:
        """Wait for messages, at most ``seconds``, and yield them."""
        ready = wait([worker.pipe for worker in self.busy], seconds)
        for worker in self.busy:
            if worker.pipe in ready:
                yield from worker.events()

    def close(self, timeout: float = STOP_TIMEOUT) -> None:
        """Let every worker finish its round and write a checkpoint, then end it."""
        members, self.members = self.members, []
        for worker in members:
            worker.stop.set()
            worker.pipe.close()
        until = time.monotonic() + timeout
        for worker in members:
            worker.process.join(max(until - time.monotonic(), 0.1))
            if worker.process.is_alive():
                worker.process.kill()


@contextlib.contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Let processes that start here ignore Ctrl-C from the first moment; the parent stops them."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _work(pipe: Pipe, stop: Event, root: Path, log: Path, gpu: str) -> None:
    """Execute the requests from the pipe until it closes, or the parent is gone."""
    if gpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu  # read when CUDA is first used
    write_into(log)
    parent = os.getppid()
    while not stop.is_set():
        try:
            named = pipe.recv()
        except EOFError:
            return
        execute(named, root, pipe.send, stop, parent)


def execute(
    named: Sequence[tuple[Request, str]],
    root: Path,
    send: Callable[[WorkerEvent], None],
    stop: Event | threading.Event,
    parent: int,
) -> None:
    """Execute requests, given with the names of their runs, in the store at ``root``.

    They stop after a round when ``stop`` is set, or the process ``parent`` is gone.
    """
    from fedapp.studies.sweep.execute import Job, execute_run, execute_together
    from fedapp.studies.sweep.store import Store

    logging.getLogger("flwr").setLevel(logging.WARNING)
    store = Store(root)
    problems = {request: name_problem(request, run) for request, run in named}
    for request, problem in problems.items():
        if problem:
            send(WorkerEvent(request, done=True, problem=problem))
    requests = [request for request, problem in problems.items() if not problem]
    reporters = [_ProgressReporter(send, stop, parent, request) for request in requests]
    if len(reporters) == 1:
        reporters[0].ended(execute_run(requests[0], store, reporters[0]))
    elif reporters:
        execute_together([Job(each.request, each, each.ended) for each in reporters], store)


def name_problem(request: Request, run: str) -> str:
    """Return why this process would not make the run that the parent calls ``run``, or ""."""
    try:
        return "" if request.run == run else CHANGED
    except FedappError as error:
        return one_line(error)


def write_into(log: Path) -> None:
    """Redirect the output of the process, including that of C libraries, to its log."""
    file = log.open("a")
    for stream in (sys.stdout, sys.stderr):
        os.dup2(file.fileno(), stream.fileno())


class _ProgressReporter:
    """Sends the progress of a run to the parent; True as a return value stops the run."""

    def __init__(
        self,
        send: Callable[[WorkerEvent], None],
        stop: Event | threading.Event,
        parent: int,
        request: Request,
    ) -> None:
        self._send, self.stop, self.request = send, stop, request
        self._parent, self._last = parent, 0.0

    def __call__(self, round_: int, accuracy: float | None) -> bool:
        if time.monotonic() - self._last > REPORT_SECONDS:
            self._last = time.monotonic()
            self.send(WorkerEvent(self.request, round_, accuracy))
        return self.stop.is_set() or os.getppid() != self._parent

    def ended(self, record: RunRecord | None) -> None:
        """Send the end of the run; without a record it was stopped."""
        self.send(WorkerEvent(self.request, done=True, problem=record.problem if record else ""))

    def send(self, event: WorkerEvent) -> None:
        """Send an event; stop if the parent has closed the pipe."""
        try:
            self._send(event)
        except OSError:
            self.stop.set()
