"""What the commands share: their console, their options, and how they end with an error."""

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
        help="Settings in one text, as `flwr run` takes them; those outside of it win.",
    ),
]
SETTINGS_HELP = (
    "Settings are run-config keys, as in learning-rate=0.1, or TOML files of them; later ones win. "
    "`fedapp keys` lists them."
)


def print_error(problem: str) -> None:
    """Print the last line of a command that did not do what was asked for."""
    Console(stderr=True).print(
        f"[bold red]Error[/]: {escape(problem)}", highlight=False, soft_wrap=True
    )


def end_with(problem: str) -> None:
    """End with exit code 1 and the problem, if there is one."""
    if problem:
        print_error(problem)
        raise typer.Exit(1)
