"""``partition.json`` and the partition's picture in a run directory."""

from __future__ import annotations

from pathlib import Path

from fedapp.config import RunConfig
from fedapp.holdings import Holdings


def write_partition(folder: Path, config: RunConfig, holdings: Holdings) -> None:
    """Write what each client holds; nothing where the nodes' own data is not the server's to see."""
