"""Which memory the operations of a traced step read and write."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch.fx import Graph, Node
from torch.fx.node import Argument

aten = torch.ops.aten

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
    has_schema = isinstance(node.target, torch._ops.OpOverload)
    if not has_schema or node.target is aten._unsafe_view.default:
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
