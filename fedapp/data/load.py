"""From a run-config to its data: data set, partition and transform."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from numpy.typing import NDArray

from fedapp.config.components import family_of, is_component
from fedapp.config.data import (
    CHARACTERS,
    IMAGES,
    LABELLED,
    NO_TABLE,
    READING_FIELDS,
    TABLE,
    DataConfig,
)
from fedapp.config.group import Case
from fedapp.config.registry import calling, setting_of
from fedapp.config.run_config import RunConfig
from fedapp.config.settings import kebab
from fedapp.data.cache import cache_folder, cached_dataset, cached_partition, partition_key
from fedapp.data.coding import coded, given_statistics, own_statistics
from fedapp.data.columns import checked_classes, code_groups, hold_out_random, split_labels
from fedapp.data.dataset import Dataset, Examples, IndexSetError, Partition, Task
from fedapp.data.embedded.embedded import Embedded, checked
from fedapp.data.partition.partitioning import Partitioning, require_index_sets
from fedapp.data.readers import content_key, read_source, require_outside
from fedapp.data.readers.source import Source, Split
from fedapp.data.table import Table
from fedapp.data.text.build import build_next_symbol, encode_labelled
from fedapp.data.text.clients import client_column
from fedapp.data.transforms.transform import Transform
from fedapp.errors import ConfigError, DataError, one_line
from fedapp.files import as_path

LATER_READING_KEYS = (
    "text_example",
    "input_keys",
    "categorical_keys",
    "missing",
    "task",
)
"""Later ones of READING_FIELDS: a default is left out of the cache's key, so fingerprints stay."""


def load_dataset(config: DataConfig) -> Dataset:
    """Return the data set that ``config`` names: embedded, from the hub, or a local folder.

    A table is coded with the statistics of its training examples, or those that are given.

    Raises
    ------
    ConfigError
        A key has no effect on this data, for example a key about text on images.
    DataError
        The data cannot be read, or cannot be trained on.
    """
    dataset = load_uncoded(config)
    if dataset.table is None:
        return dataset
    return coded(dataset, given_statistics(config, dataset.table) or own_statistics(dataset))


def load_server_data(config: RunConfig) -> Dataset:
    """Return the server's data set; a table is not coded where nodes are clients (num-clients = 0)."""
    return load_dataset(config) if config.num_clients else load_uncoded(config)


def load_uncoded(config: DataConfig) -> Dataset:
    """Return what ``load_dataset`` returns, except for a table, whose columns are not coded."""
    if is_component(family_of("dataset"), config.dataset):
        return checked(_embedded(cast("Embedded", config.component("dataset"))))
    dataset = _load_cached(config, node=False)
    config.refuse_unused(*_cases(config, dataset.task))
    return dataset


def _embedded(component: Embedded) -> Dataset:
    """Return the data set of a component.

    Raises
    ------
    ConfigError
        One of the user's own raises, or returns none.
    """
    with calling(component, "load"):
        dataset: Any = component.load()
    if not isinstance(dataset, Dataset):
        raise ConfigError(
            f"{setting_of(component)}: load returns {one_line(repr(dataset))}, which is no "
            "fedapp.data.dataset.Dataset. Let it return one."
        )
    return dataset


def _cases(config: DataConfig, task: Task) -> Iterator[Case]:
    """Yield the cases, of those in which keys about text have no effect, that are there."""
    if task.kind == "image":
        yield IMAGES
    elif task.one_label:
        yield LABELLED
    yield TABLE if task.columns else NO_TABLE
    if config.text_unit != "words":
        yield CHARACTERS


def load_node_data(config: DataConfig, path: str) -> Dataset:
    """Return the data in a node's own folder ``path``, read with the other settings of ``config``.

    Without a test split the test examples are empty. A table is not coded.

    Raises
    ------
    ConfigError, DataError
        The folder is missing, or cannot be read; the message names ``data-path``.
    """
    try:
        folder = as_path(path, path).absolute()
        if not folder.is_dir():
            raise DataError(f"there is no folder {folder}.")
        return _load_cached(config.model_copy(update={"dataset": path}), node=True)
    except (ConfigError, DataError) as error:
        raise type(error)(f"data-path = {path!r} (the node's --node-config): {error}") from error


def _load_cached(config: DataConfig, *, node: bool) -> Dataset:
    cache = cache_folder(config)
    require_outside(config, cache, f"data-cache = {str(cache)!r}")
    fields = DataConfig.model_fields
    unset = {n for n in LATER_READING_KEYS if getattr(config, n) == fields[n].default}
    # The statistics are applied to what the cache holds.
    unset.add("table_statistics")
    keys = {kebab(name): getattr(config, name) for name in READING_FIELDS if name not in unset}
    keys |= {"content": content_key(config), "node": node}
    # A test split beside `test-fraction` is refused, unless nodes have data of their own.
    if config.test_fraction and getattr(config, "num_clients", None) == 0:
        keys |= {"of-nodes": True}

    def build(scratch: Path) -> Dataset:
        return build_dataset(config, read_source(config, scratch, test_required=not node))

    dataset = cached_dataset(config, keys, build)
    if not (node or len(dataset.test)):
        raise _nothing_to_test(config, dataset.task)
    return dataset


