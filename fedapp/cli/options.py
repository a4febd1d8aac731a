"""Console, options and error messages that commands share."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from fedapp.config.app_folder import app_folder, settings_of
from fedapp.config.read import defaults, dotted
from fedapp.errors import ConfigError

if TYPE_CHECKING:
    from fedapp.engines.ray_placement import WorkerRequest

console = Console(highlight=False)


def finite(value: float | None) -> float | None:
    """Refuse nan and infinity, which an option's bounds let through."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not a finite number.")
    return value


SettingWords = Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE | FILE.toml]...")]
RunConfigText = Annotated[
    list[str] | None,
    typer.Option(
        "-c",
        "--run-config",
        metavar='"KEY=VALUE ..." | FILE.toml',
        help="Settings as one string, as for `flwr run`; KEY=VALUE arguments override them.",
    ),
]
WorkerTimeout = Annotated[
    float | None,
    typer.Option(min=0.0, callback=finite, help="Seconds to wait for free resources; default 60."),
]
CpusPerWorker = Annotated[
    float | None,
    typer.Option(
        min=0.0001,
        callback=finite,
        help="CPU cores of a worker, or a part of one. Default: 1, or a share.",
    ),
]
GpusPerWorker = Annotated[
    float | None,
    typer.Option(
        min=0.0,
        callback=finite,
        help="GPUs of a worker, or a part of one. Default: a share of those.",
    ),
]
SETTINGS_HELP = (
    "Settings are run-config keys, as in learning-rate=0.1, or TOML files of them; later ones win. "
    "`fedapp keys` lists them."
)


@dataclass(frozen=True)
class WorkerOptions:
    """The options of commands about a Ray cluster and its workers, as they were given."""

    ray_address: str
    worker_timeout: float | None
    cpus_per_worker: float | None
    gpus_per_worker: float | None

    def request(self, workers: int, option: str) -> WorkerRequest:
        """Return what the options ask for, with the number of workers that ``option`` sets."""
        from fedapp.engines.ray_placement import PLACEMENT_TIMEOUT, WorkerRequest

        seconds = PLACEMENT_TIMEOUT if self.worker_timeout is None else self.worker_timeout
        return WorkerRequest(workers, self.cpus_per_worker, self.gpus_per_worker, seconds, option)

    def refuse(self, because: str) -> None:
        """Refuse options that have no effect."""
        for field in fields(self):
            if (given := getattr(self, field.name)) not in (None, ""):
                option = f"--{field.name.replace('_', '-')}"
                raise ConfigError(
                    f"{option} {given}: has no effect, because {because}, or leave the option out."
                )


def app_settings() -> list[str]:
    """Return the settings of the app in this folder that differ from the defaults, as KEY=VALUE.

    They are the table ``[tool.flwr.app.config]`` of its ``pyproject.toml``, as for `flwr run`.
    """
    standard = defaults()
    return [
        f"{key}={_as_toml(value)}"
        for key, value in dotted(dict(settings_of(app_folder()))).items()
        if (type(value), value) != (type(standard.get(key)), standard.get(key))
    ]


def _as_toml(value: object) -> str:
    """Return a value of a TOML file as in one; a date as text, which is no value of a setting."""
    if isinstance(value, float):
        return repr(value)  # JSON has other names for nan and infinity
    return json.dumps(value, ensure_ascii=False, default=str)


def print_error(problem: str) -> None:
    """Print an error as the last line of a command."""
    Console(stderr=True).print(
        f"[bold red]Error[/]: {escape(problem)}", highlight=False, soft_wrap=True
    )


def end_with(problem: str) -> None:
    """Exit with code 1 if there is a problem."""
    if problem:
        print_error(problem)
        raise typer.Exit(1)
