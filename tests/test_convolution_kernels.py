"""The kernels of grouped convolutions, on a GPU or in Triton's interpreter, against PyTorch's."""

from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from fedapp.training.batched import graph_convolution

pytest.importorskip("triton")
kernels = pytest.importorskip("fedapp.training.batched.convolution_kernels")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CONVOLUTIONS = (torch.ops.aten.convolution.default, torch.ops.aten.convolution_backward.default)


@pytest.fixture(autouse=True)
def _on_the_cpu() -> None:
    """Hide no GPU, unlike the tests of other modules."""


def drawn(*shape):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(*shape, dtype=torch.float64, generator=generator).to(DEVICE)


@pytest.mark.parametrize(
    ("groups", "examples", "channels", "outputs", "rows", "columns", "size", "padding"),
    [
        # Several parts of the pixels; several tiles of channels.
        pytest.param(2, 3, 3, 4, 8, 7, 5, 2, marks=pytest.mark.slow),
        pytest.param(2, 2, 8, 9, 4, 3, 3, 1, marks=pytest.mark.slow),
        (2, 3, 1, 6, 5, 5, 3, 0),
        (2, 1, 5, 17, 3, 3, 3, 1),  # a weight gradient by cuDNN
        (3, 2, 3, 2, 5, 5, 1, 0),
    ],
)
def test_kernels_are_the_convolution_and_its_gradients(
    groups, examples, channels, outputs, rows, columns, size, padding
):
    inputs = drawn(examples, groups * channels, rows, columns).requires_grad_()
    weight = drawn(groups * outputs, channels, size, size).requires_grad_()
    expected = F.conv2d(inputs, weight, padding=padding, groups=groups)
    gradient = drawn(*expected.shape)
    by_inputs, by_weight = torch.autograd.grad(expected, (inputs, weight), gradient)
    around = [padding, padding]
    with torch.no_grad():
        by_group = [each.unflatten(1, (groups, -1)) for each in (gradient, inputs)]
        found = kernels.convolution(by_group[1], weight, around)
        backward = kernels.convolution_backward(*by_group, weight, around, [True, True])
    torch.testing.assert_close(found.flatten(1, 2), expected.detach())
    torch.testing.assert_close(backward[0].flatten(1, 2), by_inputs)
    torch.testing.assert_close(backward[1], by_weight)


def test_images_may_lie_group_by_group_in_memory():
    inputs, weight = drawn(3, 2, 4, 5, 5), drawn(6, 4, 3, 3)
    by_group = inputs.transpose(0, 1).contiguous().transpose(0, 1)
    expected = kernels.convolution(inputs, weight, [0, 0])
    torch.testing.assert_close(kernels.convolution(by_group, weight, [0, 0]), expected)
    of = [kernels.convolution_backward(expected, given, weight, [0, 0], [False, True])[1]
          for given in (inputs, by_group)]  # fmt: skip
    torch.testing.assert_close(*of)


def test_backward_computes_what_the_mask_asks_for():
    inputs, weight, gradient = drawn(1, 2, 2, 3, 3), drawn(6, 2, 3, 3), drawn(1, 2, 3, 1, 1)
    found = kernels.convolution_backward(gradient, inputs, weight, [0, 0], [False, True])
    assert [each is None for each in found] == [True, False]


def step_of(clients, batch, device=DEVICE):
    """The gradients of all clients' loss, traced, and its inputs."""
    module = nn.Sequential(
        *(nn.Conv2d(1, 3, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 2 * 2, 2)),
    ).to(device, torch.float64)
    names = [name for name, _ in module.named_parameters()]

    def loss(params, images):
        return functional_call(module, params, (images,)).square().sum()

    def gradients(images, *weights):
        return list(vmap(grad(loss))(dict(zip(names, weights, strict=True)), images).values())

    weights = [drawn(clients, *weight.shape).to(device) for weight in module.parameters()]
    given = [drawn(clients, batch, 1, 8, 8).to(device), *weights]
    with torch.no_grad():
        return make_fx(gradients)(*given), given


def calls(graph, *targets):
    return sum(node.target in targets for node in graph.graph.nodes)


def test_a_step_with_the_kernels_has_the_same_gradients(monkeypatch):
    monkeypatch.setattr(graph_convolution, "_run_on", lambda _: True)
    graph, given = step_of(2, 3)
    expected = graph(*given)
    rewritten = graph_convolution.use_triton(graph)
    assert calls(rewritten, *CONVOLUTIONS) == 0
    assert calls(rewritten, kernels.convolution, kernels.convolution_backward) == 4
    assert calls(rewritten, torch.ops.aten.clone.default) == 0
    torch.testing.assert_close(rewritten(*given), expected)


@pytest.mark.parametrize(
    "options", [{"stride": 2}, {"dilation": 2}, {"groups": 1}, {"bias": drawn(4)}]
)
def test_other_convolutions_stay(monkeypatch, options):
    monkeypatch.setattr(graph_convolution, "_run_on", lambda _: True)
    options = {"groups": 2, **options}
    inputs, weight = drawn(1, 4, 5, 5), drawn(4, 4 // options["groups"], 3, 3)
    graph = make_fx(lambda *given: F.conv2d(*given, **options))(inputs, weight)
    assert calls(graph_convolution.use_triton(graph), *CONVOLUTIONS) == 1


def test_convolutions_on_a_cpu_stay():
    graph, _ = step_of(2, 3, "cpu")
    assert calls(graph_convolution.use_triton(graph), *CONVOLUTIONS) == 4


def test_without_a_compiler_cudnn_remains_and_says_so(monkeypatch):
    def convolution(*_):
        raise RuntimeError("Python.h: No such file")

    monkeypatch.setattr(kernels, "convolution", convolution)
    monkeypatch.setattr(torch, "ones", lambda *shape, device: torch.zeros(shape))
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    with pytest.warns(RuntimeWarning, match=r"cuDNN computes .* \(RuntimeError: Python.h"):
        assert not graph_convolution._run_on.__wrapped__(torch.device("cuda"))
