"""The products of matrices in a recorded step: who computes them, and what is compiled around them."""

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

from fedapp.training.batched.graph_memory import Memory, aliased, is_once, mark_once, written
from fedapp.training.batched.graph_updates import (
    cleanup_graph,
    descend_in_place,
    meta,
    on_cpu,
    transpose,
)

aten = torch.ops.aten

WORK = 1 << 20
"""Multiplications in a product from which oneDNN is quicker than the BLAS that PyTorch calls."""

DEEP = 32
"""Numbers in each sum from which a product of oneDNN and an addition are quicker than BLAS's both."""


def by_onednn(graph: GraphModule) -> GraphModule:
    """Let oneDNN take the larger products of float32, which on many processors it does twice as fast."""
    if not torch.backends.mkldnn.is_available():
        return graph
    for node in list(graph.graph.nodes):
        if node.target in (aten.mm.default, aten.addmm.default) and not node.kwargs:
            _multiply_by_onednn(node)
        elif node.target is aten.addmm_.default:
            _multiply_and_add(node)
    return cleanup_graph(graph)


class LinearByOnednn(TorchFunctionMode):
    """While entered, oneDNN takes the larger products of linear layers; for what needs no gradients."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call ``func``, or oneDNN in its place."""
        if func is torch.nn.functional.linear and not kwargs and _suits(*args):
            return torch.ops.mkldnn._linear_pointwise(
                *args[:2], args[2] if len(args) == 3 else None, "none", [], ""
            )
        return func(*args, **(kwargs or {}))


