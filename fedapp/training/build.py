"""From a configuration to a device, a trainer and an evaluator."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace
from typing import cast

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from fedapp.config.model import ModelConfig
from fedapp.config.registry import source_digest
from fedapp.config.run import ExecutionConfig
from fedapp.config.run_config import RunConfig
from fedapp.config.training import ServerConfig
from fedapp.data.dataset import Dataset, Examples, Task
from fedapp.data.load import load_transform, network_task
from fedapp.data.table import template
from fedapp.data.transforms.transform import Transform
from fedapp.errors import ConfigError, reason_of
from fedapp.models.initial_weights import draw_initial_weights
from fedapp.models.model import Model, initialise, zero_examples
from fedapp.training.algorithm import Algorithm, ClientContext, Tensors, algorithm_of
from fedapp.training.batched.chunks import CLIENTS_PER_CORE, WHOLE_COHORT, ClientBatching
from fedapp.training.batched.compiled_step import Mode, can_compile
from fedapp.training.batched.trainer import BatchedTrainer
from fedapp.training.device import choose_device
from fedapp.training.evaluation import EVALUATION_BATCH, Evaluator, ServerScore, sample_examples
from fedapp.training.networks import (
    changing_buffers,
    has_representation,
    layer_needing_two,
    layer_with_statistics,
    normalisation_names,
    running_statistics,
    unbatchable_layer,
)
from fedapp.training.round_plan import RoundPlan
from fedapp.training.sequential import SequentialTrainer
from fedapp.training.trainer import Trainer

DTYPES = {"float32": torch.float32, "float64": torch.float64}


def sources(config: RunConfig) -> dict[str, str]:
    """Return digests of the source code of a run's components, by their keys."""
    keys = ("algorithm", "model", "partitioner", "transform")
    return {key: source_digest(type(config.component(key))) for key in keys}


def make_model(config: ModelConfig) -> Model:
    """Return the model component that ``config`` names."""
    return cast("Model", config.component("model"))


def make_algorithm(config: ServerConfig, task: Task) -> Algorithm:
    """Return the algorithm that ``config`` names, for ``task``.

    Raises
    ------
    ConfigError
        ``task`` lacks what the algorithm needs.
    """
    algorithm = algorithm_of(config)
    if task.regression and "classes" in algorithm.needs:
        raise ConfigError(
            f"algorithm = {config.algorithm!r}: needs labels of classes, and the labels of this data set "
            "are numbers (a regression). Set algorithm='fedavg', or task='classification' if they are "
            "classes."
        )
    if task.kind == "quadratic" and algorithm.needs:
        raise ConfigError(
            f"algorithm = {config.algorithm!r}: needs examples with labels, and this data set holds "
            "quadratic functions. Choose another dataset, for example dataset='digits', or "
            "algorithm='fedavg'."
        )
    return algorithm


def make_module(config: RunConfig, task: Task) -> nn.Module:
    """Return the network with its seeded initial weights, in the run's precision, on the CPU.

    Raises
    ------
    ConfigError
        It has layers that the run cannot train (running statistics, unless the algorithm leaves them
        with the clients; other buffers that training changes; layers that the batched trainer does not
        support, where it is asked for), no layer that ``initial-weights`` applies to, or no
        representation where the algorithm needs one.
    """
    module = initialise(make_model(config), network_task(config, task), config.seed)
    draw_initial_weights(module, config.initial_weights, config.seed, config.model)
    module = module.to(DTYPES[config.precision])
    if (layer := layer_with_statistics(module)) and not algorithm_of(config).own_normalisation:
        raise ConfigError(
            f"model = {config.model!r}: its {layer} keeps running statistics, which are no parameters: "
            f"with algorithm = {config.algorithm!r} nobody would average them, and the model would be "
            "tested with those that it began with. Set algorithm='fedbn', which leaves them with the "
            "clients, or build the network with nn.GroupNorm, or with track_running_stats=False; to "
            "freeze them, let train() leave the layer in evaluation mode."
        )
    _require_representation(config, task, module)
    _require_pure(config, task, module)
    if config.trainer == "batched" and (
        layer := unbatchable_layer(module, example_inputs(config, task))
    ):
        raise ConfigError(
            f"trainer = 'batched': model = {config.model!r} has a {layer}, which draws at random or "
            "mixes the examples of a batch, so that one program cannot train several clients. Set "
            "trainer='sequential' or 'auto' (and leave out --stacked)."
        )
    return module


