"""Execution of requested runs in this process: one, or several in one program."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from fedapp.client_app import app as client_app
from fedapp.config.read import callback_settings, read_config
from fedapp.config.settings import Scalar
from fedapp.engines.in_process import InlineGrid
from fedapp.errors import FedappError, RunBusyError
from fedapp.federation.callback import Callback, ServerState
from fedapp.federation.round_result import RoundResult
from fedapp.runs.callbacks import StopAtTarget
from fedapp.runs.checkpoint import checkpoint_rounds
from fedapp.runs.directory import RunDirectory, read_stored
from fedapp.runs.lock import LOCK_TIMEOUT, is_locked
from fedapp.runs.stored_run import read_run, round_of_model
from fedapp.server import run
from fedapp.studies.sweep.identity import ONE_OF_MANY, Request
from fedapp.studies.sweep.record import RunRecord, failed_run, problem_of, read_record
from fedapp.studies.sweep.store import Store
from fedapp.training.batched.run_batching import RunBatch, current_run_batch
from fedapp.training.build import is_batched

ShouldStop = Callable[[int, float | None], bool]
"""Called with round and test accuracy after each round; True stops the run."""
POLL_SECONDS = 1.0
"""Seconds between two calls of ``ShouldStop`` while another process has the run's lock."""


@dataclass(frozen=True)
class Job:
    """A requested run, with callbacks after each round and at its end (None: it was stopped)."""

    request: Request
    should_stop: ShouldStop
    ended: Callable[[RunRecord | None], None]


class RunStoppedError(FedappError):
    """``should_stop`` returned True; the run has a checkpoint, and goes on from it."""


class StopRun(Callback):
    """Ends a run that failed or diverged, and interrupts one when ``should_stop`` says so.

    It is not interrupted in ``last_round``, in which it ends anyway.
    """

    def __init__(self, should_stop: ShouldStop, last_round: int) -> None:
        self.should_stop, self.last_round = should_stop, last_round
        self.rounds = 0

    def on_round(self, result: RoundResult, state: ServerState) -> bool:
        """Return whether the run ends after this round.

        Raises
        ------
        RunStoppedError
            It is interrupted.
        """
        self.rounds = result.round
        stop = self.should_stop(result.round, result.metrics.get("test_accuracy"))
        if stop and result.round < self.last_round:
            raise RunStoppedError("its sweep was stopped")
        return problem_of(result.metrics)[0] != "complete"


def execute_run(request: Request, store: Store, should_stop: ShouldStop) -> RunRecord | None:
    """Start or continue a requested run and return its record, or None if it was stopped.

    A failure is recorded with its reason and not raised. If another process has the run's lock, this
    one waits for it until ``should_stop`` returns True. If a process that is no sweep's runs the run,
    it waits for at most ``LOCK_TIMEOUT``, and returns None.
    """
    lock = store.lock(request.run)
    while not lock.is_locked:
        try:
            lock.acquire(timeout=POLL_SECONDS)
        except Timeout:
            if should_stop(0, None):
                return None
    try:
        if _is_busy(RunDirectory(store.folder(request.run)), should_stop):
            return None
        return _execute(request, store, should_stop)
    finally:
        lock.release()


def _is_busy(directory: RunDirectory, should_stop: ShouldStop) -> bool:
    """Return whether a process runs the run, after a wait of at most ``LOCK_TIMEOUT`` for it."""
    until = time.monotonic() + LOCK_TIMEOUT
    while is_locked(directory):
        if time.monotonic() > until or should_stop(0, None):
            return True
        time.sleep(POLL_SECONDS)
    return False