def _suits(inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> bool:
    """Return whether oneDNN is quicker."""
    return (
        torch.backends.mkldnn.is_available()
        and inputs.device.type == "cpu"
        and inputs.dtype == weight.dtype == torch.float32
        and inputs.numel() * len(weight) >= WORK
    )


def _depth(node: Node) -> int:
    """Return how many products each number in a product of matrices sums."""
    return meta(node.args[-2]).shape[1]  # type: ignore[arg-type]


def _work(node: Node) -> int:
    """Return how many multiplications a product of matrices of float32 on the CPU is; else 0."""
    weight = node.args[-1]
    if not on_cpu(weight) or meta(weight).dtype != torch.float32:  # type: ignore[arg-type]
        return 0
    rows, depth = meta(node.args[-2]).shape  # type: ignore[arg-type]
    return int(rows * depth * meta(weight).shape[1])  # type: ignore[arg-type]


def _multiply_by_onednn(node: Node) -> None:
    """Replace a product of matrices, with a bias or without."""
    bias = node.args[0] if len(node.args) == 3 else None
    vector = bias is None or meta(bias).shape == meta(node).shape[1:]  # type: ignore[arg-type]
    if vector and _work(node) >= WORK:
        with node.graph.inserting_before(node):
            new = _product(node, bias)
        new.meta["val"] = meta(node)
        node.replace_all_uses_with(new)
        node.graph.erase_node(node)


def _multiply_and_add(node: Node) -> None:
    """Replace a product that is added into a matrix: the product, then the addition in place."""
    if _work(node) < 2 * WORK or _depth(node) < DEEP:
        return
    with node.graph.inserting_before(node):
        new = _product(node, None)
        new.meta["val"] = meta(node.args[0])  # type: ignore[arg-type]
        node.graph.call_function(aten.add_.Tensor, (node.args[0], new), node.kwargs)
    node.replace_all_uses_with(node.args[0])  # type: ignore[arg-type]
    node.graph.erase_node(node)


def _product(node: Node, bias: Argument) -> Node:
    """Add oneDNN's product of the node's two matrices."""
    left, right = node.args[-2:]
    transposed = transpose(right)  # type: ignore[arg-type]
    product = torch.ops.mkldnn._linear_pointwise.default
    return node.graph.call_function(product, (left, transposed, bias, "none", [], ""))


# ---------------------------------------------------------------------- compiled around products

Compile = Callable[[GraphModule, list[Tensor]], Callable[[list[Tensor]], list[Tensor]]]

PRODUCTS = (
    aten.mm.default,
    aten.bmm.default,
    aten.addmm.default,
    aten.addmm_.default,
    aten.baddbmm_.default,
    torch.ops.mkldnn._linear_pointwise.default,
)
NUMBERS = (aten._local_scalar_dense.default, operator.mul)
"""What gives a number, which a compiled part does not take."""

MOST_PARTS = 24
"""More parts than this cost more to call than fusing saves: a network unrolled over a text."""

FEWEST = 3
"""Operations from which a part is compiled; fewer are run one by one."""


def take_products(
    graph: GraphModule, given: list[Tensor], compile_: Compile, fixed: int = 0
) -> GraphModule | None:
    """Return the step with its products run by themselves, and what lies between them compiled.

    A compiler that makes the whole step cannot write a product into a weight. None where there is
    no product, or so many one after the other that the parts are too small. What depends on the
    first ``fixed`` inputs alone is marked.
    """
    graph = mark_once(by_onednn(descend_in_place(graph)), fixed)
    parts = Parts.of(graph.graph)
    if not 1 < parts.count <= MOST_PARTS:
        return None
    values = _Values(graph)
    values.run(*(tensor.clone() for tensor in given))
    return _joined(graph, parts, values.seen, compile_)


class _Values(Interpreter):
    """Runs a graph and keeps what every operation gives."""

    def __init__(self, graph: GraphModule) -> None:
        super().__init__(graph, garbage_collect_values=False)
        self.seen: dict[Node, Tensor] = {}

    def run_node(self, n: Node) -> Tensor:
        """Run one operation."""
        self.seen[n] = super().run_node(n)
        return self.seen[n]


@dataclass
class Parts:
    """In which part of the step each operation runs; ``apart`` are those that are not compiled.

    A part is what is compiled, and after it what is not: so an operation that reads a product
    belongs to a later part than the product.
    """

    part: dict[Node, int] = field(default_factory=dict)
    apart: set[Node] = field(default_factory=set)

    @classmethod
    def of(cls, graph: Graph) -> Parts:
        """Return the earliest part for what is run apart, the latest for what leads there."""
        parts, before = cls(), _before(graph)
        nodes = [node for node in graph.nodes if _in_step(node)]
        parts.apart = _run_apart(nodes)
        for node in nodes:
            parts.part[node] = max((parts._after(node, dep) for dep in before[node]), default=0)
        after: dict[Node, list[Node]] = {node: [] for node in nodes}
        for node in nodes:
            for dep in before[node]:
                after[dep].append(node)
        for node in reversed(nodes):
            if node not in parts.apart and after[node]:
                parts.part[node] = min(parts.part[later] for later in after[node])
        for node in filter(_picks, nodes):  # a part takes tensors, and no tuples of them
            parts.part[node] = parts.part[node.all_input_nodes[0]]
        return parts

    def _after(self, node: Node, dep: Node) -> int:
        """Return the first part in which ``node`` can run, since it runs after ``dep``."""
        return self.part[dep] + (dep in self.apart and node not in self.apart)

    @property
    def count(self) -> int:
        """How many parts there are."""
        return 1 + max(self.part.values(), default=0)


def _in_step(node: Node) -> bool:
    """Return whether the operation runs in every step."""
    return node.op == "call_function" and not is_once(node)


def _picks(node: Node) -> bool:
    """Return whether the operation picks one of several results."""
    return node.target is operator.getitem


def _before(graph: Graph) -> dict[Node, list[Node]]:
    """Return after which operations each must run: whose result it reads, whose memory it writes."""
    memory = Memory.of(graph)
    readers: dict[Node, list[Node]] = {}
    writer: dict[Node, Node] = {}
    before: dict[Node, list[Node]] = {}
    for node in filter(_in_step, graph.nodes):
        writes = {root for arg in written(node) for root in memory.roots[arg]}
        reads = {root for arg in node.all_input_nodes for root in memory.roots[arg]}
        found = set(filter(_in_step, node.all_input_nodes))
        found |= {writer[root] for root in reads | writes if root in writer}
        for root in writes:
            found |= set(readers.get(root, []))
            writer[root] = node
        for root in reads:
            readers.setdefault(root, []).append(node)
        before[node] = [dep for dep in found if dep is not node]
    return before


def _run_apart(nodes: list[Node]) -> set[Node]:
    """Return the products, what takes a number, and what only these need: views, and numbers."""
    apart = {node for node in nodes if node.target in PRODUCTS or _has_numbers(node)}
    for node in reversed(nodes):
        users = list(node.users)
        view = bool(aliased(node)) and not written(node) and not _picks(node)
        if view and users and apart.issuperset(users):
            apart.add(node)
    return apart


def _has_numbers(node: Node) -> bool:
    """Return whether the operation gives a number or takes one."""
    return any(each.target in NUMBERS for each in (node, *node.all_input_nodes))


def _joined(
    graph: GraphModule, parts: Parts, values: dict[Node, Tensor], compile_: Compile
) -> GraphModule:
    """Return a graph that calls the compiled parts and, between them, the products."""
    joined, place = Graph(), dict[Node, Node]()
    for node in graph.graph.nodes:
        if node.op == "placeholder" or is_once(node):
            place[node] = joined.node_copy(node, place.__getitem__)
    for number in range(parts.count):
        here = [node for node, part in parts.part.items() if part == number]
        inner = [node for node in here if node not in parts.apart]
        if len(inner) >= FEWEST:
            _add_compiled(joined, place, inner, values, compile_)
            inner = []
        for node in (*inner, *(node for node in here if node in parts.apart)):
            place[node] = joined.node_copy(node, place.__getitem__)
    output = next(iter(graph.graph.find_nodes(op="output")))
    joined.node_copy(output, place.__getitem__)
    joined.lint()
    return GraphModule(graph, joined)


def _add_compiled(
    joined: Graph,
    place: dict[Node, Node],
    inner: list[Node],
    values: dict[Node, Tensor],
    compile_: Compile,
) -> None:
    """Compile operations to one function, and add its call."""
    mine = set(inner)
    needed = list(dict.fromkeys(a for n in inner for a in n.all_input_nodes if a not in mine))
    given = [node for node in inner if not all(user in mine for user in node.users)]
    given = [node for node in given if isinstance(values[node], Tensor)]
    part, copied = Graph(), dict[Node, Node]()
    for node in needed:
        copied[node] = part.placeholder(node.name)
    for node in inner:
        copied[node] = part.node_copy(node, copied.__getitem__)
        copied[node].meta = {}
    part.output([copied[node] for node in given])
    compiled = compile_(GraphModule(torch.nn.Module(), part), [values[node] for node in needed])

    def run(*tensors: Tensor) -> list[Tensor]:
        return compiled(list(tensors))

    result = joined.call_function(run, tuple(place[node] for node in needed))
    for index, node in enumerate(given):
        place[node] = joined.call_function(operator.getitem, (result, index))