def network_context(
    config: RunConfig, task: Task, theta: Tensors, broadcast: Tensors
) -> ClientContext:
    """Return what the contexts of all clients have in common, on the CPU; label counts are zeros."""
    module = make_module(config, task)
    counts = torch.zeros(task.num_classes, dtype=DTYPES[config.precision])
    return ClientContext(
        {**theta, **running_statistics(module)},
        broadcast,
        normalisation=normalisation_names(module),
        label_counts=counts if "classes" in make_algorithm(config, task).needs else None,
    )


def example_inputs(config: RunConfig, task: Task, count: int = 2) -> Tensor:
    """Return inputs of zeros in the run's precision, as the network sees them: [count, ...]."""
    return zero_examples(network_task(config, task), count, DTYPES[config.precision])


def _require_pure(config: RunConfig, task: Task, module: nn.Module) -> None:
    """Refuse a network that a forward pass in training mode changes, or that raises in one."""
    name = type(module).__name__
    try:
        changing = changing_buffers(module, example_inputs(config, task))
    except Exception as error:
        raise ConfigError(
            f"model = {config.model!r}: {name} raises {reason_of(error)} for two examples in training "
            "mode, and not in evaluation mode. Let forward take [n, *input_shape] in both."
        ) from error
    if changing:
        raise ConfigError(
            f"model = {config.model!r}: a forward pass of {name} in training mode changes its buffer "
            f"{changing[0]}, which is no parameter: nobody would average it, and one client's values "
            "would be seen by the next. Let forward change no buffer (as spectral_norm and moving "
            "averages do): compute what it holds from the parameters, or leave it out."
        )


def require_whole_model(config: RunConfig, task: Task, *, because: str) -> None:
    """Refuse what needs the server's model, where its normalisation layers stay with the clients.

    Raises
    ------
    ConfigError
        They do, and ``because`` says what needs it, and what to do.
    """
    own = algorithm_of(config).own_normalisation
    if own and normalisation_names(make_module(config, task)):
        raise ConfigError(
            f"algorithm = {config.algorithm!r}: the normalisation layers of model = {config.model!r} "
            f"stay with the clients, and the server's model has none that are trained. {because}"
        )


def require_target(config: RunConfig, task: Task) -> None:
    """Raise ConfigError if the run is to stop at an accuracy, and its task has none."""
    if config.target_accuracy and not task.has_accuracy:
        labels = "numbers (a regression)" if task.regression else "no classes"
        raise ConfigError(
            f"target-accuracy = {config.target_accuracy}: the labels of this data set are {labels}, and "
            "predictions have no accuracy. Set target-accuracy=0."
        )


def require_given_statistics(config: RunConfig, dataset: Dataset) -> None:
    """Refuse a private run whose inputs are coded by statistics of the private examples.

    Raises
    ------
    ConfigError
        It is on words, whose vocabulary the examples give, or on a table; then the message has a file of
        statistics to fill in.
    """
    if algorithm_of(config).privacy(config) is None:
        return
    if dataset.task.kind == "tokens" and config.text_unit == "words":
        raise ConfigError(
            "text-unit = 'words': the vocabulary, which the released model has a row a word of, would be "
            f"the words of the examples that algorithm = {config.algorithm!r} protects, without noise. "
            "Set text-unit='characters'."
        )
    if dataset.statistics is not None and not config.table_statistics:
        raise ConfigError(
            "table-statistics = '': means, deviations and categories would be computed from the examples "
            f"that algorithm = {config.algorithm!r} protects, without noise. Write them by hand, from "
            "what is publicly known, to a JSON file on the machine of the ServerApp, and set "
            f"table-statistics to it: {template(dataset.statistics)}"
        )


