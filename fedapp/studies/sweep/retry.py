"""Runs that failed, done again; runs that are of code as it was before."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from fedapp.config.read import read_config
from fedapp.runs.checkpoint import checkpoint_rounds, drop_checkpoints
from fedapp.runs.directory import RunDirectory, read_stored, write_config
from fedapp.runs.metrics import cut_metrics, read_metrics
from fedapp.studies.sweep.identity import EXECUTION, Request
from fedapp.studies.sweep.plans import Steps, stage
from fedapp.studies.sweep.record import SOURCES, RunRecord, problem_of
from fedapp.studies.sweep.store import Store
from fedapp.training.build import sources
from fedapp.training.device import choose_device

Plans = Mapping[str, Callable[[], Steps]]


def found_of(plans: Plans, store: Store) -> list[tuple[Request, RunRecord]]:
    """Return the requests of the plans that have a record, with it; each run once."""
    found: dict[str, tuple[Request, RunRecord]] = {}

    def find(request: Request) -> RunRecord | None:
        record = store.find(request)
        if record is not None:
            found[request.run] = (request, record)
        return record

    for plan in plans.values():
        stage(plan(), find)
    return list(found.values())


def outdated(plans: Plans, store: Store) -> dict[str, str]:
    """Return the runs of the plans that were made with other code than there is now, and of what.

    A record that does not say with which code it was made, as a published one, is not among them.
    """
    runs: dict[str, str] = {}
    for request, record in found_of(plans, store):
        config = read_config(dict(request.settings))
        now = sources(config)
        before: dict[str, str] = record.execution.get(SOURCES, now)
        changed = [key for key in now if before.get(key) != now[key]]
        if changed:
            runs[request.run] = ", ".join(f"{key} {getattr(config, key)!r}" for key in changed)
    return runs


def retry_failures(plans: Plans, store: Store) -> None:
    """Forget the failures among the runs that the plans had, so that they are done again."""
    for request, record in found_of(plans, store):
        if record.status == "failed":
            retry(request, store)


def retry(request: Request, store: Store) -> None:
    """Let a run that failed go on from its last good checkpoint, or begin again if it has none.

    It is then carried out (device, trainer, program, threads ...) as ``request`` says, not as it was
    when it failed.

    Raises
    ------
    CheckpointError
        What is there of the run is damaged.
    """
    with store.lock(request.run):
        folder = store.folder(request.run)
        if _go_back(RunDirectory(folder)):
            _carry_out_as(request, folder)
        else:
            shutil.rmtree(folder, ignore_errors=True)
        store.retry(request.run)


def _go_back(directory: RunDirectory) -> bool:
    """Drop checkpoints from the first failed round on; return whether one that was trained is left."""
    if not directory.config.exists():
        return False
    rows = read_metrics(directory.metrics)
    failed = [row["round"] for row in rows if problem_of(row)[0] == "failed"]
    if failed:
        drop_checkpoints(directory.checkpoints, min(failed))
        cut_metrics(directory.metrics, min(failed) - 1)
    return any(round_ > 0 for round_ in checkpoint_rounds(directory.checkpoints))


def _carry_out_as(request: Request, folder: Path) -> None:
    """Write the request's keys of execution over those that the run was begun with."""
    stored, found = read_stored(folder)
    asked = read_config({"pictures": False, **dict(request.settings)}).to_run_config()
    execution = {key: asked[key] for key in EXECUTION}
    again = read_config({**stored.to_run_config(), **execution, "run-dir": str(folder)})
    found = {key: value for key, value in found.items() if key != "threads"}
    found["device"] = str(choose_device(again))
    write_config(RunDirectory(folder), again, found)
