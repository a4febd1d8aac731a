"""What a recorded step computes anew though it cannot change: taken out, and computed once a turn."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from fedapp.training.batched.graph_updates import Memory, aliased, written

Step = Callable[[list[Tensor]], list[Tensor]]
Run = Callable[[list[Tensor]], Step]
"""Given the tensors that stay in place from step to step, what takes the others and returns results."""


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
