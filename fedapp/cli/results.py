"""``fedapp report``, ``status``, ``updates`` and ``sharpness``, which read run directories."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from fedapp.cli.options import console, end_with


def updates(
    run_dirs: Annotated[list[Path], typer.Argument(help="Run directories to compare.")],
    to: Annotated[Path, typer.Option(help="The folder of the pictures.")] = Path(),
) -> None:
    """Draw the similarity of clients' updates and their losses in runs with record-updates=true."""
    from fedapp.runs.figures import draw_updates, read_runs

    for path in draw_updates(read_runs(run_dirs), to.absolute()):
        console.print(str(path), highlight=False, soft_wrap=True)


def sharpness(
    run_dirs: Annotated[list[Path], typer.Argument(help="Directories of finished runs.")],
    examples: Annotated[
        int, typer.Option(min=0, help="Number of training examples of the loss. 0: all.")
    ] = 1000,
    distance: Annotated[
        float,
        typer.Option(
            min=0.0, help="Distance of the rise of the loss, relative to the norm of theta."
        ),
    ] = 0.1,
    directions: Annotated[
        int, typer.Option(min=1, help="Number of random directions of the rise.")
    ] = 10,
    dataset: Annotated[str, typer.Option(help="The data set, if it has moved.")] = "",
    to: Annotated[
        Path | None, typer.Option(help="Write the numbers to this JSON file, too.")
    ] = None,
) -> None:
    """Measure the sharpness of final models: curvature of the training loss, and its rise."""
    from fedapp.files import write_json
    from fedapp.runs.model_sharpness import COLUMNS, Measurement, as_row, sharpness_of

    measurement = Measurement(examples, distance, directions)
    by_run = {str(folder): sharpness_of(folder, measurement, dataset) for folder in run_dirs}
    table = Table(*COLUMNS, box=None, padding=(0, 2, 0, 0))
    for name, each in by_run.items():
        table.add_row(*as_row(name, each))
    console.print(table)
    if to is not None:
        write_json(to, {name: asdict(each) for name, each in by_run.items()})


def report(run_dir: Annotated[Path, typer.Argument(help="A run directory.")]) -> None:
    """Rewrite summary, curves and report of a run, and draw missing pictures.

    The exit code is 1 if the picture of the partition is missing and cannot be drawn.
    """
    from fedapp.runs.directory import RunDirectory, read_stored
    from fedapp.runs.partition import draw_missing_partition
    from fedapp.runs.report import write_report, write_summary

    config, run_info = read_stored(run_dir)
    directory = RunDirectory(run_dir.absolute())
    problem = draw_missing_partition(directory.path, config, run_info)
    write_report(directory, config, write_summary(directory, config))
    console.print(str(directory.path / "report.html"), highlight=False, soft_wrap=True)
    end_with(f"no picture of the partition: {problem}" if problem else "")


def status(run_dir: Annotated[Path, typer.Argument(help="A run directory.")]) -> None:
    """Show the state of a run: rounds, accuracy, faults, times, and how to continue."""
    from fedapp.runs.status import status as status_of

    rows = status_of(run_dir)
    width = max(len(what) for what, _ in rows) + 2
    for what, how in rows:
        # The terminal wraps lines, so that a command can be copied as a whole.
        text = f"{what:{width}}" + how.replace("\n", "\n" + " " * width)
        console.print(text, highlight=False, soft_wrap=True, markup=False)
