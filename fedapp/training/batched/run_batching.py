"""Run batching: the clients of several runs train in one compiled step.

The runs differ in nothing but learning rate and seed. Each run has a thread of its own; the threads
meet where their trainers are called.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace

from fedapp.training.round_plan import RoundPlan
from fedapp.training.trainer import CaptureError, ClientResult, ClientTask, restoring

Train = Callable[[Sequence[ClientTask], RoundPlan], list[ClientResult]]
"""Trains clients of one run or of several, whose plans differ at most in the learning rate."""


@dataclass(frozen=True)
class _TrainCall:
    """The clients that one run wants trained, and the future of their results."""

    train: Train
    tasks: Sequence[ClientTask]
    plan: RoundPlan
    future: Future[list[ClientResult]] = field(default_factory=Future)

    def train_separately(self) -> None:
        """Train this run's clients by themselves; an exception is the run's own, also a SystemExit."""
        try:
            self.future.set_result(self.train(self.tasks, self.plan))
        except BaseException as error:
            self.future.set_exception(error)


class RunBatch:
    """Synchronises the threads of ``num_runs`` runs so that their clients train together.

    When every run that has not ended has called ``client_updates``, one thread trains all the clients
    and distributes the results. Only one thread runs at a time, so that shared objects (a network,
    PyTorch's generator, caches) are never used by two at once.
    """

    def __init__(self, num_runs: int) -> None:
        self._condition = threading.Condition()
        self._num_active = num_runs
        self._calls: list[_TrainCall] = []

    @contextmanager
    def taking_part(self) -> Iterator[None]:
        """Let this thread's run take part, as soon as no other thread runs, until the block ends."""
        with self._condition:
            token = _RUN_BATCH.set(self)
            try:
                yield
            finally:
                _RUN_BATCH.reset(token)
                self._num_active -= 1
                self._condition.notify_all()

    def client_updates(
        self, train: Train, tasks: Sequence[ClientTask], plan: RoundPlan
    ) -> list[ClientResult]:
        """Return the results of ``train`` for ``tasks``, called with the other runs' tasks as well."""
        call = _TrainCall(train, tasks, plan)
        self._calls.append(call)
        while not call.future.done():
            if len(self._calls) == self._num_active:
                calls, self._calls = self._calls, []
                _train(calls)
                self._condition.notify_all()
            else:
                self._condition.wait()
        if (error := call.future.exception()) is not None:  # result() drops an error that is false
            raise error
        return call.future.result()


_RUN_BATCH: ContextVar[RunBatch | None] = ContextVar("run_batch", default=None)


def current_run_batch() -> RunBatch | None:
    """Return the batch in which this thread's run takes part, or None for a separate run."""
    return _RUN_BATCH.get()


def shared_settings(plan: RoundPlan) -> RoundPlan:
    """Return a plan with the settings alone that clients of several runs share in a batch: not eta."""
    return replace(
        plan,
        learning_rate=0.0,
        update="delta",
        weighting="examples",
        reply="mean",
        round=1,
        seed=0,
        threads=1,
        trainer="auto",
    )


def _train(calls: Sequence[_TrainCall]) -> None:
    """Carry out the calls; those with the same trainer and plan together."""
    groups: dict[tuple[Train, RoundPlan], list[_TrainCall]] = {}
    for call in calls:
        key = (call.train, shared_settings(call.plan))
        groups.setdefault(key, []).append(call)
    for group in groups.values():
        if len(group) == 1:
            group[0].train_separately()
        else:
            _train_together(group)


def _train_together(calls: Sequence[_TrainCall]) -> None:
    """Carry out the calls together; where that raises, separately, to find the run at fault.

    After an incomplete capture nothing is retried: the error is every run's.
    """
    tasks = [task for call in calls for task in call.tasks]
    results: list[ClientResult] | None
    try:
        with restoring(tasks):
            results = calls[0].train(tasks, calls[0].plan)
    except CaptureError as error:
        for call in calls:
            call.future.set_exception(error)
        return
    except BaseException:
        results = None
    if results is None:  # outside the handler, so that the traceback's tensors are freed
        for call in calls:
            call.train_separately()
        return
    remaining = iter(results)
    for call in calls:
        call.future.set_result([next(remaining) for _ in call.tasks])
