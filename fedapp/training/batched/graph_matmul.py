"""Matrix multiplications of a traced step: by oneDNN, and left out of what Inductor compiles."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Interpreter, Node
from torch.fx.node import Argument
from torch.overrides import TorchFunctionMode

from fedapp.training.batched.graph_memory import MemoryUse, aliased_inputs, written_inputs
from fedapp.training.batched.graph_updates import (
    cleanup_graph,
    meta,
    on_cpu,
    transpose,
    update_in_place,
)

aten = torch.ops.aten

MIN_MULTIPLICATIONS = 1 << 20
"""Multiplications in a matmul from which oneDNN is faster than the BLAS that PyTorch calls."""

MIN_INNER_DIM = 32
"""Inner dimension from which oneDNN's matmul and an addition are faster than BLAS's addmm."""


def use_onednn(graph: GraphModule) -> GraphModule:
    """Replace the larger float32 matmuls by oneDNN's, on many processors twice as fast."""
    if not torch.backends.mkldnn.is_available():
        return graph
    for node in list(graph.graph.nodes):
        if node.target in (aten.mm.default, aten.addmm.default) and not node.kwargs:
            _replace_matmul(node)
        elif node.target is aten.addmm_.default:
            _replace_addmm(node)
    return cleanup_graph(graph)


class LinearWithOnednn(TorchFunctionMode):
    """Context in which linear layers with large matmuls are computed by oneDNN, without gradients."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call ``func``, or oneDNN in its place."""
        if func is torch.nn.functional.linear and not kwargs and _onednn_is_faster(*args):
            return torch.ops.mkldnn._linear_pointwise(
                *args[:2], args[2] if len(args) == 3 else None, "none", [], ""
            )
        return func(*args, **(kwargs or {}))


