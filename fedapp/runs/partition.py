"""A partition's picture, and its table for the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedapp.config.run_config import RunConfig
from fedapp.data.dataset import Partition
from fedapp.data.load import load_dataset, load_partition
from fedapp.errors import ConfigError, FedappError
from fedapp.files import as_file
from fedapp.runs.figures import ENDINGS
from fedapp.runs.partition_figure import draw_partition
from fedapp.runs.partition_summary import (
    MAX_LABELS,
    count_labels,
    labels_and_names,
    notes,
    summarise_partition,
)

MAX_ROWS = 40
"""Largest number of clients in the terminal's table."""


def draw_missing_partition(folder: Path, config: RunConfig, run_info: Mapping[str, Any]) -> str:
    """Draw the partition of a run without a picture; return why that is not possible, or nothing.

    ``run_info`` has the fingerprint that the data must have.
    """
    if not config.num_clients or (folder / "partition.svg").exists():
        return ""
    try:
        dataset = load_dataset(config)
        partition = load_partition(config, dataset, config.num_clients)
    except FedappError as error:
        return str(error)
    if dataset.fingerprint != run_info.get("fingerprint"):
        return f"dataset = {config.dataset!r}: not the data that the run was made with"
    draw_partition(partition, *labels_and_names(dataset), folder / "partition", _title(config))
    return ""


def _title(config: RunConfig) -> str:
    data, partitioner = Path(config.name_of("dataset")).name, config.name_of("partitioner")
    return f"{data}, {partitioner}, {config.num_clients} clients"


def show_partition(config: RunConfig, console: Console, picture: Path) -> None:
    """Print a partition's label counts and skew, and draw it into ``picture``.

    Raises
    ------
    ConfigError
        ``num-clients`` is 0, ``picture`` has an unknown ending, or is no file that can be written.
    """
    if not config.num_clients:
        raise ConfigError(
            "num-clients = 0: each node has data of its own, so there is nothing to split. "
            "Set num-clients to the number of virtual clients."
        )
    stem = _picture_stem(picture)
    dataset = load_dataset(config)
    partition = load_partition(config, dataset, config.num_clients)
    targets, labels = labels_and_names(dataset)
    console.print(_table(partition, targets, labels))
    summary = summarise_partition(config, dataset, partition)
    distance = ["mean_total_variation"] if len(labels) > 1 else []
    for key in ("num_examples", "size_ratio", "update_multiplier", *distance):
        value = summary[key]
        shown = f"{value:.4g}" if isinstance(value, float) else value
        console.print(f"{key.replace('_', ' ')}: {shown}")
    for message in notes(config, dataset, summary):
        console.out(message)
    for file in draw_partition(partition, targets, labels, stem, _title(config)):
        console.out(f"picture: {file.absolute()}")


def _picture_stem(picture: Path) -> Path:
    """Return the picture's path without its ending, after creating its folder."""
    ending = picture.suffix.lower()
    if ending[1:] in {*Figure().canvas.get_supported_filetypes(), "bmp"} and ending not in ENDINGS:
        raise ConfigError(
            f"--picture {str(picture)!r}: pictures are written as {' and '.join(ENDINGS)}. Call it "
            f"{picture.stem}.png, or {picture.stem} alone."
        )
    picture = as_file(picture, "--picture")
    stem = picture.with_suffix("") if ending in ENDINGS else picture
    for each in ENDINGS:
        as_file(stem.with_name(stem.name + each), "--picture")
    return stem


def _table(partition: Partition, targets: NDArray[Any], labels: tuple[str, ...]) -> Table:
    matrix = count_labels(partition, targets, len(labels))
    shown = labels if len(labels) > 1 else ()
    few = len(shown) <= MAX_LABELS
    table = Table(box=None, padding=(0, 1, 0, 0))
    for heading in ("client", "n_k", *(shown if few else ("labels",))):
        table.add_column(Text(heading), justify="right")
    for client, counts in list(zip(matrix.clients, matrix.counts, strict=True))[:MAX_ROWS]:
        cells = [str(count) if count else "·" for count in counts[: len(shown)]] if few else []
        num_labels = [] if few else [str((counts > 0).sum())]
        table.add_row(str(client), str(counts.sum()), *cells, *num_labels)
    if len(matrix.clients) > MAX_ROWS:
        table.add_row("…", f"({partition.num_clients} clients)")
    return table
