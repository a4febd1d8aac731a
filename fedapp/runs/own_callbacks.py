"""The callbacks that the run-config chooses: who calls them, and what happens if one raises."""

from __future__ import annotations

from collections.abc import Callable
from logging import WARNING
from typing import cast

from flwr.common.logger import log
from pydantic import ValidationError

from fedapp.config.read import without_unused_parameters
from fedapp.config.run_config import RunConfig
from fedapp.errors import RunError, one_line, reason_of
from fedapp.federation.callback import Callback, RunCallback, ServerState
from fedapp.federation.round_result import RoundResult
from fedapp.runs.directory import RunDirectory, resume_command


class OwnCallbacks(Callback):
    """Calls the callbacks of the run-config in their order.

    If one raises, the others are called all the same, and the run ends.
    """

    def __init__(self, directory: RunDirectory, config: RunConfig) -> None:
        self.directory = directory
        chosen = cast("list[RunCallback]", config.components("callbacks"))
        settings = without_unused_parameters(config.to_run_config())
        self.callbacks = [each.of_run(directory.path, settings) for each in chosen]

    def on_start(self, state: ServerState) -> None:
        """Call ``on_start`` of each."""
        self._call("on_start", lambda callback: callback.on_start(state))

    def on_round(self, result: RoundResult, state: ServerState) -> bool:
        """Call ``on_round`` of each; return whether one of them ends the run."""
        return self._call("on_round", lambda callback: callback.on_round(result, state))

    def on_end(self, state: ServerState) -> None:
        """Call ``on_end`` of each."""
        self._call("on_end", lambda callback: callback.on_end(state))

    def close(self) -> None:
        """Call ``close`` of each; what it raises is logged, since the run is over."""
        for callback in self.callbacks:
            try:
                callback.close()
            except Exception as error:
                reason = one_line(reason_of(error))
                log(WARNING, "callback %r: close raises %s", callback.name, reason)

    def _call(self, method: str, call: Callable[[RunCallback], object]) -> bool:
        """Call a method of each callback; return whether one returned True.

        Raises
        ------
        RunError
            One raised; the message names the first, the reason, and how to go on.
        """
        returned, problems = False, dict[str, Exception]()
        for callback in self.callbacks:
            try:
                returned |= bool(call(callback))
            except Exception as error:
                problems[callback.name] = error
        for name, problem in problems.items():
            raise RunError(
                f"callback {name!r}: {method} raises {_reason(problem)}. Correct the callback and "
                "continue from the run's last checkpoint with: "
                f"{resume_command(self.directory.path)} (callbacks='' leaves all out)"
            ) from problem
        return returned


def _reason(error: Exception) -> str:
    """Return an error as one line without its full stop, and of a parameter that is set what to do."""
    reason = one_line(reason_of(error)).removesuffix(".")
    details = error.errors() if isinstance(error, ValidationError) else []
    for name in (each["loc"][0] for each in details if each["type"] == "frozen_instance"):
        reason += f". Parameters are not set: call what the callback remembers self._{name}"
    return reason
