"""Rewrites of recorded steps: what they make of graphs, and where they must refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import vmap
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from fedapp.training.batched.graph_matmul import (
    MIN_INNER_DIM,
    LinearWithOnednn,
    compile_around_matmuls,
    use_onednn,
)
from fedapp.training.batched.graph_updates import update_in_place

aten = torch.ops.aten
Function = Callable[..., list[Tensor]]


def tensors(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float64) -> list[Tensor]:
    draws = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=draws, dtype=dtype) for shape in shapes]


def recorded(function: Function, given: list[Tensor]) -> GraphModule:
    return make_fx(function)(*(tensor.clone() for tensor in given))


def targets(graph: GraphModule) -> list[object]:
    return [node.target for node in graph.graph.nodes if node.op == "call_function"]


def check_same(function: Function, given: list[Tensor], **options: bool) -> list[object]:
    """The rewritten graph returns and leaves behind what the function does; its operations."""
    graph = update_in_place(recorded(function, given), **options)
    mine, reference = ([tensor.clone() for tensor in given] for _ in range(2))
    torch.testing.assert_close(graph(*mine), function(*reference), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(mine, reference, rtol=1e-12, atol=1e-12)
    return targets(graph)


W, X, DY, RATE, C = (4, 3), (5, 3), (5, 4), (), (4, 3)


def test_a_product_goes_into_the_weight() -> None:
    def step(w: Tensor, x: Tensor, dy: Tensor, rate: Tensor) -> list[Tensor]:
        out = x @ w.t()
        w.copy_(w + -rate * (dy.t() @ x))
        return [out]

    found = check_same(step, tensors(W, X, DY, RATE))
    assert found[-1] is aten.addmm_.default
    assert aten.copy_.default not in found


def test_a_captured_update_reads_no_number() -> None:
    def step(w: Tensor, x: Tensor, dy: Tensor, rate: Tensor) -> list[Tensor]:
        w.copy_(w + -rate * (dy.t() @ x))
        return [dy.sum()]

    found = check_same(step, tensors(W, X, DY, RATE), matmuls=False)
    assert {aten.mm.default, aten.addcmul_.default} <= {*found}
    assert not {aten.copy_.default, aten._local_scalar_dense.default} & {*found}


def test_a_transposed_product_goes_into_the_weight() -> None:
    def step(w: Tensor, x: Tensor, dy: Tensor) -> list[Tensor]:
        w.copy_(w - 0.1 * (x.t() @ dy).t())
        return [dy.sum()]

    found = check_same(step, tensors(W, X, DY))
    assert aten.addmm_.default in found
    assert aten.mm.default not in found


def test_the_rest_of_a_sum_is_added() -> None:
    """A proximal term and weight decay besides the product; a bias without any."""

    def step(w: Tensor, x: Tensor, dy: Tensor, rate: Tensor, global_params: Tensor) -> list[Tensor]:
        gradient = (dy.t() @ x) * 2.0 + 0.3 * (w - global_params)
        w.copy_(w + -rate * (gradient + 0.01 * w))
        return [dy.sum()]

    found = check_same(step, tensors(W, X, DY, RATE, C))
    assert aten.addmm_.default in found
    assert aten.addcmul_.default in found
    assert aten.mm.default not in found


@pytest.mark.parametrize(
    "update",
    [
        lambda w, c, rate: w + -rate * c.sin(),
        lambda w, c, rate: w - c.sin(),
        lambda w, c, rate: c.sin() + w,
        lambda w, c, rate: w + 0.5 * c.sin() - rate * c.cos(),
        lambda w, c, rate: torch.sub(w, c.sin(), alpha=3),
    ],
)
def test_sums(update: Callable[..., Tensor]) -> None:
    def step(w: Tensor, c: Tensor, rate: Tensor) -> list[Tensor]:
        w.copy_(update(w, c, rate))
        return [c.sum()]

    assert aten.copy_.default not in check_same(step, tensors(W, C, RATE))


def test_the_old_weight_is_read_before() -> None:
    def step(w: Tensor, x: Tensor, dy: Tensor) -> list[Tensor]:
        w.copy_(w - 0.1 * (dy.t() @ x) + w.sin())
        return [w * 2]

    assert aten.addmm_.default in check_same(step, tensors(W, X, DY))


def test_two_weights_whose_gradients_hold_each_other() -> None:
    """Each gradient reads the other's old weight, which is written first: no product waits."""

    def step(v: Tensor, w: Tensor) -> list[Tensor]:
        new_v, new_w = v + w @ w, w + v @ v
        v.copy_(new_v)
        w.copy_(new_w)
        return [v.sum()]

    found = check_same(step, tensors((3, 3), (3, 3)))
    assert aten.addmm_.default not in found