def require_batches(config: RunConfig, task: Task, sizes: ArrayLike) -> None:
    """Refuse batches of one example, where the network cannot train on one; ``sizes``: n_k [K].

    Raises
    ------
    ConfigError
        A client has such a batch, in some round, and a layer of the network that is BatchNorm there.
    """
    counts: list[int] = np.unique(np.asarray(sizes, np.int64)).tolist()
    plans = list(_plans_of_batches(config, max(counts, default=0)))
    single = [n for n in counts if any(plan.smallest_batch(n) == 1 for plan in plans)]
    if not single:
        return
    layer = layer_needing_two(make_module(config, task), example_inputs(config, task, 1))
    if not layer:
        return
    fix = "Set batch-sampling='uniform', whose batches are all full, or another batch-size."
    if single[0] == 1 or config.batch_size == 1:
        fix = "Set a batch-size of 2 or more, and give every client at least 2 training examples."
    raise ConfigError(
        f"batch-size = {config.batch_size}: a client of {single[0]} training examples has a batch of a "
        f"single one, on which a {layer} of model = {config.model!r} cannot train, because it "
        f"normalises by the variance of a batch. {fix}"
    )


def _plans_of_batches(config: RunConfig, largest: int) -> Iterator[RoundPlan]:
    """Yield the plans of rounds that differ in B, until all ``largest`` examples are one batch."""
    for round_ in range(1, config.num_server_rounds + 1):
        yield (plan := RoundPlan.of(config, round_))
        if config.batch_size_growth == 1 or plan.batch(largest) == largest:
            return


def _require_representation(config: RunConfig, task: Task, module: nn.Module) -> None:
    """Refuse a network without a representation where the algorithm compares them."""
    if "features" in make_algorithm(config, task).needs and not has_representation(module):
        raise ConfigError(
            f"algorithm = {config.algorithm!r}: compares representations, what a network makes of its "
            f"input before the last linear layer, and model = {config.model!r} has none that is "
            "trained. Choose another model, for example model='2nn', or algorithm='fedavg'."
        )


def initial_parameters(config: RunConfig, task: Task) -> Tensors:
    """Return theta_0, a function of the seed, the model and the task alone."""
    module = make_module(config, task)
    return {name: tensor.detach().clone() for name, tensor in module.named_parameters()}


def is_batched(config: ExecutionConfig) -> bool:
    """Return whether the trainer that ``config`` names is the batched one; ``auto`` is so on a GPU.

    On a CPU the server replaces ``auto`` (``execution.chosen_trainer``).
    """
    on_gpu = choose_device(config).type == "cuda"
    return config.trainer == "batched" or (config.trainer == "auto" and on_gpu)


def compiles_where_it_pays(config: RunConfig) -> bool:
    """Return whether this machine compiles steps for which recording alone does not pay."""
    return config.program != "auto" or not make_model(config).light or can_compile()


def make_trainer(config: RunConfig, task: Task) -> Trainer:
    """Return the trainer that ``config`` names, on its device and for a process of its ``threads``.

    Raises
    ------
    ConfigError
        Its ``program`` does not run on the device or machine.
    """
    device, dtype = choose_device(config), DTYPES[config.precision]
    model, algorithm = make_model(config), make_algorithm(config, task)
    transform, module = load_transform(config), make_module(config, task)
    if is_batched(config) and not unbatchable_layer(module, example_inputs(config, task)):
        mode = choose_program(config, device)
        batching = choose_batching(config, device, mode)
        others = dict(module.named_buffers()).keys() - running_statistics(module).keys()
        seed = config.seed if others or type(model).own_code else 0
        kinds = (device, dtype, batching, mode, config.threads, seed)
        return _batched(model, algorithm, transform, task, *kinds)
    return SequentialTrainer(module, model, algorithm, transform, device, dtype, task.num_classes)


