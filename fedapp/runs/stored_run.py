"""A run as its files describe it, whether or not it goes on and its components are there."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from fedapp.errors import CheckpointError
from fedapp.federation.callback import RoundMetrics
from fedapp.runs.callbacks import has_reached
from fedapp.runs.checkpoint import checkpoint_rounds
from fedapp.runs.directory import RunDirectory, read_settings
from fedapp.runs.lock import is_locked
from fedapp.runs.metrics import last_whole_round, read_metrics


@dataclass(frozen=True)
class StoredRun:
    """A run's settings as they are stored, what was determined for it, and its rounds so far."""

    directory: RunDirectory
    settings: Mapping[str, Any]
    run_info: Mapping[str, Any]
    records: Sequence[RoundMetrics]

    @property
    def planned(self) -> int:
        """T, ``num-server-rounds``."""
        return int(self.settings["num-server-rounds"])

    @property
    def target(self) -> float:
        """``target-accuracy``; 0: none."""
        return float(self.settings["target-accuracy"])

    @property
    def eval_every(self) -> int:
        """``eval-every``."""
        return int(self.settings["eval-every"])

    @property
    def rounds(self) -> int:
        """The last round that is done."""
        return int(self.records[-1]["round"]) if self.records else 0

    @property
    def state(self) -> str:
        """``running``, ``finished`` or ``stopped``."""
        if is_locked(self.directory):
            return "running"
        return "finished" if self.is_finished else "stopped"

    @property
    def is_finished(self) -> bool:
        """Whether the last round is done and its files exist.

        A summary alone does not show it: ``fedapp report`` writes one for any run, and a finished run may
        have been resumed for more rounds. A model of 0.2.0 does not say its round.
        """
        rounds = checkpoint_rounds(self.directory.checkpoints)
        if not rounds or not self.directory.summary.exists() or not self.directory.model.exists():
            return False
        if self.rounds < rounds[0]:
            return False  # metrics.jsonl was cut
        of = round_of_model(self.directory.model)
        if rounds[0] >= self.planned or self.has_reached_target:
            return of.partition(" ")[0] in ("", str(rounds[0]))
        return self.rounds == rounds[0] and of == f"{rounds[0]} of {self.planned}"

    @property
    def has_reached_target(self) -> bool:
        """Whether the last checkpoint is of the round that reached ``target-accuracy``."""
        rounds = checkpoint_rounds(self.directory.checkpoints)
        return bool(rounds) and has_reached(
            self.records,
            rounds[0],
            target=self.target,
            eval_every=self.eval_every,
            planned=self.planned,
        )

    @property
    def resume_round(self) -> int | None:
        """The round to resume from; None without a checkpoint that the metrics reach."""
        reached = max(last_whole_round(self.records), 0)
        rounds = checkpoint_rounds(self.directory.checkpoints)
        return next((round_ for round_ in rounds if round_ <= reached), None)

    def require_metrics(self) -> None:
        """Raise CheckpointError if the metrics are gone of a run that has trained or ended."""
        folder = self.directory
        left = [file.name for file in (folder.model, folder.summary) if file.exists()]
        left += [f"checkpoint of round {t}" for t in checkpoint_rounds(folder.checkpoints) if t]
        if left and not self.records:
            raise CheckpointError(
                f"{folder.metrics} is missing or empty, and the run has a {left[0]}. Restore a copy of "
                "it."
            )


def round_of_model(path: Path) -> str:
    """Return the round of a final model; "2 of 9" if ``max-epsilon`` or a callback ended its run."""
    with contextlib.suppress(OSError, SafetensorError), safe_open(path, "pt") as file:
        return str((file.metadata() or {}).get("round", ""))
    return ""


def state_before_start(path: Path) -> str:
    """Return the state of a run that has a log and no settings yet; "" for any other."""
    directory = RunDirectory(path.absolute())
    if directory.config.exists() or directory.metrics.exists() or not directory.log.exists():
        return ""
    return "waiting for nodes" if is_locked(directory) else "ended before its first round"


def read_run(path: Path) -> StoredRun:
    """Return the run in ``path``; its components need not be there.

    Raises
    ------
    CheckpointError
        There is no run, or its config.json or its metrics are damaged.
    """
    directory = RunDirectory(path.absolute())
    settings, run_info = read_settings(path)
    run = StoredRun(directory, settings, run_info, read_metrics(directory.metrics))
    try:
        _ = run.planned, run.target, run.eval_every
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{directory.config} is damaged, or of another version: {error} of its settings is missing, "
            "or no number. Restore a copy of it."
        ) from error
    return run
