"""``fedapp sweep`` and ``fedapp reproduce``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedapp.cli.options import (
    CpusPerWorker,
    GpusPerWorker,
    RunConfigText,
    SettingWords,
    WorkerOptions,
    WorkerTimeout,
    app_settings,
    console,
    end_with,
    finite,
)
from fedapp.config.read import parse_settings, split_settings

if TYPE_CHECKING:
    from fedapp.studies.papers.options import ReproduceOptions
    from fedapp.studies.sweep.scheduler import SchedulerOptions

Jobs = Annotated[int, typer.Option(min=0, help="Parallel runs. 0: one a GPU, or one a core.")]
Stacked = Annotated[
    int,
    typer.Option(
        min=1,
        help="Runs that a process trains in one program; they differ in learning rate or seed.",
    ),
]
Retry = Annotated[bool, typer.Option("--retry", help="Repeat runs that failed before.")]
Hours = Annotated[
    float,
    typer.Option(
        min=0.0,
        callback=finite,
        help="Stop after this number of hours and show what is done. 0: no limit.",
    ),
]
RayAddress = Annotated[
    str,
    typer.Option(
        help="Address of a Ray cluster whose nodes execute the runs; auto: that of $RAY_ADDRESS. Empty: "
        "processes of this machine."
    ),
]
STORE = Path("runs/sweeps")
RESULTS = Path("runs/results")


def sweep(
    settings: SettingWords = None,
    run_config: RunConfigText = None,
    jobs: Jobs = 0,
    runs: Annotated[
        Path, typer.Option(help="The folder of all runs; finished runs are reused.")
    ] = STORE,
    to: Annotated[Path, typer.Option(help="The folder of sweep.json and sweep.csv.")] = Path(),
    best_of: Annotated[str, typer.Option(help="Show only the best value of this key.")] = "",
    retry: Retry = False,
    hours: Hours = 0.0,
    stacked: Stacked = 1,
    ray_address: RayAddress = "",
    worker_timeout: WorkerTimeout = None,
    cpus_per_worker: CpusPerWorker = None,
    gpus_per_worker: GpusPerWorker = None,
) -> None:
    """Run a grid: lists are values to try, as in "learning-rate=[0.03,0.1,0.3]" "seed=[0,1,2]".

    The exit code is 1 if a run failed.
    """
    from fedapp.studies.sweep.command import sweep_settings

    workers = WorkerOptions(ray_address, worker_timeout, cpus_per_worker, gpus_per_worker)
    options = _scheduler(jobs, stacked, retry, hours, workers)
    words = [*app_settings(), *split_settings(run_config, settings)]
    end_with(sweep_settings(words, runs, to, best_of, options, console))


def _scheduler(
    jobs: int, stacked: int, retry: bool, hours: float, workers: WorkerOptions
) -> SchedulerOptions:
    """Return the options of the scheduler; without an address those of workers would have no effect."""
    from fedapp.studies.sweep.scheduler import SchedulerOptions

    if not workers.ray_address:
        workers.refuse("the runs are executed by this machine. Name a cluster with --ray-address")
        return SchedulerOptions(jobs, stacked, retry, hours)
    from fedapp.engines.ray_cluster import Cluster

    cluster = Cluster.from_option(workers.ray_address)
    request = workers.request(jobs, "--jobs")
    return SchedulerOptions(jobs, stacked, retry, hours, cluster, request)


ScaleOption = Annotated[
    str,
    typer.Option(
        help="smoke: minutes; cpu: hours; narrow: Seo et al. with a smaller network; normalised: "
        "likewise, images of mean 0 and deviation 1; full: the paper."
    ),
]
Data = Annotated[
    Path | None, typer.Option(help="Folder with mnist, cifar10, shakespeare. Default: the hub.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", help="KEY=VALUE that overrides the settings of all runs."),
]
Recorded = Annotated[
    list[Path] | None,
    typer.Option("--from", help="Use the records of runs beside the results in these folders."),
]
Only = Annotated[
    list[str] | None,
    typer.Option(help="Run only this row, column, line, algorithm or ROW | COLUMN."),
]
Listed = Annotated[
    bool, typer.Option("--list", help="List experiments and their costs, and run nothing.")
]

Queue = Annotated[
    bool,
    typer.Option(
        "--queue",
        help="Run the cells that are not done one after another, the cheapest first, and write each as "
        "soon as it is done. With --list: show their order and cost.",
    ),
]


def reproduce(
    experiments: Annotated[
        list[str] | None, typer.Argument(metavar="[EXPERIMENT | all]...")
    ] = None,
    scale: ScaleOption = "smoke",
    jobs: Jobs = 0,
    runs: Annotated[
        Path, typer.Option(help="The folder of all runs; finished runs are reused.")
    ] = STORE,
    data: Data = None,
    to: Annotated[Path, typer.Option(help="The folder of results and pages.")] = RESULTS,
    setting: Overrides = None,
    retry: Retry = False,
    hours: Hours = 0.0,
    stacked: Stacked = 1,
    recorded: Recorded = None,
    only: Only = None,
    queue: Queue = False,
    listed: Listed = False,
    ray_address: RayAddress = "",
    worker_timeout: WorkerTimeout = None,
    cpus_per_worker: CpusPerWorker = None,
    gpus_per_worker: GpusPerWorker = None,
) -> None:
    """Reproduce the papers' experiments: tables and figures beside the published numbers.

    The exit code is 1 if a run failed or results were not written.
    """
    from fedapp.studies.papers.catalogue import as_scale
    from fedapp.studies.papers.options import ReproduceOptions, data_folder

    workers = WorkerOptions(ray_address, worker_timeout, cpus_per_worker, gpus_per_worker)
    scheduler = _scheduler(jobs, stacked, retry, hours, workers)
    overrides = parse_settings(setting)
    folder = data_folder(data)
    taken, chosen = tuple(recorded or ()), tuple(only or ())
    options = ReproduceOptions(
        as_scale(scale), folder, runs, to, scheduler, overrides, taken, chosen
    )
    _reproduce(experiments or [], options, queue=queue, listed=listed)


def _reproduce(
    experiments: list[str], options: ReproduceOptions, *, queue: bool, listed: bool
) -> None:
    from fedapp.studies.papers.cell_queue import run_queue, show_queue
    from fedapp.studies.papers.reproduce import reproduce as reproduce_experiments
    from fedapp.studies.papers.reproduce import show_costs

    names = experiments or ["all"]
    if queue and listed:
        show_queue(names, options, console)
    elif queue:
        end_with(run_queue(names, options, console))
    elif listed or not experiments:
        show_costs(names, options, console)
    else:
        end_with(reproduce_experiments(names, options, console))
