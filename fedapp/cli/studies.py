"""``fedapp sweep`` and ``fedapp reproduce``: many runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedapp.cli.options import RunConfig, Settings, console, end_with
from fedapp.config.read import in_words, parse_settings

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
    words = in_words(run_config, settings)
    end_with(sweep_settings(words, runs, to, best_of, effort, console))


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
        end_with(carry_out(items, order, console))