REFUSED: dict[str, Function] = {}


def refused(function: Function) -> Function:
    REFUSED[function.__name__] = function
    return function


@refused
def the_weight_is_subtracted(w: Tensor, c: Tensor) -> list[Tensor]:
    w.copy_(c.sin() - w)
    return [c.sum()]


@refused
def what_is_added_is_written_before(w: Tensor, c: Tensor) -> list[Tensor]:
    new = w + c
    c.copy_(c * 2)
    w.copy_(new)
    return [c.sum()]


@refused
def a_view_of_what_is_added_is_written_before(w: Tensor, c: Tensor) -> list[Tensor]:
    new = w + c.view(4, 3)
    c[0].zero_()
    w.copy_(new)
    return [c.sum()]


@refused
def the_sum_is_returned(w: Tensor, c: Tensor) -> list[Tensor]:
    new = w + c.sin()
    w.copy_(new)
    return [new]


@refused
def the_weight_is_written_in_between(w: Tensor, c: Tensor) -> list[Tensor]:
    new = w + c.sin()
    w.zero_()
    w.copy_(new)
    return [c.sum()]


@refused
def the_weight_itself_is_added(w: Tensor, c: Tensor) -> list[Tensor]:
    w.copy_(w + w)
    return [c.sum()]


@refused
def the_sum_is_of_another_type(w: Tensor, c: Tensor) -> list[Tensor]:
    w.copy_(w + c.float())
    return [c.sum()]


@refused
def a_row_is_added_to_all(w: Tensor, c: Tensor) -> list[Tensor]:
    w.copy_(w + c[0])
    return [c.sum()]


@refused
def only_part_is_written(w: Tensor, c: Tensor) -> list[Tensor]:
    part = w[1:]
    part.copy_(part + c[1:].sin())
    return [c.sum()]


@refused
def another_sum_is_copied(w: Tensor, c: Tensor) -> list[Tensor]:
    w.copy_(c + c.sin())
    return [c.sum()]


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    """The copy stays, and what comes out is the same."""
    assert aten.copy_.default in check_same(REFUSED[name], tensors(W, C))


def test_a_scalar_that_is_written_before_is_not_read_later() -> None:
    def step(w: Tensor, x: Tensor, dy: Tensor, rate: Tensor) -> list[Tensor]:
        new = w + rate * (dy.t() @ x)
        rate.copy_(rate * 0.5)
        w.copy_(new)
        return [rate * 1]

    assert aten.addmm_.default not in check_same(step, tensors(W, X, DY, RATE))


def test_a_product_that_is_read_again_is_made() -> None:
    def step(w: Tensor, x: Tensor, dy: Tensor) -> list[Tensor]:
        gradient = dy.t() @ x
        w.copy_(w - 0.1 * gradient)
        return [gradient.norm()]

    found = check_same(step, tensors(W, X, DY))
    assert aten.mm.default in found
    assert aten.copy_.default not in found


@pytest.mark.parametrize("each", [False, True], ids=["one rate", "a rate for each"])
def test_products_of_several_clients_go_into_their_weights(each: bool) -> None:
    """Under vmap a product is a batch of products, and there may be a rate for each."""

    def step(w: Tensor, x: Tensor, dy: Tensor, rate: Tensor) -> list[Tensor]:
        def change(w: Tensor, x: Tensor, dy: Tensor, rate: Tensor) -> tuple[Tensor, Tensor]:
            return w + -rate * (x.t() @ dy).t(), x @ w.t()

        after, out = vmap(change, in_dims=(0, 0, 0, 0 if each else None))(w, x, dy, rate)
        w.copy_(after)
        return [out]

    given = tensors((2, *W), (2, *X), (2, *DY), (2,) if each else ())
    found = check_same(step, given)
    assert aten.baddbmm_.default in found
    assert aten.copy_.default not in found
    assert aten.expand.default not in found


