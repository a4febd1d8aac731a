"""The pictures of a run and its HTML report."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from logging import WARNING
from pathlib import Path
from typing import Any

from flwr.common.logger import log

from fedapp.config.run_config import RunConfig
from fedapp.errors import reason_of
from fedapp.files import write_atomically
from fedapp.runs.directory import RunDirectory, read_settings
from fedapp.runs.figures import draw_curves, draw_updates, loss_traces
from fedapp.runs.metrics import read_metrics
from fedapp.runs.participation import draw_participation
from fedapp.runs.report_page import report_page


def write_report(
    directory: RunDirectory, config: RunConfig, summary: dict[str, Any], model_round: str
) -> None:
    """Write the curves and the report from the metrics on disk; of one that fails, log the error.

    ``model_round`` is the final model's, as :func:`~fedapp.runs.stored_run.round_of_model` returns it.
    """
    data = Path(config.name_of("dataset")).name
    algorithm = config.name_of("algorithm")
    title = (
        f"{algorithm}, {data} ({config.name_of('partitioner')}), "
        f"{config.name_of('model')}: K = {config.num_clients}, C = {config.fraction_train:g}, "
        f"{_local_work(config)}, η = {config.learning_rate:g}"
    )
    records = read_metrics(directory.metrics)
    with logged_failure("picture of the curves"):
        draw_curves(records, config.target_accuracy, title, directory.path / "curves")
    with logged_failure("picture of the clients' losses and updates"):
        if loss_traces(records):
            draw_updates({algorithm: records}, directory.path)
    if config.sampler != "uniform" and config.num_clients and any(r["round"] for r in records):
        with logged_failure("picture of who took part"):  # its trace may not be there
            draw_participation(records, config, directory.path / "participation")
    _, run_info = read_settings(directory.path)
    with logged_failure("report"):
        page = report_page(directory, config, run_info, title, summary, records, model_round)
        write_atomically(directory.path / "report.html", page.encode())


@contextlib.contextmanager
def logged_failure(name: str) -> Iterator[None]:
    """Log an error while a picture is drawn; one of the disk ends the run, before its model."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        log(WARNING, "No %s: %s", name, reason_of(error))


def _local_work(config: RunConfig) -> str:
    work = f"I = {config.local_steps}" if config.local_steps else f"E = {config.local_epochs}"
    if config.local_epochs_decay != 1:
        work += f" · {config.local_epochs_decay:g}^(t - 1)"
    work += f", B = {config.batch_size or '∞'}"
    if config.batch_size_growth != 1:
        work += f" · {config.batch_size_growth:g}^(t - 1)"
    return work
