"""The final model of a run as a network, without the run's data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from fedapp.config.run_config import RunConfig
from fedapp.data.coding import coded
from fedapp.data.dataset import Dataset, Task
from fedapp.data.load import load_server_data
from fedapp.data.table import Statistics
from fedapp.errors import CheckpointError, ConfigError
from fedapp.runs.checkpoint import mismatch
from fedapp.runs.directory import RunDirectory, read_stored, resume_command
from fedapp.runs.initial_model import read_weights
from fedapp.runs.own_code import changed_code
from fedapp.runs.saved_task import read_saved_task, read_statistics
from fedapp.training.build import make_module, require_whole_model
from fedapp.training.tensors import Tensors


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

    Raises
    ------
    CheckpointError
        There is no run, or it has no final model, or its own model or transform has other code.
    ConfigError
        The clients keep a part of the model.
    """
    config, _ = read_unchanged(folder, "model", "transform")
    directory = RunDirectory(folder.absolute())
    weights = final_weights(directory)
    task = read_saved_task(directory)
    statistics = None
    if directory.table.exists():  # one of 0.2.0 may have more columns, in another order
        statistics = read_statistics(directory).of_features(task.columns)
    require_whole_model(
        config, task, because="Predict with a model of a run with algorithm='fedavg', say."
    )
    module = make_module(config, task)
    require_weights_of(module, weights, directory)
    module.load_state_dict(weights, strict=False)
    return SavedModel(directory, config, task, statistics, module.eval())


def load_data(folder: Path, dataset: str = "") -> Dataset:
    """Return the data set of the run in ``folder``, a table coded with the run's statistics.

    ``dataset`` replaces the run's own, for data that have moved.

    Raises
    ------
    CheckpointError
        There is no run, or its own data set has other code.
    ConfigError
        The data are not those of the run.
    """
    config, run_info = read_unchanged(folder, "dataset")
    config = config.model_copy(update={"dataset": dataset}) if dataset else config
    data = load_server_data(config)
    if data.fingerprint != run_info.get("fingerprint", data.fingerprint):
        raise ConfigError(
            f"dataset = {config.dataset!r}: these are not the data of the run in {folder}. Give "
            "those with --dataset."
        )
    return data if data.table is None else coded(data, read_statistics(RunDirectory(folder)))


def read_unchanged(folder: Path, *keys: str) -> tuple[RunConfig, dict[str, Any]]:
    """Return what ``read_stored`` returns.

    Raises
    ------
    CheckpointError
        There is no run, or its own component of one of ``keys`` has other code.
    """
    config, run_info = read_stored(folder)
    values = config.to_run_config()
    if changed := changed_code(folder, {key: values[key] for key in keys}, run_info):
        raise CheckpointError(changed)
    return config, run_info


def final_weights(directory: RunDirectory) -> Tensors:
    """Return the weights of a run's final model.

    Raises
    ------
    CheckpointError
        The run has not ended, or the file cannot be read.
    """
    try:
        return read_weights(directory.model)
    except FileNotFoundError as error:
        raise CheckpointError(
            f"{directory.path} has no {directory.model.name}: the run has not ended. Resume it: "
            f"{resume_command(directory.path)}"
        ) from error
    except OSError as error:
        raise CheckpointError(f"{directory.model} cannot be read: {error}") from error


def require_weights_of(module: nn.Module, weights: Tensors, directory: RunDirectory) -> None:
    """Raise CheckpointError if the run's final weights are those of another network than ``module``."""
    if problem := mismatch(weights, dict(module.named_parameters())):
        raise CheckpointError(f"{directory.model} {problem}")
