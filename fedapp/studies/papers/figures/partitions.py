"""Who holds which labels: Seo et al. 2024, Figures 6 and 8."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fedapp.config.read import read_config
from fedapp.config.run_config import Scalar
from fedapp.data import load_dataset, load_partition
from fedapp.runs.partition_figure import draw_comparison


def draw_partitions(settings: Mapping[str, Mapping[str, Scalar]], stem: Path) -> list[Path]:
    """Draw the partition of each titled run-config beside the others, as ``stem``.png and .svg."""
    configs = {title: read_config(each) for title, each in settings.items()}
    dataset = load_dataset(next(iter(configs.values())))
    partitions = {
        title: load_partition(config, dataset, config.num_clients)
        for title, config in configs.items()
    }
    task = dataset.task
    labels = task.labels or tuple(map(str, range(task.num_classes)))
    return draw_comparison(partitions, dataset.train.targets, labels, stem)
