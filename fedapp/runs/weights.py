"""Weights to begin with: a run's final model, or any file of safetensors with the network's names."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError

from fedapp.config import RunConfig
from fedapp.errors import CheckpointError, ConfigError
from fedapp.runs.directory import RunDirectory
from fedapp.training.tensors import Tensors


def read_weights(path: Path) -> Tensors:
    """Return the tensors of a file by name.

    Raises
    ------
    FileNotFoundError
        There is none.
    CheckpointError
        It cannot be read, or holds no tensors.
    """
    try:
        return safetensors.torch.load(path.read_bytes())
    except FileNotFoundError:
        raise
    except (OSError, SafetensorError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read as safetensors: {error}") from error


def weights_path(config: RunConfig) -> Path:
    """Return the file that ``initial-model`` names, or that lies in the run's folder it names."""
    path = Path(config.initial_model).expanduser().absolute()
    return RunDirectory(path).model if path.is_dir() else path


def weights_digest(config: RunConfig) -> str:
    """Return the SHA-256 of the file to begin with, or "" where weights are drawn from the seed.

    Raises
    ------
    ConfigError
        There is no such file, or it cannot be read.
    """
    if not config.initial_model:
        return ""
    path = weights_path(config)
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise ConfigError(_unread(config, path, error.strerror or str(error))) from error


def begin_with(config: RunConfig, theta: Tensors) -> Tensors:
    """Return the weights that ``initial-model`` names, or ``theta``, drawn from the seed, without it.

    They take the types of ``theta``.

    Raises
    ------
    ConfigError
        There is no such file, it is of another network, or it holds nan or infinite values.
    """
    if not config.initial_model:
        return theta
    path = weights_path(config)
    try:
        found = read_weights(path)
    except FileNotFoundError as error:
        raise ConfigError(_unread(config, path, "there is no such file")) from error
    except CheckpointError as error:
        raise ConfigError(f"initial-model = {config.initial_model!r}: {error}") from error
    _check(config, found, theta)
    return {name: found[name].to(tensor.dtype) for name, tensor in theta.items()}


def _unread(config: RunConfig, path: Path, problem: str) -> str:
    return (
        f"initial-model = {config.initial_model!r}: {path}: {problem}. Name the folder of a run that "
        "has ended, its model.safetensors, or any file of safetensors with the network's parameters, "
        "on the machine of the ServerApp; or leave the key out, and weights are drawn from the seed."
    )


def _check(config: RunConfig, found: Mapping[str, torch.Tensor], theta: Tensors) -> None:
    """Refuse another network's weights, naming the first tensor that differs, and broken ones."""
    ours = {name: tuple(tensor.shape) for name, tensor in theta.items()}
    theirs = {name: tuple(tensor.shape) for name, tensor in found.items()}
    said = f"initial-model = {config.initial_model!r}"
    if ours != theirs:
        odd = min(name for name, _ in ours.items() ^ theirs.items())
        raise ConfigError(
            f"{said}: is of another network than model = {config.model!r}: {odd!r} has "
            f"{_shape(theirs, odd)} there and {_shape(ours, odd)} here. Set model, its parameters and "
            "the data set as in the config.json of the run that made it."
        )
    broken = [name for name, tensor in found.items() if not bool(torch.isfinite(tensor).all())]
    if broken:
        raise ConfigError(f"{said}: holds nan or infinite values: {', '.join(sorted(broken))}.")


def _shape(shapes: Mapping[str, tuple[int, ...]], name: str) -> str:
    return f"the shape {list(shapes[name])}" if name in shapes else "no place"
