"""A trial of what is of one's own, on two examples, before a run directory is made.

One client update and one step of the server run as in a round, and what each method returns is checked,
so that a round needs no checks.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from fedapp.config.registry import Component, calling, setting_of
from fedapp.config.run_config import RunConfig
from fedapp.data.dataset import Dataset, Examples, Subset
from fedapp.data.load import load_transform, network_task
from fedapp.data.transforms.transform import Transform
from fedapp.errors import ConfigError, one_line, reason_of
from fedapp.models.model import Model, PlainModel
from fedapp.training.algorithm import (
    NOT_SAVED,
    Algorithm,
    Batch,
    ClientContext,
    ClientExtras,
    ServerStep,
)
from fedapp.training.batched.chunks import ClientBatching
from fedapp.training.batched.trainer import BatchedTrainer
from fedapp.training.batches import to_device
from fedapp.training.build import (
    DTYPES,
    example_inputs,
    is_batched,
    make_algorithm,
    make_model,
    make_module,
)
from fedapp.training.client import client_task, is_personalised, shared_context, update_of
from fedapp.training.evaluation import SCORE_PREFIXES, as_floats, is_reserved
from fedapp.training.networks import unbatchable_layer
from fedapp.training.round_plan import RoundPlan
from fedapp.training.sequential import SequentialTrainer
from fedapp.training.tensors import add, norm
from fedapp.training.trainer import ClientTask

ROUND_METRICS = frozenset(
    (
        *("round", "seconds", "clients", "replied", "failures", "faults", "surplus"),
        *("late_replies", "bytes_asked", "epsilon", "delta", "adjacency", "checkpoint_error"),
        *("examples", "steps", "learning_rate", "local_epochs", "batch_size", "updates"),
        *("effective_updates", "train_loss", "model_changed", "bytes_down", "bytes_up"),
        *("similarity", "distance_mean", "distance_max"),
    )
)
"""The names in a round's line of ``metrics.jsonl``, besides scores; an algorithm's own are others."""

VMAP_ADVICE = re.compile(r" We don't support that yet, please file an issue at \S+ \.")
"""What PyTorch adds where a rule branches on a value under ``vmap``."""


def try_out(config: RunConfig, dataset: Dataset) -> None:
    """Try out the run's algorithm, transform, loss and metrics, if they are the user's own.

    Raises
    ------
    ConfigError
        A method raises, or returns what a round cannot use.
    """
    own, model = make_algorithm(config, dataset.task), make_model(config)
    if (transform := load_transform(config)).own_code is not None:
        _try_transform(config, dataset, transform)
    if model.own_code is not None and not isinstance(model, PlainModel):
        if type(model).loss is not Model.loss:
            _try_round(config, dataset, Algorithm(), model)
        _try_evaluation(config, dataset, model)
    if own.own_code is not None:
        _try_round(config, dataset, own, own)


def _try_transform(config: RunConfig, dataset: Dataset, transform: Transform) -> None:
    """Transform two examples as for a test and as for training."""
    inputs, _ = to_device(_two(dataset), torch.device("cpu"))
    shape = (len(inputs), *network_task(config, dataset.task).input_shape)
    given = (inputs, DTYPES[config.precision])
    draws = torch.zeros(len(inputs), transform.draws)
    for method, arguments in (("test", given), ("train", (*given, draws))):
        with calling(transform, method):
            returned = getattr(transform, method)(*arguments)
        if not isinstance(returned, Tensor) or returned.shape != shape:
            raise ConfigError(
                f"{setting_of(transform)}: {method} returns {_kind(returned)} for two examples. Let it "
                f"return [n, *output_shape]: a tensor of shape {shape}."
            )


def _try_round(config: RunConfig, dataset: Dataset, own: Algorithm, component: Component) -> None:
    """Run a round of the algorithm; errors name the component that is tried out."""
    module, model = make_module(config, dataset.task), make_model(config)
    layer = unbatchable_layer(module, example_inputs(config, dataset.task))
    batched = config.trainer != "sequential" and not layer
    algorithm = cast("Algorithm", _Checked(own, component, batched=batched))
    kinds = (torch.device("cpu"), DTYPES[config.precision], dataset.task.num_classes)
    trainer = SequentialTrainer(module, model, algorithm, load_transform(config), *kinds)
    plan = RoundPlan.of(config)
    plan = replace(plan, steps=min(plan.steps, 2) or 2, batch_size=0)
    theta = {name: tensor.detach().clone() for name, tensor in module.named_parameters()}
    state = algorithm.start(theta)
    shared = shared_context(trainer, theta, algorithm.broadcast(state), plan)
    task = client_task(trainer, shared, plan, 0, _two(dataset), None)
    (result,) = trainer.client_updates([task], plan)
    if batched and is_batched(config):
        _try_together(trainer, own, component, task, plan)
    mean = result.extras.update or update_of(plan, result.params, shared, algorithm)
    for problem in _difference(mean, theta):
        raise ConfigError(
            f"{setting_of(component)}: finalize returns as update {problem}. Let it have the parameters' "
            "names, shapes and types."
        )
    if algorithm.reply == "each":
        count = max(algorithm.min_updates, 1)
        mean = algorithm.aggregate([mean] * count, [1.0] * count)
    clients = config.num_clients or 1
    step = ServerStep(plan, config.server_learning_rate, clients, 1, 1.0, config.fraction_train)
    _, state = algorithm.apply(theta, mean, result.extras.upload, state, step)
    for name in sorted(as_floats(own, "report", algorithm.report(state))):
        if name in ROUND_METRICS or name.startswith(SCORE_PREFIXES):
            raise ConfigError(
                f"{setting_of(component)}: report returns {name!r}, which is a name of a round's own "
                f"numbers or begins as a score's ({', '.join(SCORE_PREFIXES)}). Choose another name."
            )
    if is_personalised(own):
        _try_personal_evaluation(algorithm, shared)


def _try_together(
    trainer: SequentialTrainer,
    own: Algorithm,
    component: Component,
    task: ClientTask,
    plan: RoundPlan,
) -> None:
    """Train two clients in one traced step, as the batched trainer of the run will."""
    batched = BatchedTrainer(
        trainer.network.module,
        trainer.model,
        own,
        trainer.transform,
        trainer.device,
        trainer.dtype,
        trainer.num_classes,
        ClientBatching(2),
    )
    try:
        batched.train([task, task], plan)
    except Exception as error:
        reason = VMAP_ADVICE.sub("", one_line(reason_of(error))).removesuffix(".")
        raise ConfigError(
            f"{setting_of(component)}: the batched trainer cannot trace its local step: {reason}. Use "
            "torch.where in place of branches on values of tensors, or set trainer='sequential'."
        ) from error


def _try_personal_evaluation(algorithm: Algorithm, shared: ClientContext) -> None:
    """Ask for the parameters with which a client is evaluated."""
    context = ClientContext(
        shared.global_params, state=shared.state, normalisation=shared.normalisation
    )
    try:
        algorithm.initial_params(context)
    except ConfigError as error:
        raise ConfigError(
            f"{error} A client is evaluated with them, too: then context has global_params, state and "
            "normalisation alone."
        ) from error


def _try_evaluation(config: RunConfig, dataset: Dataset, model: Model) -> None:
    """Evaluate the initial model on two examples."""
    module = make_module(config, dataset.task).eval()
    inputs, targets = to_device(_two(dataset), torch.device("cpu"))
    with torch.no_grad():
        outputs = module(load_transform(config).test(inputs, DTYPES[config.precision]))
        with calling(model, "num_correct"):
            counts = model.num_correct(outputs, targets)
        with calling(model, "metrics"):
            metrics = model.metrics(outputs, targets)
    if not (isinstance(counts, tuple) and len(counts) == 2) or any(
        not isinstance(each, Tensor) or each.dim() for each in counts
    ):
        raise ConfigError(
            f"{setting_of(model)}: num_correct returns {one_line(repr(counts))}. Let it return two "
            "tensors without dimensions: how many targets are predicted correctly, and how many count."
        )
    for name in filter(is_reserved, as_floats(model, "metrics", metrics)):
        raise ConfigError(
            f"{setting_of(model)}: metrics returns {name!r}, which is a name of a round's own numbers. "
            "Choose another name."
        )


def _two(dataset: Dataset) -> Examples:
    return Subset(dataset.train, np.arange(min(len(dataset.train), 2)))


class _Checked:
    """An algorithm whose methods are checked for what they return, and name a component in errors.

    ``batched``: whether the batched trainer may run it, here or on a machine with a GPU.
    """

    def __init__(self, algorithm: Algorithm, component: Component, *, batched: bool) -> None:
        self._algorithm, self._component, self._batched = algorithm, component, batched

    def __getattr__(self, name: str) -> Any:
        algorithm, component = self._algorithm, self._component
        value = getattr(algorithm, name)
        if not inspect.ismethod(value):
            return value

        def called(*arguments: Any) -> Any:
            before, attributes = torch.get_rng_state(), _attributes(algorithm)
            with calling(component, name):
                returned = value(*arguments)
            for attribute, now in _attributes(algorithm).items():
                if attributes.get(attribute, UNSET) is not now:
                    problem = f"{name} sets self.{attribute}, {NOT_SAVED}."
                    raise ConfigError(f"{setting_of(component)}: {problem}")
            draws = name in CLIENT_RULE and not torch.equal(before, torch.get_rng_state())
            for problem in self._problems(name, returned, arguments, draws=draws):
                raise ConfigError(f"{setting_of(component)}: {problem}")
            return returned

        return called

    def _problems(
        self, name: str, returned: Any, arguments: tuple[Any, ...], *, draws: bool
    ) -> Iterator[str]:
        if name in CHECKS:
            problems = CHECKS[name](self._algorithm, returned, arguments)
            yield from (f"{name} returns {problem}" for problem in problems)
        if not self._batched:
            return
        batched = "the batched trainer (on a GPU trainer='auto')"
        if draws:
            yield (
                f"{name} draws at random, for which {batched} has no seed. Use `round_randomness`, or "
                "set trainer='sequential'."
            )
        with calling(self._component, name):
            uses_round = name in LOCAL_STEP and _uses_round(self._algorithm, name, arguments)
        if uses_round:
            yield (
                f"{name} depends on context.round or context.steps, which {batched} does not have in a "
                "local step. Give it by `round_randomness`, or set trainer='sequential'."
            )
        if name == "gradient" and _counts_padding(self._algorithm, returned, arguments):
            yield (
                f"its loss counts the padding of batches, which {batched} has. Weigh the examples by "
                "`batch.mask` (`mean_over_targets`), or set trainer='sequential'."
            )


UNSET = object()
"""In place of an attribute that is not set."""


def _attributes(algorithm: Algorithm) -> dict[str, Any]:
    """Return the attributes that a method may set, which are no parameters and no cached properties."""
    cached = dir(type(algorithm))
    own = {name: value for name, value in vars(algorithm).items() if name not in cached}
    return {**own, **(algorithm.__pydantic_private__ or {})}


CLIENT_RULE = ("initial_params", "loss", "gradient", "step_state", "finalize")
"""The methods for which the sequential trainer seeds PyTorch's generator."""


