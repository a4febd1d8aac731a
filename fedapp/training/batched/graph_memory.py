"""Which memory the operations of a traced step read and write, and hoisting of what never changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import Argument

aten = torch.ops.aten

TracedStep = Callable[[list[Tensor]], list[Tensor]]
BindStep = Callable[[list[Tensor]], TracedStep]
"""From the fixed input tensors to a step that takes the other inputs and returns the results."""

Root = Node
"""A node that allocates memory; views of it share that memory."""


@dataclass(frozen=True)
class MemoryUse:
    """In which memory each node's result lies, and how often each memory is written."""

    roots: dict[Node, frozenset[Root]]
    writes: dict[Root, int]

    @classmethod
    def of(cls, graph: Graph) -> MemoryUse:
        """Return the memory use that follows from the operations' schemas."""
        roots: dict[Node, frozenset[Root]] = {}
        writes: dict[Root, int] = {}
        for node in graph.nodes:
            shared = [roots[arg] for arg in aliased_inputs(node)]
            roots[node] = frozenset().union(*shared) if shared else frozenset({node})
            for arg in written_inputs(node):
                for root in roots[arg]:
                    writes[root] = writes.get(root, 0) + 1
        return cls(roots, writes)

    def never_written(self, node: Node) -> bool:
        """Return whether no operation writes the memory of the node's result."""
        return not any(self.writes.get(root) for root in self.roots[node])


def _arguments(node: Node) -> Iterable[tuple[torch.Argument, Argument]]:
    schema = node.target._schema  # type: ignore[union-attr]
    for index, argument in enumerate(schema.arguments):
        value = node.args[index] if index < len(node.args) else node.kwargs.get(argument.name)
        yield argument, value


def _nodes_in(value: Argument) -> list[Node]:
    nodes: list[Node] = []

    def append(node: Node) -> Node:
        nodes.append(node)
        return node

    torch.fx.node.map_arg(value, append)
    return nodes


def aliased_inputs(node: Node) -> list[Node]:
    """Return the inputs whose memory the node's result may share."""
    if node.op != "call_function":
        return []
    if not isinstance(node.target, torch._ops.OpOverload):
        return list(node.all_input_nodes)
    if node.target is aten._unsafe_view.default:
        return list(node.all_input_nodes)
    return [n for a, value in _arguments(node) if a.alias_info for n in _nodes_in(value)]


def written_inputs(node: Node) -> list[Node]:
    """Return the inputs that the node changes in place."""
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return []
    return [
        n
        for argument, value in _arguments(node)
        if argument.alias_info and argument.alias_info.is_write
        for n in _nodes_in(value)
    ]


def mark_hoisted(graph: GraphModule, fixed: int) -> GraphModule:
    """Mark the operations that depend only on the first ``fixed`` inputs and never change.

    These read memory that no operation writes, or are views of any memory.
    """
    memory = MemoryUse.of(graph.graph)
    constant = set(graph.graph.find_nodes(op="placeholder")[:fixed])
    for node in graph.graph.nodes:
        if _depends_only_on(node, constant) and _is_constant(node, memory):
            constant.add(node)
            node.meta["hoisted"] = True
    return graph


def is_hoisted(node: Node) -> bool:
    """Return whether the node is marked."""
    return bool(node.meta.get("hoisted"))


def _depends_only_on(node: Node, constant: set[Node]) -> bool:
    return node.op == "call_function" and constant.issuperset(node.all_input_nodes)


def _is_constant(node: Node, memory: MemoryUse) -> bool:
    if written_inputs(node) or _is_random(node):
        return False
    is_view = bool(aliased_inputs(node))
    return is_view or all(memory.never_written(n) for n in (node, *node.all_input_nodes))


def _is_random(node: Node) -> bool:
    tags = getattr(node.target, "tags", ())
    return torch.Tag.nondeterministic_seeded in tags


def hoist(graph: GraphModule, fixed: int) -> BindStep:
    """Return the step, whose marked operations run once, when the ``fixed`` tensors are bound."""
    inputs = graph.graph.find_nodes(op="placeholder")
    hoisted = [node for node in graph.graph.nodes if is_hoisted(node)]
    results = [node for node in hoisted if not all(map(is_hoisted, node.users))]
    prologue, body = Graph(), Graph()
    in_prologue = {node: prologue.placeholder(node.name) for node in inputs[:fixed]}
    for node in hoisted:
        in_prologue[node] = prologue.node_copy(node, in_prologue.__getitem__)
    prologue.output([in_prologue[node] for node in results])
    body_inputs = (*inputs[:fixed], *results, *inputs[fixed:])
    in_body = {node: body.placeholder(node.name) for node in body_inputs}
    for node in graph.graph.nodes:
        if node not in in_body and not is_hoisted(node):
            in_body[node] = body.node_copy(node, in_body.__getitem__)
    run_prologue, run_body = (GraphModule(graph, part).forward for part in (prologue, body))

    def bind(given: list[Tensor]) -> TracedStep:
        bound = (*given, *run_prologue(*given))
        return lambda others: run_body(*bound, *others)

    return bind
