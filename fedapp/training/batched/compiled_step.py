"""A function of named tensors, traced once for each set of shapes.

Tracing (``make_fx``) reduces the function, its gradients and its ``vmap`` to ATen operations. They are
run one by one (mode "record"), compiled to fused kernels by Inductor ("compile"), or captured as one
CUDA graph ("capture").
"""

from __future__ import annotations

import copy
import functools
import logging
import shutil
import warnings
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from fedapp.training.batched.graph_convolution import use_triton
from fedapp.training.batched.graph_matmul import compile_around_matmuls, use_onednn
from fedapp.training.batched.graph_updates import update_in_place
from fedapp.training.tensors import Groups, Tensors
from fedapp.training.trainer import CaptureError

Mode = Literal["record", "compile", "capture"]
Signature = tuple[tuple[str, str, torch.Size, tuple[int, ...], torch.dtype], ...]
Names = list[tuple[str, str]]
"""Group and name of each tensor in a flat list."""

TracedStep = Callable[[list[Tensor]], list[Tensor]]
"""From all input tensors, those of the fixed groups first, to the results."""

WARM_UP_RUNS = 3
"""Runs on a side stream before a CUDA graph is captured, as PyTorch's documentation asks."""


@functools.cache
def can_compile() -> bool:
    """Return whether there is a C++ compiler, which Inductor needs on a CPU."""
    return any(shutil.which(name) for name in ("g++", "clang++"))


class GraphPool:
    """The memory pool that all CUDA graphs of a trainer share, as only one of them runs at a time.

    The next replay of any graph may overwrite a graph's results.
    """

    @functools.cached_property
    def handle(self) -> Any:
        """PyTorch's handle of the pool, of an opaque type."""
        return torch.cuda.graph_pool_handle()


class CompiledStep:
    """Calls ``function`` on groups of tensors, of which it may change some in place.

    The function's control flow must not depend on the tensors' values. What it closes over is traced
    at the first call with the same shapes.
    """

    def __init__(
        self, function: Callable[[Groups], dict[str, Tensors]], mode: Mode, pool: GraphPool
    ) -> None:
        self.function = function
        self.mode = mode
        self.pool = pool
        self._runs: dict[tuple[int, Signature], tuple[TracedStep, Names]] = {}

    @property
    def num_traced(self) -> int:
        """The number of sets of shapes for which the function has been traced."""
        return len(self._runs)

    @torch.no_grad()
    def lookup(self, fixed: Groups, others: Groups) -> tuple[TracedStep, Names]:
        """Return the traced function on flat lists of such tensors, and the names of its results."""
        groups = {**fixed, **others}
        signature = tuple(
            (group, name, tensor.shape, tensor.stride(), tensor.dtype)
            for group, tensors in groups.items()
            for name, tensor in tensors.items()
        )
        key = (len(flattened(fixed)), signature)
        if key not in self._runs:
            self._runs[key] = self._trace(list(groups), *key, flattened(groups))
        return self._runs[key]

    def _trace(
        self, names: list[str], fixed: int, signature: Signature, flat: list[Tensor]
    ) -> tuple[TracedStep, Names]:
        """Trace the function; return it on flat lists of tensors, and the names of its results."""
        returned: Names = []

        def function(*tensors: Tensor) -> list[Tensor]:
            groups: dict[str, Tensors] = {name: {} for name in names}
            for (group, name, *_), tensor in zip(signature, tensors, strict=True):
                groups.setdefault(group, {})[name] = tensor
            result = self.function(groups)
            returned[:] = [(group, name) for group, part in result.items() for name in part]
            return [tensor for part in result.values() for tensor in part.values()]

        graph = _traced(function, flat)
        if self.mode == "capture":
            return _captured(graph, flat, fixed, self.pool), returned
        if self.mode == "record":
            return _uncompiled(graph), returned
        return _compiled_or_uncompiled(graph, flat), returned


def _traced(function: Callable[..., list[Tensor]], flat: list[Tensor]) -> torch.fx.GraphModule:
    """Return the ATen operations of ``function``.

    Without a mode for the shapes of all results, ``make_fx`` makes one for each, with a trace of the
    stack, which takes half of its time.
    """
    shapes = FakeTensorMode(allow_fallback_kernels=True)
    with tracing(TracingContext(shapes)):
        return make_fx(function)(*(tensor.clone() for tensor in flat))


class BoundStep:
    """A compiled step bound to ``fixed`` groups of tensors; the others keep their shapes and types.

    The traced function is looked up once for each set of group sizes, which keeps calls cheap.
    """

    def __init__(self, step: CompiledStep, fixed: Groups) -> None:
        self.step, self.fixed = step, fixed
        self._flat = flattened(fixed)
        self._resolved: dict[tuple[int, ...], tuple[TracedStep, Names]] = {}

    def __call__(self, others: Groups) -> dict[str, Tensors]:
        """Return what the function returns for the fixed groups and ``others``.

        The caller must have disabled gradients, once for all calls.
        """
        sizes = tuple(map(len, others.values()))
        if sizes not in self._resolved:
            self._resolved[sizes] = self.step.lookup(self.fixed, others)
        step, returned = self._resolved[sizes]
        tensors, result = step([*self._flat, *flattened(others)]), dict[str, Tensors]()
        for (group, name), tensor in zip(returned, tensors, strict=True):
            result.setdefault(group, {})[name] = tensor
        return result