LOCAL_STEP = {"loss": 1, "gradient": 1, "step_state": 0}
"""The methods of a local step, which the batched trainer traces once, and the place of ``params``."""


def _uses_round(algorithm: Algorithm, name: str, arguments: tuple[Any, ...]) -> bool:
    """Return whether a method of a local step gives something else in another round.

    At other parameters than theta, where a term that keeps them near it is not 0.
    """
    place, method = LOCAL_STEP[name], getattr(algorithm, name)
    moved = {n: tensor.detach() * 1.01 + 0.01 for n, tensor in arguments[place].items()}
    given, context = [*arguments[:place], moved, *arguments[place + 1 : -1]], arguments[-1]
    later = replace(context, round=context.round + 1, steps=context.steps + 1)
    now, then = _tensors_in(method(*given, context)), _tensors_in(method(*given, later))
    return not all(
        first.shape == second.shape and first.isclose(second, equal_nan=True).all()
        for first, second in zip(now, then, strict=True)
    )


def _tensors_in(returned: Any) -> list[Tensor]:
    """Return the tensors of what a method of a local step returns."""
    if isinstance(returned, Tensor):
        return [returned]
    values = returned.values() if isinstance(returned, Mapping) else returned
    return [tensor for value in values for tensor in _tensors_in(value)]