def _onednn_is_faster(inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> bool:
    """Return whether oneDNN is faster, and takes these."""
    return (
        torch.backends.mkldnn.is_available()
        and inputs.device.type == "cpu"
        and inputs.dtype == weight.dtype == torch.float32
        and weight.dim() == 2
        and (bias is None or _is_vector(bias, weight.shape[:1]))
        and inputs.numel() * len(weight) >= MIN_MULTIPLICATIONS
    )


def _is_vector(bias: Tensor, shape: torch.Size) -> bool:
    """Return whether oneDNN can add the bias: it reads ``shape`` numbers, one after the other."""
    return bias.shape == shape and bias.is_contiguous()


def _inner_dim(node: Node) -> int:
    """Return the inner dimension of a matmul."""
    return meta(node.args[-2]).shape[1]  # type: ignore[arg-type]


def _num_multiplications(node: Node) -> int:
    """Return the number of multiplications of a float32 matmul on the CPU; else 0."""
    weight = node.args[-1]
    if not on_cpu(weight) or meta(weight).dtype != torch.float32:  # type: ignore[arg-type]
        return 0
    rows, depth = meta(node.args[-2]).shape  # type: ignore[arg-type]
    return int(rows * depth * meta(weight).shape[1])  # type: ignore[arg-type]


def _replace_matmul(node: Node) -> None:
    """Replace mm, or addmm with a bias vector."""
    bias = node.args[0] if len(node.args) == 3 else None
    vector = bias is None or _is_vector(meta(bias), meta(node).shape[1:])  # type: ignore[arg-type]
    if vector and _num_multiplications(node) >= MIN_MULTIPLICATIONS:
        with node.graph.inserting_before(node):
            new = _onednn_matmul(node, bias)
        new.meta["val"] = meta(node)
        node.replace_all_uses_with(new)
        node.graph.erase_node(node)


def _replace_addmm(node: Node) -> None:
    """Replace addmm_ by oneDNN's matmul and an addition in place."""
    if _num_multiplications(node) < 2 * MIN_MULTIPLICATIONS or _inner_dim(node) < MIN_INNER_DIM:
        return
    with node.graph.inserting_before(node):
        new = _onednn_matmul(node, None)
        new.meta["val"] = meta(node.args[0])  # type: ignore[arg-type]
        node.graph.call_function(aten.add_.Tensor, (node.args[0], new), node.kwargs)
    node.replace_all_uses_with(node.args[0])  # type: ignore[arg-type]
    node.graph.erase_node(node)


def _onednn_matmul(node: Node, bias: Argument) -> Node:
    """Insert oneDNN's matmul of the node's two matrices."""
    left, right = node.args[-2:]
    transposed = transpose(right)  # type: ignore[arg-type]
    matmul = torch.ops.mkldnn._linear_pointwise.default
    return node.graph.call_function(matmul, (left, transposed, bias, "none", [], ""))


# ---------------------------------------------------------------------- compiled around matmuls

Compile = Callable[[GraphModule, list[Tensor]], Callable[[list[Tensor]], list[Tensor]]]

MATMULS = (
    aten.mm.default,
    aten.bmm.default,
    aten.addmm.default,
    aten.addmm_.default,
    aten.baddbmm_.default,
    torch.ops.mkldnn._linear_pointwise.default,
)
NUMBER_OPS = (aten._local_scalar_dense.default, operator.mul)
"""Operations whose result is a number, which a compiled part does not take."""

MAX_PARTS = 24
"""Above this, calling the parts costs more than fusing saves: a network unrolled over a text."""

MIN_OPERATIONS = 3
"""Operations from which a part is compiled; fewer run one by one."""


def compile_around_matmuls(
    graph: GraphModule, inputs: list[Tensor], compile_: Compile
) -> GraphModule | None:
    """Return the step with its matmuls run separately, and the operations between them compiled.

    Inductor, given the whole step, cannot write a matmul into a weight. None where there is no matmul,
    or so many in sequence that the parts are too small.
    """
    graph = use_onednn(update_in_place(graph))
    parts = StepParts.of(graph.graph)
    if not 1 < parts.count <= MAX_PARTS:
        return None
    interpreter = Interpreter(graph, garbage_collect_values=False)  # keeps all results
    interpreter.run(*(tensor.clone() for tensor in inputs))
    return _assembled(graph, parts, interpreter.env, compile_)


@dataclass
class StepParts:
    """The part of the step in which each operation runs; those in ``uncompiled`` are not compiled.

    A part is a compiled function followed by uncompiled operations, so an operation that reads a
    matmul belongs to a later part than the matmul.
    """

    part: dict[Node, int] = field(default_factory=dict)
    uncompiled: set[Node] = field(default_factory=set)

    @classmethod
    def of(cls, graph: Graph) -> StepParts:
        """Assign uncompiled operations to their earliest part, the others to their latest."""
        parts, dependencies = cls(), _dependencies(graph)
        nodes = [node for node in graph.nodes if _is_call(node)]
        parts.uncompiled = _uncompiled(nodes)
        for node in nodes:
            parts.part[node] = max(
                (parts._earliest_part(node, dep) for dep in dependencies[node]), default=0
            )
        after: dict[Node, list[Node]] = {node: [] for node in nodes}
        for node in nodes:
            for dep in dependencies[node]:
                after[dep].append(node)
        for node in reversed(nodes):
            if node not in parts.uncompiled and after[node]:
                parts.part[node] = min(parts.part[later] for later in after[node])
        for node in filter(_is_getitem, nodes):  # a part takes tensors, not tuples
            parts.part[node] = parts.part[node.all_input_nodes[0]]
        return parts

    def _earliest_part(self, node: Node, dep: Node) -> int:
        """Return the first part in which ``node`` can run after ``dep``."""
        return self.part[dep] + (dep in self.uncompiled and node not in self.uncompiled)

    @property
    def count(self) -> int:
        """The number of parts."""
        return 1 + max(self.part.values(), default=0)


def _is_call(node: Node) -> bool:
    return node.op == "call_function"


def _is_getitem(node: Node) -> bool:
    """Return whether the operation selects one of several results."""
    return node.target is operator.getitem


def _dependencies(graph: Graph) -> dict[Node, list[Node]]:
    """Return for each operation those that must run before it, by results read and memory written."""
    memory = MemoryUse.of(graph)
    readers: dict[Node, list[Node]] = {}
    writer: dict[Node, Node] = {}
    dependencies: dict[Node, list[Node]] = {}
    for node in filter(_is_call, graph.nodes):
        writes = {root for arg in written_inputs(node) for root in memory.roots[arg]}
        reads = {root for arg in node.all_input_nodes for root in memory.roots[arg]}
        deps = set(filter(_is_call, node.all_input_nodes))
        deps |= {writer[root] for root in reads | writes if root in writer}
        for root in writes:
            deps |= set(readers.get(root, []))
            writer[root] = node
        for root in reads:
            readers.setdefault(root, []).append(node)
        dependencies[node] = [dep for dep in deps if dep is not node]
    return dependencies


def _uncompiled(nodes: list[Node]) -> set[Node]:
    """Return the matmuls, operations on numbers, and the views that only these read."""
    uncompiled = {node for node in nodes if node.target in MATMULS or _has_numbers(node)}
    for node in reversed(nodes):
        users = list(node.users)
        view = bool(aliased_inputs(node)) and not written_inputs(node) and not _is_getitem(node)
        if view and users and uncompiled.issuperset(users):
            uncompiled.add(node)
    return uncompiled


def _has_numbers(node: Node) -> bool:
    """Return whether the operation returns or takes a number."""
    return any(each.target in NUMBER_OPS for each in (node, *node.all_input_nodes))


def _assembled(
    graph: GraphModule, parts: StepParts, values: dict[Node, Tensor], compile_: Compile
) -> GraphModule:
    """Return a graph that calls the compiled parts and, between them, the uncompiled operations."""
    assembled, copied = Graph(), dict[Node, Node]()
    for node in graph.graph.nodes:
        if node.op == "placeholder":
            copied[node] = assembled.node_copy(node, copied.__getitem__)
    for number in range(parts.count):
        nodes = [node for node, part in parts.part.items() if part == number]
        compiled_nodes = [node for node in nodes if node not in parts.uncompiled]
        if len(compiled_nodes) >= MIN_OPERATIONS:
            _insert_compiled(assembled, copied, compiled_nodes, values, compile_)
            compiled_nodes = []
        for node in (*compiled_nodes, *(node for node in nodes if node in parts.uncompiled)):
            copied[node] = assembled.node_copy(node, copied.__getitem__)
    output = next(iter(graph.graph.find_nodes(op="output")))
    assembled.node_copy(output, copied.__getitem__)
    assembled.lint()
    return GraphModule(graph, assembled)


def _insert_compiled(
    assembled: Graph,
    copied: dict[Node, Node],
    compiled_nodes: list[Node],
    values: dict[Node, Tensor],
    compile_: Compile,
) -> None:
    """Compile operations to one function, and insert its call."""
    members = set(compiled_nodes)
    inputs = list(
        dict.fromkeys(a for n in compiled_nodes for a in n.all_input_nodes if a not in members)
    )
    outputs = [node for node in compiled_nodes if not all(user in members for user in node.users)]
    outputs = [node for node in outputs if isinstance(values[node], Tensor)]
    part, in_part = Graph(), dict[Node, Node]()
    for node in inputs:
        in_part[node] = part.placeholder(node.name)
    for node in compiled_nodes:
        in_part[node] = part.node_copy(node, in_part.__getitem__)
        in_part[node].meta = {}
    part.output([in_part[node] for node in outputs])
    compiled = compile_(GraphModule(torch.nn.Module(), part), [values[node] for node in inputs])

    def run(*tensors: Tensor) -> list[Tensor]:
        return compiled(list(tensors))

    call_result = assembled.call_function(run, tuple(copied[node] for node in inputs))
    for index, node in enumerate(outputs):
        copied[node] = assembled.call_function(operator.getitem, (call_result, index))
