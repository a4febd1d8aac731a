"""Initial weights from a file: a run's final model, or safetensors with the network's names."""

from __future__ import annotations

import hashlib
from pathlib import Path

import safetensors.torch
from safetensors import SafetensorError

from fedapp.config.model import ModelConfig
from fedapp.errors import CheckpointError, ConfigError
from fedapp.files import as_path
from fedapp.runs.checkpoint import mismatch
from fedapp.runs.directory import RunDirectory
from fedapp.training.tensors import Tensors


def read_weights(path: Path) -> Tensors:
    """Return the tensors of a file by name.

    Raises
    ------
    OSError
        There is no such file, or it cannot be read.
    CheckpointError
        It is not a safetensors file.
    """
    try:
        return safetensors.torch.load(path.read_bytes())
    except (SafetensorError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read as safetensors: {error}") from error


def weights_path(config: ModelConfig) -> Path:
    """Return the file that ``initial-model`` names, or the final model of the run that it names.

    Raises
    ------
    ConfigError
        There is no such file.
    """
    setting = f"initial-model = {config.initial_model!r}"
    named = as_path(config.initial_model, setting).absolute()
    path = RunDirectory(named).model if named.is_dir() else named
    if not path.is_file():
        raise ConfigError(
            f"{setting}: there is no file {path}. Name the folder of a "
            "run that has ended, its model.safetensors, or any file of safetensors with the network's "
            "parameters, on the machine of the ServerApp; or leave the key out for weights from the "
            "seed."
        )
    return path


def weights_digest(config: ModelConfig) -> str:
    """Return the SHA-256 of the file that ``initial-model`` names; raises as ``weights_path`` does."""
    return hashlib.sha256(weights_path(config).read_bytes()).hexdigest()


def load_initial_model(config: ModelConfig, theta: Tensors) -> Tensors:
    """Return the weights that ``initial-model`` names, in the order and types of ``theta``.

    Raises
    ------
    ConfigError
        There is no such file, it is of another network, or it holds nan or infinite values.
    """
    setting = f"initial-model = {config.initial_model!r}"
    try:
        weights = read_weights(weights_path(config))
    except (OSError, CheckpointError) as error:
        raise ConfigError(f"{setting}: {error}") from error
    typed = {n: t.to(theta[n].dtype) if n in theta else t for n, t in weights.items()}
    if problem := mismatch(typed, theta):
        raise ConfigError(
            f"{setting}: {problem}. Set model, its parameters and the data set as in the config.json of "
            "the run that made it."
        )
    return {name: typed[name] for name in theta}
