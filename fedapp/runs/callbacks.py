"""Callbacks of the round loop: metrics to disk, checkpoints, TensorBoard, stopping, progress."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import sys
import time
from collections.abc import Iterator, Sequence
from logging import INFO, WARNING
from pathlib import Path
from typing import Any

from flwr.common.logger import log
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from tensorboard.compat.proto.summary_pb2 import Summary
from torch.utils.tensorboard import SummaryWriter

from fedapp.errors import CheckpointError, RunError
from fedapp.federation.callback import Callback, RoundMetrics, ServerState
from fedapp.files import append_or_restore, flush_to_disk, json_problem, write_atomically
from fedapp.runs.checkpoint import save_checkpoint
from fedapp.runs.directory import RunDirectory


def read_metrics(path: Path) -> list[RoundMetrics]:
    """Return the records of ``metrics.jsonl``; a last line that was cut off does not count.

    Raises
    ------
    CheckpointError
        A line before the last is damaged.
    """
    lines = path.read_text().splitlines() if path.exists() else []
    records: list[RoundMetrics] = []
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            record["round"], record["seconds"]
            records.append(record)
        except (ValueError, KeyError, TypeError) as error:
            if number < len(lines):
                raise CheckpointError(
                    f"{path}, line {number}, is damaged: {json_problem(error)}. Remove the lines from "
                    "there on: a resumed run then goes on from the newest checkpoint that the lines "
                    "before reach, and says so if none is kept."
                ) from error
    return records


def cut_metrics(path: Path, last: int) -> None:
    """Keep the records of ``metrics.jsonl`` up to round ``last``; a file that is not there stays so."""
    if path.exists():
        kept = [record for record in read_metrics(path) if record["round"] <= last]
        write_atomically(path, "".join(map(_line, kept)).encode())


def last_whole_round(records: Sequence[RoundMetrics]) -> int:
    """Return the last round of which there are records of all rounds from 0 on; -1 if there is none."""
    rounds = {record["round"] for record in records}
    return next(round_ for round_ in itertools.count() if round_ not in rounds) - 1


def wall_seconds(record: RoundMetrics) -> float:
    """Return the wall seconds of one round; round 0 is an evaluation alone."""
    seconds = record["seconds"]
    return float(seconds.get("round", seconds.get("evaluate", 0.0)))


class Metrics(Callback):
    """Appends each round's record to ``metrics.jsonl`` as it happens, or when there is room again.

    A record also says why ``checkpoints`` could not write one after the round before.
    """

    def __init__(self, directory: RunDirectory, checkpoints: Checkpoints | None = None) -> None:
        self.path = directory.metrics
        self.checkpoints = checkpoints
        self._waiting: list[str] = []

    def on_start(self, state: ServerState) -> None:
        """Drop the rounds that a killed run did after the checkpoint; they will be run again."""
        cut_metrics(self.path, state.round or -1)

    def on_round(self, record: RoundMetrics, state: ServerState) -> bool:
        """Append one line, and those that could not be written before."""
        if self.checkpoints and self.checkpoints.problem:
            record["checkpoint_error"] = self.checkpoints.problem
        self._waiting.append(_line(record))
        try:
            self._write()
        except OSError as error:
            log(
                WARNING,
                "%s cannot be written (%s); trying again after the next round",
                self.path,
                error,
            )
        return False

    def on_end(self, state: ServerState) -> None:
        """Write what is still waiting to be."""
        with _room_needed(self.path):
            self._write()

    def _write(self) -> None:
        append_or_restore(self.path, "".join(self._waiting))
        self._waiting.clear()


@contextlib.contextmanager
def _room_needed(path: Path) -> Iterator[None]:
    """Say what to do about a file that cannot be written at the end of the run."""
    try:
        yield
    except OSError as error:
        raise RunError(
            f"{path} cannot be written ({error.strerror}). Make room, and go on from the last "
            f"checkpoint with the run's resume.toml or `fedapp run --resume`."
        ) from error


def _line(record: RoundMetrics) -> str:
    return json.dumps(_without_nan(record)) + "\n"


def _without_nan(value: Any) -> Any:
    """Return ``value`` with nan and infinity as None, which JSON has a word for."""
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


class Checkpoints(Callback):
    """Writes a checkpoint every ``every`` rounds, and ``seconds`` after the last one; 0: never so.

    The last round's end always is one. Where one cannot be written, ``problem`` says why, the run goes
    on, and each further round tries again: the checkpoint before it is still whole.
    """

    def __init__(self, directory: RunDirectory, every: int, seconds: float) -> None:
        self.folder, self.every, self.seconds = directory.checkpoints, every, seconds
        self.metrics = directory.metrics
        self.problem = ""
        self._last, self._written = -1, time.monotonic()

    def on_round(self, record: RoundMetrics, state: ServerState) -> bool:
        """Write a checkpoint if it is time to, or if the last attempt failed."""
        if (state.round and self._is_due(state.round)) or self.problem:
            try:
                self._save(state)
            except OSError as error:
                self.problem = f"{error.strerror} after round {state.round}"
                log(WARNING, "No checkpoint in %s: %s; the run goes on", self.folder, self.problem)
        return False

    def on_end(self, state: ServerState) -> None:
        """Write the last checkpoint."""
        if self._last != state.round:
            with _room_needed(self.folder):
                self._save(state)

    def _is_due(self, round_: int) -> bool:
        late = self.seconds and time.monotonic() - self._written >= self.seconds
        return bool(late or (self.every and round_ % self.every == 0))

    def _save(self, state: ServerState) -> None:
        flush_to_disk(self.metrics)  # without the lines of its rounds it would be of no use
        save_checkpoint(self.folder, state)
        self._last, self.problem = state.round, ""
        self._written = time.monotonic()


class TensorBoardWriter(Callback):
    """Writes every number of a record as a TensorBoard scalar."""

    def __init__(self, directory: RunDirectory) -> None:
        self.folder = directory.path / "tensorboard"
        self._writer: Any = None

    def on_start(self, state: ServerState) -> None:
        """Open the event file; what was written of later rounds is purged."""
        self._writer = SummaryWriter(
            str(self.folder), purge_step=state.round + 1 if state.round else 0
        )

    def on_round(self, record: RoundMetrics, state: ServerState) -> bool:
        """Write the record's numbers, as one event."""
        numbers = {**record}
        for group in ("seconds", "faults"):
            numbers |= {f"{group}/{key}": value for key, value in record.get(group, {}).items()}
        try:
            self._write({k: v for k, v in numbers.items() if type(v) in (int, float)}, state.round)
        except OSError as error:
            log(WARNING, "No further events in %s: %s", self.folder, error)
            self._writer = None
        return False

    def _write(self, numbers: dict[str, float], round_: int) -> None:
        if self._writer:
            # Twenty calls of add_scalar would take longer than a round of small clients.
            values = [Summary.Value(tag=key, simple_value=v) for key, v in numbers.items()]
            self._writer.file_writer.add_summary(Summary(value=values), round_)

    def close(self) -> None:
        """Close the event file."""
        if self._writer:
            self._writer.close()


