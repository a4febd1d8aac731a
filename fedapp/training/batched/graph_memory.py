"""Which memory the operations of a traced step write, and which of them are hoisted out of the step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import Argument

aten = torch.ops.aten

Step = Callable[[list[Tensor]], list[Tensor]]
Run = Callable[[list[Tensor]], Step]
"""Given the tensors that stay in place from step to step, what takes the others and returns results."""


Root = Node
"""A node that makes memory of its own; views of it share that memory."""


@dataclass(frozen=True)
class Memory:
    """Which memory each node's result lies in, and how often each memory is written."""

    roots: dict[Node, frozenset[Root]]
    writes: dict[Root, int]

    @classmethod
    def of(cls, graph: Graph) -> Memory:
        """Return what the operations' schemas say."""
        roots: dict[Node, frozenset[Root]] = {}
        writes: dict[Root, int] = {}
        for node in graph.nodes:
            shared = [roots[arg] for arg in aliased(node)]
            roots[node] = frozenset().union(*shared) if shared else frozenset({node})
            for arg in written(node):
                for root in roots[arg]:
                    writes[root] = writes.get(root, 0) + 1
        return cls(roots, writes)

    def still(self, node: Node) -> bool:
        """Return whether nothing ever writes the memory in which the node's result lies."""
        return not any(self.writes.get(root) for root in self.roots[node])


def _arguments(node: Node) -> Iterable[tuple[torch.Argument, Argument]]:
    schema = node.target._schema  # type: ignore[union-attr]
    for index, argument in enumerate(schema.arguments):
        given = node.args[index] if index < len(node.args) else node.kwargs.get(argument.name)
        yield argument, given


def _nodes_in(given: Argument) -> list[Node]:
    found: list[Node] = []

    def note(node: Node) -> Node:
        found.append(node)
        return node

    torch.fx.node.map_arg(given, note)
    return found


def aliased(node: Node) -> list[Node]:
    """Return the inputs whose memory the node's result may lie in."""
    if node.op != "call_function":
        return []
    if not isinstance(node.target, torch._ops.OpOverload):
        return list(node.all_input_nodes)
    if node.target is aten._unsafe_view.default:
        return list(node.all_input_nodes)
    return [n for a, given in _arguments(node) if a.alias_info for n in _nodes_in(given)]


def written(node: Node) -> list[Node]:
    """Return the inputs that the node changes in place."""
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return []
    return [
        n
        for argument, given in _arguments(node)
        if argument.alias_info and argument.alias_info.is_write
        for n in _nodes_in(given)
    ]


def mark_once(graph: GraphModule, fixed: int) -> GraphModule:
    """Mark what depends on nothing but the first ``fixed`` inputs, which stay where they are.

    That is what reads memory that no operation writes, and views of any.
    """
    memory = Memory.of(graph.graph)
    known = set(graph.graph.find_nodes(op="placeholder")[:fixed])
    for node in graph.graph.nodes:
        if _reads_only(node, known) and _does_not_change(node, memory):
            known.add(node)
            node.meta["once"] = True
    return graph


def is_once(node: Node) -> bool:
    """Return whether the node is marked."""
    return bool(node.meta.get("once"))


def _reads_only(node: Node, known: set[Node]) -> bool:
    return node.op == "call_function" and known.issuperset(node.all_input_nodes)


def _does_not_change(node: Node, memory: Memory) -> bool:
    if written(node) or _draws(node):
        return False
    return bool(aliased(node)) or all(memory.still(n) for n in (node, *node.all_input_nodes))


def _draws(node: Node) -> bool:
    tags = getattr(node.target, "tags", ())
    return torch.Tag.nondeterministic_seeded in tags


def computed_once(graph: GraphModule, fixed: int) -> Run:
    """Return the step, whose marked operations run when it is given its ``fixed`` tensors."""
    places = graph.graph.find_nodes(op="placeholder")
    marked = [node for node in graph.graph.nodes if is_once(node)]
    needed = [node for node in marked if not all(map(is_once, node.users))]
    before, step = Graph(), Graph()
    first = {node: before.placeholder(node.name) for node in places[:fixed]}
    for node in marked:
        first[node] = before.node_copy(node, first.__getitem__)
    before.output([first[node] for node in needed])
    given = (*places[:fixed], *needed, *places[fixed:])
    then = {node: step.placeholder(node.name) for node in given}
    for node in graph.graph.nodes:
        if node not in then and not is_once(node):
            then[node] = step.node_copy(node, then.__getitem__)
    once, each = (GraphModule(graph, part).forward for part in (before, step))

    def run(given: list[Tensor]) -> Step:
        still = (*given, *once(*given))
        return lambda others: each(*still, *others)

    return run
