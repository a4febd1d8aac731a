"""What a step of convolutional networks costs for several clients: grouped, as products, one by one.

    python -m benchmarks.gpu convolutions

``torch.func.vmap`` makes the convolutions of c clients one convolution of c groups, which cuDNN may
be slow at; the trainer replaces it on a GPU by kernels for all groups at once. The same gradients
come from products of matrices (the images' windows as columns), and from one client after another,
whose images lie contiguous or channels-last. On a GPU each is a captured CUDA graph, as in the trainer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from rich.table import Table
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from benchmarks.turns import median_seconds
from fedapp.config.read import read_config
from fedapp.data.dataset import Task
from fedapp.models.model import Model, initialise
from fedapp.training.batched.compiled_step import GraphPool, cuda_graph
from fedapp.training.batched.graph_convolution import use_triton
from fedapp.training.build import make_model
from fedapp.training.device import to_memory_format

CIFAR = Task("image", (3, 32, 32), 10)

GROUPED, KERNELS = "together: grouped convolutions", "together: kernels for all groups"
PRODUCTS = "together: unfold and bmm"
CONTIGUOUS, CHANNELS_LAST = "one by one: contiguous", "one by one: channels-last"


@dataclass(frozen=True)
class Case:
    """So many clients of a model, with batches of one size."""

    model: str
    clients: int
    batch: int


CASES = (Case("seo-cnn", 10, 50), Case("pfl-cnn", 50, 10), Case("cifar-tf", 10, 50))
"""W3 with all clients, W4, and the CIFAR cells of McMahan et al."""

Gradients = Callable[..., list[Tensor]]


@dataclass(frozen=True)
class Variant:
    """A way to all clients' gradients: ``times`` calls of a function on tensors like ``given``.

    ``rewrite`` changes the function's operations once they are traced.
    """

    gradients: Gradients
    given: list[Tensor]
    times: int = 1
    rewrite: Callable[[GraphModule], GraphModule] = lambda graph: graph


class Product(nn.Conv2d):
    """A convolution as a product: the weights, by the images' windows as columns."""

    def _conv_forward(
        self,
        input: Tensor,  # noqa: A002, PyTorch's name
        weight: Tensor,
        bias: Tensor | None,
    ) -> Tensor:
        """Return [n, O, H, W] for images [n, C, ...], one group, no dilation."""
        padded = F.pad(input, self._reversed_padding_repeated_twice)
        columns = F.unfold(padded, weight.shape[2:], stride=self.stride)  # [n, C k k, H W]
        height = (padded.shape[2] - weight.shape[2]) // int(self.stride[0]) + 1
        maps = weight.flatten(1) @ columns.transpose(0, 1).flatten(1)
        images: Tensor = maps.unflatten(1, (len(input), height, -1)).transpose(0, 1)
        return images if bias is None else images + bias[:, None, None]


def with_products(module: nn.Module) -> nn.Module:
    """Let the network's convolutions be products, and return it."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):
            layer.__class__ = Product
    return module


def variants(case: Case, task: Task, device: torch.device) -> dict[str, Variant]:
    """Return the ways to the gradients of all clients' next step, from random weights and images."""
    model = make_model(read_config({"model": case.model}))
    drawn = torch.Generator().manual_seed(0)
    images = torch.randn(case.clients, case.batch, *task.input_shape, generator=drawn).to(device)
    shape = (case.clients, case.batch)
    labels = torch.randint(task.num_classes, shape, generator=drawn).to(device)

    def network() -> nn.Module:
        return initialise(model, task, 0).to(device)

    weights = [weight.detach() for weight in network().parameters()]
    stacked = [weight.expand(case.clients, *weight.shape).contiguous() for weight in weights]
    one, last = [*weights, images[0]], torch.channels_last
    laid = [to_memory_format(tensor, last) for tensor in one]
    alone = gradients_of(network(), model)
    together = Variant(vmap(alone), [*stacked, images, labels])
    kernels = {KERNELS: replace(together, rewrite=use_triton)} if device.type == "cuda" else {}
    return {
        GROUPED: together,
        **kernels,
        PRODUCTS: Variant(
            vmap(gradients_of(with_products(network()), model)), [*stacked, images, labels]
        ),
        CONTIGUOUS: Variant(alone, [*one, labels[0]], case.clients),
        CHANNELS_LAST: Variant(alone, [*laid, labels[0]], case.clients),
    }


def gradients_of(module: nn.Module, model: Model) -> Gradients:
    """Return the gradients of the loss, as a function of weights, images and labels."""
    names = [name for name, _ in module.named_parameters()]

    def loss(params: dict[str, Tensor], images: Tensor, labels: Tensor) -> Tensor:
        return model.loss(functional_call(module, params, (images,)), labels)

    def gradients(*given: Tensor) -> list[Tensor]:
        found = grad(loss)(dict(zip(names, given, strict=False)), *given[len(names) :])
        return [found[name] for name in names]

    return gradients


@torch.no_grad()
def seconds_of(variant: Variant, device: torch.device, turns: int) -> float:
    """Return the seconds in which all clients have their gradients, without Python's part on a GPU."""
    given = variant.given
    graph = variant.rewrite(make_fx(variant.gradients)(*given))
    if device.type == "cuda":
        replay, _ = cuda_graph(graph, given, GraphPool())
        return variant.times * median_seconds(replay, device, turns)
    return variant.times * median_seconds(lambda: graph(*given), device, turns)


def compare(
    device: torch.device, turns: int, cases: Sequence[Case] = CASES, task: Task = CIFAR
) -> Table:
    """Return the milliseconds of a step of each case's clients, each way, beside the grouped one."""
    table = Table("clients", "how", "ms a step", "grouped / it", title="Convolutions")
    for case in cases:
        times = {
            name: seconds_of(variant, device, turns)
            for name, variant in variants(case, task, device).items()
        }
        for name, seconds in times.items():
            clients = f"{case.clients} x {case.model}, B = {case.batch}"
            ratio = times[GROUPED] / seconds
            table.add_row(clients, name, f"{1e3 * seconds:.2f}", f"{ratio:.2f}")
    return table
