"""Callbacks of the round loop: metrics to disk, checkpoints, TensorBoard, stopping, progress."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from logging import INFO, WARNING
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

from fedapp.errors import RunError, reason_of
from fedapp.federation.callback import Callback, RoundMetrics, ServerState
from fedapp.federation.round_result import RoundResult
from fedapp.files import append_or_restore, disk_space_needed, flush_to_disk
from fedapp.runs.checkpoint import save_checkpoint
from fedapp.runs.directory import RunDirectory
from fedapp.runs.metrics import cut_metrics, drop_scores, to_line, wall_seconds

RESUME = "and resume from the last checkpoint with the run's resume.toml or `fedapp run --resume`"
"""What to do beside freeing disk space, where a run has begun."""


class Metrics(Callback):
    """Appends each round's metrics to ``metrics.jsonl``; after a write error, with the next round's.

    The metrics include the last write error of ``checkpoints``. A run that is resumed for more rounds
    loses the scores of the round that was its last, unless ``eval_every`` has the round.
    """

    def __init__(
        self,
        directory: RunDirectory,
        checkpoints: Checkpoints | None = None,
        eval_every: int = 1,
    ) -> None:
        self.path = directory.metrics
        self.checkpoints, self.eval_every = checkpoints, eval_every
        self._unwritten: list[str] = []
        self._was_last = 0

    def on_start(self, state: ServerState) -> None:
        """Remove the rounds after the checkpoint that is resumed from, since they are run again."""
        with disk_space_needed(self.path, RESUME):
            cut_metrics(self.path, state.round or -1)
        is_due = self.eval_every and state.round % self.eval_every == 0
        self._was_last = 0 if is_due else state.round

    def on_round(self, result: RoundResult, state: ServerState) -> bool:
        """Append one line, and the earlier ones that could not be written."""
        problem = self.checkpoints.problem if self.checkpoints else ""
        error = {"checkpoint_error": problem} if problem else {}
        self._unwritten.append(to_line({**result.metrics, **error}))
        self._try_to_write("trying again after the next round")
        return False

    def on_end(self, state: ServerState) -> None:
        """Write the lines that could not be written before."""
        with disk_space_needed(self.path, RESUME):
            self._write()

    def close(self) -> None:
        """Try once more to write the lines that could not be written, if the run ends early."""
        if self._unwritten:
            self._try_to_write("a resume runs its last rounds again")

    def _try_to_write(self, then: str) -> None:
        try:
            self._write()
        except OSError as error:
            log(WARNING, "%s cannot be written (%s); %s", self.path, error, then)

    def _write(self) -> None:
        # After an interruption a line may be missing, which a resume mends, but none is there twice.
        lines, self._unwritten = self._unwritten, []
        try:
            if self._was_last and lines:
                drop_scores(self.path, self._was_last)
                self._was_last = 0
            append_or_restore(self.path, "".join(lines))
        except OSError as error:
            self._unwritten = lines
            self._tell_checkpoints(error)
            raise
        self._tell_checkpoints(None)

    def _tell_checkpoints(self, error: OSError | None) -> None:
        if self.checkpoints:
            self.checkpoints.metrics_error = error


class Checkpoints(Callback):
    """Writes a checkpoint every ``every`` rounds, ``seconds`` after the last one, and at the end.

    0 turns the one or the other off. A run that is interrupted or fails has one, too. All but that at
    the end are of the last round that changed the model, since a resume runs those after it again; of a
    private run, which would be charged for them again, of the last round. After a write error, which
    ``problem`` describes, the run continues and tries again after each round; the previous checkpoint
    remains. ``metrics_error`` is why lines of metrics wait: without them none could be resumed from.
    """

    def __init__(self, directory: RunDirectory, every: int, seconds: float) -> None:
        self.folder, self.every, self.seconds = directory.checkpoints, every, seconds
        self.metrics = directory.metrics
        self.problem = ""
        self.metrics_error: OSError | None = None
        self._last, self._written = -1, time.monotonic()
        self._unsaved: ServerState | None = None

    def on_round(self, result: RoundResult, state: ServerState) -> bool:
        """Write a checkpoint if one is due, or if the last attempt failed."""
        if result.training is None or not result.training.problem or result.privacy:
            self._unsaved = replace(state)  # the next round changes it, and may be interrupted
        if (state.round and self._is_due(state.round)) or self.problem:
            self._try_to_save("; the run continues")
        return False

    def on_end(self, state: ServerState) -> None:
        """Write the last checkpoint."""
        if self._last != state.round:
            with disk_space_needed(self.folder, RESUME):
                self._save(state)

    def close(self) -> None:
        """Write a checkpoint if the run ends early; an error is logged, and is not why it ended."""
        try:
            self._try_to_save()
        except Exception as error:
            log(WARNING, "No checkpoint in %s: %s", self.folder, reason_of(error))

    def _is_due(self, round_: int) -> bool:
        late = self.seconds and time.monotonic() - self._written >= self.seconds
        return bool(late or (self.every and round_ % self.every == 0))

    def _try_to_save(self, then: str = "") -> None:
        if self._unsaved is None:
            return
        try:
            self._save(self._unsaved)
        except OSError as error:
            self.problem = f"{error.strerror} after round {self._unsaved.round}"
            log(WARNING, "No checkpoint in %s: %s%s", self.folder, self.problem, then)

    def _save(self, state: ServerState) -> None:
        if self.metrics_error:
            raise self.metrics_error
        flush_to_disk(self.metrics)  # a checkpoint needs the metrics of all its rounds
        save_checkpoint(self.folder, state)
        self._last, self.problem, self._unsaved = state.round, "", None
        self._written = time.monotonic()


class TensorBoardWriter(Callback):
    """Writes every number of the metrics as a TensorBoard scalar."""

    def __init__(self, directory: RunDirectory) -> None:
        self.folder = directory.path / "tensorboard"
        self._writer: Any = None

    def on_start(self, state: ServerState) -> None:
        """Open the event file, without the events of later rounds."""
        try:
            self._writer = SummaryWriter(
                str(self.folder), purge_step=state.round + 1 if state.round else 0
            )
        except OSError as error:
            self._give_up(error)

    def on_round(self, result: RoundResult, state: ServerState) -> bool:
        """Write the numbers of a round as one event."""
        try:
            self._write(result.numbers, state.round)
        except OSError as error:
            self._give_up(error)
        return False

    def _give_up(self, error: OSError) -> None:
        log(WARNING, "No further events in %s: %s", self.folder, error)
        self._writer = None

    def _write(self, numbers: dict[str, float], round_: int) -> None:
        if self._writer:
            # Twenty calls of add_scalar would take longer than a round of small clients.
            values = [Summary.Value(tag=key, simple_value=v) for key, v in numbers.items()]
            self._writer.file_writer.add_summary(Summary(value=values), round_)

    def close(self) -> None:
        """Close the event file; an error is logged, since it is the writer's, not the run's."""
        try:
            if self._writer:
                self._writer.close()
        except OSError as error:
            log(WARNING, "%s lacks its last events: %s", self.folder, error)


class StopAtTarget(Callback):
    """Ends the run when the test accuracy reaches ``target``."""

    def __init__(self, target: float) -> None:
        self.target = target

    def reached(self, record: RoundMetrics) -> bool:
        """Return whether the round of ``record`` reached the target."""
        return bool((record.get("test_accuracy") or 0.0) >= self.target)

    def on_round(self, result: RoundResult, state: ServerState) -> bool:
        """Return whether the target is reached."""
        reached = self.reached(result.metrics)
        if reached:
            log(INFO, "Target accuracy %.4f is reached in round %d", self.target, state.round)
        return reached


def has_reached(
    records: Sequence[RoundMetrics], last: int, *, target: float, eval_every: int, planned: int
) -> bool:
    """Return whether one of the rounds up to ``last`` reached the target (0: none is set).

    The scores of ``last`` count if a run of ``planned`` rounds evaluates then: not those that it has
    because it was the last of a shorter run.
    """
    stop = StopAtTarget(target)
    due = last >= planned or (eval_every > 0 and last % eval_every == 0)
    rounds = last + 1 if due else last
    return bool(target) and any(stop.reached(r) for r in records if r["round"] < rounds)


class StopIfAllFail(Callback):
    """Ends the run after ``ROUNDS`` rounds in a row in which every client raised the same exception."""

    ROUNDS = 3

    def __init__(self) -> None:
        self._reason, self._rounds = "", 0

    def on_round(self, result: RoundResult, state: ServerState) -> bool:
        """Count consecutive rounds with such a failure.

        Raises
        ------
        RunError
            It is the ``ROUNDS``-th.
        """
        reason = _common_reason(result.metrics)
        self._rounds = self._rounds + 1 if reason and reason == self._reason else bool(reason)
        self._reason = reason
        if self._rounds == self.ROUNDS:
            raise RunError(
                f"round {result.round}: in each of the last {self.ROUNDS} rounds every client failed "
                f"with the same error: {reason}. The model has not changed in them, and the run can be "
                "resumed."
            )
        return False


def _common_reason(record: RoundMetrics) -> str:
    """Return the exception that all clients of the round raised; empty if there is no such one."""
    failures = record.get("failures", {})
    if set(record.get("faults", {})) != {"raised"} or len(failures) < len(record["clients"]):
        return ""
    reasons = set(failures.values())
    return reasons.pop() if len(reasons) == 1 else ""


class ProgressReport(Callback):
    """Shows the progress: a live bar in a terminal, a log line a round elsewhere."""

    def __init__(self, num_rounds: int, console: Console | None = None) -> None:
        self.num_rounds = num_rounds
        self.console = console or Console(file=sys.stderr)
        self._bar: Progress | None = None

    def on_start(self, state: ServerState) -> None:
        """Open the bar if there is a terminal."""
        if not self.console.is_terminal or os.environ.get("TERM") == "dumb":
            return
        self._bar = Progress(
            TextColumn("round"),
            MofNCompleteColumn(),
            BarColumn(),
            TextColumn("{task.fields[scores]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self.console,
        )
        self._bar.add_task("", total=self.num_rounds, completed=state.round, scores="")
        self._bar.start()

    def on_round(self, result: RoundResult, state: ServerState) -> bool:
        """Show the round."""
        record = result.metrics
        if self._bar is not None:
            task = self._bar.tasks[0]
            scores = "  ".join(_scores(record, SCORES)) or task.fields["scores"]
            self._bar.update(task.id, completed=record["round"], scores=scores)
        else:
            log(INFO, _round_line(record, self.num_rounds))
        return False

    def close(self) -> None:
        """Close the bar."""
        if self._bar is not None:
            self._bar.stop()


SCORES = {"test_accuracy": "accuracy", "test_loss": "loss", "test_rmse": "RMSE"}


def _scores(record: RoundMetrics, labels: Mapping[str, str]) -> list[str]:
    """Return the round's numbers of these, with their labels."""
    return [
        f"{label} {record[key]:.4f}"
        for key, label in labels.items()
        if not math.isnan(record.get(key, math.nan))
    ]


def _round_line(record: RoundMetrics, num_rounds: int) -> str:
    parts = [f"round {record['round']}/{num_rounds}"]
    parts += _scores(record, {**SCORES, "train_loss": "training loss"})
    if "replied" in record:
        parts.append(f"{record['replied']} of {len(record['clients'])} clients")
    parts.append(f"{wall_seconds(record):.2f} s")
    return ", ".join(parts)
