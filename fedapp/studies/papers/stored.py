"""Results on disk: ``<experiment>/<scale>.json``, whose curves are in the records of the runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from pydantic import ValidationError

from fedapp.errors import ConfigError
from fedapp.files import write_atomically
from fedapp.studies.papers.results import Results, RunResult, curve_of
from fedapp.studies.papers.schema import SCALES, ScaleName
from fedapp.studies.sweep.identity import Request
from fedapp.studies.sweep.record import RunRecord


def results_path(folder: Path, experiment: str, scale: ScaleName) -> Path:
    """Return the path of an experiment's results at a scale."""
    return folder / experiment / f"{scale}.json"


def write_results(folder: Path, results: Results) -> Path:
    """Write results and return their path."""
    path = results_path(folder, results.experiment, results.scale)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, (results.model_dump_json(exclude_defaults=True) + "\n").encode())
    return path


def read_results(folder: Path, experiment: str, scale: ScaleName) -> Results | None:
    """Return an experiment's results without the curves in records, or None if there are none.

    Raises
    ------
    ConfigError
        The file is damaged or of another version.
    """
    path = results_path(folder, experiment, scale)
    if not path.exists():
        return None
    try:
        return Results.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise ConfigError(
            f"{path}: cannot be read ({error.errors()[0]['msg']}). Delete it and make it again with "
            f"`fedapp reproduce {experiment} --scale {scale}`."
        ) from error


def results_of(folder: Path, name: str, records: Mapping[str, RunRecord]) -> Iterator[Results]:
    """Yield the results of an experiment with their curves, the largest scale first."""
    for scale in reversed(SCALES):
        if results := read_results(folder, name, scale):
            yield with_curves(results, records)


def with_curves(results: Results, records: Mapping[str, RunRecord]) -> Results:
    """Return the results with the curves and similarities of the runs that have a record."""
    cells = {
        name: cell.model_copy(update={"runs": [_with_curve(run, records) for run in cell.runs]})
        for name, cell in results.cells.items()
    }
    return results.model_copy(update={"cells": cells})


def _with_curve(run: RunResult, records: Mapping[str, RunRecord]) -> RunResult:
    record = records.get(run.run)
    if record is None:
        return run
    cut = record.until(Request((), run.rounds))
    return run.model_copy(update={"curve": curve_of(cut), "agreement": cut.agreement})
