"""RunConfig: every run-config key, its type, its bounds and its meaning; checked here and nowhere else.

The table ``[tool.flwr.app.config]`` in ``pyproject.toml``, the configuration reference and the
CLI's completion are generated from this class and from the components' parameters.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, Self, cast

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from fedapp.config import unused_options
from fedapp.config.registry import FAMILIES, Component, Family, number_as_text
from fedapp.errors import ConfigError

if TYPE_CHECKING:
    from fedapp.training.algorithm import Algorithm

Scalar = bool | int | float | str

LEFT_TO_THE_ALGORITHM = ("weighting", "server_learning_rate")
"""Fields whose default stands for the algorithm's own value, ``own_<field>`` of its class."""


def kebab(name: str) -> str:
    """Return a field's name as it is written in run-configs and other TOMLs."""
    return name.replace("_", "-")


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
        20, ge=0, description="Clients, K. 0: each SuperNode is one client with data of its own."
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
        1, ge=1, description="Clients that must reply well for a round to change the model."
    )
    over_selection: float = Field(
        0.0,
        ge=0,
        le=10,
        description="Share of further clients asked; the first m good replies count.",
    )
    max_update_norm: float = Field(
        1e6, ge=0, description="Largest L2 norm of an update over max(|theta|, 1). 0: any."
    )
    on_failure: Literal["continue", "stop"] = Field(
        "continue",
        description="What to do when a client fails or a round has too few good replies.",
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
        "", description="Configuration of a hub data set, or IDX files' set, if it has several."
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
        10000, ge=2, description="Words known, the unknown one included; the rest becomes unknown."
    )
    text_client_words: int = Field(
        5000, ge=0, description="Words a client trains on at most (text-unit words). 0: all."
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
        description="Weights to begin with: a run's folder, or a file of safetensors. Empty: drawn "
        "from the seed.",
    )
    initial_weights: Literal["model", "truncated-normal", "glorot", "he"] = Field(
        "model",
        description="How linear and convolutional layers are drawn. model: as the network says. "
        "truncated-normal: sigma 0.1, biases 0.1, as TensorFlow's MNIST tutorial. glorot, he: their "
        "rules, biases 0.",
    )
    # --- run
    seed: int = Field(0, ge=0, lt=2**63, description="Seed of everything that is drawn.")
    device: str = Field(
        "auto",
        pattern=r"^(auto|cpu|cuda(:\d+)?)$",
        description="'auto', 'cpu', 'cuda' or 'cuda:N'.",
    )
    precision: Literal["float32", "float64"] = Field("float32", description="Parameters' type.")
    threads: int = Field(
        1,
        ge=0,
        description="CPU threads of a process that trains; 0: as many as are quickest, measured once.",
    )
    trainer: Literal["auto", "sequential", "batched"] = Field(
        "auto",
        description="What executes ClientUpdate for a cohort. auto: batched on a GPU, else "
        "sequential.",
    )
    program: Literal["auto", "record", "compile", "capture"] = Field(
        "auto",
        description="How the batched trainer runs a local step: its bare operations, compiled, or "
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
        10, ge=0, description="Rounds between checkpoints. 0: rounds do not count."
    )
    checkpoint_seconds: float = Field(
        60.0,
        ge=0,
        description="Seconds after which the next round's end is a checkpoint too. 0: time does not "
        "count.",
    )
    run_dir: str = Field("", description="The run's folder. Empty: a new one under runs/.")
    record_updates: bool = Field(
        False,
        description="Record each round how clients' updates agree; the server then gets each of them.",
    )
    pictures: bool = Field(
        default=True,
        description="Draw the curves, the partition and the report. `fedapp report` does it later.",
    )
    resume: bool = Field(False, description="Go on from the last checkpoint in run-dir.")

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
        for message in chain(_senseless(self), _overasked(self), unused_options.of_trainer(self)):
            raise ValueError(message)
        return self

    def component(self, key: str) -> Component:
        """Return the component that ``key`` chooses, with this run's parameters."""
        family = next(family for family in FAMILIES if family.key == key)
        name = cast("str", getattr(self, key))
        prefix, component = f"{name}.", family.components()[name]
        values = {
            k.removeprefix(prefix): v for k, v in self.options.items() if k.startswith(prefix)
        }
        # A data set and a model may share a name, and then the prefix.
        own = {k: v for k, v in _snake(values).items() if k in component.model_fields}
        return component.model_validate(own)

    def to_run_config(self) -> dict[str, Scalar]:
        """Return every key and value, flat, as Flower's run-config holds them."""
        return {**self.model_dump(by_alias=True), **self.options}


