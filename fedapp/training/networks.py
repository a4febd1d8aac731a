"""Networks as functions of their parameters, and what their layers allow."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedapp.errors import ConfigError
from fedapp.models.model import Model
from fedapp.training.tensors import Tensors


class PureNetwork:
    """A module as a pure function of its parameters."""

    def __init__(self, module: nn.Module, model: Model) -> None:
        self.module = module
        self.loss = model.loss

    def outputs(self, params: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        """Return the logits at ``params``: [b, C] or [b, C, T]."""
        return functional_call(self.module, dict(params), (inputs,))  # type: ignore[no-any-return]

    def features(self, params: Mapping[str, Tensor], inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits, and the input of the last linear layer: [b, d] or [b, T, d].

        Raises
        ------
        ConfigError
            The network has no linear layer.
        """
        return with_features(self.module, lambda: self.outputs(params, inputs))


class LiveNetwork(PureNetwork):
    """A module as a function of its parameters, without overhead for the module's own."""

    def __init__(self, module: nn.Module, model: Model) -> None:
        super().__init__(module, model)
        self.params: Tensors = dict(module.named_parameters())

    def outputs(self, params: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        """Return the logits at ``params``: [b, C] or [b, C, T]."""
        if params is self.params:
            return self.module(inputs)  # type: ignore[no-any-return]
        return super().outputs(params, inputs)


NORMALISATION = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)
"""The kinds of normalisation layers."""


def normalisation_names(module: nn.Module) -> frozenset[str]:
    """Return the names of the parameters and running statistics of normalisation layers."""
    layers = {name for name, layer in module.named_modules() if isinstance(layer, NORMALISATION)}
    parameters = {
        name for name, _ in module.named_parameters() if name.rpartition(".")[0] in layers
    }
    return frozenset(parameters | running_statistics(module).keys())


def running_statistics(module: nn.Module) -> Tensors:
    """Return the running statistics of normalisation layers, by name, not copied.

    A forward pass in training mode updates them in place: mean, variance and number of batches. Those of
    layers that ``train()`` leaves in evaluation mode are none (``initialise``).
    """
    return {
        f"{prefix}.{name}" if prefix else name: buffer
        for prefix, layer in module.named_modules()
        if isinstance(layer, nn.modules.batchnorm._NormBase) and layer.track_running_stats
        for name, buffer in layer.named_buffers(recurse=False)
        if name not in ("weight", "bias")  # frozen
    }


def layer_with_statistics(module: nn.Module) -> str:
    """Return the class name of a layer with running statistics, or "" if there is none."""
    names = running_statistics(module)
    return type(module.get_submodule(min(names).rpartition(".")[0])).__name__ if names else ""


def layer_needing_two(module: nn.Module, example: Tensor) -> str:
    """Return the class name of a BatchNorm layer that cannot train on a batch of one, or "".

    ``example`` is such a batch; the module is called on it in training mode.
    """
    layers = [
        layer for layer in module.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)
    ]
    try:
        if layers:
            module.train()(example)
    except ValueError:
        return type(layers[0]).__name__
    return ""


def changing_buffers(module: nn.Module, example: Tensor) -> list[str]:
    """Return the names of buffers, besides running statistics, that training changes, sorted."""
    changed, _ = _effects_of_forward(module, example)
    return sorted(changed - running_statistics(module).keys())


def unbatchable_layer(module: nn.Module, example: Tensor) -> str:
    """Return the class name of a layer that mixes a batch's examples or draws at random, or "".

    In a step of several clients such a layer would draw for all of them together, and include the
    padding of partial batches. The name is the network's own where it does so without such a layer.
    """
    for layer in module.train().modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) and (
            layer.training or layer.running_mean is None
        ):
            return type(layer).__name__
    if statistics := layer_with_statistics(module):
        return statistics
    _, draws = _effects_of_forward(module, example)
    if not draws:
        return type(module).__name__ if _mixes_examples(module, example) else ""
    kinds = (nn.modules.dropout._DropoutNd, nn.RReLU)
    layers = (layer for layer in module.modules() if isinstance(layer, kinds))
    return type(next(layers, module)).__name__


def _effects_of_forward(module: nn.Module, example: Tensor) -> tuple[set[str], bool]:
    """Return the names of the buffers that a pass in training mode changes, and whether it draws.

    The network's own buffers and PyTorch's generator are left as they are.
    """
    copies = {name: buffer.clone() for name, buffer in module.named_buffers()}
    given = dict(copies)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        before = torch.get_rng_state()
        functional_call(module.train(), given, (example,))
        draws = not torch.equal(before, torch.get_rng_state())
    changed = {
        name for name, buffer in copies.items() if given[name] is not buffer or buffer._version
    }
    return changed, draws


def _mixes_examples(module: nn.Module, example: Tensor) -> bool:
    """Return whether an example's outputs depend on the other one of a batch of two, in training mode."""
    two = torch.stack([torch.zeros_like(example[0]), torch.ones_like(example[0])])
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        of_two = functional_call(module.train(), buffers, (two,))
        try:
            of_first = functional_call(module, buffers, (two[:1],))
        except Exception:
            return False  # it needs several; what it makes of them cannot be told
    return not torch.allclose(of_two[:1], of_first, rtol=1e-3, atol=1e-4)


def has_recurrent_cells(module: nn.Module) -> bool:
    """Return whether a layer is a recurrent cell or of such, other than ``nn.LSTM``.

    PyTorch adds the gates' parts in place, which under ``vmap`` needs weights of each client's own.
    """
    kinds = (nn.RNN, nn.GRU, nn.RNNCellBase)
    return any(isinstance(layer, kinds) for layer in module.modules())


def has_representation(module: nn.Module) -> bool:
    """Return whether the network has a last linear layer, and parameters besides that layer's."""
    linear = [layer for layer in module.modules() if isinstance(layer, nn.Linear)]
    last = {id(parameter) for parameter in linear[-1].parameters()} if linear else set()
    return bool(linear) and any(id(parameter) not in last for parameter in module.parameters())


def with_features(module: nn.Module, run: Callable[[], Tensor]) -> tuple[Tensor, Tensor]:
    """Return the result of ``run``, and the input of ``module``'s last linear layer in that call.

    Raises
    ------
    ConfigError
        The network has no linear layer.
    """
    linear = [layer for layer in module.modules() if isinstance(layer, nn.Linear)]
    if not linear:
        raise ConfigError(
            "algorithm: needs the representation before a network's last linear layer, and this "
            "model has none. Choose another model, or algorithm='fedavg'."
        )
    seen: list[Tensor] = []
    handle = linear[-1].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    try:
        outputs = run()
    finally:
        handle.remove()
    return outputs, seen[-1]
