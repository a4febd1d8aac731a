"""``fedapp status``, ``compare``, ``report``, ``updates`` and ``sharpness``, which read runs."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from fedapp.cli.options import console, end_with, finite


def updates(
    run_dirs: Annotated[list[Path], typer.Argument(help="Run directories to compare.")],
    to: Annotated[Path, typer.Option(help="The folder of the pictures.")] = Path(),
) -> None:
    """Draw the similarity of clients' updates and their losses in runs with record-updates=true."""
    from fedapp.files import as_folder
    from fedapp.runs.figures import draw_updates, read_runs

    folder = as_folder(to, "--to")
    for path in draw_updates(read_runs(run_dirs), folder):
        console.out(path)


def sharpness(
    run_dirs: Annotated[list[Path], typer.Argument(help="Directories of finished runs.")],
    examples: Annotated[
        int, typer.Option(min=0, help="Number of training examples of the loss. 0: all.")
    ] = 1000,
    distance: Annotated[
        float,
        typer.Option(
            min=0.0,
            callback=finite,
            help="Distance of the rise of the loss, relative to the norm of theta.",
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
    from fedapp.files import as_file, write_json
    from fedapp.runs.formatting import aligned
    from fedapp.runs.model_sharpness import COLUMNS, Measurement, as_row, sharpness_of

    file = None if to is None else as_file(to, "--to")
    measurement = Measurement(examples, distance, directions)
    by_run = {str(folder): sharpness_of(folder, measurement, dataset) for folder in run_dirs}
    for line in aligned([COLUMNS, *(as_row(name, each) for name, each in by_run.items())]):
        console.out(line)
    if file is not None:
        write_json(file, {name: asdict(each) for name, each in by_run.items()})


def report(run_dir: Annotated[Path, typer.Argument(help="A run directory.")]) -> None:
    """Rewrite summary, curves and report of a run, and draw missing pictures.

    The exit code is 1 if the picture of the partition is missing and cannot be drawn.
    """
    from fedapp.files import disk_space_needed
    from fedapp.runs.directory import RunDirectory, read_stored
    from fedapp.runs.final_outputs import write_summary
    from fedapp.runs.partition import draw_missing_partition
    from fedapp.runs.report import write_report
    from fedapp.runs.stored_run import read_run, round_of_model

    config, run_info = read_stored(run_dir)
    read_run(run_dir).require_metrics()
    directory = RunDirectory(run_dir.absolute())
    with disk_space_needed(directory.path, "and repeat the command"):
        problem = draw_missing_partition(directory.path, config, run_info)
        summary = write_summary(directory, config)
        write_report(directory, config, summary, round_of_model(directory.model))
    console.out(directory.path / "report.html")
    end_with(f"no picture of the partition: {problem}" if problem else "")


def status(
    run_dir: Annotated[Path, typer.Argument(help="A run directory, or a folder of them.")],
) -> None:
    """Show the state of a run and how to continue it, or list the runs of a folder.

    Each run of a folder has a line, with the settings in which it differs from the others.
    """
    from fedapp.runs.formatting import aligned
    from fedapp.runs.status import status as status_of
    from fedapp.studies.compare.listing import list_runs
    from fedapp.studies.compare.runs import is_run

    if is_run(run_dir):
        rows = status_of(run_dir)
        width = max(len(what) for what, _ in rows) + 2
        lines = [f"{what:{width}}" + how.replace("\n", "\n" + " " * width) for what, how in rows]
    else:
        lines = aligned(list_runs(run_dir))
    for line in lines:
        # The terminal wraps lines, so that a command can be copied as a whole.
        console.out(line)


def compare(
    run_dirs: Annotated[list[Path], typer.Argument(help="Run directories, or folders of them.")],
    target: Annotated[
        float | None,
        typer.Option(help="Test accuracy for the rounds to a target. Default: that of all runs."),
    ] = None,
    to: Annotated[
        Path | None,
        typer.Option(help="The folder of comparison.html, .png and .svg. Default: this one."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON; files are written with --to alone.")
    ] = False,
) -> None:
    """Compare runs: the settings in which they differ, their curves, and a table of numbers.

    The exit code is 1 if a run cannot be read.
    """
    from fedapp.studies.compare.command import as_lines, write_comparison
    from fedapp.studies.compare.comparison import compare as compare_runs

    comparison = compare_runs(run_dirs, target)
    if as_json:
        typer.echo(json.dumps(asdict(comparison), indent=2))
    else:
        for line in as_lines(comparison):
            console.out(line)
    if to is not None or not as_json:
        for path in write_comparison(comparison, run_dirs, to or Path()):
            typer.echo(path, err=as_json)
    end_with("\n".join(f"left out: {problem}" for problem in comparison.left_out.values()))
