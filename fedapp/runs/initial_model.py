"""Weights to begin with: a run's final model, or any file of safetensors with the network's names."""

from __future__ import annotations

import hashlib
from pathlib import Path

import safetensors.torch
from safetensors import SafetensorError

from fedapp.config.run_config import RunConfig
from fedapp.errors import CheckpointError, ConfigError
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
        It does not hold tensors.
    """
    try:
        return safetensors.torch.load(path.read_bytes())
    except (SafetensorError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read as safetensors: {error}") from error


def weights_path(config: RunConfig) -> Path:
    """Return the file that ``initial-model`` names, or that lies in the run's folder it names.

    Raises
    ------
    ConfigError
        There is no such file.
    """
    named = Path(config.initial_model).expanduser().absolute()
    path = RunDirectory(named).model if named.is_dir() else named
    if not path.is_file():
        raise ConfigError(
            f"initial-model = {config.initial_model!r}: there is no file {path}. Name the folder of a "
            "run that has ended, its model.safetensors, or any file of safetensors with the network's "
            "parameters, on the machine of the ServerApp; or leave the key out, and weights are drawn "
            "from the seed."
        )
    return path


def weights_digest(config: RunConfig) -> str:
    """Return the SHA-256 of the file that ``initial-model`` names; errors as ``weights_path``."""
    return hashlib.sha256(weights_path(config).read_bytes()).hexdigest()


def begin_with(config: RunConfig, theta: Tensors) -> Tensors:
    """Return the weights that ``initial-model`` names, in the order and types of ``theta``.

    Raises
    ------
    ConfigError
        There is no such file, it is of another network, or it holds nan or infinite values.
    """
    said = f"initial-model = {config.initial_model!r}"
    try:
        found = read_weights(weights_path(config))
    except (OSError, CheckpointError) as error:
        raise ConfigError(f"{said}: {error}") from error
    typed = {n: t.to(theta[n].dtype) if n in theta else t for n, t in found.items()}
    if problem := mismatch(typed, theta):
        raise ConfigError(
            f"{said}: {problem}. Set model, its parameters and the data set as in the config.json of "
            "the run that made it."
        )
    return {name: typed[name] for name in theta}
