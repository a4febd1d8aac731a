"""How images lie in memory."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedapp.config.read import read_config
from fedapp.training.build import choose_program
from fedapp.training.device import memory_format, to_memory_format


@pytest.mark.parametrize("channels", [1, 3])
def test_channels_last_also_with_one_channel(channels: int) -> None:
    """A convolution sees it: its own result is channels-last, and the values are the same."""
    images = torch.arange(2.0 * channels * 20).reshape(2, channels, 4, 5)
    mine = to_memory_format(images, torch.channels_last)
    assert torch.equal(mine, images)
    assert mine.stride() == (channels * 20, 1, channels * 5, channels)
    convolved = torch.conv2d(
        mine, to_memory_format(torch.ones(2, channels, 3, 3), torch.channels_last)
    )
    assert convolved.is_contiguous(memory_format=torch.channels_last)
    part = to_memory_format(images[1:], torch.channels_last)
    assert torch.equal(part, images[1:])


def test_other_shapes_and_formats_are_contiguous() -> None:
    assert to_memory_format(torch.zeros(3, 2).t(), torch.channels_last).is_contiguous()
    assert to_memory_format(torch.zeros(2, 1, 4, 5), torch.contiguous_format).stride() == (
        20,
        20,
        5,
        1,
    )


@pytest.mark.parametrize(
    ("layer", "device", "wanted"),
    [
        (nn.Conv2d(3, 4, 3), "cpu", torch.channels_last),
        (nn.Conv2d(3, 4, 3), "meta", torch.contiguous_format),
        (nn.Linear(3, 4), "cpu", torch.contiguous_format),
    ],
)
def test_channels_last_is_for_convolutions_on_a_cpu(
    layer: nn.Module, device: str, wanted: torch.memory_format
) -> None:
    assert memory_format(nn.Sequential(layer).to(device)) == wanted


@pytest.mark.parametrize(("model", "mode"), [("2nn", "compile"), ("seo-cnn", "record")])
def test_what_is_compiled_where_there_is_a_compiler(
    model: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedapp.training.build.can_compile", lambda: True)
    assert choose_program(read_config({"model": model}), torch.device("cpu")) == mode
