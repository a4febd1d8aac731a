"""Grouped convolutions of a traced step on a GPU, by kernels that compute all groups at once.

``vmap`` makes the convolutions of c clients one of c groups. It copies the clients' images
[c, n, C, H, W] to [n, c C, H, W] and the result back; the kernels read and write the former.
"""

from __future__ import annotations

import functools
import operator
import warnings
from typing import Any

import torch
from torch.fx import GraphModule, Node

from fedapp.training.batched.graph_memory import MemoryUse
from fedapp.training.batched.graph_updates import VIEWS, cleanup_graph, meta

aten = torch.ops.aten

MAX_NUMBERS = 1 << 31
"""Numbers in a tensor from which the kernels' 32-bit offsets do not reach all of it."""


def use_triton(graph: GraphModule) -> GraphModule:
    """Replace grouped convolutions on a GPU by Triton kernels, where there is Triton."""
    found = [node for node in graph.graph.nodes if _is_replaceable(node)]
    if not found or not _run_on(_tensors(found[0])[0].device):
        return graph
    _copy_only_where_needed(graph)
    for node in found:
        if node.target is aten.convolution.default:
            _replace_convolution(node)
        else:
            _replace_backward(node)
    return cleanup_graph(graph)


@functools.cache
def _run_on(device: torch.device) -> bool:
    """Return whether the kernels run on a device: a GPU, with Triton and what that needs to compile."""
    if device.type != "cuda":
        return False
    try:
        from fedapp.training.batched.convolution_kernels import convolution

        with torch.cuda.device(device):
            inputs = torch.ones(1, 1, 1, 1, 1, device=device)
            convolution(inputs, inputs[0], (0, 0))
    except ImportError:
        return False
    except Exception as error:
        warnings.warn(
            "Triton does not run here, so cuDNN computes the convolutions of several clients, which "
            f"can take twice as long ({type(error).__name__}: {str(error).partition(chr(10))[0]}).",
            RuntimeWarning,
            stacklevel=2,
        )
        return False
    return True


def _args(node: Node) -> tuple[Any, ...]:
    return node.args


def _tensors(node: Node) -> list[torch.Tensor]:
    """Return the meta values of a convolution's tensors, and of its results."""
    result = node.meta["val"]
    results = [result] if isinstance(result, torch.Tensor) else [*filter(torch.is_tensor, result)]
    return [meta(arg) for arg in node.all_input_nodes] + results


def _is_replaceable(node: Node) -> bool:
    """Return whether the kernels can take the place of a grouped convolution or its backward."""
    if node.target is aten.convolution.default:
        _, _, bias, stride, _, dilation, transposed, _, groups = _args(node)
        without_bias = bias is None
    elif node.target is aten.convolution_backward.default:
        *_, stride, _, dilation, transposed, _, groups, mask = _args(node)
        without_bias = not mask[2]
    else:
        return False
    tensors = _tensors(node)
    return (
        without_bias
        and not transposed
        and groups > 1
        and list(stride) == list(dilation) == [1, 1]
        and all(each.dtype in (torch.float32, torch.float64) for each in tensors)
        and all(each.numel() < MAX_NUMBERS for each in tensors)
    )


def _copy_only_where_needed(graph: GraphModule) -> None:
    """Let copies that order the numbers in memory do nothing where these are in order."""
    memory = MemoryUse.of(graph.graph)
    for node in graph.graph.find_nodes(op="call_function", target=aten.clone.default):
        unwritten = all(map(memory.never_written, (node, *node.all_input_nodes)))
        if unwritten and node.kwargs.get("memory_format") is torch.contiguous_format:
            node.target, node.kwargs = torch.Tensor.contiguous, {}


def _replace_convolution(node: Node) -> None:
    from fedapp.training.batched.convolution_kernels import convolution

    inputs, weight, _, _, padding, *_, groups = _args(node)
    with node.graph.inserting_before(node):
        args = _by_group(inputs, groups), weight, padding
        _replace(node, node.graph.call_function(convolution, args), groups)


def _replace_backward(node: Node) -> None:
    from fedapp.training.batched.convolution_kernels import convolution_backward

    gradient, inputs, weight, _, _, padding, *_, groups, mask = _args(node)
    with node.graph.inserting_before(node):
        args = _by_group(gradient, groups), _by_group(inputs, groups), weight, padding, mask
        found = node.graph.call_function(convolution_backward, args)
    for result in list(node.users):
        index = result.args[1]
        if not mask[index]:
            continue
        with node.graph.inserting_before(result):
            new = node.graph.call_function(operator.getitem, (found, index))
        if index == 0:
            _replace(result, new, groups)
        else:
            result.replace_all_uses_with(new)


def _by_group(node: Node, groups: int) -> Node:
    """Return the images [n, G, C, H, W] of which ``node`` is the view [n, G C, H, W]."""
    shape = _shape_by_group(node, groups)
    source = node.args[0]
    if node.target in VIEWS and isinstance(source, Node) and meta(source).shape == shape:
        return source.all_input_nodes[0] if source.target is torch.Tensor.contiguous else source
    return node.graph.call_function(torch.reshape, (node, shape))


def _shape_by_group(node: Node, groups: int) -> torch.Size:
    n, channels, rows, columns = meta(node).shape
    return torch.Size((n, groups, channels // groups, rows, columns))


def _replace(node: Node, new: Node, groups: int) -> None:
    """Let the users of images [n, G C, H, W] use ``new``, which is [n, G, C, H, W]."""
    shape = _shape_by_group(node, groups)
    for user in list(node.users):
        if user.target in VIEWS and meta(user).shape == shape:
            user.replace_all_uses_with(new)
    with node.graph.inserting_before(node):
        flat = node.graph.call_function(torch.reshape, (new, meta(node).shape))
    node.replace_all_uses_with(flat)
