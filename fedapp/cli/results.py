"""``fedapp report``, ``status``, ``updates`` and ``sharpness``: what runs left in their folders."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from fedapp.cli.options import console, end_with


def updates(
    run_dirs: Annotated[list[Path], typer.Argument(help="Folders of runs to compare.")],
    to: Annotated[Path, typer.Option(help="The folder to draw into.")] = Path(),
) -> None:
    """Draw how clients' updates agreed, and their losses, in runs with record-updates=true."""
    from fedapp.runs.update_figures import draw_updates, read_runs

    for path in draw_updates(read_runs(run_dirs), to.absolute()):
        console.print(str(path), highlight=False, soft_wrap=True)


def sharpness(
    run_dirs: Annotated[list[Path], typer.Argument(help="Folders of finished runs.")],
    examples: Annotated[
        int, typer.Option(min=0, help="Training examples that the loss is of. 0: all.")
    ] = 1000,
    distance: Annotated[
        float, typer.Option(min=0.0, help="Where the loss rises to: times the length of theta.")
    ] = 0.1,
    directions: Annotated[int, typer.Option(min=1, help="Random directions of the rise.")] = 10,
    dataset: Annotated[str, typer.Option(help="Where the data are now, if they moved.")] = "",
    to: Annotated[Path | None, typer.Option(help="Also write the numbers as JSON.")] = None,
) -> None:
    """Say how sharp the minima are that runs ended in: curvature of the training loss, and its rise."""
    from fedapp.runs.model_sharpness import HEAD, Measurement, as_row, sharpness_of, write_sharpness

    how = Measurement(examples, distance, directions)
    found = {str(folder): sharpness_of(folder, how, dataset) for folder in run_dirs}
    table = Table(*HEAD, box=None, padding=(0, 2, 0, 0))
    for name, each in found.items():
        table.add_row(*as_row(name, each))
    console.print(table)
    if to is not None:
        write_sharpness(found, to)


def report(run_dir: Annotated[Path, typer.Argument(help="A run's folder.")]) -> None:
    """Write the summary, the curves and the report of a run again, and draw what it has not drawn.

    Ends with exit code 1 where the picture of the partition is missing and cannot be drawn.
    """
    from fedapp.runs.artifacts import write_report, write_summary
    from fedapp.runs.directory import RunDirectory, read_stored
    from fedapp.runs.partition import draw_later

    config, found = read_stored(run_dir)
    directory = RunDirectory(run_dir.absolute())
    problem = draw_later(directory.path, config, found)
    write_report(directory, config, write_summary(directory, config))
    console.print(str(directory.path / "report.html"), highlight=False, soft_wrap=True)
    end_with(f"no picture of the partition: {problem}" if problem else "")


def status(run_dir: Annotated[Path, typer.Argument(help="A run's folder.")]) -> None:
    """Say how a run stands: rounds, accuracy, faults, where its seconds go, how to go on."""
    from fedapp.runs.status import status as status_of

    rows = status_of(run_dir)
    width = max(len(what) for what, _ in rows) + 2
    for what, how in rows:
        # Lines are left to the terminal to wrap, so that a command can be copied whole.
        text = f"{what:{width}}" + how.replace("\n", "\n" + " " * width)
        console.print(text, highlight=False, soft_wrap=True, markup=False)
