"""The scheduler: worker processes execute the missing runs of plans, with progress bars."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column

from fedapp.config.settings import Scalar
from fedapp.machine import cores, gpus, sigterm_interrupts
from fedapp.runs.directory import RunDirectory
from fedapp.runs.lock import is_locked
from fedapp.studies.sweep.identity import Request
from fedapp.studies.sweep.record import failed_run
from fedapp.studies.sweep.search import Plans, SearchResult, replay
from fedapp.studies.sweep.store import Store
from fedapp.studies.sweep.workers import Worker, WorkerEvent, Workers

if TYPE_CHECKING:
    from fedapp.engines.ray_cluster import Cluster
    from fedapp.engines.ray_placement import WorkerRequest
    from fedapp.studies.sweep.cluster_workers import ClusterWorker, ClusterWorkers

MissingRun = tuple[str, Request]
"""The name of a plan and a request of it that has no record."""
ROUND_TIMEOUT = 900.0
"""Seconds that runs have to finish their round at the time limit."""


@dataclass(frozen=True)
class SchedulerOptions:
    """The number of processes ``jobs`` (0: one a GPU, or one a core) and the limit ``hours`` (0: none).

    Each process trains up to ``stacked`` runs that differ only in learning rate and seed in one program.
    With ``retry``, runs that failed before are repeated. With a ``cluster`` the processes are there, as
    many as ``request`` says.
    """

    jobs: int = 0
    stacked: int = 1
    retry: bool = False
    hours: float = 0.0
    cluster: Cluster | None = None
    request: WorkerRequest | None = None

    def processes(self, devices: Iterable[Scalar]) -> int:
        """Return the number of workers for runs with these values of ``device``."""
        return self.jobs or len(gpus_for(devices)) or cores()

    @property
    def seconds(self) -> float | None:
        """The time limit, or None."""
        return self.hours * 3600 if self.hours else None


def gpus_for(devices: Iterable[Scalar]) -> list[str]:
    """Return the GPUs for runs with these values of ``device``, as in CUDA_VISIBLE_DEVICES."""
    return [] if all(device == "cpu" for device in devices) else gpus()


class Schedule:
    """Executes the missing runs of ``plans``, in order, within the limits of ``options``.

    A plan that is not finished at the time limit has no result. ``on_finish`` is called when runs have
    finished.
    """

    def __init__(
        self,
        plans: Plans,
        store: Store,
        options: SchedulerOptions,
        console: Console,
        on_finish: Callable[[], None] = lambda: None,
    ) -> None:
        self.plans, self.store, self.options, self.console = plans, store, options, console
        self.on_finish = on_finish
        self.until = None if options.seconds is None else time.monotonic() + options.seconds
        self.outcomes: dict[str, SearchResult] = {}
        self.failed: dict[str, str] = {}
        """Runs that failed or diverged in this execution, with the reason."""
        self._busy: set[str] = set()
        self.done = 0
        self._rounds = 0
        self._bars: dict[str, TaskID] = {}

    def run(self) -> dict[str, SearchResult]:
        """Execute the plans and return their results; an interrupted run keeps its rounds."""
        missing = self._missing_runs()
        if missing:
            workers = self._workers([request for _, request in missing])
            with sigterm_interrupts():
                self._run_in(workers, missing)
        return self.outcomes

    def _run_in(self, workers: Workers | ClusterWorkers, missing: list[MissingRun]) -> None:
        try:
            with self._progress() as progress:
                self._run_missing(missing, workers, progress)
            if self._out_of_time():
                self._stop_workers(workers)
        except KeyboardInterrupt:
            self.console.print(
                "Stopping. Every run writes a checkpoint; the same command continues them."
            )
            raise
        finally:
            workers.close()

    def _workers(self, requests: Sequence[Request]) -> Workers | ClusterWorkers:
        """Return workers for the runs; here each sees one GPU, unless a run names its GPU."""
        if self.options.cluster and self.options.request:
            from fedapp.studies.sweep.cluster_workers import ClusterWorkers

            cluster, request = self.options.cluster, self.options.request
            workers = ClusterWorkers(cluster, request, self.store.root, requests)
            self.console.out(f"Workers: {workers.location}")
            return workers
        devices = {dict(request.settings).get("device", "auto") for request in requests}
        named = any(str(device).startswith("cuda:") for device in devices)
        visible = () if named else gpus_for(devices)
        return Workers(self.options.processes(devices), self.store.root, visible)

    def _missing_runs(self) -> list[MissingRun]:
        """Return the runs without a record, each once, by seed; store the results of finished plans.

        Of requests for a run that with the fewest rounds comes first: it is evaluated where it ends. Of
        two runs that differ only in ``record-updates`` the one that records them serves both. Runs that
        a process of no sweep ran when they were tried come last.
        """
        missing: list[MissingRun] = []
        for name, plan in self.plans.items():
            if name in self.outcomes:
                continue
            now = replay(plan(), self.store.find)
            if now.outcome is not None:
                self.outcomes[name] = now.outcome
            missing += [(name, request) for request in now.missing]
        runs = {request.run for _, request in missing}
        shortest: dict[str, MissingRun] = {}
        for name, request in missing:
            recording = request.with_updates
            own = (name, recording if recording.run in runs else request)
            before = shortest.setdefault(own[1].run, own)
            if request.rounds < before[1].rounds:
                shortest[own[1].run] = own
        return sorted(shortest.values(), key=lambda pair: (pair[1].run in self._busy, pair[1].seed))

    def _run_missing(
        self, missing: list[MissingRun], workers: Workers | ClusterWorkers, progress: Progress
    ) -> None:
        everything = progress.add_task("runs", total=None, detail="")
        while missing and not self._out_of_time():
            running = {request.run for worker in workers.busy for request in worker.requests}
            waiting = [pair for pair in missing if pair[1].run not in running]
            groups = in_groups(waiting, self.options.stacked)
            workers.grow(len(workers.busy) + len(groups))
            idle: Sequence[Worker | ClusterWorker] = workers.idle
            for worker, group in zip(idle, groups, strict=False):
                for name, request in group:
                    self._bars[request.run] = progress.add_task(
                        name, total=request.rounds, detail=""
                    )
                worker.assign([request for _, request in group])
            left = sum(request.rounds for _, request in missing)
            progress.update(
                everything,
                total=self._rounds + left,
                completed=self._rounds,
                detail=f"{self.done} done, {len(missing)} to do",
            )
            finished = [
                self._handle_event(event, progress) for event in workers.events(self.seconds_left())
            ]
            if any(finished):
                missing = self._missing_runs()
                self.on_finish()

    def seconds_left(self) -> float | None:
        """Return the remaining seconds, or None without a limit."""
        return None if self.until is None else max(self.until - time.monotonic(), 0.0)

    def _out_of_time(self) -> bool:
        return self.seconds_left() == 0.0

    def _stop_workers(self, workers: Workers | ClusterWorkers) -> None:
        """Let every run finish its round and write a checkpoint; store the results of finished plans."""
        running = [request for worker in workers.busy for request in worker.requests]
        workers.close(ROUND_TIMEOUT)
        for request in running:
            self.store.forget(request.run)
        left = len(self._missing_runs())
        if left:
            self.console.out(
                f"{self.options.hours:g} hours are over: {len(self.outcomes)} of {len(self.plans)} are "
                "done. Every run has a checkpoint; the same command continues them."
            )

    def _handle_event(self, event: WorkerEvent, progress: Progress) -> bool:
        """Show a worker's event; return whether its run is over."""
        run, bar = event.request.run, self._bars[event.request.run]
        if not event.done:
            accuracy = "" if event.accuracy is None else f"{event.accuracy:.4f}"
            progress.update(bar, completed=event.round, detail=accuracy)
            return False
        name = progress.tasks[progress.task_ids.index(bar)].description
        progress.remove_task(self._bars.pop(run))
        self.store.forget(run)
        if event.problem and self.store.find(event.request) is None:
            self._record_failure(event)
        self._report(name, event)
        return True

    def _record_failure(self, event: WorkerEvent) -> None:
        """Write the record of a run whose worker died, so that other runs continue."""
        folder = self.store.folder(event.request.run)
        folder.mkdir(parents=True, exist_ok=True)
        self.store.keep(failed_run(event.request, folder, event.problem))

    def _report(self, name: str, event: WorkerEvent) -> None:
        record = self.store.find(event.request)
        if record is None:
            self._report_busy(name, event.request.run)
            return
        self.done += 1
        self._rounds += record.last_round
        if record.problem:
            self.failed[record.run] = record.problem
        if not self.console.is_terminal or record.problem:
            best = f"best accuracy {record.best_accuracy:.4f}" if record.has_accuracy else ""
            outcome = record.problem or best or f"test loss {record.final_loss}"
            rate = dict(event.request.settings).get("learning-rate")
            text = "" if rate is None else f"η = {rate}, "
            text += f"{record.last_round} rounds, {record.seconds:.1f} s, {outcome}"
            self.console.out(f"{name}  {record.run}  {text}")

    def _report_busy(self, name: str, run: str) -> None:
        """Say, once, that another process runs a run."""
        folder = self.store.folder(run)
        if run not in self._busy and is_locked(RunDirectory(folder)):
            self._busy.add(run)
            self.console.out(f"{name}  {run}  waits: another process runs it, in {folder}")

    def _progress(self) -> Progress:
        return Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", table_column=Column(no_wrap=True, max_width=44)),
            BarColumn(),
            TextColumn("{task.completed:.0f}/{task.total} rounds at most  {task.fields[detail]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self.console,
            disable=not self.console.is_terminal,
        )


def in_groups(waiting: Sequence[MissingRun], most: int) -> list[list[MissingRun]]:
    """Group the runs that can train in one program, at most ``most`` a group.

    The groups are in the order of their first runs.
    """
    groups: list[list[MissingRun]] = []
    latest: dict[object, list[MissingRun]] = {}
    for name, request in waiting:
        group = latest.get(request.common) if request.common is not None else None
        if group is None or len(group) >= most:
            group = latest[request.common] = []
            groups.append(group)
        group.append((name, request))
    return groups
