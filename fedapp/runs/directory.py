"""The run directory: its files, its configuration, and the attempts to run it."""

from __future__ import annotations

import contextlib
import datetime
import functools
import importlib.metadata
import json
import os
import platform
import shlex
import subprocess
import tomllib
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fedapp
from fedapp.config.own_components import own_components
from fedapp.config.read import read_config, without_callbacks, without_unused_parameters
from fedapp.config.run_config import RunConfig
from fedapp.data.readers import require_outside
from fedapp.errors import CheckpointError, ComponentError, ConfigError
from fedapp.files import as_path, json_problem, write_atomically, write_json
from fedapp.runs.checkpoint import checkpoint_rounds
from fedapp.runs.own_code import changed_code, missing_component
from fedapp.training.client_state import StateLocation

CHANGEABLE_ON_RESUME = (
    "resume",
    "run-dir",
    "num-server-rounds",
    "min-nodes",
    "node-timeout",
    "round-deadline",
    "dataset",
    "data-cache",
    "table-statistics",
    "availability.trace",
)
"""Keys that a resumed run may change; those that name files only if these are the same."""

ATTEMPTS_FORMAT = 2
"""Format of ``attempts.json``."""

THEN = ", then "
"""Between what a run was made with before it was resumed, and after."""


@dataclass(frozen=True)
class RunDirectory:
    """Paths of a run's files."""

    path: Path

    @property
    def config(self) -> Path:
        """The user's settings, and what was determined for the run (threads, device)."""
        return self.path / "config.json"

    @property
    def metrics(self) -> Path:
        """Metrics, a line of JSON a round."""
        return self.path / "metrics.jsonl"

    @property
    def log(self) -> Path:
        """Log messages, a line of JSON each."""
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
    def task(self) -> Path:
        """The task that the model was built for."""
        return self.path / "task.json"

    @property
    def table(self) -> Path:
        """The statistics with which the columns of a table are coded."""
        return self.path / "table.json"

    @property
    def summary(self) -> Path:
        """Summary of the metrics."""
        return self.path / "summary.json"


def create(config: RunConfig) -> RunDirectory:
    """Create the folder of a new run.

    Raises
    ------
    ConfigError
        ``run-dir`` holds a run already, or checkpoints of one, lies in the data, or cannot be written.
    """
    directory = run_directory(config) if config.run_dir else RunDirectory(_default_path(config))
    require_outside(config, directory.path, f"run-dir = {str(directory.path)!r}")
    if config.run_dir:
        check_is_new(directory)
    try:
        if not config.run_dir:
            directory = RunDirectory(_made_anew(directory.path))
        directory.checkpoints.mkdir(parents=True, exist_ok=True)
        (directory.path / ".writable").touch()
        (directory.path / ".writable").unlink()
    except OSError as error:
        raise ConfigError(
            f"run-dir = {str(directory.path)!r}: cannot be written ({error.strerror}). Choose a "
            "folder that can, for example run-dir='~/runs/first'."
        ) from error
    return directory


def run_directory(config: RunConfig) -> RunDirectory:
    """Return the directory that ``run-dir`` names; a ConfigError if that is no possible path."""
    return RunDirectory(as_path(config.run_dir, f"run-dir = {config.run_dir!r}").absolute())


def check_is_new(directory: RunDirectory) -> None:
    """Check that the folder holds no run, and no checkpoints of a trained one.

    Raises
    ------
    ConfigError
        It does.
    """
    where = f"run-dir = {str(directory.path)!r}: "
    if directory.config.exists():
        raise ConfigError(
            f"{where}holds a run already. Set resume=true to continue it, choose another run-dir, or "
            "remove the folder."
        )
    # A checkpoint of round 0 alone is of a run that was killed before it had a config.json.
    if any(round_ > 0 for round_ in checkpoint_rounds(directory.checkpoints)):
        raise ConfigError(
            f"{where}holds checkpoints of a run without its {directory.config.name}. Remove "
            f"{str(directory.checkpoints)!r}, or choose another folder."
        )