def flattened(groups: Groups) -> list[Tensor]:
    """Return all tensors of the groups, in order."""
    return [tensor for tensors in groups.values() for tensor in tensors.values()]


def _uncompiled(graph: torch.fx.GraphModule) -> TracedStep:
    """Return the traced operations, run one by one, with updates in place on a CPU."""
    return _calling(use_onednn(update_in_place(graph)).forward)


def _calling(function: Callable[..., list[Tensor]]) -> TracedStep:
    return lambda tensors: list(function(*tensors))


def _compiled_or_uncompiled(graph: torch.fx.GraphModule, flat: list[Tensor]) -> TracedStep:
    """Return the traced operations compiled, or run one by one where compiling fails."""
    try:
        run = _compiled(graph, flat)
        run([tensor.clone() for tensor in flat])
    except Exception as error:
        warnings.warn(
            "A local step could not be compiled; its operations run one by one, which takes longer "
            f"({type(error).__name__}: {str(error).partition(chr(10))[0]}). "
            "program='record' does so without trying.",
            RuntimeWarning,
            stacklevel=2,
        )
        return _uncompiled(graph)
    return run


def _compiled(graph: torch.fx.GraphModule, flat: list[Tensor]) -> TracedStep:
    """Return the traced operations compiled, but for the matrix multiplications between them."""
    # Inductor's imports warn of a missing GPU wherever there is a CUDA compiler.
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)

    def compiled(part: torch.fx.GraphModule, given: list[Tensor]) -> TracedStep:
        # The tensors themselves: a copy can have other strides, and strides are compiled in.
        return _calling(torch._inductor.compile(part, [*given]))

    parts = compile_around_matmuls(copy.deepcopy(graph), flat, compiled)
    return compiled(graph, flat) if parts is None else _calling(parts.forward)


def _captured(
    graph: torch.fx.GraphModule, flat: list[Tensor], fixed: int, pool: GraphPool
) -> TracedStep:
    """Return the traced operations as a CUDA graph, which reads and writes the fixed tensors in place.

    The values of other tensors are copied to the graph's own buffers before each replay, and those of
    fixed tensors where they are other objects than at capture. The next run overwrites the results.
    """
    static = [*flat[:fixed], *(tensor.clone() for tensor in flat[fixed:])]
    graph = use_triton(update_in_place(graph, matmuls=False))
    replay, returned = cuda_graph(graph, static, pool)

    def run(tensors: list[Tensor]) -> list[Tensor]:
        for buffer, tensor in zip(static, tensors, strict=True):
            if buffer is not tensor:
                buffer.copy_(tensor)
        replay()
        return list(returned)

    return run


def cuda_graph(
    graph: torch.fx.GraphModule, static: list[Tensor], pool: GraphPool
) -> tuple[Callable[[], None], list[Tensor]]:
    """Return a function that replays ``graph`` on ``static``, and the graph's result tensors.

    Capturing leaves the values of ``static`` as they were.

    Raises
    ------
    CaptureError
        Capturing failed midway.
    """
    device = static[0].device
    with torch.cuda.device(device):
        saved = [tensor.clone() for tensor in static]
        side_stream, original_stream = _side_stream(device), torch.cuda.current_stream(device)
        side_stream.wait_stream(original_stream)
        with torch.cuda.stream(side_stream):
            for _ in range(WARM_UP_RUNS):
                graph(*static)
        original_stream.wait_stream(side_stream)
        captured, returned = _capture(graph, static, side_stream, pool)
        for tensor, value in zip(static, saved, strict=True):
            tensor.copy_(value)

    def replay(_alive: object = graph) -> None:  # keeps its constants alive
        with torch.cuda.device(device):
            captured.replay()

    return replay, returned


def _capture(
    graph: torch.fx.GraphModule,
    static: list[Tensor],
    side_stream: torch.cuda.Stream,
    pool: GraphPool,
) -> tuple[torch.cuda.CUDAGraph, list[Tensor]]:
    """Return ``graph`` on ``static`` as a CUDA graph, and its result tensors.

    cuBLAS keeps one workspace a stream. It is freed before and after, so that each trainer's graphs
    have a workspace in their own pool, and not one that is freed with another trainer's.
    """
    original_stream, captured = torch.cuda.current_stream(), torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    torch._C._cuda_clearCublasWorkspaces()
    try:
        with torch.cuda.graph(
            captured, pool.handle, side_stream, capture_error_mode="thread_local"
        ):
            returned = list(graph(*static))
    except RuntimeError as error:
        raise CaptureError(
            f"a CUDA graph was not captured to its end, and this process's GPU memory is in disorder "
            f"({type(error).__name__}: {error}). Start the run again; if memory was short, with a "
            "smaller clients-together, or fewer processes on the GPU."
        ) from error
    finally:
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.set_stream(original_stream)  # PyTorch does not restore it where capturing fails
    return captured, returned


@functools.cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream on which all graphs of a device are captured."""
    return torch.cuda.Stream(device)