def _counts_padding(algorithm: Algorithm, returned: Any, arguments: tuple[Any, ...]) -> bool:
    """Return whether a local step would be another if the batch were filled up with its first example.

    By a hundredth: a sign of a gradient may change by rounding.
    """
    differentiate, params, batch, context = arguments
    rows = [*range(len(batch.targets)), 0]
    mask = torch.tensor([1] * len(batch.targets) + [0]).to(returned[1])
    filled_up = Batch(batch.inputs[rows], batch.targets[rows], mask)
    direction, loss = algorithm.gradient(differentiate, params, filled_up, context)
    before = {name: returned[0][name] for name in params}
    changed = norm(add(before, direction, -1.0)) > 0.01 * norm(before) + 1e-6
    return bool(changed) or not loss.isclose(returned[1], rtol=0.01, atol=1e-6, equal_nan=True)


Check = Callable[[Algorithm, Any, tuple[Any, ...]], Iterator[str]]
"""(algorithm, what a method returned, its arguments) to problems: what it returned, and what to do."""


def _loss(_: Algorithm, loss: Any, arguments: tuple[Any, ...]) -> Iterator[str]:
    fix = (
        "Let it return the mean loss of the batch, a tensor without dimensions that PyTorch computed "
        "from params: without float(), item() and detach()."
    )
    yield from (f"{problem}. {fix}" for problem in _no_scalar(loss))
    if not loss.requires_grad:
        yield f"a tensor that has no gradient. {fix}"


