"""Requested runs, begun or continued, in this process: one, or several that train together."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from fedapp.client_app import app as client_app
from fedapp.config.read import read_config
from fedapp.config.run_config import Scalar
from fedapp.engines.in_process import InlineGrid
from fedapp.errors import FedappError
from fedapp.federation.callback import Callback, RoundMetrics, ServerState
from fedapp.runs.callbacks import StopAtTarget
from fedapp.runs.checkpoint import checkpoint_rounds
from fedapp.runs.directory import RunDirectory, read_stored
from fedapp.server_app import run
from fedapp.studies.sweep.identity import Request
from fedapp.studies.sweep.record import RunRecord, failed_run, problem_of, read_run
from fedapp.studies.sweep.store import Store
from fedapp.training.batched.run_batching import ParticipantSlot, RunBatch, current_run_batch
from fedapp.training.build import is_batched

Watch = Callable[[int, float | None], bool]
"""Told the round and the test accuracy after each round; True stops the run where it is."""
LOOK = 1.0
"""Seconds between two looks at the watch while another process is at work on the run."""


@dataclass(frozen=True)
class Job:
    """A run to do: who is told of its rounds, and who of its end (None: it was stopped)."""

    request: Request
    watch: Watch
    ended: Callable[[RunRecord | None], None]


class Watched(Callback):
    """Ends a run that cannot go on, or that the watch stops; the last checkpoint is then written."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch

    def on_round(self, record: RoundMetrics, state: ServerState) -> bool:
        """Tell the watch; say whether the run ends here."""
        stopped = self.watch(record["round"], record.get("test_accuracy"))
        return stopped or problem_of(record)[0] != "complete"


def perform(request: Request, store: Store, watch: Watch) -> RunRecord | None:
    """Do what is missing of a requested run and return its record, or None if it was stopped.

    A run that fails is recorded as failed, with the reason; nothing is raised for it. One that another
    process is at work on is waited for, until the watch stops that.
    """
    lock = store.lock(request.run)
    while not lock.is_locked:
        try:
            lock.acquire(timeout=LOOK)
        except Timeout:
            if watch(0, None):
                return None
    try:
        return _perform(request, store, watch)
    finally:
        lock.release()


def perform_together(jobs: Sequence[Job], store: Store) -> None:
    """Do what is missing of requested runs, whose clients train in one program.

    Each goes on in a thread of its own. A run that another process is at work on, or that was begun
    with another trainer, comes after them, by itself.
    """
    held = {job: lock for job in jobs if (lock := _held(job, store))}
    run_batch = RunBatch(len(held))
    threads = [
        threading.Thread(target=_sit, args=(job, store, lock, slot), name=job.request.run)
        for (job, lock), slot in zip(held.items(), run_batch.slots, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for job in jobs:
        if job not in held:
            job.ended(perform(job.request, store, job.watch))


def _held(job: Job, store: Store) -> FileLock | None:
    """Return the lock of a run that can train with others, taken; None if it cannot now."""
    lock = store.lock(job.request.run)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return None
    if _can_be_stacked(store.folder(job.request.run)):
        return lock
    lock.release()
    return None


def _can_be_stacked(folder: Path) -> bool:
    """Return whether the run in ``folder`` is new, or goes on with the batched trainer."""
    try:
        return not RunDirectory(folder).config.exists() or is_batched(read_stored(folder)[0])
    except FedappError:
        return False  # by itself it will say what is wrong


def _sit(job: Job, store: Store, lock: FileLock, slot: ParticipantSlot) -> None:
    with slot:
        record: RunRecord | None
        try:
            record = _perform(job.request, store, job.watch)
        except Exception as error:
            record = RunRecord(
                run=job.request.run, settings={}, status="failed", problem=_said(error)
            )
        finally:
            lock.release()
        job.ended(record)


def _perform(request: Request, store: Store, watch: Watch) -> RunRecord | None:
    """Do what is missing of a run that this process holds."""
    store.forget(request.run)
    found = store.find(request)
    if found is not None:
        return found
    store.folder(request.run).mkdir(parents=True, exist_ok=True)
    try:
        record = _train(request, store, watch)
    except Exception as error:
        record = failed_run(request, store.folder(request.run), _said(error))
    if not record.satisfies(request):
        store.note("stopped", request.run, record.last_round)
        return None
    store.keep(record)
    store.note(record.status, request.run, record.last_round)
    return record


def _said(error: Exception) -> str:
    return "".join(traceback.format_exception_only(error)).strip()


def _train(request: Request, store: Store, watch: Watch) -> RunRecord:
    folder = store.folder(request.run)
    values: dict[str, Scalar] = {"pictures": False, **dict(request.settings)}
    if current_run_batch():
        values["trainer"] = "batched"
    done, rounds = 0, request.rounds
    if RunDirectory(folder).config.exists():
        stored, _ = read_stored(folder)
        so_far = read_run(request, folder)
        if so_far.satisfies(request):
            return so_far  # killed between the end of the run and its record
        done = so_far.last_round
        dataset = values.get("dataset", stored.dataset)  # the same content, perhaps elsewhere now
        values = {**stored.to_run_config(), "resume": True, "dataset": dataset}
        # A longer run that was killed between two evaluations goes on to one.
        rounds = max([rounds, *(kept + 1 for kept in checkpoint_rounds(folder / "checkpoints"))])
    values |= {"run-dir": str(folder), "num-server-rounds": rounds}
    store.note("continued" if done else "begun", request.run, done)
    stops = [StopAtTarget(request.target)] if request.target else []
    run(InlineGrid(client_app, values, [{}]), read_config(values), [Watched(watch), *stops])
    return read_run(request, folder)
