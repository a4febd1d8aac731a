"""One requested run, begun or continued, in this process."""

from __future__ import annotations

import traceback
from collections.abc import Callable

from fedapp.client_app import app as client_app
from fedapp.config import Scalar, read_config
from fedapp.engines.inline import InlineGrid
from fedapp.runs.callbacks import StopAtTarget
from fedapp.runs.directory import RunDirectory, read_stored
from fedapp.server_app import run
from fedapp.sweeps.identity import Request
from fedapp.sweeps.record import RunRecord, failed_run, problem_of, read_run
from fedapp.sweeps.store import Store
from strategies.callbacks import Callback, Record, ServerState

Watch = Callable[[int, float | None], bool]
"""Told the round and the test accuracy after each round; True stops the run where it is."""


class Watched(Callback):
    """Ends a run that cannot go on, or that the watch stops; the last checkpoint is then written."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch

    def on_round(self, record: Record, state: ServerState) -> bool:
        """Tell the watch; say whether the run ends here."""
        stopped = self.watch(record["round"], record.get("test_accuracy"))
        return stopped or problem_of(record)[0] != "complete"


def perform(request: Request, store: Store, watch: Watch) -> RunRecord | None:
    """Do what is missing of a requested run and return its record, or None if it was stopped.

    A run that fails is recorded as failed, with the reason; nothing is raised for it.
    """
    with store.locked(request.run):
        store.forget(request.run)
        found = store.find(request)
        if found is not None:
            return found
        store.folder(request.run).mkdir(parents=True, exist_ok=True)
        try:
            record = _train(request, store, watch)
        except Exception as error:
            said = "".join(traceback.format_exception_only(error)).strip()
            record = failed_run(request, store.folder(request.run), said)
        if not record.satisfies(request):
            store.note("stopped", request.run, record.last_round)
            return None
        store.keep(record)
        store.note(record.status, request.run, record.last_round)
        return record


def _train(request: Request, store: Store, watch: Watch) -> RunRecord:
    folder = store.folder(request.run)
    values: dict[str, Scalar] = {"pictures": False, **dict(request.settings)}
    done = 0
    if RunDirectory(folder).config.exists():
        so_far = read_run(request, folder)
        if so_far.satisfies(request):
            return so_far  # killed between the end of the run and its record
        done = so_far.last_round
        values = {**read_stored(folder)[0].to_run_config(), "resume": True}
    values |= {"run-dir": str(folder), "num-server-rounds": request.rounds}
    store.note("continued" if done else "begun", request.run, done)
    stops = [StopAtTarget(request.target)] if request.target else []
    run(InlineGrid(client_app, values, [{}]), read_config(values), [Watched(watch), *stops])
    return read_run(request, folder)