def execute_together(jobs: Sequence[Job], store: Store) -> None:
    """Start or continue requested runs whose clients train in one program, each run in a thread.

    Runs that another process has locked, or that were started with another trainer, come afterwards.
    """
    locked = {job: lock for job in jobs if (lock := _try_lock(job, store))}
    run_batch = RunBatch(len(locked))
    threads = [
        threading.Thread(target=_run_in, args=(run_batch, job, store, lock), name=job.request.run)
        for job, lock in locked.items()
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for job in jobs:
        if job not in locked:
            job.ended(execute_run(job.request, store, job.should_stop))


def _try_lock(job: Job, store: Store) -> FileLock | None:
    """Acquire the lock of a run that can train with others; None if it is taken or cannot."""
    lock = store.lock(job.request.run)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return None
    if _can_be_stacked(RunDirectory(store.folder(job.request.run))):
        return lock
    lock.release()
    return None


def _can_be_stacked(directory: RunDirectory) -> bool:
    """Return whether the run is new or has the batched trainer, and no process runs it."""
    try:
        if is_locked(directory):
            return False
        return not directory.config.exists() or is_batched(read_stored(directory.path)[0])
    except FedappError:
        return False  # executed alone, it reports the error


def _run_in(run_batch: RunBatch, job: Job, store: Store, lock: FileLock) -> None:
    with run_batch.taking_part():
        record: RunRecord | None
        try:
            record = _execute(job.request, store, job.should_stop)
        except BaseException as error:  # also a SystemExit, which would end this thread alone
            record = RunRecord(
                run=job.request.run, settings={}, status="failed", problem=_message(error)
            )
        finally:
            lock.release()
        job.ended(record)


def _execute(request: Request, store: Store, should_stop: ShouldStop) -> RunRecord | None:
    """Start or continue a run whose lock this process has."""
    store.forget(request.run)
    stored = store.find(request)
    if stored is not None:
        return stored
    folder = store.folder(request.run)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        record = _train(request, store, should_stop)
    except Exception as error:
        record = failed_run(request, folder, _message(error))
    if record is None:
        return None
    if not record.satisfies(request):
        store.note("stopped", request.run, record.last_round)
        return None
    store.keep(record)
    store.note(record.status, request.run, record.last_round)
    return record


def _message(error: BaseException) -> str:
    return "".join(traceback.format_exception_only(error)).strip()


def _train(request: Request, store: Store, should_stop: ShouldStop) -> RunRecord | None:
    """Start or continue a run and return its record, or None if it was stopped or is busy."""
    folder = store.folder(request.run)
    values: dict[str, Scalar] = {**ONE_OF_MANY, **dict(request.settings)}
    if current_run_batch():
        values["trainer"] = "batched"
    done, rounds = 0, request.rounds
    if RunDirectory(folder).config.exists():
        stored, _ = read_stored(folder)
        so_far = read_record(request, folder)
        done = so_far.last_round
        if so_far.satisfies(request):  # killed before the record was written
            if not _lacks_model(folder, so_far, request):
                return so_far
            rounds = max(read_run(folder).rounds, 1)
        else:
            # A longer run that was killed between two evaluations continues to the next.
            saved = checkpoint_rounds(folder / "checkpoints")
            rounds = max([rounds, *(round_ + 1 for round_ in saved)])
        # The same content, perhaps at another path.
        files = {"dataset": values.get("dataset", stored.dataset), **request.files}
        values = {**stored.to_run_config(), **callback_settings(values), **files, "resume": True}
    values |= {"run-dir": str(folder), "num-server-rounds": rounds}
    store.note("continued" if done else "begun", request.run, done)
    stops = [StopAtTarget(request.target)] if request.target else []
    grid, stop = InlineGrid(client_app, values, [{}]), StopRun(should_stop, rounds)
    # A longer run continues a shorter one, which keeps its numbers.
    try:
        run(grid, read_config(values), [stop, *stops], one_length=False)
    except (RunStoppedError, RunBusyError):
        store.note("stopped", request.run, max(done, stop.rounds))
        return None
    record = read_record(request, folder)
    if stop.rounds or record.satisfies(request):
        return record
    ended = f"max-epsilon or a callback ended it after round {done}"
    return record.model_copy(update={"problem": ended})


def _lacks_model(folder: Path, record: RunRecord, request: Request) -> bool:
    """Return whether a run was killed at the end of ``request``, before it wrote its final model.

    Not if it failed or diverged, or has gone further: the longer request then writes the model.
    """
    stored = read_run(folder)
    if record.problem or stored.rounds != record.until(request).last_round:
        return False
    return round_of_model(stored.directory.model).partition(" ")[0] != str(stored.rounds)
