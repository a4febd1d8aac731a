"""The digits network of FedBN, with batch normalisation."""

from __future__ import annotations

from collections import OrderedDict
from typing import ClassVar

from pydantic import Field
from torch import nn

from fedapp.data.dataset import Task
from fedapp.models.model import Model


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
