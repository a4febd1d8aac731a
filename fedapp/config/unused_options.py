"""Keys that are set and have no effect, or break a rule: refused, so that no run is misread."""

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
"""What is said of how text is read."""
READING = (
    "dataset_subset",
    "train_split",
    "test_split",
    "input_key",
    "label_key",
    "test_fraction",
    *TEXT,
)
"""What, beside their content, the arrays of a data set that is read depend on."""
BATCHED = ("program", "clients_together")
"""What is said of how clients train together."""
LOCAL_STEPS = (
    *("local_steps", "batch_sampling"),
    *("momentum", "nesterov", "weight_decay", "clip_norm"),
    *("local_epochs_decay", "batch_size_growth"),
)
"""What is said of local steps beside their rate, and of how many there are beside E and B."""


def refuse(said: Iterable[str]) -> None:
    """Raise what was said of keys, if anything was.

    Raises
    ------
    ConfigError
        All of it, a line each.
    """
    if problems := list(said):
        raise ConfigError("\n".join(problems))


def of_trainer(config: RunConfig) -> Iterator[str]:
    """Say which keys are only of the batched trainer, where the other is chosen."""
    if config.trainer == "sequential":
        yield from _said(config, BATCHED, "trainer is 'sequential'. Set trainer='batched'")


def of_initial_weights(config: RunConfig) -> Iterator[str]:
    """Say if weights are to be drawn that others take the place of."""
    if config.initial_model:
        because = f"initial-model = {config.initial_model!r} has the weights. Leave that out"
        yield from _said(config, ("initial_weights",), because)


def of_embedded_data(config: RunConfig) -> Iterator[str]:
    """Say which keys are about reading a data set, where it is embedded."""
    because = f"dataset = {config.dataset!r} is embedded. Name another dataset"
    yield from _said(config, READING, because)


def of_folder(config: RunConfig, fields: Sequence[str], files: str) -> Iterator[str]:
    """Say which of the keys ``fields`` are set, where the folder holds ``files`` that have no such."""
    yield from _said(
        config, fields, f"{config.dataset} holds {files}. Name a folder of Parquet files"
    )


def of_images(config: RunConfig) -> Iterator[str]:
    """Say which keys are about reading text, where the data are images."""
    because = f"dataset {config.dataset!r} holds images. Name one of text"
    yield from _said(config, TEXT, because)


def of_texts(config: RunConfig, *, one_label: bool) -> Iterator[str]:
    """Say which keys are about reading other texts: such without labels, or in words."""
    because = f"each text of dataset {config.dataset!r} has a label. Name one without"
    words = "symbols are characters. Set text-unit='words'"
    if one_label:
        yield from _said(config, ("client_key", "text_example", "text_client_words"), because)
    elif config.text_unit != "words":
        yield from _said(config, ("text_client_words",), words)
    if config.text_unit != "words":
        yield from _said(config, ("text_vocabulary",), words)


def of_local_steps(config: RunConfig, because: str) -> Iterator[str]:
    """Say which keys are of local steps, where clients compute one gradient instead: E is 1."""
    if config.local_epochs != 1:
        yield (
            f"local-epochs = {config.local_epochs}: has no effect, because {because}, but compute one "
            "gradient. Set algorithm='fedavg', or local-epochs=1."
        )
    yield from _said(config, LOCAL_STEPS, f"{because}. Set algorithm='fedavg'")


def of_option_two(config: RunConfig, algorithm: Algorithm) -> Iterator[str]:
    """Say if the mean model, which Option II takes, is to be scaled: by more than the algorithm's own."""
    rate, own = config.server_learning_rate, algorithm.default_server_learning_rate
    if config.update == "model" and rate not in (1, own):
        only = " or ".join(f"{value:g}" for value in dict.fromkeys((own, 1.0)))
        yield (
            f"server-learning-rate = {rate}: with update = 'model' (Option II) "
            f"the server takes the mean model as it is, so only {only} is allowed. "
            f"Set update='delta' (Option I), or leave server-learning-rate out."
        )


def of_falling_epochs(config: RunConfig) -> Iterator[str]:
    """Say if E cannot fall, because steps are counted instead, or because it is 1."""
    if config.local_steps:
        because = "local-steps counts steps instead of epochs. Set local-steps=0"
    elif config.local_epochs == 1:
        because = "local-epochs = 1 is the least. Raise local-epochs"
    else:
        return
    yield from _said(config, ("local_epochs_decay",), because)


def of_growing_batches(config: RunConfig) -> Iterator[str]:
    """Say if B cannot grow, because a batch is all local data from the first round on."""
    if not config.batch_size:
        because = "batch-size = 0 is all local data. Set batch-size=10, or so"
        yield from _said(config, ("batch_size_growth",), because)


def of_clipping(
    config: RunConfig, because: str, instead: str = "algorithm='fedavg'"
) -> Iterator[str]:
    """Say if local steps are clipped, where the algorithm counts on their length."""
    if config.clip_norm:
        yield (
            f"clip-norm = {config.clip_norm!r}: does not go with algorithm = {config.algorithm!r}, "
            f"because {because}. Set {instead}, or leave the key out."
        )


def _said(config: RunConfig, fields: Sequence[str], because: str) -> Iterator[str]:
    for name in fields:
        value, field = getattr(config, name), type(config).model_fields[name]
        if value != field.default:
            key = name.replace("_", "-")
            yield f"{key} = {value!r}: has no effect, because {because}, or leave the key out."
