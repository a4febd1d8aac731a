"""The final model of a run as a network, without the run's data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import nn

from fedapp.config.run_config import RunConfig
from fedapp.data import load_dataset
from fedapp.data.dataset import Task
from fedapp.data.table import Statistics
from fedapp.errors import CheckpointError
from fedapp.runs.checkpoint import mismatch
from fedapp.runs.directory import RunDirectory, read_stored, resume_command
from fedapp.runs.initial_model import read_weights
from fedapp.runs.saved_task import read_saved_task, read_statistics
from fedapp.training.build import make_module, require_whole_model


@dataclass(frozen=True)
class SavedModel:
    """A run's network on the CPU, in evaluation mode, and what its inputs and outputs are."""

    directory: RunDirectory
    config: RunConfig
    task: Task
    statistics: Statistics | None
    module: nn.Module

    def label(self, number: int) -> str:
        """Return the name of class ``number``."""
        return self.task.labels[number] if self.task.labels else str(number)


def load_model(folder: Path) -> SavedModel:
    """Return the final model of the run in ``folder``.

    A run of an earlier version, without ``task.json``, needs its data.

    Raises
    ------
    CheckpointError
        There is no run, or it has no final model.
    ConfigError
        The clients keep a part of the model.
    """
    config, _ = read_stored(folder)
    directory = RunDirectory(folder.absolute())
    task = read_saved_task(directory) if directory.task.exists() else load_dataset(config).task
    statistics = None
    if directory.table.exists():  # of older versions, it may have another order and more columns
        statistics = read_statistics(directory).of_features(task.columns)
    require_whole_model(
        config, task, because="Predict with a model of a run with algorithm='fedavg', say."
    )
    module = make_module(config, task)
    if not directory.model.is_file():
        raise CheckpointError(
            f"{directory.model}: there is no such file, because the run has not ended. Continue it "
            f"first: {resume_command(directory.path)}"
        )
    weights = read_weights(directory.model)
    if problem := mismatch(weights, dict(module.named_parameters())):
        raise CheckpointError(f"{directory.model} {problem}")
    module.load_state_dict(weights, strict=False)
    return SavedModel(directory, config, task, statistics, module.eval())
