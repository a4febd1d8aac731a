"""The command line: ``fedapp run``, ``sweep``, ``reproduce``, ``status`` and others; ``fedapp -h``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import click
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import fedapp
from fedapp.config.read import defaults, field_of, parse_settings, read_config, split_settings
from fedapp.config.run_config import Scalar
from fedapp.errors import ConfigError, FedappError

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
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


def main() -> None:
    """Run the command line; of a problem that the user can mend the last line is the reason."""
    try:
        sys.exit(app(standalone_mode=False))
    except click.ClickException as error:
        error.show()  # typer would draw a box around it, whose last line says nothing
        sys.exit(error.exit_code)
    except FedappError as error:
        _say_why(str(error))
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


def _say_why(problem: str) -> None:
    """Print the last line of a command that did not do what was asked for."""
    Console(stderr=True).print(
        f"[bold red]Error[/]: {escape(problem)}", highlight=False, soft_wrap=True
    )


def _end_with(problem: str) -> None:
    """End with exit code 1 and the problem, if there is one."""
    if problem:
        _say_why(problem)
        raise typer.Exit(1)


def _say_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fedapp {fedapp.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_say_version, is_eager=True, help="Say the version."),
    ] = False,
) -> None:
    """Federated averaging as its two papers describe it."""


@app.command(epilog=SETTINGS_HELP)
def run(
    settings: Settings = None,
    run_config: RunConfig = None,
    nodes: Annotated[
        int | None, typer.Option(min=1, help="Nodes to spread the clients over; 1 unless told.")
    ] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with the run in this folder.")] = None,
    workers: Annotated[
        int,
        typer.Option(min=0, help="Train in this many processes, one node each. 0: in this one."),
    ] = 0,
    ray_address: Annotated[
        str,
        typer.Option(help="Ray cluster of the workers. Empty: $RAY_ADDRESS, else this machine."),
    ] = "",
    worker_timeout: Annotated[
        float | None,
        typer.Option(min=0.0, help="Seconds that workers wait for room; 60 unless told."),
    ] = None,
) -> None:
    """Run federated averaging, in this process or in workers; the run directory is printed first.

    Ends with an error where no round changed the model.
    """
    from fedapp.client_app import app as client_app
    from fedapp.engines.in_process import run_inline
    from fedapp.server_app import app as server_app

    values = parse_settings(split_settings(run_config, settings))
    if resume is not None:
        values, nodes, workers = _resumed(resume, values, nodes, workers)
    _check_places(nodes, workers, ray_address, worker_timeout)
    read_config(values)
    if workers:
        from fedapp.engines.ray_cluster import PLACEMENT_TIMEOUT, Cluster
        from fedapp.engines.ray_workers import run_workers

        seconds = PLACEMENT_TIMEOUT if worker_timeout is None else worker_timeout
        run_workers(server_app, values, workers, Cluster.from_option(ray_address), seconds)
    else:
        run_inline(server_app, client_app, values, nodes or 1)


def _check_places(
    nodes: int | None, workers: int, ray_address: str, worker_timeout: float | None
) -> None:
    """Refuse options of the places that training is spread over where they would have no effect."""
    if workers and nodes not in (None, workers):
        raise ConfigError(
            f"--nodes {nodes}: each of the {workers} workers is one node. Leave the option out, or "
            f"set --workers {nodes}."
        )
    for option, given in (
        ("--ray-address", ray_address or None),
        ("--worker-timeout", worker_timeout),
    ):
        if given is not None and not workers:
            raise ConfigError(
                f"{option} {given}: has no effect, because the run has no workers. Start one with "
                "--workers N, or leave the option out."
            )


def _resumed(
    folder: Path, values: dict[str, Scalar], nodes: int | None, workers: int
) -> tuple[dict[str, Scalar], int, int]:
    """Return the settings of the run in ``folder`` with ``values`` over them, its nodes and workers."""
    from fedapp.runs.directory import read_stored

    other = values.get("run-dir", str(folder))
    if Path(str(other)).expanduser().absolute() != folder.absolute():
        raise ConfigError(
            f"run-dir = {other!r}: --resume goes on with the run in {folder}, and in that folder. Leave "
            "the key out; for a run elsewhere, copy the folder and resume the copy."
        )
    stored, found = read_stored(folder)
    before = {"nodes": int(found.get("nodes", 1)), "workers": int(found.get("workers", 0))}
    for name, wanted in (("nodes", nodes), ("workers", workers or None)):
        if wanted not in (None, before[name]):
            raise ConfigError(
                f"--{name} {wanted}: the run in {folder} has {before[name] or 'no'} {name}, and goes on "
                "with as many, so that it gives the same numbers. Leave the option out."
            )
    again: dict[str, Scalar] = {"resume": True, "run-dir": str(folder.absolute())}
    return {**stored.to_run_config(), **values, **again}, before["nodes"], before["workers"]


Jobs = Annotated[int, typer.Option(min=0, help="Runs at a time. 0: one a GPU, else one a core.")]
Stacked = Annotated[
    int,
    typer.Option(min=1, help="Runs that each process trains at a time: other rates or seeds."),
]
Retry = Annotated[bool, typer.Option("--retry", help="Try runs that failed before once more.")]
Hours = Annotated[
    float,
    typer.Option(min=0.0, help="Stop after so many hours, and show what is done. 0: no limit."),
]
STORE = Path("runs/sweeps")


@app.command(epilog=SETTINGS_HELP)
def sweep(
    settings: Settings = None,
    run_config: RunConfig = None,
    jobs: Jobs = 0,
    runs: Annotated[Path, typer.Option(help="The folder of all runs; done ones are kept.")] = STORE,
    to: Annotated[Path, typer.Option(help="Where sweep.json and sweep.csv go.")] = Path(),
    best_of: Annotated[str, typer.Option(help="Keep only the best value of this key.")] = "",
    retry: Retry = False,
    hours: Hours = 0.0,
    stacked: Stacked = 1,
) -> None:
    """Run a grid: lists are values to try, as in "learning-rate=[0.03,0.1,0.3]" "seed=[0,1,2]".

    Ends with exit code 1 where a run of the grid failed.
    """
    from fedapp.studies.sweep.command import sweep_settings
    from fedapp.studies.sweep.scheduler import Effort

    effort = Effort(jobs, stacked, retry, hours)
    words = split_settings(run_config, settings)
    _end_with(sweep_settings(words, runs, to, best_of, effort, console))


@app.command(epilog="Items: mcmahan-table1 ... seo-fig13, the start of such names, or all.")
def reproduce(
    items: Annotated[list[str] | None, typer.Argument(metavar="[ITEM | all]...")] = None,
    scale: Annotated[
        str,
        typer.Option(
            help="smoke: minutes; cpu: hours; narrow: Seo et al. but for the network; full: the paper."
        ),
    ] = "smoke",
    jobs: Jobs = 0,
    runs: Annotated[Path, typer.Option(help="The folder of all runs; done ones are kept.")] = STORE,
    data: Annotated[
        Path | None, typer.Option(help="Folder with mnist, cifar10, shakespeare; else the hub.")
    ] = None,
    to: Annotated[Path, typer.Option(help="Where results and pages go.")] = Path("runs/results"),
    setting: Annotated[
        list[str] | None, typer.Option("--set", help="KEY=VALUE over the settings of all runs.")
    ] = None,
    retry: Retry = False,
    hours: Hours = 0.0,
    stacked: Stacked = 1,
    recorded: Annotated[
        Path | None,
        typer.Option("--from", help="Take runs recorded beside the results in this folder."),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(help="Run this row, column, line, algorithm or ROW | COLUMN alone."),
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="List items and costs; run none.")] = False,
) -> None:
    """Run what the papers ran; write each table and figure with the published numbers beside.

    Ends with exit code 1 where a run failed, or results were not written.
    """
    from fedapp.studies.papers.catalogue import as_scale
    from fedapp.studies.papers.reproduce import Order, data_folder, show_costs
    from fedapp.studies.papers.reproduce import reproduce as carry_out
    from fedapp.studies.sweep.scheduler import Effort

    effort, overrides = Effort(jobs, stacked, retry, hours), parse_settings(setting)
    place = data_folder(data)
    chosen = tuple(only or ())
    order = Order(as_scale(scale), place, runs, to, effort, overrides, recorded, chosen)
    if listed or not items:
        show_costs(items or ["all"], order, console)
    else:
        _end_with(carry_out(items, order, console))


@app.command(epilog=SETTINGS_HELP)
def partition(
    settings: Settings = None,
    run_config: RunConfig = None,
    picture: Annotated[Path, typer.Option(help="Where to draw it: as .png and .svg.")] = Path(
        "partition.png"
    ),
) -> None:
    """Show who holds what: a table of clients and labels, the skew in numbers, and a picture."""
    from fedapp.runs.partition import show_partition

    values = parse_settings(split_settings(run_config, settings))
    show_partition(read_config(values), console, picture)


@app.command(epilog=SETTINGS_HELP)
def doctor(settings: Settings = None, run_config: RunConfig = None) -> None:
    """Say what is installed, which device Flower's actors will see, and which command to use."""
    from fedapp.cli.doctor import examine

    examine(read_config(parse_settings(split_settings(run_config, settings))), console)