ONEDNN = torch.ops.mkldnn._linear_pointwise.default
LARGE = (512, 1024)


def test_large_products_are_onednns() -> None:
    """Forward and backward products of four examples in float32; small ones and float64 stay."""

    def products(w: Tensor, b: Tensor, x: Tensor, y: Tensor) -> list[Tensor]:
        return [torch.addmm(b, x, w.t()), y @ w, y[:1] @ w]

    for dtype, wanted in ((torch.float32, 2), (torch.float64, 0)):
        given = tensors(LARGE, (512,), (4, 1024), (4, 512), dtype=dtype)
        graph = use_onednn(recorded(products, given))
        assert targets(graph).count(ONEDNN) == wanted
        torch.testing.assert_close(graph(*given), products(*given), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(("examples", "wanted"), [(8, aten.addmm_.default), (40, ONEDNN)])
def test_a_deep_update_is_onednns_product_and_an_addition(examples: int, wanted: object) -> None:
    """The sum over 8 examples is quicker straight into the weight, the one over 40 is not."""

    def step(w: Tensor, x: Tensor, dy: Tensor, rate: Tensor) -> list[Tensor]:
        w.copy_(w + -rate * (dy.t() @ x))
        return [w * 2]

    given = tensors(LARGE, (examples, 1024), (examples, 512), (), dtype=torch.float32)
    graph = use_onednn(update_in_place(recorded(step, given)))
    assert wanted in targets(graph)
    mine, reference = ([tensor.clone() for tensor in given] for _ in range(2))
    torch.testing.assert_close(graph(*mine), step(*reference), rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(mine, reference, rtol=1e-4, atol=1e-3)


def test_linear_layers_are_onednns_while_scored() -> None:
    layer, inputs = torch.nn.Linear(1024, 512), torch.randn(3, 4, 1024)
    with torch.no_grad(), LinearWithOnednn():
        found = layer(inputs), layer(inputs[:, :0]), torch.nn.Linear(3, 2)(torch.ones(1, 3))
    torch.testing.assert_close(found[0], layer(inputs), rtol=1e-4, atol=1e-4)
    assert [tuple(out.shape) for out in found] == [(3, 4, 512), (3, 0, 512), (1, 2)]


BIASES: dict[str, Callable[[], Tensor]] = {
    "expanded": lambda: torch.full((1,), 2.0).expand(512),
    "with a stride": lambda: torch.arange(1024.0).view(512, 2)[:, 0],
    "a scalar": lambda: torch.tensor(2.0),
    "one": lambda: torch.tensor([2.0]),
}


@pytest.mark.parametrize("kind", BIASES)
def test_a_bias_that_is_no_contiguous_vector_stays_pytorchs(kind: str) -> None:
    bias, (weight, inputs) = BIASES[kind](), tensors(LARGE, (4, 1024), dtype=torch.float32)
    expected = inputs @ weight.t() + bias
    with torch.no_grad(), LinearWithOnednn():
        found = torch.nn.functional.linear(inputs, weight, bias)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-3)

    def product(w: Tensor, x: Tensor) -> list[Tensor]:
        return [torch.nn.functional.linear(x, w, bias)]

    graph = use_onednn(recorded(product, [weight, inputs]))
    torch.testing.assert_close(graph(weight, inputs)[0], expected, rtol=1e-4, atol=1e-3)


def uncompiled(calls: list[GraphModule]) -> Callable[..., Any]:
    """Stand in for a compiler: note each part, and run it as it is."""

    def compile_(graph: GraphModule, given: list[Tensor]) -> Callable[..., list[Tensor]]:
        calls.append(graph)
        graph(*(tensor.clone() for tensor in given))
        return lambda tensors: graph(*tensors)

    return compile_


def test_what_lies_between_products_is_compiled() -> None:
    """A network with two layers: no part holds a product, every weight is updated in place."""

    def step(w: Tensor, b: Tensor, v: Tensor, x: Tensor, rate: Tensor) -> list[Tensor]:
        hidden = torch.addmm(b, x, w.t()).sin().exp()
        out = (hidden @ v.t()).cos() * hidden.sum()
        dy = out * 2 - out.mean()
        dh = (dy @ v).sin() * hidden
        v.copy_(v + -rate * (dy.t() @ hidden))
        w.copy_(w + -rate * (dh.t() @ x))
        b.copy_(b + -rate * dh.sum(0))
        return [out.sum()]

    given = [tensor / 100 for tensor in tensors((4, 3), (4,), (2, 4), (5, 3), ())]
    calls: list[GraphModule] = []
    graph = compile_around_matmuls(recorded(step, given), given, uncompiled(calls))
    assert graph is not None
    inside = [target for part in calls for target in targets(part)]
    assert inside
    assert not {aten.mm.default, aten.addmm.default, aten.addmm_.default} & set(inside)
    assert targets(graph).count(aten.addmm_.default) == 2
    mine, reference = ([tensor.clone() for tensor in given] for _ in range(2))
    for _ in range(3):
        torch.testing.assert_close(graph(*mine), step(*reference), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(mine, reference, rtol=1e-12, atol=1e-12)


def test_one_of_several_results_is_picked_where_they_are() -> None:
    """The places of the largest are made before a product and read after it."""

    def step(w: Tensor, x: Tensor) -> list[Tensor]:
        largest, places = (x.sin() + 1).sort(dim=1)
        out = (largest @ w).cos() * 2 - 1
        return [out, places * 2 + places.sum() - out.argmax()]

    given = tensors((3, 3), (5, 3))
    graph = compile_around_matmuls(recorded(step, given), given, uncompiled([]))
    assert graph is not None
    torch.testing.assert_close(graph(*given), step(*given), rtol=1e-12, atol=1e-12)


def test_writes_stay_between_the_reads_before_and_after() -> None:
    """The first product reads the old weight, the second the new one."""

    def step(w: Tensor, x: Tensor) -> list[Tensor]:
        before = (x @ w).sin() * 2 + 1
        w.mul_(2.0).add_(1.0).sub_(0.5)
        after = (x @ w).cos() * 3 - before
        return [before, after]

    given = tensors((3, 3), (5, 3))
    graph = compile_around_matmuls(recorded(step, given), given, uncompiled([]))
    assert graph is not None
    mine, reference = ([tensor.clone() for tensor in given] for _ in range(2))
    torch.testing.assert_close(graph(*mine), step(*reference), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(mine, reference, rtol=1e-12, atol=1e-12)


def test_a_compiled_part_takes_no_numbers() -> None:
    """oneDNN's products are added into the weights at minus the rate, a number."""

    def step(rate: Tensor, w: Tensor, v: Tensor, u: Tensor, x: Tensor) -> list[Tensor]:
        out = ((x @ w) * 2).sin().exp()
        for weight in (w, v, u):
            weight.copy_(weight + -rate * (x.t() @ (out + weight.sum())))
        return [out.sum()]

    size = MIN_INNER_DIM * 5
    given = [t.float() / 1000 for t in tensors((), *[(size, size)] * 3, (size, size))]
    taken: list[object] = []

    def compile_(graph: GraphModule, values: list[Tensor]) -> Callable[..., Any]:
        taken.extend(values)
        return lambda tensors: graph(*tensors)

    graph = compile_around_matmuls(recorded(step, given), given, compile_)
    assert graph is not None
    assert taken
    assert all(isinstance(each, Tensor) for each in taken)
    assert targets(graph).count(aten.add_.Tensor) == 3
    mine, reference = ([tensor.clone() for tensor in given] for _ in range(2))
    torch.testing.assert_close(graph(*mine), step(*reference))
    torch.testing.assert_close(mine, reference)


def test_without_products_or_with_very_many_nothing_is_taken() -> None:
    def chain(w: Tensor) -> list[Tensor]:
        out = w
        for _ in range(40):
            out = (out @ w).sin()
        return [out]

    given = tensors((3, 3))
    assert compile_around_matmuls(recorded(chain, given), given, uncompiled([])) is None
    assert (
        compile_around_matmuls(recorded(lambda w: [w.sin()], given), given, uncompiled([])) is None
    )
