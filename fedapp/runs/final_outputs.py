"""The final outputs of a run: model, summary, curves and HTML report."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from logging import INFO, WARNING
from typing import Any

import safetensors.torch
from flwr.common.logger import log

from fedapp.analysis.curves import rounds_to_target
from fedapp.config.run_config import RunConfig
from fedapp.federation.callback import Callback, RoundMetrics, ServerState
from fedapp.files import disk_space_needed, write_atomically, write_json
from fedapp.runs.callbacks import RESUME
from fedapp.runs.directory import RunDirectory, read_settings
from fedapp.runs.metrics import read_metrics, total, wall_seconds
from fedapp.runs.privacy import privacy_spent
from fedapp.training.tensors import contiguous_copies


class FinalOutputs(Callback):
    """Writes ``summary.json``, the curves, ``report.html`` and the model when the run ends.

    The model is the last, since by its round a run is known to be finished. A picture that cannot be
    drawn is logged.
    """

    def __init__(self, directory: RunDirectory, config: RunConfig) -> None:
        self.directory, self.config = directory, config

    def on_end(self, state: ServerState) -> None:
        """Write the files, and log the final accuracy."""
        with disk_space_needed(self.directory.path, RESUME):
            self._write(state)

    def _write(self, state: ServerState) -> None:
        theta = contiguous_copies(state.theta)
        planned = self.config.num_server_rounds
        early = f" of {planned}" if state.round < planned else ""
        summary = write_summary(self.directory, self.config)
        if self.config.pictures:
            self._draw(summary, f"{state.round}{early}")
        # One key, since safetensors writes several in any order.
        content = safetensors.torch.save(theta, {"round": f"{state.round}{early}"})
        write_atomically(self.directory.model, content)
        accuracy = summary["test_accuracy"]
        if accuracy is not None:
            records = read_metrics(self.directory.metrics)
            scored = [r["round"] for r in records if r.get("test_accuracy") is not None]
            log(INFO, "Test accuracy %.4f after %d rounds", accuracy, scored[-1])

    def _draw(self, summary: dict[str, Any], model_round: str) -> None:
        """Draw all pictures; Matplotlib is not imported before, so that the first round is sooner."""
        from fedapp.runs.partition import draw_missing_partition
        from fedapp.runs.report import logged_failure, write_report

        _, run_info = read_settings(self.directory.path)
        with logged_failure("picture of the partition"):
            if problem := draw_missing_partition(self.directory.path, self.config, run_info):
                log(WARNING, "No picture of the partition: %s", problem)
        write_report(self.directory, self.config, summary, model_round)


def write_summary(directory: RunDirectory, config: RunConfig) -> dict[str, Any]:
    """Write ``summary.json`` from the metrics on disk, and return its content."""
    spent = privacy_spent(directory.path, config)
    summary = summarise(read_metrics(directory.metrics), config, spent)
    write_json(directory.summary, summary)
    return summary


def summarise(
    records: Sequence[RoundMetrics], config: RunConfig, spent: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the content of ``summary.json``; None for numbers that the run does not have.

    ``spent`` is the privacy that a private run has spent.
    """
    scored = [r for r in records if r.get("test_accuracy") is not None]
    best = max(scored, key=lambda r: r["test_accuracy"], default={})
    measured = [r for r in records if "test_loss" in r]
    trained = [r for r in records if r["round"] > 0]
    last = next((r for r in reversed(records) if "test_accuracy" in r), {})
    rounds, accuracy = [r["round"] for r in scored], [r["test_accuracy"] for r in scored]
    target = config.target_accuracy or None
    reached = rounds_to_target(rounds, accuracy, target) if target else None
    return {
        "rounds": records[-1]["round"] if records else 0,
        "test_accuracy": last.get("test_accuracy"),
        "test_loss": measured[-1]["test_loss"] if measured else None,
        **_regression(measured),
        "best_test_accuracy": best.get("test_accuracy"),
        "best_round": best.get("round"),
        "target_accuracy": target,
        "rounds_to_target": reached,
        "updates": total(trained, "updates"),
        **(spent or {}),
        "bytes_down": int(total(trained, "bytes_down")),
        "bytes_up": int(total(trained, "bytes_up")),
        "seconds": sum(wall_seconds(r) for r in records),
        "seconds_a_round_median": statistics.median(map(wall_seconds, trained))
        if trained
        else None,
        "failures": sum(len(r.get("failures", {})) for r in trained),
    }


def _regression(records: Sequence[RoundMetrics]) -> dict[str, float | None]:
    """Return the last RMSE and R2 of a run that predicts numbers."""
    keys = ("test_rmse", "test_r2")
    return {key: records[-1][key] for key in keys if records and key in records[-1]}
