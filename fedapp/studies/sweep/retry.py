"""Repetition of failed runs, from the last good checkpoint."""

from __future__ import annotations

import shutil
from pathlib import Path

from fedapp.config.read import callback_settings, read_config
from fedapp.config.settings import Scalar
from fedapp.runs.checkpoint import checkpoint_rounds, drop_checkpoints
from fedapp.runs.directory import RunDirectory, read_stored, write_config
from fedapp.runs.metrics import cut_metrics, read_metrics
from fedapp.studies.sweep.identity import EXECUTION, ONE_OF_MANY, Request
from fedapp.studies.sweep.record import problem_of
from fedapp.studies.sweep.store import Store


def retry(request: Request, store: Store) -> None:
    """Prepare a failed run to continue from its last good checkpoint, or from the start without one.

    Keys of execution (device, trainer, program, threads ...) are taken from ``request``.

    Raises
    ------
    CheckpointError
        The run directory is damaged.
    """
    with store.lock(request.run):
        folder = store.folder(request.run)
        if _roll_back(RunDirectory(folder)):
            _write_execution_settings(request, folder)
        else:
            shutil.rmtree(folder, ignore_errors=True)
        store.retry(request.run)


def _roll_back(directory: RunDirectory) -> bool:
    """Drop checkpoints from the first failed round on; return whether a trained one is left."""
    if not directory.config.exists():
        return False
    rows = read_metrics(directory.metrics)
    failed = [row["round"] for row in rows if problem_of(row)[0] == "failed"]
    if failed:
        drop_checkpoints(directory.checkpoints, min(failed))
        cut_metrics(directory.metrics, min(failed) - 1)
    return any(round_ > 0 for round_ in checkpoint_rounds(directory.checkpoints))


def _write_execution_settings(request: Request, folder: Path) -> None:
    """Replace the stored keys of execution by the request's."""
    stored, run_info = read_stored(folder)
    asked = read_config({**ONE_OF_MANY, **dict(request.settings)}).to_run_config()
    execution = {key: asked[key] for key in EXECUTION} | callback_settings(asked)
    # Resumed, so that the versions of the earlier rounds stay; so does the device, until then.
    own: dict[str, Scalar] = {"run-dir": str(folder), "resume": True}
    config = read_config({**stored.to_run_config(), **execution, **own})
    run_info = {key: value for key, value in run_info.items() if key != "threads"}
    write_config(RunDirectory(folder), config, run_info)
