"""The final outputs of a run: model, summary, curves and HTML report."""

from __future__ import annotations

import datetime
import statistics
from collections.abc import Sequence
from logging import INFO
from typing import Any

import safetensors.torch
from flwr.common.logger import log

from fedapp.analysis.curves import rounds_to_target
from fedapp.config.run_config import RunConfig
from fedapp.federation.callback import Callback, RoundMetrics, ServerState
from fedapp.files import write_atomically, write_json
from fedapp.runs.directory import RunDirectory, read_settings
from fedapp.runs.figures import draw_curves, draw_updates
from fedapp.runs.metrics import read_metrics, total, wall_seconds
from fedapp.runs.participation import draw_participation
from fedapp.runs.report_page import report_page


class FinalOutputs(Callback):
    """Writes the model, ``summary.json``, the curves and ``report.html`` when the run ends."""

    def __init__(self, directory: RunDirectory, config: RunConfig) -> None:
        self.directory, self.config = directory, config

    def on_end(self, state: ServerState) -> None:
        """Write the files, and log the final accuracy."""
        theta = {k: v.detach().cpu().contiguous() for k, v in state.theta.items()}
        content = safetensors.torch.save(theta, {"round": str(state.round)})
        write_atomically(self.directory.model, content)
        summary = write_summary(self.directory, self.config)
        if self.config.pictures:
            write_report(self.directory, self.config, summary)
        accuracy = summary["test_accuracy"]
        if accuracy is not None:
            log(INFO, "Test accuracy %.4f after %d rounds", accuracy, summary["rounds"])


def write_summary(directory: RunDirectory, config: RunConfig) -> dict[str, Any]:
    """Write ``summary.json`` from the metrics on disk, and return its content."""
    summary = summarise(read_metrics(directory.metrics), config)
    write_json(directory.summary, summary)
    return summary


def write_report(directory: RunDirectory, config: RunConfig, summary: dict[str, Any]) -> None:
    """Write the curves and the report from the metrics on disk."""
    data = config.name_of("dataset").rstrip("/").rsplit("/", 1)[-1]
    algorithm = config.name_of("algorithm")
    title = (
        f"{algorithm}, {data} ({config.name_of('partitioner')}), "
        f"{config.name_of('model')}: K = {config.num_clients}, C = {config.fraction_train:g}, "
        f"{_local_work(config)}, η = {config.learning_rate:g}"
    )
    records = read_metrics(directory.metrics)
    draw_curves(records, config.target_accuracy, title, directory.path / "curves")
    if any("similarity" in record for record in records):
        draw_updates({algorithm: records}, directory.path)
    if config.sampler != "uniform" and config.num_clients and any(r["round"] for r in records):
        draw_participation(records, config, directory.path / "participation")
    _, run_info = read_settings(directory.path)
    page = report_page(directory, config, run_info, title, summary, records)
    write_atomically(directory.path / "report.html", page.encode())


def _local_work(config: RunConfig) -> str:
    work = f"I = {config.local_steps}" if config.local_steps else f"E = {config.local_epochs}"
    if config.local_epochs_decay != 1:
        work += f" · {config.local_epochs_decay:g}^(t - 1)"
    work += f", B = {config.batch_size or '∞'}"
    if config.batch_size_growth != 1:
        work += f" · {config.batch_size_growth:g}^(t - 1)"
    return work


def summarise(records: Sequence[RoundMetrics], config: RunConfig) -> dict[str, Any]:
    """Return the content of ``summary.json``; None for numbers that the run does not have."""
    scored = [r for r in records if r.get("test_accuracy") is not None]
    best = max(scored, key=lambda r: r["test_accuracy"], default={})
    measured = [r for r in records if r.get("test_loss") is not None]
    trained = [r for r in records if r["round"] > 0]
    last = scored[-1] if scored else {}
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
        **_privacy(trained),
        "bytes_down": int(total(trained, "bytes_down")),
        "bytes_up": int(total(trained, "bytes_up")),
        "seconds": sum(wall_seconds(r) for r in records),
        "seconds_a_round_median": statistics.median(map(wall_seconds, trained))
        if trained
        else None,
        "failures": sum(len(r.get("failures", {})) for r in trained),
        "finished": datetime.datetime.now(tz=datetime.UTC).isoformat(timespec="seconds"),
    }


def _regression(records: Sequence[RoundMetrics]) -> dict[str, float | None]:
    """Return the last RMSE and R2 of a run that predicts numbers."""
    keys = ("test_rmse", "test_r2")
    return {key: records[-1][key] for key in keys if records and key in records[-1]}


def _privacy(records: Sequence[RoundMetrics]) -> dict[str, float | str | None]:
    """Return the privacy spent by a private run; epsilon is None if it is infinite."""
    private = [record for record in records if "delta" in record]
    keys = ("epsilon", "delta", "adjacency")
    return {key: private[-1][key] for key in keys} if private else {}
