"""The interface of models: a network for a task, its loss and its accuracy."""

from __future__ import annotations

import functools
import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar, Self, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedapp.config.components import family_of
from fedapp.config.registry import Component, calling, setting_of
from fedapp.data.dataset import IGNORE, Task
from fedapp.errors import ConfigError, one_line, reason_of
from fedapp.seeds import torch_seed

KINDS = {
    "image": "images",
    "tokens": "sequences of tokens (text)",
    "vector": "vectors",
    "quadratic": "quadratic functions",
}
"""The examples of each kind of task, for error messages."""


class Model(Component, ABC):
    """A family of networks, one for each task; its fields are its hyper-parameters."""

    takes: ClassVar[frozenset[str]] = frozenset({"image"})
    """The kinds of task that the network fits: "image", "tokens", "vector"."""

    light: ClassVar[bool] = True
    """Whether an example takes few operations and little memory.

    If so, a local step is compiled on a CPU, and more examples are evaluated at a time. False for
    convolutions and for recurrent networks.
    """

    causal: ClassVar[bool] = False
    """Whether the output at a step depends on no later step, in sequences of any length.

    If so, batches of sequences are cut after the last target that counts.
    """

    smallest: ClassVar[int] = 1
    """The smallest height and width of an image that the network fits, in pixels."""

    @classmethod
    def adopt(cls, other: type[Any], name: str) -> type[Self] | None:
        """Return a plain ``nn.Module`` as a model called ``name``."""
        if not issubclass(other, nn.Module):
            return None
        members = {"name": name, "network": other}
        described = {
            "__module__": other.__module__,
            "__doc__": other.__doc__ or f"{other.__name__}.",
        }
        return cast("type[Self]", type(other.__name__, (PlainModel,), members | described))

    @abstractmethod
    def build(self, task: Task) -> nn.Module:
        """Return a freshly initialised network: [n, *input_shape] to logits [n, C] (or [n, C, T]).

        Raises
        ------
        ConfigError
            The network does not fit the task.
        """

    @classmethod
    def class_problems(cls) -> Iterator[str]:
        """Yield the problem of kinds of tasks that there are not."""
        if unknown := sorted(set(cls.takes).difference(KINDS)):
            kinds = " or ".join(repr(kind) for kind in KINDS)
            yield f"has {unknown[0]!r} in takes, which must be {kinds}. Correct it."

    @classmethod
    def fits(cls, task: Task) -> bool:
        """Return whether the network can be built for the task."""
        large = task.kind != "image" or min(task.input_shape[1:]) >= cls.smallest
        return task.kind in cls.takes and large

    def require_fit(self, task: Task) -> None:
        """Raise a ConfigError, which names the models that fit, if this one does not fit the task."""
        if self.fits(task):
            return
        kinds = " or ".join(KINDS[kind] for kind in sorted(self.takes))
        table = ""
        if task.kind == "tokens" and "vector" in self.takes:
            table = (
                " If it is a table of numbers and categories, set input-keys to its input columns."
            )
        size = f" of at least {self.smallest} x {self.smallest} pixels" if self.smallest > 1 else ""
        raise ConfigError(
            f"model = {self.name!r}: takes {kinds}{size}, and this data set holds "
            f"{KINDS[task.kind]} of shape {task.input_shape}. "
            f"Set model to one that fits: {', '.join(_fitting(task))}.{table}"
        )

    def loss(self, outputs: Tensor, targets: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the mean cross-entropy over the targets that count: a scalar.

        ``mask`` [n] is 1 for real examples and 0 for the padding of a batch; targets equal to
        IGNORE never count. Without any target that counts the loss is 0. Where targets are floats
        [n] (a regression), which have the type in which the data are stored, it is the mean squared
        error of the outputs [n, 1].
        """
        if is_regression(targets):
            squares = (outputs.squeeze(1) - targets.to(outputs.dtype)).square()
            return (
                squares.mean() if mask is None else (squares * mask).sum() / mask.sum().clamp(min=1)
            )
        cross_entropy = functools.partial(F.cross_entropy, ignore_index=IGNORE)
        counted = targets != IGNORE
        if mask is None:
            return cross_entropy(outputs, targets, reduction="sum") / counted.sum().clamp(min=1)
        weight = counted * mask.view(-1, *[1] * (targets.dim() - 1))
        losses = cross_entropy(outputs, targets, reduction="none")
        return (losses * weight).sum() / weight.sum().clamp(min=1)

    def num_correct(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return how many targets are predicted correctly, and how many count: two scalars.

        The former is nan for a regression.
        """
        if is_regression(targets):
            return without_accuracy(targets)
        counted = targets != IGNORE
        return ((outputs.argmax(1) == targets) & counted).sum(), counted.sum()

    def metrics(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        """Return further metrics of a model, by name; by default those of a regression.

        These are the root of the mean squared error, and R2 = 1 - sum (y - f)^2 / sum (y - mean y)^2, of
        outputs [n, 1].

        ``outputs`` [n, C] (or [n, C, T]) and ``targets`` are those of all examples evaluated. In the
        metrics of a round the names have the prefix ``test_`` or ``training_set_``, or ``client_`` for
        the mean over clients that evaluate the model, weighted by their examples (of "rmse" that of the
        squares).
        """
        if not is_regression(targets) or outputs.shape[1:] != (1,):
            return {}
        targets = targets.double()
        squares = (outputs.squeeze(1).double() - targets).square().sum()
        total = (targets - targets.mean()).square().sum()
        return {
            "rmse": float((squares / len(targets)).sqrt()),
            "r2": float(1 - squares / total) if total > 0 else math.nan,
        }


def is_regression(targets: Tensor) -> bool:
    """Return whether the targets are one float for each example."""
    return targets.is_floating_point() and targets.dim() == 1


class PlainModel(Model):
    """A class of networks that is no Model.

    It is called with those of the arguments ``input_shape`` (without the batch) and ``num_classes`` that
    it takes, and its loss is cross-entropy.
    """

    takes: ClassVar[frozenset[str]] = frozenset(KINDS) - {"quadratic"}
    light: ClassVar[bool] = False
    network: ClassVar[type[nn.Module]]

    def build(self, task: Task) -> nn.Module:
        """Return the network."""
        self.require_fit(task)
        given = {"input_shape": task.input_shape, "num_classes": task.num_classes}
        signature = inspect.signature(self.network)
        taken = {key: value for key, value in given.items() if key in signature.parameters}
        try:
            signature.bind(**taken)
        except TypeError as error:
            raise ConfigError(
                f"model = {self.name!r}: {self.network.__name__}{signature} is called with the arguments "
                f"input_shape and num_classes, or those of them that it has ({error}). Give the others "
                "defaults, or derive a class from fedapp.models.model.Model, which has parameters."
            ) from error
        return self.network(**taken)


def initialise(model: Model, task: Task, seed: int) -> nn.Module:
    """Build the network with weights drawn from (seed, "init") alone, in float32 on the CPU.

    Parameters that do not require gradients become buffers: they are neither trained nor sent. So it is
    with the statistics of normalisation layers that ``train()`` leaves in evaluation mode.

    Raises
    ------
    ConfigError
        Its code raises, or builds no network; it does not fit the task, has no parameters to train, or
        does not return [n, C] or [n, C, T] for two zero examples.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_seed(seed, "init"))
        with calling(model, "build"):
            network: Any = model.build(task)
        if not isinstance(network, nn.Module):
            raise ConfigError(
                f"{setting_of(model)}: build returns {one_line(repr(network))}, which is no "
                "torch.nn.Module. Let it return the network."
            )
        _freeze(network)
        _require_outputs(model, network, task)
        _require_parameters(model, network)
        return network


def _freeze(network: nn.Module) -> None:
    """Turn parameters that do not require gradients, and statistics that stay, into plain buffers."""
    for layer in network.train().modules():
        if isinstance(layer, nn.modules.batchnorm._NormBase) and not layer.training:
            layer.track_running_stats = False
        parameters = layer.named_parameters(recurse=False, remove_duplicate=False)
        for name, parameter in list(parameters):
            if not parameter.requires_grad:
                delattr(layer, name)
                layer.register_buffer(name, parameter.detach())


def _require_parameters(model: Model, network: nn.Module) -> None:
    if next(network.parameters(), None) is None:
        raise ConfigError(
            f"model = {model.name!r}: {type(network).__name__} has no parameters that require gradients, "
            "so there is nothing to train. Leave requires_grad=True for those to be trained."
        )


def without_accuracy(targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return nan, and the number of targets: two scalars where the targets are."""
    count = torch.tensor(len(targets), device=targets.device)
    return torch.full_like(count, torch.nan, dtype=torch.float64), count


def zero_examples(task: Task, count: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return examples of zeros [count, *input_shape]; tokens are whole numbers whatever the ``dtype``."""
    return torch.zeros(
        (count, *task.input_shape), dtype=torch.long if task.kind == "tokens" else dtype
    )


def _require_outputs(model: Model, network: nn.Module, task: Task) -> None:
    """Call the network on two zero examples; the shape counts only for the loss of the base class."""
    name, training = type(model).__name__, [(part, part.training) for part in network.modules()]
    inputs = zero_examples(task, 2)
    try:
        with torch.no_grad():
            outputs = network.eval()(inputs)
    except Exception as error:
        raise ConfigError(
            f"model = {model.name!r}: {name} raises {reason_of(error)} for inputs of shape "
            f"{tuple(inputs.shape)}. Let forward take [n, *input_shape]."
        ) from error
    for part, mode in training:
        part.training = mode
    if not isinstance(outputs, Tensor):
        found = f"a {type(outputs).__name__}, which is no tensor,"
    elif type(model).loss is Model.loss and tuple(outputs.shape[:2]) != (2, task.num_classes):
        found = f"shape {tuple(outputs.shape)}"
    else:
        return
    raise ConfigError(
        f"model = {model.name!r}: {name} returns {found} for two examples. Let "
        f"forward return logits of shape [n, {task.num_classes}] (of a text's every symbol: "
        f"[n, {task.num_classes}, T])."
    )


def _fitting(task: Task) -> list[str]:
    components = family_of("model").components()
    return [
        name for name, model in components.items() if issubclass(model, Model) and model.fits(task)
    ]