def _gradient(_: Algorithm, returned: Any, arguments: tuple[Any, ...]) -> Iterator[str]:
    fix = (
        "Let it return the direction of the step, with the parameters' names, shapes and types, and the "
        "value of the objective, a tensor without dimensions: as differentiate(params, batch) does."
    )
    if not (isinstance(returned, tuple) and len(returned) == 2):
        yield f"{_kind(returned)}. {fix}"
    direction, loss = returned
    problems = [*_difference(direction, arguments[1], more=True), *_no_scalar(loss)]
    yield from (f"{problem}. {fix}" for problem in problems)
    further = {name: tensor for name, tensor in direction.items() if name not in arguments[1]}
    yield from _parameters_among(further, arguments[1])


def _step_state(algorithm: Algorithm, returned: Any, arguments: tuple[Any, ...]) -> Iterator[str]:
    yield from _tensors(algorithm, returned, arguments)
    yield from _parameters_among(returned, arguments[0])


def _parameters_among(tensors: Mapping[str, Tensor], params: Mapping[str, Tensor]) -> Iterator[str]:
    """Yield which tensors for the next step share memory with parameters."""
    memory = {tensor.untyped_storage().data_ptr() for tensor in params.values()}
    for name, tensor in tensors.items():
        if tensor.untyped_storage().data_ptr() in memory:
            yield f"{name!r}: the parameter itself, which the next step changes. Return a `.clone()`."


def _tensors(_: Algorithm, returned: Any, arguments: tuple[Any, ...]) -> Iterator[str]:
    for problem in _difference(returned, {}, more=True):
        yield f"{problem}. Let it return a dictionary of tensors by name."


def _initial_params(_: Algorithm, returned: Any, arguments: tuple[Any, ...]) -> Iterator[str]:
    for problem in _difference(returned, arguments[0].global_params, more=True):
        yield f"{problem}. Let it return tensors as those of context.global_params."


