"""Failed runs done again: from before their failure, or from the start, carried out as is asked now."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from fedapp.config import read_config
from fedapp.runs.callbacks import cut_metrics, read_metrics
from fedapp.runs.checkpoint import drop_checkpoints, kept_rounds
from fedapp.runs.directory import RunDirectory, read_stored, write_config
from fedapp.sweeps.identity import EXECUTION, Request
from fedapp.sweeps.plans import Steps, stage
from fedapp.sweeps.record import RunRecord, problem_of
from fedapp.sweeps.store import Store
from fedapp.training.setup import choose_device


def retry_failures(plans: Mapping[str, Callable[[], Steps]], store: Store) -> None:
    """Forget the failures among the runs that the plans had, so that they are done again."""
    failed: dict[str, Request] = {}

    def find(request: Request) -> RunRecord | None:
        record = store.find(request)
        if record is not None and record.status == "failed":
            failed[request.run] = request
        return record

    for plan in plans.values():
        stage(plan(), find)
    for request in failed.values():
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
    return any(round_ > 0 for round_ in kept_rounds(directory.checkpoints))


def _carry_out_as(request: Request, folder: Path) -> None:
    """Write the request's keys of execution over those that the run was begun with."""
    stored, found = read_stored(folder)
    asked = read_config({"pictures": False, **dict(request.settings)}).to_run_config()
    execution = {key: asked[key] for key in EXECUTION}
    again = read_config({**stored.to_run_config(), **execution, "run-dir": str(folder)})
    found = {key: value for key, value in found.items() if key != "threads"}
    found["device"] = str(choose_device(again))
    write_config(RunDirectory(folder), again, found)
