"""Console, options and error messages that commands share."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from fedapp.config.app_folder import app_folder, settings_of
from fedapp.config.read import defaults, dotted

console = Console()
Settings = Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE | FILE.toml]...")]
RunConfig = Annotated[
    list[str] | None,
    typer.Option(
        "-c",
        "--run-config",
        metavar='"KEY=VALUE ..." | FILE.toml',
        help="Settings as one string, as for `flwr run`; KEY=VALUE arguments override them.",
    ),
]
SETTINGS_HELP = (
    "Settings are run-config keys, as in learning-rate=0.1, or TOML files of them; later ones win. "
    "`fedapp keys` lists them."
)


def app_settings() -> list[str]:
    """Return the settings of the app in this folder that differ from the defaults, as KEY=VALUE.

    They are the table ``[tool.flwr.app.config]`` of its ``pyproject.toml``, as for `flwr run`.
    """
    standard = defaults()
    return [
        f"{key}={json.dumps(value)}"
        for key, value in dotted(dict(settings_of(app_folder()))).items()
        if value != standard.get(key)
    ]


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
