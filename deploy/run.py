"""``flwr run``, with its log, and an exit status that says how the run ended.

    python -m deploy.run . --run-config "num-server-rounds=300"
    python -m deploy.run . deployment --run-config runs/first/resume.toml

``flwr run --stream`` ends with 0 also where the run failed. This one ends with 1, and its last line
says why.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.markup import escape

from deploy.processes import BIN

COMPLETED = "finished:completed"


def main(
    app: Annotated[str, typer.Argument(help="The app's folder.")] = ".",
    connection: Annotated[
        str, typer.Argument(help="A SuperLink of Flower's config.toml. Empty: its default.")
    ] = "",
    run_config: Annotated[list[str] | None, typer.Option("-c", "--run-config")] = None,
    federation_config: Annotated[list[str] | None, typer.Option()] = None,
) -> None:
    """Start a run, show its log until it ends, and end with 1 and the reason if it did not complete."""
    options = [word for text in run_config or [] for word in ("--run-config", text)]
    options += [word for text in federation_config or [] for word in ("--federation-config", text)]
    place = [connection] if connection else []
    try:
        run = str(ask("run", app, *place, *options)["run-id"])
        subprocess.run([str(BIN / "flwr"), "log", run, *place, "--stream"], check=False)
        ended = ask("list", *place, "--run-id", run)["runs"][0]
    except RuntimeError as error:
        fail(str(error))
    if ended["status"] != COMPLETED:
        fail(f"run {run} is {ended['status']}: {ended['status-details'] or 'see its log'}")


def ask(*words: str) -> dict[str, Any]:
    """Return what a ``flwr`` command answers.

    Raises
    ------
    RuntimeError
        It failed; the message is its reason.
    """
    command: Sequence[str] = [str(BIN / "flwr"), *words, "--format", "json"]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    try:
        answer: dict[str, Any] = json.loads(ended.stdout)
    except ValueError:
        answer = {"success": False, "error-message": ended.stdout.strip() or "it said nothing"}
    if not answer["success"]:
        raise RuntimeError(f"flwr {words[0]}: {answer['error-message']}")
    return answer


def fail(reason: str) -> NoReturn:
    """End with 1 and the reason, in one line, the last."""
    said = escape(" ".join(reason.split()))
    Console(stderr=True).print(f"[bold red]Error[/]: {said}", highlight=False, soft_wrap=True)
    sys.exit(1)


if __name__ == "__main__":
    typer.run(main)
