"""``fedapp sweep``: a grid of runs and its table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from rich.console import Console

from fedapp.config.read import callback_settings, parse_settings, read_config
from fedapp.config.settings import Scalar
from fedapp.data.readers import require_outside
from fedapp.errors import ConfigError
from fedapp.files import as_folder, disk_space_needed
from fedapp.studies.sweep.grid import (
    as_lines,
    expand,
    make_rows,
    split_grid,
    write_rows,
)
from fedapp.studies.sweep.identity import EXECUTION, LENGTH, Request
from fedapp.studies.sweep.plans import failure, run_plans
from fedapp.studies.sweep.scheduler import SchedulerOptions
from fedapp.studies.sweep.search import fixed
from fedapp.studies.sweep.store import Store


def sweep_settings(
    settings: Sequence[str],
    runs: Path,
    to: Path,
    best_of: str,
    options: SchedulerOptions,
    console: Console,
) -> str:
    """Run the grid of ``settings``, print the table and write it to ``to``.

    Points that are not finished at the time limit are not in the table. Returns a message about runs
    that failed, or ""; a run that diverged is a result.

    Raises
    ------
    ConfigError
        A point of the grid is not a valid configuration, a key of the grid does not distinguish runs,
        ``best_of`` is not in the grid, or ``runs`` or ``to`` cannot be written, or lie in the data.
    """
    plain, grid = split_grid(settings)
    base = {key: value for key, value in parse_settings(plain).items() if key not in grid}
    _check_keys(base, grid, best_of)
    points = expand(base, grid)
    requests = [_request({**base, **point}, runs, to) for point in points]
    _ = [request.run for request in requests]  # refuses a data set that is not there
    store, to = Store(runs), as_folder(to, "--to")
    titles = [_title(point) for point in points]
    plans = {title: partial(fixed, [own]) for title, own in zip(titles, requests, strict=True)}
    outcomes = run_plans(plans, store, options, console)
    done = [i for i, title in enumerate(titles) if title in outcomes]
    records = [outcomes[titles[i]].runs[0] for i in done]
    targets = [requests[i].target for i in done]
    rows = make_rows([points[i] for i in done], records, targets, best_of)
    for line in as_lines(rows):
        console.out(line)
    with disk_space_needed(to, "and repeat the command, which runs nothing again"):
        files = write_rows(rows, to, base)
    for path in files:
        console.out(path)
    return failure(outcomes.values(), store)


def _check_keys(
    base: Mapping[str, Scalar], grid: Mapping[str, Sequence[Scalar]], best_of: str
) -> None:
    """Refuse keys that a sweep sets itself, or that do not tell its runs apart."""
    rows_differ_in = [key for key in grid if key != "seed"]
    if best_of and best_of not in rows_differ_in:
        raise ConfigError(
            f"--best-of {best_of}: must be a key, other than seed, with several values in this sweep. "
            f"One of: {', '.join(rows_differ_in) or 'none here'}."
        )
    for key in ("run-dir", "resume"):
        if key in {**base, **grid}:
            raise ConfigError(
                f"{key}: a sweep names its runs itself, in the folder --runs. Leave the key out."
            )
    first = {key: values[0] for key, values in grid.items()}
    unnamed = EXECUTION.difference(LENGTH) | callback_settings({**base, **first}).keys()
    for key in unnamed.intersection(grid):
        raise ConfigError(
            f"{key}: is not part of the identity of a run, and all its values would be one run. Give "
            f"it one value, as in {key}={grid[key][0]}, or compare `fedapp run` with each."
        )


def _request(settings: Mapping[str, Scalar], runs: Path, to: Path) -> Request:
    """Return the request of a point; the folders must lie outside of its data."""
    config = read_config(settings)
    require_outside(config, runs, f"--runs {runs}")
    require_outside(config, to, f"--to {to}")
    return Request.of(settings, config.num_server_rounds, config.target_accuracy)


def _title(point: Mapping[str, object]) -> str:
    return " ".join(f"{key}={value}" for key, value in point.items()) or "run"
