"""The options of ``fedapp reproduce``, and the setup of an experiment by them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fedapp.config.settings import Scalar
from fedapp.errors import ConfigError
from fedapp.files import as_path
from fedapp.studies.papers.catalogue import Experiment
from fedapp.studies.papers.cells import Setup
from fedapp.studies.papers.data import locate
from fedapp.studies.papers.schema import Cut, ScaleName
from fedapp.studies.sweep.scheduler import SchedulerOptions


@dataclass(frozen=True)
class ReproduceOptions:
    """The options of ``fedapp reproduce``: scale, data, and the folders of runs and results.

    Runs with a record beside the results in the folders ``recorded`` are taken from there. ``only``
    names the rows, columns, lines, algorithms or cells to run (empty: all of the scale); of the others,
    finished runs are shown.
    """

    scale: ScaleName
    data: Path | None
    runs: Path
    to: Path
    scheduler: SchedulerOptions
    overrides: Mapping[str, Scalar]
    recorded: tuple[Path, ...] = ()
    only: tuple[str, ...] = ()

    @property
    def jobs(self) -> int:
        """The number of runs in parallel."""
        return self.scheduler.processes([self.overrides.get("device", "auto")])


def setup_of(experiment: Experiment, options: ReproduceOptions) -> Setup:
    """Return the setup of an experiment for the options' scale, data and overrides."""
    cuts = options.runs / ".data"

    def where(dataset: str, cut: Cut | None) -> str:
        return locate(dataset, options.data, cut, cuts)

    scale = experiment.at(options.scale)
    return Setup(experiment, options.scale, scale, options.overrides, where)


def data_folder(given: Path | None) -> Path | None:
    """Return the absolute folder of local data sets: ``given``, or $FEDAPP_DATA, or None.

    Raises
    ------
    ConfigError
        There is no such folder.
    """
    named = os.environ.get("FEDAPP_DATA", "")
    setting = f"--data {given}" if given else f"FEDAPP_DATA = {named}"
    if not given and not named:
        return None
    folder = as_path(given or named, setting).absolute()
    if not folder.is_dir():
        raise ConfigError(
            f"{setting}: there is no such folder. Name one with mnist, cifar10 or "
            "shakespeare, or leave it out: full scale then downloads MNIST and CIFAR-10 from the hub."
        )
    return folder