def _default_path(config: RunConfig) -> Path:
    """Return runs/<time>-<dataset>-<model>-<algorithm>, with $FEDAPP_RUNS in place of ``runs``."""
    runs = os.environ.get("FEDAPP_RUNS", "runs")
    base = as_path(runs, f"FEDAPP_RUNS = {runs!r}").absolute()
    stamp = datetime.datetime.now(tz=datetime.UTC).astimezone().strftime("%Y%m%d-%H%M%S")
    data = Path(config.name_of("dataset")).name
    return base / f"{stamp}-{data}-{config.name_of('model')}-{config.name_of('algorithm')}"


def _made_anew(path: Path) -> Path:
    """Make and return ``path``, or if a run of the same second has it, ``path``-2 and so on."""
    path.parent.mkdir(parents=True, exist_ok=True)
    made, number = path, 1
    while True:
        with contextlib.suppress(FileExistsError):
            made.mkdir()
            return made
        number += 1
        made = path.with_name(f"{path.name}-{number}")


def write_config(directory: RunDirectory, config: RunConfig, run_info: Mapping[str, Any]) -> None:
    """Write ``config.json`` and ``resume.toml`` (a --run-config file that resumes this run).

    Of a run that is resumed with other versions both are kept. Flower refuses keys that an app's
    pyproject.toml does not have, and it need not have parameters of one's own components: resume.toml
    is without those at their default.
    """
    values = without_unused_parameters(config.to_run_config())
    names = ("flwr", "flwr-datasets", "torch", "numpy")
    versions = {name: importlib.metadata.version(name) for name in names}
    versions |= {"fedapp": fedapp.__version__, "python": platform.python_version(), **_git_commit()}
    if config.resume:
        before = json.loads(directory.config.read_text()).get("versions", {})
        versions = {name: joined(before.get(name), now) for name, now in versions.items()}
    stored = {**values, "resume": False}
    write_json(directory.config, {"config": stored, "found": dict(run_info), "versions": versions})
    resumed = {**values, "resume": True, "run-dir": str(directory.path)}
    own = {key: field.get_default() for key, field in own_components(values).fields.items()}
    lines = (
        f"{_toml_key(key)} = {json.dumps(value, ensure_ascii=False)}\n"
        for key, value in resumed.items()
        if key not in own or value != own[key]
    )
    write_atomically(directory.path / "resume.toml", "".join(lines).encode())


def joined(before: str | None, now: str) -> str:
    """Return what a run began with and, where that is another, what it goes on with."""
    if before is None or before.split(THEN)[-1] == now:
        return before or now
    return before + THEN + now


