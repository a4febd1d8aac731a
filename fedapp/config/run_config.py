"""RunConfig: every run-config key, its type, its bounds, its meaning and its contradictions.

The table ``[tool.flwr.app.config]`` in ``pyproject.toml``, the configuration reference and the
CLI's completion are generated from this class and from the components' parameters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any, Literal, Self, cast

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from fedapp.config import unused_options
from fedapp.config.registry import FAMILIES, Component, Family, number_as_text

Scalar = bool | int | float | str


def kebab(name: str) -> str:
    """Return a field's name as it is written in run-configs and other TOMLs."""
    return name.replace("_", "-")


def snake(name: str) -> str:
    """Return the name of the field that a TOML key sets."""
    return name.replace("-", "_")


class RunConfig(BaseModel):
    """The settings of one run, immutable; built with :func:`read_config`."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        alias_generator=kebab,
        validate_by_name=True,
    )

    # --- federation
    num_server_rounds: int = Field(50, ge=1, description="Rounds of communication, T.")
    num_clients: int = Field(
        20, ge=0, description="Clients, K. 0: each SuperNode is one client with its own data."
    )
    fraction_train: float = Field(
        0.5, ge=0, le=1, description="Client fraction, C: max(floor(C*K), 1) clients a round."
    )
    min_nodes: int = Field(1, ge=1, description="Nodes to wait for before the first round.")
    node_timeout: float = Field(300.0, gt=0, description="Longest wait for min-nodes, in seconds.")
    round_deadline: float = Field(
        3600.0, gt=0, description="Longest wait for a round's replies, in seconds."
    )
    min_replies: int = Field(
        1, ge=1, description="Accepted client replies that a round needs to change the model."
    )
    over_selection: float = Field(
        0.0,
        ge=0,
        le=10,
        description="Share of additional clients sampled; the first m accepted replies count.",
    )
    max_update_norm: float = Field(
        1e6, ge=0, description="Largest L2 norm of an update over max(|theta|, 1). 0: any."
    )
    on_failure: Literal["continue", "stop"] = Field(
        "continue",
        description="What to do when a client fails or a round has too few accepted replies.",
    )
    # --- ClientUpdate
    local_epochs: int = Field(5, ge=1, description="Local epochs, E; 1 with fedsgd.")
    local_epochs_decay: float = Field(
        1.0, gt=0, le=1, description="Factor on E after every round; E is rounded, and at least 1."
    )
    local_steps: int = Field(
        0, ge=0, description="Local steps instead of epochs (synchronisation period). 0: use E."
    )
    batch_size: int = Field(
        10, ge=0, description="Local batch size, B. 0: all local data (infinity)."
    )
    batch_size_growth: float = Field(
        1.0, ge=1, le=10, description="Factor on B after every round; B is rounded."
    )
    batch_sampling: Literal["epoch", "uniform"] = Field(
        "epoch",
        description="'epoch': reshuffled passes over the data; 'uniform': a random mini-batch a step.",
    )
    learning_rate: float = Field(0.2, gt=0, description="Client learning rate, eta.")
    learning_rate_decay: float = Field(
        1.0, gt=0, le=1, description="Factor on eta after every round."
    )
    momentum: float = Field(0.0, ge=0, lt=1, description="Client momentum, reset every round.")
    nesterov: bool = Field(False, description="Nesterov's form of the client momentum.")
    weight_decay: float = Field(
        0.0, ge=0, description="Factor of the L2 term in a client's gradient."
    )
    clip_norm: float = Field(
        0.0, ge=0, description="Largest L2 norm of a client's step gradient. 0: no clipping."
    )
    # --- server
    algorithm: str = Field("fedavg", description="Algorithm: a file in strategies/.")
    weighting: Literal["auto", "examples", "uniform"] = Field(
        "auto",
        description="'examples': n_k / sum n (FedAvg); 'uniform': naive averaging. 'auto': the "
        "algorithm's own.",
    )
    update: Literal["delta", "model"] = Field(
        "delta",
        description="'delta': clients send theta_k - theta (Option I); 'model': theta_k (II).",
    )
    server_learning_rate: float = Field(
        0.0, ge=0, description="Server learning rate, eta_g. 0: the algorithm's own."
    )
    # --- data and model
    dataset: str = Field(
        "digits", min_length=1, description="Embedded data set, hub name, or local folder."
    )
    dataset_subset: str = Field(
        "", description="Configuration of a hub data set, or one of several sets of IDX files."
    )
    train_split: str = Field("train", min_length=1, description="Name of the training split.")
    test_split: str = Field("test", min_length=1, description="Name of the test split.")
    input_key: str = Field("", description="Input column. Empty: the first image or text column.")
    label_key: str = Field(
        "", description="Label column. Empty: the first class-label column, or the one named label."
    )
    client_key: str = Field(
        "", description="Column of a text's natural client (role, author). Empty: a usual name."
    )
    text_unit: Literal["auto", "characters", "words"] = Field(
        "auto", description="Symbols of a text: bytes or words. 'auto': characters."
    )
    text_example: Literal["stream", "line"] = Field(
        "stream",
        description="What is cut into sequences: a client's whole text, or each line by itself.",
    )
    text_unroll: int = Field(
        0, ge=0, description="Symbols a sequence. 0: 80 or 10 words; with labels, 256 or 64 words."
    )
    text_vocabulary: int = Field(
        10000,
        ge=2,
        description="Size of the vocabulary, with the unknown word for all other words.",
    )
    text_client_words: int = Field(
        5000, ge=0, description="Maximum of training words per client (text-unit words). 0: all."
    )
    test_fraction: float = Field(
        0.0, ge=0, lt=1, description="Share held out for testing where the data has no test split."
    )
    data_cache: str = Field(
        "", description="Folder of decoded data. Empty: $FEDAPP_CACHE, or ~/.cache/fedapp."
    )
    partitioner: str = Field("iid", description="How the training data is split over the clients.")
    transform: str = Field("scale", description="From stored arrays to network inputs.")
    model: str = Field("2nn", description="Network: a component of fedapp/models/.")
    initial_model: str = Field(
        "",
        description="Initial weights: a run's folder, or a safetensors file. Empty: drawn from the "
        "seed.",
    )
    initial_weights: Literal["model", "truncated-normal", "glorot", "he"] = Field(
        "model",
        description="How linear and convolutional layers are drawn. model: as the network defines. "
        "truncated-normal: sigma 0.1, biases 0.1, as TensorFlow's MNIST tutorial. glorot, he: their "
        "rules, biases 0.",
    )
    # --- run
    seed: int = Field(0, ge=0, lt=2**63, description="Seed of all random draws.")
    device: str = Field(
        "auto",
        pattern=r"^(auto|cpu|cuda(:\d+)?)$",
        description="'auto', 'cpu', 'cuda' or 'cuda:N'.",
    )
    precision: Literal["float32", "float64"] = Field("float32", description="Parameters' type.")
    threads: int = Field(
        1,
        ge=0,
        description="CPU threads of a training process; 0: the fastest number, measured once.",
    )
    trainer: Literal["auto", "sequential", "batched"] = Field(
        "auto",
        description="What executes ClientUpdate for a cohort. auto: batched on a GPU, else "
        "sequential.",
    )
    program: Literal["auto", "record", "compile", "capture"] = Field(
        "auto",
        description="How the batched trainer runs a local step: operation by operation, compiled, or "
        "captured as a CUDA graph. auto: capture on a GPU, compile on a CPU where it pays.",
    )
    clients_together: int = Field(
        0,
        ge=0,
        description="Clients that the batched trainer trains in one program. 0: on a GPU a whole "
        "cohort, on a CPU one, or five a thread of a small network.",
    )
    evaluation: Literal["server", "clients", "both"] = Field(
        "server", description="Where the global model is evaluated."
    )
    eval_every: int = Field(1, ge=0, description="Rounds between evaluations. 0: only at the end.")
    eval_train_examples: int = Field(
        0,
        ge=0,
        description="Training examples, a fixed sample, on which the global model is evaluated too. "
        "0: none.",
    )
    target_accuracy: float = Field(
        0.0, ge=0, le=1, description="Stop when the test accuracy reaches this. 0: never."
    )
    checkpoint_every: int = Field(
        10, ge=0, description="Rounds between checkpoints. 0: none by rounds."
    )
    checkpoint_seconds: float = Field(
        60.0,
        ge=0,
        description="Seconds between checkpoints, made when a round ends. 0: none by time.",
    )
    run_dir: str = Field("", description="The run's folder. Empty: a new one under runs/.")
    record_updates: bool = Field(
        False,
        description="Record the similarity of clients' updates each round; the server then gets each.",
    )
    pictures: bool = Field(
        default=True,
        description="Draw the curves, the partition and the report; `fedapp report` draws them later.",
    )
    resume: bool = Field(False, description="Continue from the last checkpoint in run-dir.")

    # --- filled by read_config
    options: Mapping[str, Scalar] = Field(
        default_factory=dict,
        exclude=True,
        description="Parameters of components, as name.parameter.",
    )

    @field_validator("*", mode="before")
    @classmethod
    def _numbers_as_text(cls, value: Any, info: ValidationInfo) -> Any:
        return number_as_text(value, cls.model_fields[str(info.field_name)])

    @model_validator(mode="after")
    def _combinations(self) -> Self:
        for message in chain(
            _contradictions(self), _needless_over_selection(self), unused_options.of_trainer(self)
        ):
            raise ValueError(message)
        return self

    def component(self, key: str) -> Component:
        """Return the component that ``key`` chooses, with this run's parameters."""
        family = next(family for family in FAMILIES if family.key == key)
        name = cast("str", getattr(self, key))
        return family.components()[name].model_validate(self.options_of(family, name))

    def options_of(self, family: Family, name: str) -> dict[str, Scalar]:
        """Return the parameters of ``family``'s component ``name`` among the options, by field."""
        prefix, fields = f"{name}.", family.components()[name].model_fields
        values = {
            snake(key.removeprefix(prefix)): value
            for key, value in self.options.items()
            if key.startswith(prefix)
        }
        # A data set and a model may have the same name, and then the same prefix.
        return {field: value for field, value in values.items() if field in fields}

    def to_run_config(self) -> dict[str, Scalar]:
        """Return every key and value, flat, as Flower's run-config holds them."""
        return {**self.model_dump(by_alias=True), **self.options}


