"""Data: sources, partitions, transforms and the memory-mapped cache."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import cast

from fedapp.config import unused_options
from fedapp.config.registry import FAMILIES
from fedapp.config.run_config import RunConfig, defaults, kebab
from fedapp.config.unused_options import READING
from fedapp.data.build import build_dataset
from fedapp.data.cache import cached
from fedapp.data.dataset import IGNORE, Chosen, Dataset, Examples, Partition, Task, from_index_sets
from fedapp.data.embedded.embedded import Embedded, checked
from fedapp.data.partition.cache import cached_partition, partition_key
from fedapp.data.partition.partitioning import Partitioning
from fedapp.data.readers import content_key, read_source
from fedapp.data.transforms.transform import Transform
from fedapp.errors import DataError

__all__ = [
    "IGNORE",
    "Chosen",
    "Dataset",
    "Examples",
    "Partition",
    "Task",
    "from_index_sets",
    "load_dataset",
    "load_node_data",
    "load_partition",
    "load_transform",
    "network_task",
]

ADDED = ("text_example",)
"""Keys of reading that came later: they count where they are set, so that older names still hold."""


def load_dataset(config: RunConfig) -> Dataset:
    """Return the data set that ``config`` names: embedded, from the hub, or a local folder.

    Raises
    ------
    ConfigError
        A key has no effect on such data, as one of text for images.
    DataError
        The data cannot be read, or cannot be trained on.
    """
    embedded = next(f for f in FAMILIES if f.key == "dataset").components()
    if config.dataset in embedded:
        return checked(cast("Embedded", config.component("dataset")).load())
    dataset = _load_cached(config, node=False)
    if dataset.task.kind == "image":
        unused_options.refuse(unused_options.of_images(config))
    else:
        unused_options.refuse(unused_options.of_texts(config, one_label=dataset.task.one_label))
    return dataset


def load_node_data(config: RunConfig, path: str) -> Dataset:
    """Return the data of a node's own folder ``path``, read with the other settings of ``config``.

    The test split is optional: without one the test examples are empty.

    Raises
    ------
    DataError
        The folder is missing, or cannot be read; the message names ``data-path``.
    """
    try:
        if not Path(path).expanduser().is_dir():
            raise DataError("there is no such folder.")
        return _load_cached(config.model_copy(update={"dataset": path}), node=True)
    except DataError as error:
        raise DataError(f"data-path = {path!r} (the node's --node-config): {error}") from error


def _load_cached(config: RunConfig, *, node: bool) -> Dataset:
    unset = {name for name in ADDED if getattr(config, name) == defaults()[kebab(name)]}
    keys = {kebab(name): getattr(config, name) for name in READING if name not in unset}
    keys |= {"content": content_key(config), "node": node}

    def build(scratch: Path) -> Dataset:
        return build_dataset(config, read_source(config, scratch, test_required=not node))

    dataset = cached(config, keys, build)
    if not (node or len(dataset.test)):
        raise DataError(
            f"dataset = {config.dataset!r}: in its test text there is nothing to predict: unknown words "
            "are not counted, and of a client with one row test-fraction holds out none. Give it "
            "another test split, or more rows."
        )
    return dataset


def load_partition(config: RunConfig, dataset: Dataset, num_clients: int) -> Partition:
    """Return the split of the training, and where it has one, the test examples over K clients."""
    partitioner = cast("Partitioning", config.component("partitioner"))

    def split() -> Partition:
        train = partitioner.split(dataset.train, num_clients, config.seed)
        test = partitioner.split_test(dataset.test, dataset.train, train, config.seed)
        return dataclasses.replace(train, test=test)

    if not partitioner.kept:
        return split()
    key = partition_key(partitioner, dataset, num_clients, config.seed)
    return cached_partition(config, key, split)


def load_transform(config: RunConfig) -> Transform:
    """Return the transform that ``config`` names."""
    return cast("Transform", config.component("transform"))


def network_task(config: RunConfig, task: Task) -> Task:
    """Return the task as a network sees it: with the shape that the transform gives."""
    shape = load_transform(config).output_shape(task.input_shape)
    return dataclasses.replace(task, input_shape=shape)