def _finalize(algorithm: Algorithm, extras: Any, arguments: tuple[Any, ...]) -> Iterator[str]:
    _, context, _ = arguments
    if not isinstance(extras, ClientExtras):
        yield f"{_kind(extras)}. Let it return ClientExtras(upload=..., state=...)."
    yield from _upload(extras.upload)
    if extras.state and not algorithm.keeps_state:
        yield "a state, which no client keeps. Set keeps_state: ClassVar[bool] = True, or leave it out."
    is_own = type(algorithm).finalize is not Algorithm.finalize
    if algorithm.keeps_state and not extras.state and (context.state or not is_own):
        yield "no state, and keeps_state is True. Let it return ClientExtras(state=...)."
    for problem in _difference(extras.state, context.state if algorithm.keeps_state else {}):
        yield f"as state {problem}. Let it be as initial_client_state returns it."
    if extras.update is not None and not algorithm.custom_update:
        yield "an update, which is not sent. Set custom_update: ClassVar[bool] = True, or leave it out."
    if algorithm.custom_update and not extras.update:
        yield "no update, and custom_update is True. Let it return ClientExtras(update=...)."


def _upload(upload: Any) -> Iterator[str]:
    fix = "Let it be a dictionary of tensors of floats: `.float()`, or torch.tensor(float(x))."
    yield from (f"as upload {problem}. {fix}" for problem in _difference(upload, {}, more=True))
    for name, tensor in upload.items():
        if not tensor.is_floating_point():
            yield f"as upload {name!r}: {tensor.dtype}, whose mean is no such number. {fix}"


def _apply(_: Algorithm, returned: Any, arguments: tuple[Any, ...]) -> Iterator[str]:
    fix = (
        "Let it return the next theta, and the next state with the tensors that start returns, in their "
        "types: `.to(theta[name].dtype)`."
    )
    if not (isinstance(returned, tuple) and len(returned) == 2):
        yield f"{_kind(returned)}. {fix}"
    theta, state = returned
    problems = [*_difference(theta, arguments[0]), *_difference(state, arguments[3], more=True)]
    yield from (f"{problem}. {fix}" for problem in problems)


def _aggregate(_: Algorithm, returned: Any, arguments: tuple[Any, ...]) -> Iterator[str]:
    for problem in _difference(returned, arguments[0][0]):
        yield f"{problem}. Let it return one update, with the names, shapes and types of the clients'."


CHECKS: Mapping[str, Check] = {
    "round_randomness": _tensors,
    "initial_client_state": _tensors,
    "initial_params": _initial_params,
    "loss": _loss,
    "gradient": _gradient,
    "step_state": _step_state,
    "finalize": _finalize,
    "start": _tensors,
    "broadcast": _tensors,
    "aggregate": _aggregate,
    "apply": _apply,
}


def _no_scalar(value: Any) -> Iterator[str]:
    if not isinstance(value, Tensor) or value.dim():
        yield _kind(value)


def _kind(value: Any) -> str:
    """Return what a value is, for an error."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return "None" if value is None else f"a {type(value).__name__}"


def _difference(found: Any, like: Mapping[str, Tensor], *, more: bool = False) -> Iterator[str]:
    """Yield how ``found`` is not tensors of names, shapes and types of ``like``, or has ``more``."""
    if not isinstance(found, Mapping):
        yield _kind(found)
        return
    for name, tensor in found.items():
        if not isinstance(tensor, Tensor):
            yield f"{name!r}: {_kind(tensor)}"
        elif name in like and tensor.shape != like[name].shape:
            yield f"{name!r}: {_kind(tensor)} in place of {tuple(like[name].shape)}"
        elif name in like and tensor.dtype != like[name].dtype:
            yield f"{name!r}: {tensor.dtype} in place of {like[name].dtype}"
    yield from (f"no {name!r}" for name in like if name not in found)
    if not more:
        yield from (f"a further {name!r}" for name in found if name not in like)
