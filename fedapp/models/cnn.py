"""Convolutional networks of a few layers, plain and with batch normalisation."""

from __future__ import annotations

from collections import OrderedDict
from typing import ClassVar

from pydantic import Field
from torch import nn

from fedapp.data.dataset import Task
from fedapp.models.model import Model


class MnistCNN(Model):
    """McMahan's CNN: conv 5x5-32, conv 5x5-64, fc 512 (McMahan et al. 2017, section 3).

    Both convolutions keep the image's size (SAME padding) and are followed by 2x2 max pooling. On
    MNIST that is (25 + 1) 32 + (25 * 32 + 1) 64 + (7 * 7 * 64 + 1) 512 + (512 + 1) 10 = 1,663,370
    parameters, the paper's number; without padding it would be 582,026. The paper names a ReLU
    for the hidden layer only; the convolutions have one here too, as is usual. Weights and biases
    start from PyTorch's default, uniform in +-1/sqrt(fan-in); the paper does not state its own.
    """

    name: ClassVar[str] = "mnist-cnn"
    light: ClassVar[bool] = False
    smallest: ClassVar[int] = 4

    hidden: int = Field(512, ge=1, description="Units of the fully connected layer.")

    def build(self, task: Task) -> nn.Module:
        """Return the network: [n, channels, H, W] to [n, C]."""
        self.require_fit(task)
        return _two_convolutions(task, 32, self.hidden)


class SeoCNN(Model):
    """Seo's CNN: conv1 5x5-32, conv2 5x5-64, fc1 512, fc2 (Seo et al. 2024, section 3.1).

    The paper gives two convolutions with ReLU and max pooling and two fully connected layers; its
    Figure 13 names the layers conv1, conv2, fc1, fc2. Kernels and widths are read from the source
    that it cites, McMahan's CNN: on CIFAR-10 (75 + 1) 32 + (25 * 32 + 1) 64 + (8 * 8 * 64 + 1) 512
    + (512 + 1) 10 = 2,156,490 parameters. Weights and biases start from PyTorch's default, uniform
    in +-1/sqrt(fan-in).
    """

    name: ClassVar[str] = "seo-cnn"
    light: ClassVar[bool] = False
    smallest: ClassVar[int] = 4

    channels: int = Field(32, ge=1, description="Channels of conv1; conv2 has twice as many.")
    hidden: int = Field(512, ge=1, description="Units of the fully connected layer fc1.")

    def build(self, task: Task) -> nn.Module:
        """Return the network: [n, channels, H, W] to [n, C]."""
        self.require_fit(task)
        return _two_convolutions(task, self.channels, self.hidden)