def _nothing_to_test(config: DataConfig, task: Task) -> DataError:
    if task.kind != "tokens" or task.one_label:
        return DataError(
            f"test-fraction = {config.test_fraction}: split {config.train_split!r} of dataset "
            f"{config.dataset!r} has a single example, and none is left to test on. Add examples, or a "
            "test split."
        )
    return DataError(
        f"dataset = {config.dataset!r}: its test split has no symbol to predict. Unknown words are "
        "not counted, and test-fraction holds out no row of a client with a single one. Give it "
        "another test split, or more rows."
    )


def load_partition(config: RunConfig, dataset: Dataset, num_clients: int) -> Partition:
    """Return the partition of the training examples, and if there is one of the test examples, over K.

    Raises
    ------
    ConfigError
        The data cannot be split so, or the partitioner returns no index sets of K clients.
    """
    partitioner = cast("Partitioning", config.component("partitioner"))

    def split() -> Partition:
        method = "split"
        try:
            with calling(partitioner, method):
                train = partitioner.split(dataset.train, num_clients, config.seed)
            require_index_sets(train, num_clients, len(dataset.train))
            method = "split_test"
            with calling(partitioner, method):
                test = partitioner.split_test(dataset.test, dataset.train, train, config.seed)
            if test is not None:
                require_index_sets(test, num_clients, len(dataset.test))
        except IndexSetError as error:
            raise ConfigError(f"partitioner = {config.partitioner!r}, {method}: {error}") from error
        return dataclasses.replace(train, test=test)

    if not partitioner.cached:
        return split()
    key = partition_key(partitioner, dataset, num_clients, config.seed)
    return cached_partition(config, key, split)


def load_transform(config: DataConfig) -> Transform:
    """Return the transform that ``config`` names."""
    return cast("Transform", config.component("transform"))


def network_task(config: DataConfig, task: Task) -> Task:
    """Return the task with the input shape after the transform."""
    shape = load_transform(config).output_shape(task.input_shape)
    return dataclasses.replace(task, input_shape=shape)


def build_dataset(config: DataConfig, source: Source) -> Dataset:
    """Return the data set of a source, a table not coded; without a test split test examples are empty.

    Raises
    ------
    DataError
        Labels are negative or out of range, or test inputs have another shape.
    """
    if source.train.is_text and source.train.labels is None:
        return build_next_symbol(config, source)
    table, num_classes, client = source.table, 0, ""
    if table is None or table.num_classes:
        num_classes = checked_classes(config, source)
    source = hold_out_random(config, source)
    splits = source.splits
    if table is not None:
        table = dataclasses.replace(table, num_classes=num_classes)
        task, inputs = _uncoded_task(table, config.label_key), [split.inputs for split in splits]
        client = client_column(config, source.train)
    else:
        read = encode_labelled if source.train.is_text else _images
        task, inputs = read(config, splits)
        task = dataclasses.replace(task, num_classes=num_classes, labels=source.class_names)
    required = bool(client and config.client_key)
    groups, names, left_out = code_groups(splits, client=client, required=required)
    train, *tests = (
        Examples(each, split_labels(split), codes, names, left_out)
        for each, split, codes in zip(inputs, splits, groups, strict=True)
    )
    empty = Examples(train.inputs[:0], train.targets[:0])
    test = tests[0] if tests else empty
    return Dataset(config.dataset, task, train, test, fingerprint="", table=table)


def _images(config: DataConfig, splits: list[Split]) -> tuple[Task, list[NDArray[Any]]]:
    """Return the task of images, still without its classes, and the images of each split."""
    inputs = [split.inputs for split in splits]
    shape, *others = (images.shape[1:] for images in inputs)
    if others not in ([], [shape]):
        raise DataError(
            f"test-split = {config.test_split!r}: its images have shape {others[0]}, "
            f"those of train-split {config.train_split!r} {shape}. Convert them to one shape."
        )
    return Task("image", shape, num_classes=0), inputs


def _uncoded_task(table: Table, label: str) -> Task:
    """Return a task that is equal for tables of the same columns, whatever values they have."""
    kinds = ["number" if values is None else "categories" for values in table.values]
    columns = [f"{name} ({kind})" for name, kind in zip(table.names, kinds, strict=True)]
    kind = "names" if table.labels else "classes" if table.num_classes else "number"
    columns.append(f"{label or 'label'} ({kind})")
    return Task(
        "vector",
        (len(table.names),),
        0 if table.num_classes else 1,
        columns=tuple(columns),
        regression=not table.num_classes,
    )