@functools.lru_cache(maxsize=4)
def _batched(
    model: Model,
    algorithm: Algorithm,
    transform: Transform,
    task: Task,
    device: torch.device,
    dtype: torch.dtype,
    batching: ClientBatching,
    mode: Mode,
    _threads: int,
    seed: int,
) -> BatchedTrainer:
    """Return a trainer, cached by all that its compiled steps depend on, so that runs of a grid share it.

    Inductor compiles for the number of threads at that time. ``seed`` gives the initial values, of which
    only buffers are used: 0 without others than running statistics, which begin with the same values. A
    model of one's own may draw more than buffers, as which inputs it connects.
    """
    shape = transform.output_shape(task.input_shape)
    module = initialise(model, replace(task, input_shape=shape), seed=seed)
    return BatchedTrainer(
        module, model, algorithm, transform, device, dtype, task.num_classes, batching, mode
    )


SMALL_BATCH = 20
"""B up to which batched matmuls of several clients are faster than one after the other."""


def choose_batching(config: RunConfig, device: torch.device, mode: Mode) -> ClientBatching:
    """Return how many clients share a compiled step.

    On a CPU a few for each thread, as many as fit its core's cache, and only clients with equal numbers
    of steps, because masked steps cost as much as others.
    """
    if config.clients_together:
        return ClientBatching(config.clients_together)
    if device.type == "cuda":
        return ClientBatching(WHOLE_COHORT)
    small = mode == "compile" and config.batch_size <= SMALL_BATCH
    return ClientBatching(CLIENTS_PER_CORE * max(config.threads, 1) if small else 1, equal=True)


def choose_program(config: RunConfig, device: torch.device) -> Mode:
    """Return how the batched trainer runs a local step on ``device``.

    Compiling pays where Python takes a good part of a step: not for full-batch steps, which would be
    compiled for each client size, and not for convolutions and texts (``Model.light``).

    Raises
    ------
    ConfigError
        A CUDA graph is asked for without a GPU, or compiling without a compiler.
    """
    if config.program == "auto":
        if device.type == "cuda":
            return "capture"
        pays = config.batch_size > 0 and make_model(config).light
        return "compile" if pays and can_compile() else "record"
    if config.program == "capture" and device.type != "cuda":
        raise ConfigError(
            "program = 'capture': a CUDA graph needs a GPU, and this process trains on the CPU. "
            "Set program='auto', 'compile' or 'record'."
        )
    if config.program == "compile" and not can_compile():
        raise ConfigError(
            "program = 'compile': there is no C++ compiler (g++ or clang++). Install one, or set "
            "program='record'."
        )
    return config.program


FITS_CACHE = 100
"""Examples whose activations fit a processor's cache, unless the network is light."""


def make_evaluator(config: RunConfig, task: Task, examples: Examples) -> Evaluator:
    """Return an evaluator whose examples stay on the run's device."""
    model, device = make_model(config), choose_device(config)
    small = device.type == "cpu" and not model.light
    return Evaluator(
        make_module(config, task),
        model,
        examples,
        load_transform(config),
        device,
        DTYPES[config.precision],
        FITS_CACHE if small else EVALUATION_BATCH,
    )


def make_score(config: RunConfig, dataset: Dataset) -> ServerScore:
    """Return the function from theta to its scores on test data and, where asked, on training data."""
    on_test = make_evaluator(config, dataset.task, dataset.test)
    evaluators = {"test": on_test}
    if config.eval_train_examples:
        examples = sample_examples(dataset.train, config.eval_train_examples, config.seed)
        evaluators["training_set"] = on_test.with_examples(examples)
    return ServerScore(evaluators)
