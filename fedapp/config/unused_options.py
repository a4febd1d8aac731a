"""Combinations of keys that are refused: keys without effect, and keys that exclude each other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from fedapp.errors import ConfigError

if TYPE_CHECKING:
    from fedapp.config.run_config import RunConfig
    from fedapp.training.algorithm import Algorithm

TEXT = (
    "client_key",
    "text_unit",
    "text_example",
    "text_unroll",
    "text_vocabulary",
    "text_client_words",
)
"""Fields about reading text."""
READING = (
    "dataset_subset",
    "train_split",
    "test_split",
    "input_key",
    "label_key",
    "test_fraction",
    *TEXT,
)
"""Fields on which the arrays of a data set depend, apart from its content."""
BATCHED = ("program", "clients_together")
"""Fields of the batched trainer."""
LOCAL_STEPS = (
    *("local_steps", "batch_sampling"),
    *("momentum", "nesterov", "weight_decay", "clip_norm"),
    *("local_epochs_decay", "batch_size_growth"),
)
"""Fields about local steps, apart from eta, E and B."""


def refuse(messages: Iterable[str]) -> None:
    """Raise ConfigError with all messages, one a line, if there are any."""
    if problems := list(messages):
        raise ConfigError("\n".join(problems))


def of_trainer(config: RunConfig) -> Iterator[str]:
    """Yield keys of the batched trainer where the sequential one is chosen."""
    if config.trainer == "sequential":
        yield from _without_effect(
            config, BATCHED, "trainer is 'sequential'. Set trainer='batched'"
        )


def of_initial_weights(config: RunConfig) -> Iterator[str]:
    """Yield the key about drawing weights where `initial-model` replaces them."""
    if config.initial_model:
        because = f"initial-model = {config.initial_model!r} has the weights. Leave that out"
        yield from _without_effect(config, ("initial_weights",), because)


def of_embedded_data(config: RunConfig) -> Iterator[str]:
    """Yield keys about reading a data set where it is embedded."""
    because = f"dataset = {config.dataset!r} is embedded. Name another dataset"
    yield from _without_effect(config, READING, because)


def of_folder(config: RunConfig, fields: Sequence[str], files: str) -> Iterator[str]:
    """Yield those of ``fields`` that are set, where the folder holds ``files`` that have no such key."""
    yield from _without_effect(
        config, fields, f"{config.dataset} holds {files}. Name a folder of Parquet files"
    )


def of_images(config: RunConfig) -> Iterator[str]:
    """Yield keys about reading text where the data are images."""
    because = f"dataset {config.dataset!r} holds images. Name one of text"
    yield from _without_effect(config, TEXT, because)


def of_texts(config: RunConfig, *, one_label: bool) -> Iterator[str]:
    """Yield keys about texts without labels, or in words, where the texts are others."""
    because = f"each text of dataset {config.dataset!r} has a label. Name one without"
    words = "symbols are characters. Set text-unit='words'"
    if one_label:
        yield from _without_effect(
            config, ("client_key", "text_example", "text_client_words"), because
        )
    elif config.text_unit != "words":
        yield from _without_effect(config, ("text_client_words",), words)
    if config.text_unit != "words":
        yield from _without_effect(config, ("text_vocabulary",), words)


def of_local_steps(config: RunConfig, because: str) -> Iterator[str]:
    """Yield keys about local steps where a client computes one gradient instead."""
    if config.local_epochs != 1:
        yield (
            f"local-epochs = {config.local_epochs}: has no effect, because {because}, but compute one "
            "gradient. Set algorithm='fedavg', or local-epochs=1."
        )
    yield from _without_effect(config, LOCAL_STEPS, f"{because}. Set algorithm='fedavg'")


def of_option_two(config: RunConfig, algorithm: Algorithm) -> Iterator[str]:
    """Yield `server-learning-rate` where Option II, which takes the mean model as it is, excludes it."""
    rate, own = config.server_learning_rate, algorithm.default_server_learning_rate
    if config.update == "model" and rate not in (1, own):
        only = " or ".join(f"{value:g}" for value in dict.fromkeys((own, 1.0)))
        yield (
            f"server-learning-rate = {rate}: with update = 'model' (Option II) "
            f"the server takes the mean model as it is, so only {only} is allowed. "
            f"Set update='delta' (Option I), or leave server-learning-rate out."
        )


def of_falling_epochs(config: RunConfig) -> Iterator[str]:
    """Yield `local-epochs-decay` where steps are counted instead of epochs, or E is 1."""
    if config.local_steps:
        because = "local-steps counts steps instead of epochs. Set local-steps=0"
    elif config.local_epochs == 1:
        because = "local-epochs = 1 is the least. Raise local-epochs"
    else:
        return
    yield from _without_effect(config, ("local_epochs_decay",), because)


def of_growing_batches(config: RunConfig) -> Iterator[str]:
    """Yield `batch-size-growth` where a batch is all local data."""
    if not config.batch_size:
        because = "batch-size = 0 is all local data. Set a batch-size, for example batch-size=10"
        yield from _without_effect(config, ("batch_size_growth",), because)


def of_clipping(
    config: RunConfig, because: str, instead: str = "algorithm='fedavg'"
) -> Iterator[str]:
    """Yield `clip-norm` where the algorithm depends on the length of local steps."""
    if config.clip_norm:
        yield (
            f"clip-norm = {config.clip_norm!r}: does not go with algorithm = {config.algorithm!r}, "
            f"because {because}. Set {instead}, or leave the key out."
        )


def _without_effect(config: RunConfig, fields: Sequence[str], because: str) -> Iterator[str]:
    for name in fields:
        value, field = getattr(config, name), type(config).model_fields[name]
        if value != field.default:
            key = name.replace("_", "-")
            yield f"{key} = {value!r}: has no effect, because {because}, or leave the key out."
