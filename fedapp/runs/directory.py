"""The run directory: one folder that holds all that a run is and gives."""

from __future__ import annotations

import datetime
import functools
import importlib.metadata
import json
import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fedapp
from fedapp.config.read import read_config, without_unused_parameters
from fedapp.config.run_config import RunConfig
from fedapp.errors import CheckpointError, ConfigError
from fedapp.files import json_problem, write_atomically, write_json
from fedapp.runs.checkpoint import kept_rounds

FREE_ON_RESUME = (
    "resume",
    "run-dir",
    "num-server-rounds",
    "node-timeout",
    "round-deadline",
    "dataset",
)
"""Keys that may differ between a run and its continuation; the data by their place, not by content."""


@dataclass(frozen=True)
class RunDirectory:
    """Paths of a run's files."""

    path: Path

    @property
    def config(self) -> Path:
        """Settings as the user gave them, and what was found out for them (threads, device)."""
        return self.path / "config.json"

    @property
    def metrics(self) -> Path:
        """A line of JSON a round."""
        return self.path / "metrics.jsonl"

    @property
    def log(self) -> Path:
        """What was said, a line of JSON each."""
        return self.path / "log.jsonl"

    @property
    def checkpoints(self) -> Path:
        """The folder of checkpoints."""
        return self.path / "checkpoints"

    @property
    def model(self) -> Path:
        """The final parameters."""
        return self.path / "model.safetensors"

    @property
    def summary(self) -> Path:
        """The run in a few numbers."""
        return self.path / "summary.json"


def create(config: RunConfig) -> RunDirectory:
    """Make the folder of a new run.

    Raises
    ------
    ConfigError
        ``run-dir`` holds a run already, or checkpoints of one, or cannot be written.
    """
    path = Path(config.run_dir).expanduser() if config.run_dir else _fresh(config)
    directory = RunDirectory(path.absolute())
    check_is_new(directory)
    try:
        directory.checkpoints.mkdir(parents=True, exist_ok=True)
        (directory.path / ".writable").touch()
        (directory.path / ".writable").unlink()
    except OSError as error:
        raise ConfigError(
            f"run-dir = {str(directory.path)!r}: cannot be written ({error.strerror}). Choose a "
            "folder that can, for example run-dir='~/runs/first'."
        ) from error
    return directory


def check_is_new(directory: RunDirectory) -> None:
    """Refuse a folder that holds a run already, or trained checkpoints of one.

    Raises
    ------
    ConfigError
        It does.
    """
    where = f"run-dir = {str(directory.path)!r}: "
    if directory.config.exists():
        raise ConfigError(
            f"{where}holds a run already. Set resume=true to go on with it, choose another run-dir, or "
            "remove the folder."
        )
    # A run that was killed before it had a config.json left that of round 0, which is written anew.
    if any(round_ > 0 for round_ in kept_rounds(directory.checkpoints)):
        raise ConfigError(
            f"{where}holds checkpoints of a run without its {directory.config.name}. Remove "
            f"{str(directory.checkpoints)!r}, or choose another folder."
        )


def _fresh(config: RunConfig) -> Path:
    """Return runs/<time>-<dataset>-<model>-<algorithm>, under $FEDAPP_RUNS or this folder."""
    base = Path(os.environ.get("FEDAPP_RUNS", "runs")).expanduser()
    stamp = datetime.datetime.now(tz=datetime.UTC).astimezone().strftime("%Y%m%d-%H%M%S")
    data = Path(config.dataset).name
    name = f"{stamp}-{data}-{config.model}-{config.algorithm}"
    return next(
        path
        for i in range(1, 10_000)
        if not (path := base / (name if i == 1 else f"{name}-{i}")).exists()
    )


def write_config(directory: RunDirectory, config: RunConfig, found: Mapping[str, Any]) -> None:
    """Write ``config.json`` and ``resume.toml`` (a --run-config file that goes on with this run)."""
    values = without_unused_parameters(config.to_run_config())
    names = ("flwr", "flwr-datasets", "torch", "numpy")
    versions = {name: importlib.metadata.version(name) for name in names}
    versions |= {"fedapp": fedapp.__version__, "python": platform.python_version(), **_commit()}
    stored = {**values, "resume": False}
    write_json(directory.config, {"config": stored, "found": dict(found), "versions": versions})
    again = {**values, "resume": True, "run-dir": str(directory.path)}
    text = "".join(f"{_toml_key(key)} = {json.dumps(value)}\n" for key, value in again.items())
    write_atomically(directory.path / "resume.toml", text.encode())


@functools.cache
def _commit() -> dict[str, str]:
    """Return the commit of the code, with ``-dirty`` where files differ; nothing outside a repository."""
    root = Path(fedapp.__file__).parents[1]
    command = [
        "git",
        "-C",
        str(root),
        "describe",
        "--always",
        "--abbrev=40",
        "--exclude=*",
        "--dirty",
    ]
    if not (root / ".git").exists():
        return {}
    try:
        done = subprocess.run(  # noqa: S603  (nothing in the command is anybody's input)
            command, capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return {}
    return {"commit": done.stdout.strip()}


def _toml_key(key: str) -> str:
    return ".".join(
        part if part.replace("-", "").isalnum() else f'"{part}"' for part in key.split(".")
    )


def read_stored(path: Path) -> tuple[RunConfig, dict[str, Any]]:
    """Return the configuration of the run in ``path`` and what was found out for it.

    Raises
    ------
    CheckpointError
        There is no run, or its config.json is damaged.
    """
    file = RunDirectory(path).config
    try:
        stored = json.loads(file.read_text())
        return read_config(without_unused_parameters(stored["config"])), dict(stored["found"])
    except (FileNotFoundError, NotADirectoryError) as error:
        why = f"{file.name} is missing" if path.is_dir() else "there is no such folder"
        raise CheckpointError(
            f"{str(path)!r} holds no run ({why}). Name the folder that a run prints first."
        ) from error
    except (ValueError, KeyError, TypeError, OSError, ConfigError) as error:
        raise CheckpointError(
            f"{file} is damaged, or of another version, and cannot be read: {json_problem(error)}. "
            "Put back a copy of it, or begin another run, in another run-dir."
        ) from error


def reopen(config: RunConfig) -> tuple[RunDirectory, dict[str, Any]]:
    """Return the directory of the run that ``config`` resumes, and what was found out for it.

    Raises
    ------
    ConfigError
        A setting differs from the run's own; the message names each and the command that mends.
    """
    directory = RunDirectory(Path(config.run_dir).expanduser().absolute())
    stored, found = read_stored(directory.path)
    mine, theirs = config.to_run_config(), stored.to_run_config()
    differing = [
        f"{key} = {mine[key]!r} (the run has {theirs[key]!r})"
        for key in sorted(mine)
        if key not in FREE_ON_RESUME and mine[key] != theirs[key]
    ]
    if differing:
        raise ConfigError(
            f"resume = true: {directory.path} was made with other settings: {'; '.join(differing)}. "
            f"Resume with `fedapp run --resume {directory.path}`, or "
            f"`flwr run . --run-config {directory.path / 'resume.toml'}`."
        )
    return directory, found