class StopAtTarget(Callback):
    """Ends the run when the test accuracy reaches ``target``."""

    def __init__(self, target: float) -> None:
        self.target = target

    def reached(self, record: RoundMetrics) -> bool:
        """Return whether the round of ``record`` reached the target."""
        return bool((record.get("test_accuracy") or 0.0) >= self.target)

    def on_round(self, record: RoundMetrics, state: ServerState) -> bool:
        """Say whether the target is reached."""
        reached = self.reached(record)
        if reached:
            log(INFO, "Target accuracy %.4f is reached in round %d", self.target, state.round)
        return reached


def has_reached(target: float, records: Sequence[RoundMetrics], last: int) -> bool:
    """Return whether one of the rounds up to ``last`` reached the target (0: none is set)."""
    stop = StopAtTarget(target)
    return bool(target) and any(stop.reached(r) for r in records if r["round"] <= last)


class StopIfAllFail(Callback):
    """Ends the run when rounds in a row fail for all their clients, each time by the same exception.

    That is no device's bad luck: it would be the same in every further round.
    """

    ROUNDS = 3

    def __init__(self) -> None:
        self._reason, self._rounds = "", 0

    def on_round(self, record: RoundMetrics, state: ServerState) -> bool:
        """Count the round, if it is such a one.

        Raises
        ------
        RunError
            It is the last of ``ROUNDS``.
        """
        reason = _reason_of_all(record)
        self._rounds = self._rounds + 1 if reason and reason == self._reason else bool(reason)
        self._reason = reason
        if self._rounds == self.ROUNDS:
            raise RunError(
                f"round {record['round']}: in each of the last {self.ROUNDS} rounds every client failed "
                f"with the same error: {reason}. The model is as it was before them, and the run can be "
                "resumed."
            )
        return False


def _reason_of_all(record: RoundMetrics) -> str:
    """Return the exception that all clients of the round raised, if it was the same one."""
    failures = record.get("failures", {})
    if set(record.get("faults", {})) != {"raised"} or len(failures) < len(record["clients"]):
        return ""
    reasons = set(failures.values())
    return reasons.pop() if len(reasons) == 1 else ""


class ProgressReport(Callback):
    """Says how the run goes: a live bar in a terminal, a line a round elsewhere."""

    def __init__(self, num_rounds: int, console: Console | None = None) -> None:
        self.num_rounds = num_rounds
        self.console = console or Console(file=sys.stderr)
        self._accuracy = self._loss = math.nan
        self._bar: Progress | None = None

    def on_start(self, state: ServerState) -> None:
        """Open the bar, where there is a terminal to draw it in."""
        if not self.console.is_terminal or os.environ.get("TERM") == "dumb":
            return
        self._bar = Progress(
            TextColumn("round"),
            MofNCompleteColumn(),
            BarColumn(),
            TextColumn("accuracy {task.fields[accuracy]}  loss {task.fields[loss]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self.console,
        )
        self._bar.add_task("", total=self.num_rounds, completed=state.round, accuracy="-", loss="-")
        self._bar.start()

    def on_round(self, record: RoundMetrics, state: ServerState) -> bool:
        """Show the round."""
        self._accuracy = record.get("test_accuracy", self._accuracy)
        self._loss = record.get("test_loss", self._loss)
        accuracy, loss = f"{self._accuracy:.4f}", f"{self._loss:.4f}"
        if self._bar is not None:
            self._bar.update(
                self._bar.task_ids[0], completed=record["round"], accuracy=accuracy, loss=loss
            )
        else:
            log(INFO, _sentence(record, self.num_rounds))
        return False

    def close(self) -> None:
        """Close the bar and give the terminal back."""
        if self._bar is not None:
            self._bar.stop()


def _sentence(record: RoundMetrics, num_rounds: int) -> str:
    parts = [f"round {record['round']}/{num_rounds}"]
    for key, label in (
        ("test_accuracy", "accuracy"),
        ("test_loss", "loss"),
        ("train_loss", "training loss"),
    ):
        if not math.isnan(record.get(key, math.nan)):
            parts.append(f"{label} {record[key]:.4f}")
    if "replied" in record:
        parts.append(f"{record['replied']} of {len(record['clients'])} clients")
    parts.append(f"{wall_seconds(record):.2f} s")
    return ", ".join(parts)
