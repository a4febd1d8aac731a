"""Residual networks without batch statistics."""

from __future__ import annotations

import functools
from typing import ClassVar, Literal

from pydantic import Field
from torch import nn

from fedapp.data.dataset import Task
from fedapp.models.model import Model


class ResNet18GN(Model):
    """ResNet-18 with group normalisation (He et al. 2016; Wu and He 2018; Hsieh et al. 2020).

    torchvision's ``resnet18`` with GroupNorm for BatchNorm, whose statistics of a client's own
    batches do not survive averaging over clients with different labels. Stem ``cifar``: 3x3
    convolution of stride 1 and no pooling, 11,173,962 parameters for 3 channels and 10 classes;
    ``imagenet``: 7x7 of stride 2 and 3x3 max pooling, 11,181,642. Convolutions start
    normal after He (fan-out), normalisations at weight 1 and bias 0, the output layer from
    PyTorch's default: torchvision's own initialisation.
    """

    name: ClassVar[str] = "resnet18-gn"
    light: ClassVar[bool] = False

    stem: Literal["cifar", "imagenet"] = Field(
        "cifar", description="First layers: 'cifar' for small images, 'imagenet' for large ones."
    )
    groups: Literal[1, 2, 4, 8, 16, 32, 64] = Field(
        32, description="Groups of channels that are normalised together, in every layer."
    )

    def build(self, task: Task) -> nn.Module:
        """Return the network: [n, channels, H, W] to [n, C]."""
        self.require_fit(task)
        from torchvision.models import resnet18  # slow to import, and no other model needs it

        norm = functools.partial(nn.GroupNorm, self.groups)
        network: nn.Module = resnet18(norm_layer=norm, num_classes=task.num_classes)
        size, stride = (3, 1) if self.stem == "cifar" else (7, 2)
        stem = nn.Conv2d(
            task.input_shape[0], 64, size, stride=stride, padding=size // 2, bias=False
        )
        nn.init.kaiming_normal_(stem.weight, mode="fan_out", nonlinearity="relu")
        network.conv1 = stem
        if self.stem == "cifar":
            network.maxpool = nn.Identity()
        return network
