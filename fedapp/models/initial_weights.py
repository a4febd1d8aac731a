"""Initial weights other than a network's own: truncated normal, Glorot and He."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor, nn

from fedapp.errors import ConfigError
from fedapp.seeds import torch_seed

LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
"""The layers whose weights are drawn anew; embeddings, cells and normalisation are not."""
STD = 0.1
"""Standard deviation, and the value of the biases, of TensorFlow's MNIST tutorial,
``tutorials/image/mnist/convolutional.py`` of ``tensorflow/models``; there conv1's are 0."""


KINDS: Mapping[str, tuple[Callable[..., Tensor], float]] = {
    "truncated-normal": (partial(nn.init.trunc_normal_, std=STD, a=-2 * STD, b=2 * STD), STD),
    "glorot": (nn.init.xavier_uniform_, 0.0),
    "he": (partial(nn.init.kaiming_normal_, nonlinearity="relu"), 0.0),
}
"""The distribution of the weights, and the value of the biases."""


def draw_initial_weights(network: nn.Module, kind: str, seed: int, model: str) -> None:
    """Draw the weights of linear and convolutional layers from (seed, "initial weights") alone, in place.

    Frozen weights, and those computed from other parameters, stay as they are.

    "model" does nothing. "truncated-normal": sigma 0.1, cut at two sigma, biases
    0.1, as TensorFlow's MNIST tutorial (its first convolution's are 0), whose network McMahan et al.'s
    CNN is. "glorot": uniform in +-sqrt(6 / (fan-in + fan-out)), biases 0 (Glorot and Bengio 2010).
    "he": normal, variance 2 / fan-in, biases 0 (He et al. 2015).

    Raises
    ------
    ConfigError
        The network has no such layer; ``model`` is its name.
    """
    if kind == "model":
        return
    layers = [
        layer
        for layer in network.modules()
        if isinstance(layer, LAYERS) and isinstance(layer.weight, nn.Parameter)
    ]
    if not layers:
        raise ConfigError(
            f"initial-weights = {kind!r}: has no effect, because model {model!r} has no linear and no "
            "convolutional layer whose weights are trained. Leave the key out, or name another model."
        )
    generator = torch.Generator().manual_seed(torch_seed(seed, "initial weights"))
    draw_weight, bias_value = KINDS[kind]
    with torch.no_grad():
        for layer in layers:
            draw_weight(layer.weight, generator=generator)
            if isinstance(layer.bias, nn.Parameter):
                layer.bias.fill_(bias_value)
