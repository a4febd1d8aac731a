"""In-place parameter updates in the graph of a traced step.

The rewrite changes the cost of a step, and its results only by rounding. It relies on the fact that
no two inputs of a traced graph share memory.
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

from fedapp.training.batched.graph_memory import MemoryUse, written_inputs

aten = torch.ops.aten

NDIM = 3
"""Dimensions of a batch of matrices, [c, m, n]."""


def update_in_place(graph: GraphModule, *, matmuls: bool = True) -> GraphModule:
    """Replace ``w.copy_(w + s * g)`` by updates of w in place, without g where g is a matmul.

    A term ``s * (a @ b)`` becomes ``w.addmm_(a, b, alpha=s)``, others ``w.addcmul_(g, s)`` or
    ``w.add_(g)``. These read their operands later than the original operations did; where an operand's
    memory is written, the copy stays.

    With ``matmuls``, s is read as a number, which is done on a CPU only. Without, for a CUDA graph,
    matmuls are terms like others.
    """
    _remove_no_op_views(graph.graph)
    memory = MemoryUse.of(graph.graph)
    for node in list(graph.graph.nodes):
        if node.target is aten.copy_.default and (on_cpu(node.args[0]) or not matmuls):
            _rewrite_copy(node, memory, matmuls)
    return cleanup_graph(graph)


VIEWS = (aten.view.default, aten._unsafe_view.default, aten.expand.default)


def _remove_no_op_views(graph: Graph) -> None:
    """Remove views that do not change the shape, of which ``vmap`` makes many."""
    for node in list(graph.nodes):
        if node.target in VIEWS and meta(node).shape == meta(node.args[0]).shape:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)


# ---------------------------------------------------------------------- sums of matmuls


@dataclass(frozen=True)
class ScaledMatmul:
    """``number * scale * (left @ right)``, of matrices or batches of c matrices.

    ``scale`` is the node of a scalar or of one for each pair, [c, 1, 1]; or None.
    """

    left: Node
    right: Node
    number: float = 1.0
    scale: Node | None = None


def _rewrite_copy(copy: Node, memory: MemoryUse, matmuls: bool) -> None:
    """Replace one ``copy_`` by updates in place where that is possible."""
    weight, value = copy.args
    if not (
        isinstance(weight, Node) and isinstance(value, Node) and _is_written_once(weight, memory)
    ):
        return
    terms = _other_terms(value, weight)
    if terms is None or any(meta(term).dtype != meta(weight).dtype for _, term in terms):
        return
    with copy.graph.inserting_before(copy):
        split = [
            (sign, *(_split_matmuls(term, memory) if matmuls else ([], term)))
            for sign, term in terms
        ]
        rests = [(sign, rest) for sign, _, rest in split if rest is not None]
        if not all(
            _same_shape(rest, weight) and _readable_later(rest, memory) for _, rest in rests
        ):
            return
        for sign, rest in rests:
            _add_term(weight, rest, sign, memory)
        for sign, found, _ in split:
            for matmul in found:
                _add_matmul(weight, replace(matmul, number=sign * matmul.number))
    copy.replace_all_uses_with(weight)
    copy.graph.erase_node(copy)


def _is_written_once(weight: Node, memory: MemoryUse) -> bool:
    """Return whether ``weight`` is an input of the graph that is written once."""
    return weight.op == "placeholder" and memory.writes.get(weight) == 1


def _other_terms(value: Node, weight: Node) -> list[tuple[float, Node]] | None:
    """Return sign and node of the terms of the sum ``value`` besides ``weight``; None if it is no sum."""
    if value.target not in (aten.add.Tensor, aten.sub.Tensor) or len(value.users) > 1:
        return None
    first, second = value.args[:2]
    factor = value.kwargs.get("alpha", 1)
    if not (isinstance(first, Node) and isinstance(second, Node)) or not _is_number(factor):
        return None
    sign = float(factor) * (-1.0 if value.target is aten.sub.Tensor else 1.0)  # type: ignore[arg-type]
    if first is weight:
        return [(sign, second)]
    if second is weight and sign == 1.0:
        return [(1.0, first)]
    inner = _other_terms(first, weight)
    return None if inner is None else [*inner, (sign, second)]


def _split_matmuls(term: Node, memory: MemoryUse) -> tuple[list[ScaledMatmul], Node | None]:
    """Return the matmuls in a sum, and the sum of the other terms."""
    matmul = _as_matmul(term, memory)
    if matmul is not None:
        return [matmul], None
    if len(term.users) == 1 and term.target is aten.add.Tensor and not term.kwargs:
        return _split_sum(term, memory)
    scaled = _as_scaled(term, memory) if len(term.users) == 1 else None
    if scaled is None:
        return [], term
    scale, inner = scaled
    matmuls, rest = _split_matmuls(inner, memory)
    if not matmuls:
        return [], term
    matmuls = [_scale_matmul(matmul, scale) for matmul in matmuls]
    return matmuls, None if rest is None else add_call(aten.mul.Tensor, (rest, scale), meta(rest))


def _split_sum(term: Node, memory: MemoryUse) -> tuple[list[ScaledMatmul], Node | None]:
    first, second = term.args
    if not (isinstance(first, Node) and isinstance(second, Node)):
        return [], term
    if meta(first).shape != meta(second).shape:
        return [], term
    (first_matmuls, rest), (second_matmuls, other) = (
        _split_matmuls(first, memory),
        _split_matmuls(second, memory),
    )
    if not (first_matmuls or second_matmuls):
        return [], term
    if rest is not None and other is not None:
        rest = add_call(aten.add.Tensor, (rest, other), meta(rest))
        return first_matmuls + second_matmuls, rest
    return first_matmuls + second_matmuls, other if rest is None else rest


def _as_matmul(term: Node, memory: MemoryUse) -> ScaledMatmul | None:
    """Return ``term`` as a matmul, also behind transpositions, if its operands can be read later."""
    transposed, node = False, term
    while is_transpose(node) and len(node.users) == 1:
        transposed, node = not transposed, node.args[0]  # type: ignore[assignment]
    if node.target not in (aten.mm.default, aten.bmm.default) or len(node.users) > 1:
        return None
    left, right = node.args
    if not (isinstance(left, Node) and isinstance(right, Node)):
        return None
    if not (memory.never_written(left) and memory.never_written(right)):
        return None
    if transposed:
        left, right = transpose(right), transpose(left)
    return ScaledMatmul(left, right)


def _as_scaled(term: Node, memory: MemoryUse) -> tuple[Node | float, Node] | None:
    """Return scalar and tensor of a product of both, or None if ``term`` is none.

    The scalar is a number, or a node that can be read later.
    """
    if term.target is not aten.mul.Tensor:
        return None
    first, second = term.args
    for scale, inner in ((first, second), (second, first)):
        if not isinstance(inner, Node) or meta(inner).shape != meta(term).shape:
            continue
        if _is_number(scale):
            return float(scale), inner  # type: ignore[arg-type]
        if isinstance(scale, Node):
            scalar = _unexpanded(scale)
            value = meta(scalar)
            per_pair = value.shape == (*meta(term).shape[:1], 1, 1) and meta(term).dim() == NDIM
            if not (per_pair or value.dim() == 0) or value.dtype != meta(term).dtype:
                continue
            if _readable_later(scalar, memory):
                return scalar, inner
    return None


def _unexpanded(node: Node) -> Node:
    """Return the node that ``node`` expands, or the node itself."""
    while node.target is aten.expand.default:
        node = node.args[0]  # type: ignore[assignment]
    return node


def _scale_matmul(matmul: ScaledMatmul, scale: Node | float) -> ScaledMatmul:
    if not isinstance(scale, Node):
        return replace(matmul, number=matmul.number * scale)
    if matmul.scale is not None:
        larger = max(matmul.scale, scale, key=lambda node: meta(node).dim())
        scale = add_call(aten.mul.Tensor, (matmul.scale, scale), meta(larger))
    return replace(matmul, scale=scale)


# ---------------------------------------------------------------------- updates in place


def _same_shape(node: Node, weight: Node) -> bool:
    return meta(node).shape == meta(weight).shape


def _readable_later(node: Node, memory: MemoryUse) -> bool:
    """Return whether a term can be read later; of a node added by the rewrite, whether its inputs can."""
    if node in memory.roots:
        return memory.never_written(node)
    return all(_readable_later(read, memory) for read in node.all_input_nodes)


def _add_term(weight: Node, rest: Node, sign: float, memory: MemoryUse) -> None:
    """Insert the addition of a term to the weight in place."""
    scaled = _as_scaled(rest, memory) if len(rest.users) <= 1 else None
    if scaled is None or not _readable_later(scaled[1], memory):
        _add_call_in_place(aten.add_.Tensor, (weight, rest), alpha=sign)
    elif isinstance(scaled[0], Node):
        _add_call_in_place(aten.addcmul_.default, (weight, scaled[1], scaled[0]), value=sign)
    else:
        _add_call_in_place(aten.add_.Tensor, (weight, scaled[1]), alpha=sign * scaled[0])


def _add_matmul(weight: Node, matmul: ScaledMatmul) -> None:
    """Insert the addition of a matmul to the weight in place; a scalar tensor is read as a number."""
    alpha: Node | float = matmul.number
    left, scale = matmul.left, matmul.scale
    if scale is not None and meta(scale).dim():
        left = add_call(aten.mul.Tensor, (left, scale), meta(left))
    elif scale is not None:
        alpha = _as_number(scale)
        if matmul.number != 1.0:
            alpha = weight.graph.call_function(operator.mul, (alpha, matmul.number))
    batched = meta(left).dim() == NDIM
    target = aten.baddbmm_.default if batched else aten.addmm_.default
    _add_call_in_place(target, (weight, left, matmul.right), alpha=alpha)


def _as_number(scalar: Node) -> Node:
    """Return the node that reads a scalar tensor as a number, the same for all uses."""
    target = aten._local_scalar_dense.default
    existing = next((user for user in scalar.users if user.target is target), None)
    return existing or scalar.graph.call_function(target, (scalar,))


def _add_call_in_place(
    target: Callable[..., Tensor], args: tuple[Node, ...], **kwargs: Node | float
) -> None:
    factor: dict[str, Argument] = {name: v for name, v in kwargs.items() if v != 1.0}
    args[0].graph.call_function(target, args, factor)


# ---------------------------------------------------------------------- nodes


def is_transpose(node: Argument) -> bool:
    """Return whether the node transposes a matrix or a batch of matrices."""
    if not isinstance(node, Node) or node.op != "call_function":
        return False
    if node.target is aten.transpose.int:
        dims = {int(d) % NDIM for d in node.args[1:]}  # type: ignore[arg-type]
        return meta(node).dim() == NDIM and dims == {1, 2}
    return node.target is aten.t.default


def transpose(node: Node) -> Node:
    """Insert the transposition of a matrix or a batch of matrices."""
    if meta(node).dim() < NDIM:
        return add_call(aten.t.default, (node,), meta(node).t())
    return add_call(aten.transpose.int, (node, 1, 2), meta(node).mT)


def meta(node: Node) -> Tensor:
    """Return the meta value of a node: a tensor of its shape and type."""
    value: Tensor = node.meta["val"]
    return value


def _is_number(value: Argument) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def on_cpu(node: Argument) -> bool:
    """Return whether the node's value is on the CPU."""
    return isinstance(node, Node) and meta(node).device.type == "cpu"


def add_call(
    target: Callable[..., Tensor], args: tuple[Node, *tuple[Node | float, ...]], like: Tensor
) -> Node:
    """Insert a call of an operation, whose result has the shape and type of ``like``."""
    node = args[0].graph.call_function(target, args)
    node.meta["val"] = like
    return node


def cleanup_graph(graph: GraphModule) -> GraphModule:
    """Remove unused nodes."""
    always = ("placeholder", "output")
    graph.graph.eliminate_dead_code(lambda node: node.op in always or bool(written_inputs(node)))
    graph.graph.lint()
    graph.recompile()
    return graph