def _senseless(config: RunConfig) -> Iterator[str]:
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
        yield "resume = true: needs to know the run. Set run-dir to the folder of the run to go on with."
    if config.target_accuracy and not config.eval_every:
        yield (
            f"target-accuracy = {config.target_accuracy}: is never seen with eval-every = 0. "
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


def participants(fraction: float, clients: int) -> int:
    """Return m = max(floor(C*K + 1e-9), 1), the clients of one round (McMahan et al., Algorithm 1)."""
    return max(int(fraction * clients + 1e-9), 1)


def read_config(values: Mapping[str, Any]) -> RunConfig:
    """Build the configuration from Flower's run-config (kebab-case keys, dotted for components).

    What the run-config leaves to the algorithm is the algorithm's own value in what is returned.

    Raises
    ------
    ConfigError
        One message that lists every wrong key: its value, what is allowed and how to mend it.
    """
    options = {key: value for key, value in values.items() if "." in key}
    plain = {key: value for key, value in values.items() if "." not in key}
    problems = [*_unknown_keys(plain, options), *_not_one_value(options)]
    options = {key: value for key, value in options.items() if isinstance(value, Scalar)}
    config = None
    try:
        known = {key: value for key, value in plain.items() if key in _aliases()}
        complete = {key: field.get_default() for key, field in option_fields().items()} | options
        config = RunConfig.model_validate({**known, "options": complete})
    except ValidationError as error:
        problems += [_describe(detail, RunConfig) for detail in error.errors()]
    if config is not None:
        problems += _component_problems(config)
        if not problems:
            config = _with_own(config)
            problems += _config_errors(config)
    if problems or config is None:
        raise ConfigError("\n".join(problems))
    return config


def _with_own(config: RunConfig) -> RunConfig:
    """Return ``config`` with the algorithm's own value of each key that is left to it."""
    algorithm = cast("Algorithm", config.component("algorithm"))
    own = {field: getattr(algorithm, f"default_{field}") for field in LEFT_TO_THE_ALGORITHM}
    if algorithm.one_gradient:
        own["local_epochs"] = 1
    unset = {k: v for k, v in own.items() if getattr(config, k) == _default(k)}
    return config.model_copy(update=unset)


def without_others(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return run-config values without the parameters of components that they do not choose.

    These have no effect, and what a run has written down of them may be another version's default.
    """
    fields = RunConfig.model_fields
    chosen = {values.get(family.key, fields[family.key].default) for family in FAMILIES}
    return {
        key: value
        for key, value in values.items()
        if "." not in key or key.partition(".")[0] in chosen
    }


def defaults() -> dict[str, Scalar]:
    """Return every key with its default as it is written, the components' parameters included.

    What is left to the algorithm stands there as "auto" and 0.
    """
    left = {kebab(field): _default(field) for field in LEFT_TO_THE_ALGORITHM}
    return {**read_config({}).to_run_config(), **left}


def _default(field: str) -> Scalar:
    return cast("Scalar", RunConfig.model_fields[field].default)


@functools.cache
def option_fields() -> dict[str, FieldInfo]:
    """Return the field of every component's parameter by its key ``name.parameter``."""
    return {
        f"{name}.{kebab(field)}": info
        for family in FAMILIES
        for name, component in family.components().items()
        for field, info in component.model_fields.items()
    }


def field_of(key: str) -> FieldInfo:
    """Return the field behind a run-config key, a component's parameter or one of RunConfig."""
    options = option_fields()
    return options[key] if key in options else RunConfig.model_fields[key.replace("-", "_")]


@functools.cache
def _aliases() -> tuple[str, ...]:
    return tuple(kebab(name) for name in RunConfig.model_fields if name != "options")


def _overasked(config: RunConfig) -> Iterator[str]:
    chosen = participants(config.fraction_train, config.num_clients)
    if config.over_selection and config.num_clients == chosen:
        yield (
            f"over-selection = {config.over_selection}: has no effect, because all {chosen} clients "
            "train each round, and there are no further ones to ask. Lower fraction-train, or leave "
            "the key out."
        )


def _unknown_keys(plain: Mapping[str, Any], options: Mapping[str, Any]) -> Iterator[str]:
    for key, value in {**plain, **options}.items():
        if key not in _aliases() and key not in option_fields():
            near = difflib.get_close_matches(key, [*_aliases(), *option_fields()], n=1, cutoff=0.5)
            hint = f"Did you mean {near[0]!r}? " if near else ""
            yield f"{key} = {value!r}: there is no such key. {hint}`fedapp keys` lists them all."


def _not_one_value(options: Mapping[str, Any]) -> Iterator[str]:
    for key, field in option_fields().items():
        if key in options and not isinstance(options[key], Scalar):
            yield (
                f"{key} = {options[key]!r}: must be one value: a number, a text, true or false. "
                f"{field.description} The default is {field.get_default()!r}."
            )


def _component_problems(config: RunConfig) -> Iterator[str]:
    chosen = {getattr(config, family.key) for family in FAMILIES}
    for family in FAMILIES:
        name, known = getattr(config, family.key), family.components()
        if name not in known and not family.open:
            yield _unknown_choice(family, name, known)
        for other, component in known.items():
            yield from _option_problems(config, family, other, component, other in chosen)


def _config_errors(config: RunConfig) -> Iterator[str]:
    yield from unused_options.of_option_two(
        config, cast("Algorithm", config.component("algorithm"))
    )
    for family in FAMILIES:
        if getattr(config, family.key) in family.components():
            yield from config.component(family.key).config_errors(config)
            if family.key == "dataset":
                yield from unused_options.of_embedded_data(config)


def _unknown_choice(family: Family, name: str, known: Mapping[str, Any]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return (
        f"{family.key} = {name!r}: there is no such {family.key}. One of: {', '.join(known)}.{hint}"
    )


def _option_problems(
    config: RunConfig, family: Family, name: str, component: type[Component], chosen: bool
) -> Iterator[str]:
    prefix = f"{name}."
    values = {k.removeprefix(prefix): v for k, v in config.options.items() if k.startswith(prefix)}
    known = {k: v for k, v in _snake(values).items() if k in component.model_fields}
    try:
        instance = component.model_validate(known)
    except ValidationError as error:
        yield from (_describe(detail, component, prefix) for detail in error.errors())
        return
    default = component()
    for field in known:
        if not chosen and getattr(instance, field) != getattr(default, field):
            yield (
                f"{prefix}{kebab(field)} = {known[field]!r}: has no effect, because {family.key} is "
                f"{getattr(config, family.key)!r}. Set {family.key}='{name}', or leave the key out."
            )


def _snake(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key.replace("-", "_"): value for key, value in values.items()}


def _describe(detail: ErrorDetails, model: type[BaseModel], prefix: str = "") -> str:
    """Say one pydantic error as: key = value: what is allowed. Meaning. How to mend it."""
    message = detail["msg"].removeprefix("Value error, ")
    message = message if not detail["loc"] else message.rstrip(".")
    if not detail["loc"]:
        return message if not prefix else f"{prefix.rstrip('.')}: {message}"
    key = str(detail["loc"][0])
    field = model.model_fields[key.replace("-", "_")]
    rule = message[0].lower() + message[1:]
    rule = rule.replace("input should be", "must be").replace("string should", "must")
    return (
        f"{prefix}{kebab(key)} = {detail['input']!r}: {rule}. {field.description} "
        f"The default is {field.get_default()!r}."
    )
