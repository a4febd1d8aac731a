"""Console, options and error messages that commands share."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

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
