"""Rewrites of a recorded step that change what it costs and not what it computes, up to rounding.

Both are for the CPU. They rely on what a recorded graph guarantees: its inputs are tensors of their
own, none of which shares memory with another.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import Argument

from fedapp.training.batched.graph_memory import Memory, written

aten = torch.ops.aten

PAIRS = 3
"""Dimensions of c matrices side by side."""


def descend_in_place(graph: GraphModule) -> GraphModule:
    """Write ``w.copy_(w + s * g)`` straight into w, and where g is a product, never make g.

    A term ``s * (a @ b)`` becomes ``w.addmm_(a, b, alpha=s)``, another ``w.addcmul_(g, s)`` or
    ``w.add_(g)``. What is read later than before must be memory that nothing writes; where that is
    not so the copy stays.
    """
    _remove_idle_views(graph.graph)
    memory = Memory.of(graph.graph)
    for node in list(graph.graph.nodes):
        if node.target is aten.copy_.default and on_cpu(node.args[0]):
            _descend(node, memory)
    return cleanup_graph(graph)


VIEWS = (aten.view.default, aten._unsafe_view.default, aten.expand.default)


def _remove_idle_views(graph: Graph) -> None:
    """Remove views of the shape that was there before, of which ``vmap`` makes many."""
    for node in list(graph.nodes):
        if node.target in VIEWS and meta(node).shape == meta(node.args[0]).shape:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)


# ---------------------------------------------------------------------- sums of products


@dataclass(frozen=True)
class Product:
    """``number * scale * (left @ right)``, of matrices, or of c pairs of matrices.

    ``scale`` is the node of a scalar, or of one for each pair, [c, 1, 1]; or None.
    """

    left: Node
    right: Node
    number: float = 1.0
    scale: Node | None = None


def _descend(copy: Node, memory: Memory) -> None:
    """Replace one ``copy_`` by updates in place, if that is what it is and it may be done."""
    weight, value = copy.args
    if not (isinstance(weight, Node) and isinstance(value, Node) and _own(weight, memory)):
        return
    terms = _besides(value, weight)
    if terms is None or any(meta(term).dtype != meta(weight).dtype for _, term in terms):
        return
    with copy.graph.inserting_before(copy):
        split = [(sign, *_split(term, memory)) for sign, term in terms]
        rests = [(sign, rest) for sign, _, rest in split if rest is not None]
        if not all(_like(rest, weight) and _may_wait(rest, memory) for _, rest in rests):
            return
        for sign, rest in rests:
            _add(weight, rest, sign, memory)
        for sign, products, _ in split:
            for product in products:
                _add_product(weight, replace(product, number=sign * product.number))
    copy.replace_all_uses_with(weight)
    copy.graph.erase_node(copy)


def _own(weight: Node, memory: Memory) -> bool:
    """Return whether ``weight`` is an input that is written once."""
    return weight.op == "placeholder" and memory.writes.get(weight) == 1


def _besides(value: Node, weight: Node) -> list[tuple[float, Node]] | None:
    """Return the terms, with signs, that the sum ``value`` has besides ``weight``; None: no such sum."""
    if value.target not in (aten.add.Tensor, aten.sub.Tensor) or len(value.users) > 1:
        return None
    first, second = value.args[:2]
    factor = value.kwargs.get("alpha", 1)
    if not (isinstance(first, Node) and isinstance(second, Node)) or not _number(factor):
        return None
    sign = float(factor) * (-1.0 if value.target is aten.sub.Tensor else 1.0)  # type: ignore[arg-type]
    if first is weight:
        return [(sign, second)]
    if second is weight and sign == 1.0:
        return [(1.0, first)]
    inner = _besides(first, weight)
    return None if inner is None else [*inner, (sign, second)]


def _split(term: Node, memory: Memory) -> tuple[list[Product], Node | None]:
    """Return the products of matrices in a sum, and what is left of it."""
    product = _product(term, memory)
    if product is not None:
        return [product], None
    if len(term.users) == 1 and term.target is aten.add.Tensor and not term.kwargs:
        return _split_sum(term, memory)
    scaled = _scaled(term, memory) if len(term.users) == 1 else None
    if scaled is None:
        return [], term
    scale, inner = scaled
    products, rest = _split(inner, memory)
    if not products:
        return [], term
    products = [_times(product, scale) for product in products]
    return products, None if rest is None else call(aten.mul.Tensor, (rest, scale), meta(rest))


def _split_sum(term: Node, memory: Memory) -> tuple[list[Product], Node | None]:
    first, second = term.args
    if not (isinstance(first, Node) and isinstance(second, Node)):
        return [], term
    if meta(first).shape != meta(second).shape:
        return [], term
    (mine, rest), (theirs, other) = _split(first, memory), _split(second, memory)
    if not (mine or theirs):
        return [], term
    if rest is not None and other is not None:
        rest = call(aten.add.Tensor, (rest, other), meta(rest))
        return mine + theirs, rest
    return mine + theirs, other if rest is None else rest


def _product(term: Node, memory: Memory) -> Product | None:
    """Return the product that ``term`` is, through transpositions, if it can be taken later."""
    turned, node = False, term
    while is_transpose(node) and len(node.users) == 1:
        turned, node = not turned, node.args[0]  # type: ignore[assignment]
    if node.target not in (aten.mm.default, aten.bmm.default) or len(node.users) > 1:
        return None
    left, right = node.args
    if not (isinstance(left, Node) and isinstance(right, Node)):
        return None
    if not (memory.still(left) and memory.still(right)):
        return None
    if turned:
        left, right = transpose(right), transpose(left)
    return Product(left, right)


def _scaled(term: Node, memory: Memory) -> tuple[Node | float, Node] | None:
    """Return scalar and tensor of their product, or None if ``term`` is none.

    The scalar is a number, or can be read later.
    """
    if term.target is not aten.mul.Tensor:
        return None
    first, second = term.args
    for scale, inner in ((first, second), (second, first)):
        if not isinstance(inner, Node) or meta(inner).shape != meta(term).shape:
            continue
        if _number(scale):
            return float(scale), inner  # type: ignore[arg-type]
        if isinstance(scale, Node):
            scalar = _repeated(scale)
            value = meta(scalar)
            each = value.shape == (*meta(term).shape[:1], 1, 1) and meta(term).dim() == PAIRS
            if not (each or value.dim() == 0) or value.dtype != meta(term).dtype:
                continue
            if _may_wait(scalar, memory):
                return scalar, inner
    return None


def _repeated(node: Node) -> Node:
    """Return what ``node`` repeats, or the node itself."""
    while node.target is aten.expand.default:
        node = node.args[0]  # type: ignore[assignment]
    return node


def _times(product: Product, scale: Node | float) -> Product:
    if not isinstance(scale, Node):
        return replace(product, number=product.number * scale)
    if product.scale is not None:
        larger = max(product.scale, scale, key=lambda node: meta(node).dim())
        scale = call(aten.mul.Tensor, (product.scale, scale), meta(larger))
    return replace(product, scale=scale)


# ---------------------------------------------------------------------- updates in place


def _like(node: Node, weight: Node) -> bool:
    return meta(node).shape == meta(weight).shape


def _may_wait(node: Node, memory: Memory) -> bool:
    """Return whether a term may be read later than before; one made just now, if what it reads may."""
    if node in memory.roots:
        return memory.still(node)
    return all(_may_wait(read, memory) for read in node.all_input_nodes)


def _add(weight: Node, rest: Node, sign: float, memory: Memory) -> None:
    """Add a term to the weight in place."""
    scaled = _scaled(rest, memory) if len(rest.users) <= 1 else None
    if scaled is None or not _may_wait(scaled[1], memory):
        _update(aten.add_.Tensor, (weight, rest), alpha=sign)
    elif isinstance(scaled[0], Node):
        _update(aten.addcmul_.default, (weight, scaled[1], scaled[0]), value=sign)
    else:
        _update(aten.add_.Tensor, (weight, scaled[1]), alpha=sign * scaled[0])


def _add_product(weight: Node, product: Product) -> None:
    """Add a product to the weight in place; a scalar tensor is read as a number, which is exact."""
    alpha: Node | float = product.number
    left, scale = product.left, product.scale
    if scale is not None and meta(scale).dim():
        left = call(aten.mul.Tensor, (left, scale), meta(left))
    elif scale is not None:
        alpha = _as_number(scale)
        if product.number != 1.0:
            alpha = weight.graph.call_function(operator.mul, (alpha, product.number))
    pairs = meta(left).dim() == PAIRS
    target = aten.baddbmm_.default if pairs else aten.addmm_.default
    _update(target, (weight, left, product.right), alpha=alpha)


def _as_number(scalar: Node) -> Node:
    """Return the node that reads a scalar tensor: one for all."""
    target = aten._local_scalar_dense.default
    there = next((user for user in scalar.users if user.target is target), None)
    return there or scalar.graph.call_function(target, (scalar,))


def _update(target: Callable[..., Tensor], args: tuple[Node, ...], **kwargs: Node | float) -> None:
    factor: dict[str, Argument] = {name: v for name, v in kwargs.items() if v != 1.0}
    args[0].graph.call_function(target, args, factor)


# ---------------------------------------------------------------------- small parts


def is_transpose(node: Argument) -> bool:
    """Return whether it transposes a matrix, or each of several."""
    if not isinstance(node, Node) or node.op != "call_function":
        return False
    if node.target is aten.transpose.int:
        return meta(node).dim() == PAIRS and {int(d) % PAIRS for d in node.args[1:]} == {1, 2}  # type: ignore[arg-type]
    return node.target is aten.t.default


def transpose(node: Node) -> Node:
    """Add the transposition of a matrix, or of each of several."""
    if meta(node).dim() < PAIRS:
        return call(aten.t.default, (node,), meta(node).t())
    return call(aten.transpose.int, (node, 1, 2), meta(node).mT)


def meta(node: Node) -> Tensor:
    """Return a tensor of the node's shape and type."""
    value: Tensor = node.meta["val"]
    return value


def _number(value: Argument) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def on_cpu(node: Argument) -> bool:
    """Return whether it is a tensor on the CPU."""
    return isinstance(node, Node) and meta(node).device.type == "cpu"


def call(target: Callable[..., Tensor], args: tuple[Node | float, ...], like: Tensor) -> Node:
    """Add a call of an operation on a node and more, whose result is like ``like``."""
    first = args[0]
    if not isinstance(first, Node):
        raise TypeError("the first argument is a node")
    node = first.graph.call_function(target, args)
    node.meta["val"] = like
    return node


def cleanup_graph(graph: GraphModule) -> GraphModule:
    """Remove double transpositions and what nobody reads."""
    for node in graph.graph.nodes:
        inner = node.args[0] if is_transpose(node) else None
        if isinstance(inner, Node) and is_transpose(inner):
            node.replace_all_uses_with(inner.args[0])
    kept = ("placeholder", "output")
    graph.graph.eliminate_dead_code(lambda node: node.op in kept or bool(written(node)))
    graph.graph.lint()
    graph.recompile()
    return graph