@functools.cache
def _git_commit() -> dict[str, str]:
    """Return the commit of the code, with ``-dirty`` for changed files; empty outside a repository."""
    root = Path(fedapp.__file__).parents[1]
    command = ["git", "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"]
    if not (root / ".git").exists():
        return {}
    try:
        done = subprocess.run(  # noqa: S603  (a fixed command)
            command, cwd=root, capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return {}
    return {"commit": done.stdout.strip()}


def _toml_key(key: str) -> str:
    return ".".join(
        part if part.replace("-", "").isalnum() else f'"{part}"' for part in key.split(".")
    )


def read_stored(path: Path, *, callbacks: bool = False) -> tuple[RunConfig, dict[str, Any]]:
    """Return the configuration of the run in ``path``, and what was determined for it.

    It is without ``callbacks`` unless they are asked for: all but a resume can do without their code.

    Raises
    ------
    CheckpointError
        There is no run, or its config.json is damaged, or a component of the run is not there.
    """
    values, run_info = read_settings(path)
    try:
        without = without_unused_parameters if callbacks else without_callbacks
        return read_config(without(values)), run_info
    except ComponentError as error:
        raise CheckpointError(missing_component(path, run_info, error)) from error
    except ConfigError as error:
        if changed := changed_code(path, values, run_info):
            raise CheckpointError(changed) from error
        if callbacks and values.get("callbacks"):
            raise ConfigError(
                f"{error}\nThese are settings of the run in {path}. Give its callbacks anew: fedapp run "
                f"--resume {shlex.quote(str(path))} callbacks={values['callbacks']!r}"
            ) from error
        raise CheckpointError(_damaged(RunDirectory(path).config, error)) from error
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(_damaged(RunDirectory(path).config, error)) from error


def read_settings(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the settings of the run in ``path`` as they are stored, and what was determined for it.

    The components that they name need not be there.

    Raises
    ------
    CheckpointError
        There is no run, or its config.json is damaged.
    """
    file = RunDirectory(path).config
    try:
        stored = json.loads(file.read_text())
        return dict(stored["config"]), dict(stored["found"])
    except (FileNotFoundError, NotADirectoryError) as error:
        why = f"{file.name} is missing" if path.is_dir() else "there is no such folder"
        raise CheckpointError(
            f"{str(path)!r} holds no run ({why}). Give the folder that a run logs first."
        ) from error
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise CheckpointError(_damaged(file, error)) from error


def _damaged(file: Path, error: Exception) -> str:
    return (
        f"{file} is damaged, or of another version, and cannot be read: {json_problem(error)}. "
        "Restore a copy of it, or start another run, in another run-dir."
    )


def reopen(config: RunConfig) -> tuple[RunDirectory, dict[str, Any]]:
    """Return the directory of the run that ``config`` resumes, and what was determined for it.

    Raises
    ------
    ConfigError
        A setting differs from the run's own; the message names each, and the command to use.
    CheckpointError
        A component of one's own has other code than the run was made with.
    """
    directory = run_directory(config)
    stored, run_info = read_stored(directory.path)
    given, own = without_callbacks(config.to_run_config()), stored.to_run_config()
    given = {key: value for key, value in given.items() if key in own or "." not in key}
    differing = [
        f"{key} = {given[key]!r} (the run has {own[key]!r})"
        for key in sorted(given)
        if key not in CHANGEABLE_ON_RESUME and given[key] != own[key]
    ]
    if differing:
        raise ConfigError(
            f"resume = true: {directory.path} was made with other settings: {'; '.join(differing)}. "
            f"Resume with: {resume_command(directory.path)}"
        )
    if changed := changed_code(directory.path, given, run_info):
        raise CheckpointError(changed)
    return directory, run_info


def resume_command(folder: Path, engine: str = "") -> str:
    """Return the command that resumes the run in ``folder``, of the engine that it is in."""
    if (engine or read_settings(folder)[1].get("engine")) == "flower":
        settings = folder / "resume.toml"
        command = f"flwr run . CONNECTION --run-config {shlex.quote(str(settings))} --stream"
        copied = f"  # first set run-dir in it to {folder}" if _names_another(settings) else ""
        return command + copied
    return f"fedapp run --resume {shlex.quote(str(folder))}"


def _names_another(settings: Path) -> bool:
    """Return whether a resume.toml names another folder than its own, that of a run that was copied."""
    try:
        named = tomllib.loads(settings.read_text())["run-dir"]
    except (OSError, KeyError, ValueError):
        return False
    return Path(named).resolve() != settings.parent.resolve()


def open_states(
    directory: RunDirectory, round_: int, *, resumed: bool
) -> Callable[[], StateLocation]:
    """Record a start of the server at round ``round_``; return the client states' location by round.

    ``client-states/attempts.json`` holds the run's id and the round from which each start of the
    server continued, ``client-states/<client>/`` the states of virtual clients.

    Raises
    ------
    CheckpointError
        The run is resumed, and the file is missing or damaged.
    """
    folder = directory.path / "client-states"
    folder.mkdir(exist_ok=True)
    file = folder / "attempts.json"
    run_id, starts = _read_attempts(directory) if resumed else (uuid.uuid4().hex, [])
    starts.append(round_)
    write_json(file, {"format": ATTEMPTS_FORMAT, "run": run_id, "starts": starts})

    def location() -> StateLocation:
        checkpoints = checkpoint_rounds(directory.checkpoints)
        return StateLocation(run_id, str(folder), tuple(starts), tuple(checkpoints))

    return location


def _read_attempts(directory: RunDirectory) -> tuple[str, list[int]]:
    file = directory.path / "client-states" / "attempts.json"
    try:
        stored = json.loads(file.read_text())
        if (format_ := stored["format"]) != ATTEMPTS_FORMAT:
            raise ValueError(f"its format is {format_!r}, not {ATTEMPTS_FORMAT}")
        return str(stored["run"]), [int(start) for start in stored["starts"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{file} cannot be read ({error!r}), so the client states cannot be used. Restore the "
            "file, or start a new run."
        ) from error
