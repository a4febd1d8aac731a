"""Plans carried out by workers, with progress, until nothing is left to run, or no time."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import NoReturn

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

from fedapp.config.run_config import Scalar
from fedapp.machine import cores, gpus
from fedapp.studies.sweep.identity import Request
from fedapp.studies.sweep.record import failed_run
from fedapp.studies.sweep.search import SearchResult, Steps, stage
from fedapp.studies.sweep.store import Store
from fedapp.studies.sweep.workers import WorkerEvent, Workers

Plans = Mapping[str, Callable[[], Steps]]
Wanted = tuple[str, Request]
"""A missing run, after the name of the plan that wants it."""
LAST_ROUND = 900.0
"""Seconds that runs have to end their round when the time is up; a round can be long."""


@dataclass(frozen=True)
class Effort:
    """What may be spent on runs: ``jobs`` processes, for ``hours`` (0: no limit).

    With 0 ``jobs`` it is a process a GPU, which a second one would only make wait, or a core.

    Each process trains up to ``stacked`` runs at a time that differ in learning rate and seed alone,
    in one program. With ``retry`` runs that failed before are tried once more.
    """

    jobs: int = 0
    stacked: int = 1
    retry: bool = False
    hours: float = 0.0

    def processes(self, devices: Iterable[Scalar]) -> int:
        """Return how many workers there are for runs on these ``devices``, as the key has them."""
        return self.jobs or len(gpus_for(devices)) or cores()

    @property
    def seconds(self) -> float | None:
        """How long runs may take in all, or None."""
        return self.hours * 3600 if self.hours else None


def gpus_for(devices: Iterable[Scalar]) -> list[str]:
    """Return the GPUs for runs on these ``devices``, as CUDA_VISIBLE_DEVICES names them."""
    return [] if all(device == "cpu" for device in devices) else gpus()


class Schedule:
    """Runs what ``plans`` want, each run once, in the plans' order, as far as ``effort`` goes."""

    def __init__(self, plans: Plans, store: Store, effort: Effort, console: Console) -> None:
        self.plans, self.store, self.effort, self.console = plans, store, effort, console
        self.until = None if effort.seconds is None else time.monotonic() + effort.seconds
        self.outcomes: dict[str, SearchResult] = {}
        self.failed: dict[str, str] = {}
        """Runs of this session that failed or diverged, and why."""
        self.done = 0
        self._rounds = 0
        self._bars: dict[str, TaskID] = {}

    def run(self) -> dict[str, SearchResult]:
        """Carry the plans out and return their outcomes; stop without loss when interrupted."""
        wanted = self._wanted()
        if wanted:
            before = signal.signal(signal.SIGTERM, _interrupt)
            workers = self._workers([request for _, request in wanted])
            try:
                with self._progress() as progress:
                    self._carry_out(wanted, workers, progress)
                if self._time_is_up():
                    self._cut(workers)
            except KeyboardInterrupt:
                self.console.print(
                    "Stopping; every run keeps what it has done. The same command goes on."
                )
                raise
            finally:
                workers.close()
                signal.signal(signal.SIGTERM, before)
        return self.outcomes

    def _workers(self, requests: Sequence[Request]) -> Workers:
        """Return workers for the runs, which see one GPU each, unless a run names its own."""
        devices = {dict(request.settings).get("device", "auto") for request in requests}
        named = any(str(device).startswith("cuda:") for device in devices)
        gpus = () if named else gpus_for(devices)
        return Workers(self.effort.processes(devices), self.store.root, gpus)

    def _wanted(self) -> list[Wanted]:
        """Return the missing runs with the plans' names, each once; note the plans that are done."""
        wanted: dict[str, Wanted] = {}
        for name, plan in self.plans.items():
            if name in self.outcomes:
                continue
            now = stage(plan(), self.store.find)
            if now.outcome is not None:
                self.outcomes[name] = now.outcome
            for request in now.missing:
                wanted.setdefault(request.run, (name, request))
        return list(wanted.values())

    def _carry_out(self, wanted: list[Wanted], workers: Workers, progress: Progress) -> None:
        everything = progress.add_task("runs", total=None, detail="")
        while wanted and not self._time_is_up():
            running = {request.run for worker in workers.busy for request in worker.requests}
            waiting = [pair for pair in wanted if pair[1].run not in running]
            groups = in_groups(waiting, self.effort.stacked)
            workers.grow(len(workers.busy) + len(groups))
            for worker, group in zip(workers.idle, groups, strict=False):
                for name, request in group:
                    self._bars[request.run] = progress.add_task(
                        name, total=request.rounds, detail=""
                    )
                worker.give([request for _, request in group])
            left = sum(request.rounds for _, request in wanted)
            progress.update(
                everything,
                total=self._rounds + left,
                completed=self._rounds,
                detail=f"{self.done} done, {len(wanted)} known to come",
            )
            finished = [
                self._hear(event, progress) for event in workers.events(self.seconds_left())
            ]
            if any(finished):
                wanted = self._wanted()

    def seconds_left(self) -> float | None:
        """Return how long runs may still go on, or None."""
        return None if self.until is None else max(self.until - time.monotonic(), 0.0)

    def _time_is_up(self) -> bool:
        return self.seconds_left() == 0.0

    def _cut(self, workers: Workers) -> None:
        """Let every run end its round and write a checkpoint; note the plans that are done."""
        running = [request for worker in workers.busy for request in worker.requests]
        workers.close(LAST_ROUND)
        for request in running:
            self.store.forget(request.run)
        left = len(self._wanted())
        if left:
            self.console.print(
                f"{self.effort.hours:g} hours are over: {len(self.outcomes)} of {len(self.plans)} are "
                "done. Every run keeps what it has done; the same command goes on.",
                highlight=False,
                soft_wrap=True,
            )

    def _hear(self, event: WorkerEvent, progress: Progress) -> bool:
        """Show what a worker said; return whether its run is over."""
        run, bar = event.request.run, self._bars[event.request.run]
        if not event.done:
            accuracy = "" if event.accuracy is None else f"{event.accuracy:.4f}"
            progress.update(bar, completed=event.round, detail=accuracy)
            return False
        name = progress.tasks[progress.task_ids.index(bar)].description
        progress.remove_task(self._bars.pop(run))
        self.store.forget(run)
        if event.problem and self.store.find(event.request) is None:
            self._lost(event)
        self._report(name, event)
        return True

    def _lost(self, event: WorkerEvent) -> None:
        """Record a run whose worker died, so that the others go on."""
        folder = self.store.folder(event.request.run)
        folder.mkdir(parents=True, exist_ok=True)
        self.store.keep(failed_run(event.request, folder, event.problem))

    def _report(self, name: str, event: WorkerEvent) -> None:
        record = self.store.find(event.request)
        if record is None:
            return
        self.done += 1
        self._rounds += record.last_round
        if record.problem:
            self.failed[record.run] = record.problem
        if not self.console.is_terminal or record.problem:
            outcome = record.problem or f"best accuracy {record.best_accuracy:.4f}"
            rate = dict(event.request.settings).get("learning-rate")
            said = "" if rate is None else f"η = {rate}, "
            said += f"{record.last_round} rounds, {record.seconds:.1f} s, {outcome}"
            self.console.print(f"{name}  {record.run}  {said}", highlight=False, soft_wrap=True)

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


def carry_out(
    plans: Plans, store: Store, effort: Effort, console: Console
) -> tuple[dict[str, SearchResult], dict[str, str]]:
    """Run what ``plans`` want and return their outcomes, and the runs that failed, with why.

    A plan that is not done when the time is up has no outcome.
    """
    schedule = Schedule(plans, store, effort, console)
    return schedule.run(), schedule.failed


def in_groups(waiting: Sequence[Wanted], most: int) -> list[list[Wanted]]:
    """Return the runs in groups of at most ``most`` that can train in one program.

    The groups come in the order of their first runs.
    """
    groups: list[list[Wanted]] = []
    latest: dict[object, list[Wanted]] = {}
    for name, request in waiting:
        group = latest.get(request.common) if request.common is not None else None
        if group is None or len(group) >= most:
            group = latest[request.common] = []
            groups.append(group)
        group.append((name, request))
    return groups


def _interrupt(signal_: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt
