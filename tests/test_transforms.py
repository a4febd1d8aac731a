"""Transforms: hand-derived numbers, published statistics, and equal draws."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedapp.config.read import read_config
from fedapp.data.dataset import Examples
from fedapp.data.load import load_transform
from fedapp.data.transforms.cifar24 import Cifar24, _crop_and_flip, whiten
from fedapp.data.transforms.normalise import Normalise
from fedapp.errors import ConfigError
from fedapp.training.batches import batches
from fedapp.training.round_plan import RoundPlan, client_generator


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def draws(n: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(n, Cifar24.draws, generator=generator(seed))


def images(n: int = 3, channels: int = 3, size: int = 32, seed: int = 0) -> torch.Tensor:
    shape = (n, channels, size, size)
    return torch.randint(0, 256, shape, generator=generator(seed), dtype=torch.uint8)


def test_scale_gives_the_unit_interval():
    transform = load_transform(read_config({}))
    inputs = torch.tensor([0, 51, 255], dtype=torch.uint8)
    torch.testing.assert_close(
        transform.test(inputs, torch.float64), torch.tensor([0, 0.2, 1]).double()
    )


def test_normalise_by_hand():
    config = read_config(
        {"transform": "normalise", "normalise.mean": "0.2,0.4", "normalise.std": "0.1,0.5"}
    )
    pixels = torch.tensor([[[[51]], [[255]]]], dtype=torch.uint8)
    result = load_transform(config).test(pixels, torch.float64)
    assert result.flatten().tolist() == pytest.approx([0.0, 1.2])


def test_normalise_presets():
    pixels = torch.tensor([[[[0, 255]]]], dtype=torch.uint8)
    assert Normalise().test(pixels, torch.float32).flatten().tolist() == [-1, 1]
    black = Normalise(preset="mnist").test(pixels, torch.float64).flatten()[0]
    assert black == pytest.approx(-0.1307 / 0.3081)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"normalise.mean": "0.1,x"}, "normalise.mean = '0.1,x'"),
        ({"normalise.mean": "0.1"}, r"normalise\.std = '' has another number of channels"),
        ({"normalise.mean": "0.1", "normalise.std": "0"}, r"normalise\.std = '0': must be above 0"),
    ],
)
def test_normalise_refuses(keys, said):
    with pytest.raises(ConfigError, match=said):
        read_config({"transform": "normalise", **keys})


@pytest.mark.parametrize(
    ("transform", "shape"),
    [
        (Normalise(preset="cifar10"), (1, 28, 28)),
        (Normalise(), (80,)),
        (Cifar24(), (3, 20, 32)),
        (Cifar24(), (80,)),
    ],
)
def test_shapes_that_do_not_fit(transform, shape):
    with pytest.raises(ConfigError, match=str(shape[0])):
        transform.output_shape(shape)


def test_whitening_by_hand():
    pair = torch.tensor([[[[1.0, 3.0]]], [[[7.0, 7.0]]]])
    # mean 2, std 1; the image of one colour is divided by 1 / sqrt(2), not by 0
    assert whiten(pair).flatten().tolist() == [-1, 1, 0, 0]


def test_cifar24_at_test_time_is_the_whitened_centre():
    pixels = images()
    result = Cifar24().test(pixels, torch.float64)
    assert tuple(result.shape[1:]) == Cifar24().output_shape((3, 32, 32)) == (3, 24, 24)
    centre = pixels[:, :, 4:28, 4:28].double().flatten(1).numpy()
    expected = (centre - centre.mean(1, keepdims=True)) / centre.std(1, keepdims=True)
    np.testing.assert_allclose(result.flatten(1).numpy(), expected, atol=1e-12)


@given(st.integers(0, 2**32), st.integers(24, 33), st.integers(1, 3))
def test_cifar24_training_images_are_crops(seed, size, channels):
    """Up to flip and contrast by channel, a training image is a 24x24 part of its source."""
    pixels = images(2, channels, size, seed)
    result = Cifar24().train(pixels, torch.float64, draws(2, seed))
    assert result.shape == (2, channels, 24, 24)
    torch.testing.assert_close(result.mean((1, 2, 3)), torch.zeros(2).double(), atol=1e-9, rtol=0)
    torch.testing.assert_close(
        result.std((1, 2, 3), correction=0), torch.ones(2).double(), atol=1e-9, rtol=0
    )
    parts = pixels[0, 0].double().unfold(0, 24, 1).unfold(1, 24, 1).reshape(-1, 24, 24)
    parts = torch.cat([parts, parts.flip(2)]).flatten(1)
    one = result[0, 0].flatten()
    correlations = torch.corrcoef(torch.cat([one[None], parts]))[0, 1:]
    assert correlations.max() == pytest.approx(1)


def test_cifar24_depends_on_the_draws_alone():
    pixels, transform = images(), Cifar24()
    n = len(pixels)
    one, same, other = (transform.train(pixels, torch.float32, draws(n, s)) for s in (1, 1, 2))
    double = transform.train(pixels, torch.float64, draws(n, 1))
    floats = transform.train(pixels.float() / 255, torch.float32, draws(n, 1))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    torch.testing.assert_close(one.double(), double, atol=1e-4, rtol=0)
    torch.testing.assert_close(one, floats, atol=1e-4, rtol=0)


def test_cifar24_flips_half_and_reaches_every_corner():
    ramp = torch.arange(32 * 32).reshape(1, 1, 32, 32).expand(4000, 1, 32, 32).float() / 1024
    from fedapp.data.transforms.cifar24 import _crop_and_flip

    parts = _crop_and_flip(ramp, draws(4000))
    flipped = parts[:, 0, 0, 0] > parts[:, 0, 0, 1]
    assert flipped.float().mean() == pytest.approx(0.5, abs=0.03)
    corners = torch.minimum(parts[:, 0, 0, 0], parts[:, 0, 0, -1]) * 1024
    assert len(corners.unique()) == 81
    assert (corners.min(), corners.max()) == (0, 8 * 32 + 8)


def test_the_draws_of_a_turn_are_of_its_round_and_client():
    pixels = images(4).numpy()
    plan = RoundPlan(2, 0, 0, "epoch", 0.1)  # B = infinity: the examples are not shuffled

    def shown(round_: int, client: int) -> list[torch.Tensor]:
        rng = client_generator(7, round_, client)
        examples = Examples(pixels, np.zeros(4, np.int64))
        stream = batches(examples, plan, rng, Cifar24(), torch.device("cpu"), torch.float64)
        return [batch.inputs for batch in stream]

    first, second = shown(1, 2)
    assert not torch.equal(first, second)
    assert torch.equal(first, shown(1, 2)[0])
    assert not torch.equal(first, shown(2, 2)[0])
    assert not torch.equal(first, shown(1, 3)[0])


def test_cifar24_agrees_between_devices(cuda):
    pixels, transform = images(64), Cifar24()
    here = transform.train(pixels, torch.float32, draws(64, 3))
    there = transform.train(pixels.to(cuda), torch.float32, draws(64, 3).to(cuda)).cpu()
    torch.testing.assert_close(here, there, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("preset", "white"),
    [
        ("cifar10", [2.0591, 2.1265, 2.1158]),
        ("cifar100", [1.8440, 2.0027, 2.0243]),
        ("imagenet", [2.2489, 2.4286, 2.6400]),
    ],
)
def test_a_white_pixel_by_each_preset(preset, white):
    pixels = torch.full((1, 3, 1, 1), 255, dtype=torch.uint8)
    channels = Normalise(preset=preset).test(pixels, torch.float64).flatten().tolist()
    assert channels == pytest.approx(white, abs=1e-4)


def test_cifar24_crops_images_that_are_not_square():
    for shape, step in (((24, 32), 1), ((32, 24), 24)):
        ramp = torch.arange(24 * 32).reshape(1, 1, *shape).expand(500, 1, *shape)
        parts = _crop_and_flip(ramp, draws(500))
        corners = torch.minimum(parts[:, 0, 0, 0], parts[:, 0, 0, -1])
        assert corners.unique().tolist() == [step * i for i in range(9)]