class PflCNN(Model):
    """The CNN of pfl-research's CIFAR-10 benchmark: conv 3x3-32, conv 3x3-64, pool, fc 128.

    Source: ``simple_cnn`` of pfl-research (Granqvist et al. 2024). No padding, ReLU after both
    convolutions and the hidden layer, one 2x2 max pooling. On CIFAR-10 (27 + 1) 32 +
    (9 * 32 + 1) 64 + (14 * 14 * 64 + 1) 128 + (128 + 1) 10 = 1,626,442 parameters. As there,
    weights start uniform after Glorot and Bengio and biases from PyTorch's default, uniform in
    +-1/sqrt(fan-in). The original's dropout (0.25 after the pooling, 0.5 after the hidden layer) is
    left out, because the same seed must give the same run in every engine and trainer.
    """

    name: ClassVar[str] = "pfl-cnn"
    light: ClassVar[bool] = False
    smallest: ClassVar[int] = 6

    def build(self, task: Task) -> nn.Module:
        """Return the network: [n, channels, H, W] to [n, C]."""
        self.require_fit(task)
        channels, height, width = task.input_shape
        pixels = ((height - 4) // 2) * ((width - 4) // 2)
        network = nn.Sequential(
            OrderedDict(
                conv1=nn.Conv2d(channels, 32, 3),
                relu1=nn.ReLU(),
                conv2=nn.Conv2d(32, 64, 3),
                pool2=nn.MaxPool2d(2),
                relu2=nn.ReLU(),
                flatten=nn.Flatten(),
                fc1=nn.Linear(pixels * 64, 128),
                relu3=nn.ReLU(),
                fc2=nn.Linear(128, task.num_classes),
            )
        )
        for layer in network:
            if isinstance(layer, nn.Conv2d | nn.Linear):
                nn.init.xavier_uniform_(layer.weight)
        return network


def _two_convolutions(task: Task, width: int, hidden: int) -> nn.Sequential:
    """Return conv1 and conv2, 5x5 of ``width`` and twice as many channels, then fc1 and fc2.

    After each convolution come 2x2 max pooling and ReLU. Both are monotone, so that values and
    gradients are the same as in the other order, for a quarter of the work.
    """
    channels, rows, columns = task.input_shape
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(channels, width, 5, padding=2),
            pool1=nn.MaxPool2d(2),
            relu1=nn.ReLU(),
            conv2=nn.Conv2d(width, 2 * width, 5, padding=2),
            pool2=nn.MaxPool2d(2),
            relu2=nn.ReLU(),
            flatten=nn.Flatten(),
            fc1=nn.Linear((rows // 4) * (columns // 4) * 2 * width, hidden),
            relu3=nn.ReLU(),
            fc2=nn.Linear(hidden, task.num_classes),
        )
    )


class CnnBN(Model):
    """FedBN's digits CNN: three 5x5 convolutions and fc 2048, fc 512, with BatchNorm (Li et al. 2021).

    conv1 and conv2 5x5-64, each with BatchNorm, ReLU and 2x2 max pooling; conv3 5x5-128, BatchNorm,
    ReLU; fc1 2048 and fc2 512, each with BatchNorm and ReLU; linear. Convolutions keep the image's
    size. On 28x28 images of 3 channels (75 + 1) 64 + (25 * 64 + 1) 64 + (25 * 64 + 1) 128 +
    (7 * 7 * 128 + 1) 2048 + (2048 + 1) 512 + (512 + 1) 10 + 2 (64 + 64 + 128 + 2048 + 512) =
    14,219,210 parameters. Weights and biases start from PyTorch's default, normalisations at weight 1
    and bias 0; running statistics move by a tenth a batch. They stay with the clients: for
    `algorithm = "fedbn"`.
    """

    name: ClassVar[str] = "cnn-bn"
    light: ClassVar[bool] = False
    smallest: ClassVar[int] = 4

    width: int = Field(
        64,
        ge=1,
        description="Channels of conv1 and conv2; conv3 has twice, fc1 32 times, fc2 8 times as many.",
    )

    def build(self, task: Task) -> nn.Module:
        """Return the network: [n, channels, H, W] to [n, C]."""
        self.require_fit(task)
        channels, rows, columns = task.input_shape
        width, pixels = self.width, (rows // 4) * (columns // 4)
        # Pooling before ReLU: the same values and gradients for a quarter of the work.
        return nn.Sequential(
            OrderedDict(
                conv1=nn.Conv2d(channels, width, 5, padding=2),
                norm1=nn.BatchNorm2d(width),
                pool1=nn.MaxPool2d(2),
                relu1=nn.ReLU(),
                conv2=nn.Conv2d(width, width, 5, padding=2),
                norm2=nn.BatchNorm2d(width),
                pool2=nn.MaxPool2d(2),
                relu2=nn.ReLU(),
                conv3=nn.Conv2d(width, 2 * width, 5, padding=2),
                norm3=nn.BatchNorm2d(2 * width),
                relu3=nn.ReLU(),
                flatten=nn.Flatten(),
                fc1=nn.Linear(pixels * 2 * width, 32 * width),
                norm4=nn.BatchNorm1d(32 * width),
                relu4=nn.ReLU(),
                fc2=nn.Linear(32 * width, 8 * width),
                norm5=nn.BatchNorm1d(8 * width),
                relu5=nn.ReLU(),
                fc3=nn.Linear(8 * width, task.num_classes),
            )
        )