@app.command()
def keys() -> None:
    """List every run-config key with its default, what it may be, and its meaning."""
    from fedapp.config.key_docs import allowed

    table = Table("key", "default", "allowed", "meaning", box=None, padding=(0, 2, 0, 0))
    for key, default in defaults().items():
        table.add_row(key, json.dumps(default), escape(allowed(key)), field_of(key).description)
    console.print(table)


@app.command()
def updates(
    run_dirs: Annotated[list[Path], typer.Argument(help="Folders of runs to compare.")],
    to: Annotated[Path, typer.Option(help="The folder to draw into.")] = Path(),
) -> None:
    """Draw how clients' updates agreed, and their losses, in runs with record-updates=true."""
    from fedapp.runs.figures import draw_updates, read_runs

    for path in draw_updates(read_runs(run_dirs), to.absolute()):
        console.print(str(path), highlight=False, soft_wrap=True)


@app.command()
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
    from fedapp.runs.model_sharpness import (
        COLUMNS,
        Measurement,
        as_row,
        sharpness_of,
        write_sharpness,
    )

    how = Measurement(examples, distance, directions)
    found = {str(folder): sharpness_of(folder, how, dataset) for folder in run_dirs}
    table = Table(*COLUMNS, box=None, padding=(0, 2, 0, 0))
    for name, each in found.items():
        table.add_row(*as_row(name, each))
    console.print(table)
    if to is not None:
        write_sharpness(found, to)