def _contradictions(config: RunConfig) -> Iterator[str]:
    if config.nesterov and config.momentum == 0:
        yield "nesterov = true: needs momentum above 0. Set momentum=0.9, or nesterov=false."
    if config.local_steps and config.local_epochs != RunConfig.model_fields["local_epochs"].default:
        yield (
            f"local-steps = {config.local_steps}: counts steps instead of epochs, so it excludes "
            f"local-epochs = {config.local_epochs}. Leave one of them out."
        )
    yield from unused_options.of_falling_epochs(config)
    yield from unused_options.of_growing_batches(config)
    yield from unused_options.of_initial_weights(config)
    if config.resume and not config.run_dir:
        yield "resume = true: needs run-dir. Set it to the folder of the run to continue."
    if config.target_accuracy and not config.eval_every:
        yield (
            f"target-accuracy = {config.target_accuracy}: is never tested with eval-every = 0. "
            "Set eval-every=1."
        )
    if config.num_clients and config.min_replies > participants(
        config.fraction_train, config.num_clients
    ):
        yield (
            f"min-replies = {config.min_replies}: only "
            f"{participants(config.fraction_train, config.num_clients)} clients train a round "
            "(max(floor(fraction-train * num-clients), 1)). Lower it, or raise fraction-train."
        )


def _needless_over_selection(config: RunConfig) -> Iterator[str]:
    sampled = participants(config.fraction_train, config.num_clients)
    if config.over_selection and config.num_clients == sampled:
        yield (
            f"over-selection = {config.over_selection}: has no effect, because all {sampled} clients "
            "train each round, and no others can be sampled. Lower fraction-train, or leave "
            "the key out."
        )


def participants(fraction: float, clients: int) -> int:
    """Return m = max(floor(C*K + 1e-9), 1), the clients of one round (McMahan et al., Algorithm 1)."""
    return max(int(fraction * clients + 1e-9), 1)
