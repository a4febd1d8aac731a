"""The CIFAR network of the TensorFlow tutorial."""

from __future__ import annotations

from collections import OrderedDict
from typing import ClassVar, TypeVar, cast

import torch.nn.functional as F
from torch import Tensor, nn

from fedapp.data.dataset import Task
from fedapp.models.model import Model

Layer = TypeVar("Layer", nn.Conv2d, nn.Linear)


class CifarTF(Model):
    """The TensorFlow tutorial's CIFAR-10 network (McMahan et al. 2017, section 3).

    conv1 5x5-64, ReLU, 3x3 max pooling of stride 2, local response normalisation; conv2 5x5-64,
    ReLU, local response normalisation, 3x3 max pooling of stride 2; fc 384, ReLU; fc 192, ReLU;
    linear. Convolutions and poolings have SAME padding, as in ``models/tutorials/image/cifar10`` of
    TensorFlow. On 24x24 crops (75 + 1) 64 + (25 * 64 + 1) 64 + (6 * 6 * 64 + 1) 384 + (384 + 1) 192
    + (192 + 1) 10 = 1,068,298 parameters (the paper: about 10^6); on whole 32x32 images 1,756,426.

    Weights start from the tutorial's normal distributions cut at two standard deviations (0.05 for
    the convolutions, 0.04 for the two hidden layers, 1/192 for the output), biases at 0, and at 0.1
    for conv2 and the hidden layers. The tutorial also decays the weights of the hidden layers
    (0.004) and averages parameters over time; the paper mentions neither, so neither is here.
    """

    name: ClassVar[str] = "cifar-tf"
    light: ClassVar[bool] = False

    def build(self, task: Task) -> nn.Module:
        """Return the network: [n, channels, H, W] to [n, C]."""
        self.require_fit(task)
        channels, height, width = task.input_shape
        halves = [((height + 1) // 2, (width + 1) // 2), ((height + 3) // 4, (width + 3) // 4)]
        return nn.Sequential(
            OrderedDict(
                conv1=_start(nn.Conv2d(channels, 64, 5, padding=2), 0.05, 0.0),
                pool1=_pool(height, width),
                # After the pooling: the same values and gradients for a quarter of the work.
                relu1=nn.ReLU(),
                norm1=_ResponseNorm(),
                conv2=_start(nn.Conv2d(64, 64, 5, padding=2), 0.05, 0.1),
                relu2=nn.ReLU(),
                norm2=_ResponseNorm(),
                pool2=_pool(*halves[0]),
                flatten=nn.Flatten(),
                fc1=_start(nn.Linear(halves[1][0] * halves[1][1] * 64, 384), 0.04, 0.1),
                relu3=nn.ReLU(),
                fc2=_start(nn.Linear(384, 192), 0.04, 0.1),
                relu4=nn.ReLU(),
                output=_start(nn.Linear(192, task.num_classes), 1 / 192, 0.0),
            )
        )


def _start(layer: Layer, deviation: float, bias: float) -> Layer:
    nn.init.trunc_normal_(layer.weight, std=deviation, a=-2 * deviation, b=2 * deviation)
    nn.init.constant_(cast("Tensor", layer.bias), bias)
    return layer


def _pool(height: int, width: int) -> nn.MaxPool2d:
    """Return 3x3 max pooling of stride 2 with TensorFlow's SAME padding for one image size.

    TensorFlow pads an odd side by one pixel before and after, an even side by one pixel after only;
    ``ceil_mode`` is the latter.
    """
    return nn.MaxPool2d(3, 2, padding=(height % 2, width % 2), ceil_mode=True)


class _ResponseNorm(nn.Module):
    """x / (1 + 0.001 / 9 * sum of x^2 over the channel and 4 neighbours on each side)^0.75.

    ``nn.LocalResponseNorm(9, 0.001, 0.75, 1)`` gives the same, but sums by 3-D pooling. With a 1x1
    convolution by a band of ones a training step of the network takes two thirds of the time (CPU).
    """

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the normalised maps: [n, channels, H, W]."""
        channels = inputs.shape[1]
        band = inputs.new_ones(channels, channels).tril(4).triu(-4)[:, :, None, None]
        sums = F.conv2d(inputs * inputs, band)
        root = (1 + 0.001 / 9 * sums).rsqrt()
        return inputs * root * root.sqrt()