@app.command()
def report(run_dir: Annotated[Path, typer.Argument(help="A run's folder.")]) -> None:
    """Write the summary, the curves and the report of a run again, and draw what it has not drawn.

    Ends with exit code 1 where the picture of the partition is missing and cannot be drawn.
    """
    from fedapp.runs.directory import RunDirectory, read_stored
    from fedapp.runs.partition import draw_missing_partition
    from fedapp.runs.report import write_report, write_summary

    config, found = read_stored(run_dir)
    directory = RunDirectory(run_dir.absolute())
    problem = draw_missing_partition(directory.path, config, found)
    write_report(directory, config, write_summary(directory, config))
    console.print(str(directory.path / "report.html"), highlight=False, soft_wrap=True)
    _end_with(f"no picture of the partition: {problem}" if problem else "")


@app.command()
def status(run_dir: Annotated[Path, typer.Argument(help="A run's folder.")]) -> None:
    """Say how a run stands: rounds, accuracy, faults, where its seconds go, how to go on."""
    from fedapp.runs.status import status as status_of

    rows = status_of(run_dir)
    width = max(len(what) for what, _ in rows) + 2
    for what, how in rows:
        # Lines are left to the terminal to wrap, so that a command can be copied whole.
        text = f"{what:{width}}" + how.replace("\n", "\n" + " " * width)
        console.print(text, highlight=False, soft_wrap=True, markup=False)


if __name__ == "__main__":
    main()
