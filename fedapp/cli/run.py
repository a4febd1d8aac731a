"""``fedapp run``, ``partition``, ``doctor`` and ``keys``."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Column, Table

from fedapp.cli.options import (
    CpusPerWorker,
    GpusPerWorker,
    RunConfigText,
    SettingWords,
    WorkerOptions,
    WorkerTimeout,
    app_settings,
    console,
)
from fedapp.config.components import parameters
from fedapp.config.read import defaults, field_of, parse_settings, read_config, split_settings
from fedapp.config.settings import Scalar, shown
from fedapp.errors import ConfigError
from fedapp.files import as_path


def run(
    settings: SettingWords = None,
    run_config: RunConfigText = None,
    nodes: Annotated[
        int | None, typer.Option(min=1, help="Number of nodes that share the clients; default 1.")
    ] = None,
    resume: Annotated[Path | None, typer.Option(help="Continue the run in this folder.")] = None,
    workers: Annotated[
        int,
        typer.Option(
            min=0, help="Train in this number of processes, one node each. 0: in this process."
        ),
    ] = 0,
    ray_address: Annotated[
        str,
        typer.Option(help="Address of the Ray cluster. Empty: $RAY_ADDRESS, or this machine."),
    ] = "",
    worker_timeout: WorkerTimeout = None,
    cpus_per_worker: CpusPerWorker = None,
    gpus_per_worker: GpusPerWorker = None,
) -> None:
    """Run federated averaging in this process or in workers. The run directory is printed first.

    It is an error if no round changed the model.
    """
    from fedapp.client_app import app as client_app
    from fedapp.engines.in_process import run_inline
    from fedapp.server_app import app as server_app

    own = app_settings() if resume is None else []
    values = parse_settings([*own, *split_settings(run_config, settings)])
    if resume is not None:
        values, nodes, workers = _resumed(resume, values, nodes, workers)
    options = WorkerOptions(ray_address, worker_timeout, cpus_per_worker, gpus_per_worker)
    _check_workers(nodes, workers, options)
    read_config(values)
    if workers:
        from fedapp.engines.ray_cluster import Cluster
        from fedapp.engines.ray_workers import run_workers

        request = options.request(workers, "--workers")
        run_workers(server_app, values, request, Cluster.from_option(ray_address))
    else:
        run_inline(server_app, client_app, values, nodes or 1)


def _check_workers(nodes: int | None, workers: int, options: WorkerOptions) -> None:
    """Refuse options of workers that would have no effect."""
    if workers and nodes not in (None, workers):
        raise ConfigError(
            f"--nodes {nodes}: each of the {workers} workers is one node. Leave the option out, or "
            f"set --workers {nodes}."
        )
    if not workers:
        options.refuse("the run has no workers. Start one with --workers N")


def _resumed(
    folder: Path, values: dict[str, Scalar], nodes: int | None, workers: int
) -> tuple[dict[str, Scalar], int, int]:
    """Return the settings of the run in ``folder``, overridden by ``values``, its nodes and workers."""
    from fedapp.runs.directory import read_stored

    other = str(values.get("run-dir", folder))
    if (
        "run-dir" in values
        and as_path(other, f"run-dir = {other!r}").absolute() != folder.absolute()
    ):
        raise ConfigError(
            f"run-dir = {other!r}: --resume continues the run in {folder}, in that folder. Leave "
            "the key out; for a run elsewhere, copy the folder and resume the copy."
        )
    if (asked := values.get("resume", True)) is not True:
        raise ConfigError(
            f"resume = {shown(asked)}: --resume continues the run in {folder}. Leave the key out; for a "
            f"new run with its settings: fedapp run {shlex.quote(str(folder / 'resume.toml'))} "
            "resume=false run-dir=FOLDER"
        )
    stored, run_info = read_stored(folder, callbacks="callbacks" not in values)
    before = {"nodes": int(run_info.get("nodes", 1)), "workers": int(run_info.get("workers", 0))}
    for name, given in (("nodes", nodes), ("workers", workers or None)):
        if given not in (None, before[name]):
            raise ConfigError(
                f"--{name} {given}: the run in {folder} has {before[name] or 'no'} {name}, and a resumed "
                "run has as many, so that it gives the same numbers. Leave the option out."
            )
    resumed: dict[str, Scalar] = {"resume": True, "run-dir": str(folder.absolute())}
    return {**stored.to_run_config(), **values, **resumed}, before["nodes"], before["workers"]


def partition(
    settings: SettingWords = None,
    run_config: RunConfigText = None,
    picture: Annotated[
        Path, typer.Option(help="Path of the picture; .png and .svg are written.")
    ] = Path("partition.png"),
) -> None:
    """Show the partition: a table of clients and labels, measures of skew, and a picture."""
    from fedapp.runs.partition import show_partition

    values = parse_settings([*app_settings(), *split_settings(run_config, settings)])
    show_partition(read_config(values), console, picture)


def doctor(settings: SettingWords = None, run_config: RunConfigText = None) -> None:
    """Show what is installed, the device that a run uses here, and commands for this machine."""
    from fedapp.cli.doctor import examine

    values = parse_settings([*app_settings(), *split_settings(run_config, settings)])
    examine(read_config(values), console)


def keys(
    name: Annotated[
        str,
        typer.Argument(
            help="A component: a name, ./FILE.py or MODULE:CLASS. Only its parameters are listed."
        ),
    ] = "",
) -> None:
    """List all run-config keys, or those of one component, with default, allowed values and meaning."""
    from fedapp.config.key_docs import allowed, allowed_of, describe

    table = Table(
        Column("key", no_wrap=True), "default", "allowed", "meaning", box=None, padding=(0, 2, 0, 0)
    )
    if name:
        for component, line in describe(name):
            console.out(line)
            for key, field in parameters(component).items():
                default = json.dumps(field.get_default())
                table.add_row(key, default, escape(allowed_of(field)), field.description)
        console.print(table)
        return
    for key, value in defaults().items():
        table.add_row(key, json.dumps(value), escape(allowed(key)), field_of(key).description)
    console.print(table)


def init(
    folder: Annotated[Path, typer.Argument(metavar="NAME", help="The new folder.")],
) -> None:
    """Make a folder with an algorithm and a data set of your own, which runs as it is."""
    from fedapp.cli.init import create_app

    paths = create_app(folder)
    for path in paths:
        console.out(path)
    start = f"cd {shlex.quote(str(paths[0].parent))}; fedapp run"
    console.out(f"Run it: {start}")
