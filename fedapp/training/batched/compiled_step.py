"""A function of named tensors, recorded once for each set of shapes, and then run without Python.

Recording (``make_fx``) takes the function, its gradients and its ``vmap`` down to their bare tensor
operations. What happens to these is the program's ``mode``: they are run one by one ("record"),
compiled to fused kernels ("compile", by Inductor), or captured as one CUDA graph ("capture").
"""

from __future__ import annotations

import copy
import functools
import logging
import shutil
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from fedapp.training.batched.graph_matmul import by_onednn, take_products
from fedapp.training.batched.graph_memory import Run, Step, computed_once, mark_once
from fedapp.training.batched.graph_updates import descend_in_place
from fedapp.training.tensors import Tensors

Groups = Mapping[str, Mapping[str, Tensor]]
"""Named tensors in named groups: params, batch, ..."""

Mode = Literal["record", "compile", "capture"]
Signature = tuple[tuple[str, str, torch.Size, tuple[int, ...], torch.dtype], ...]
Names = list[tuple[str, str]]
"""Group and name of each tensor in a flat list."""

WARM_UP = 3
"""Runs on a side stream before a CUDA graph is captured, as PyTorch's documentation asks."""


class CaptureError(RuntimeError):
    """A CUDA graph was begun and not ended: not to be tried again in the same process."""


@functools.cache
def can_compile() -> bool:
    """Return whether there is a C++ compiler, which Inductor needs on a CPU."""
    return any(shutil.which(name) for name in ("g++", "clang++"))


class Pool:
    """The memory in which all CUDA graphs of a trainer work, as only one of them runs at a time.

    A graph's results may be overwritten by the next replay of any: they are read or copied before.
    """

    @functools.cached_property
    def handle(self) -> Any:
        """PyTorch's name for it, of a type that it does not tell."""
        return torch.cuda.graph_pool_handle()


class CompiledStep:
    """Calls ``function`` on groups of tensors, of which it may change some in place.

    The function's control flow must not depend on the tensors' values, and what it closes over is
    recorded as it is at the first call with the same shapes.
    """

    def __init__(
        self, function: Callable[[Groups], dict[str, Tensors]], mode: Mode, pool: Pool | None = None
    ) -> None:
        self.function = function
        self.mode = mode
        self.pool = pool or Pool()
        self._runs: dict[tuple[int, Signature], tuple[Run, Names]] = {}

    def on(self, fixed: Groups) -> BoundStep:
        """Return the program on groups that stay, for calls with the others."""
        return BoundStep(self, fixed)

    @property
    def recorded(self) -> int:
        """For how many sets of shapes it is recorded."""
        return len(self._runs)

    @torch.no_grad()
    def find(self, fixed: Groups, others: Groups) -> tuple[Run, Names]:
        """Return the function on flat lists of such tensors, and what it returns."""
        groups = {**fixed, **others}
        signature = tuple(
            (group, name, tensor.shape, tensor.stride(), tensor.dtype)
            for group, tensors in groups.items()
            for name, tensor in tensors.items()
        )
        key = (len(flattened(fixed)), signature)
        if key not in self._runs:
            self._runs[key] = self._record(list(groups), *key, flattened(groups))
        return self._runs[key]

    def _record(
        self, names: list[str], fixed: int, signature: Signature, flat: list[Tensor]
    ) -> tuple[Run, Names]:
        """Return the function on flat lists of tensors, and the names of what it returns."""
        returned: Names = []

        def function(*tensors: Tensor) -> list[Tensor]:
            groups: dict[str, Tensors] = {name: {} for name in names}
            for (group, name, *_), tensor in zip(signature, tensors, strict=True):
                groups.setdefault(group, {})[name] = tensor
            result = self.function(groups)
            returned[:] = [(group, name) for group, part in result.items() for name in part]
            return [tensor for part in result.values() for tensor in part.values()]

        graph = make_fx(function)(*(tensor.clone() for tensor in flat))
        if self.mode == "capture":
            return _captured(graph, flat, fixed, self.pool), returned
        if self.mode == "record":
            return _in_place(graph, fixed), returned
        return _compiled_or_in_place(graph, flat, fixed), returned


class BoundStep:
    """A program on ``fixed`` groups of tensors, and on others, which keep their shapes and types.

    So that a call costs little Python: which program it is is looked up once for each set of names.
    """

    def __init__(self, program: CompiledStep, fixed: Groups) -> None:
        self.program, self.fixed = program, fixed
        self._flat = flattened(fixed)
        self._found: dict[tuple[int, ...], tuple[Step, Names]] = {}

    def __call__(self, others: Groups) -> dict[str, Tensors]:
        """Return what the function returns for the fixed groups and ``others``.

        The caller has turned gradients off: once for all calls, because that takes time.
        """
        named = tuple(map(len, others.values()))
        if named not in self._found:
            run, returned = self.program.find(self.fixed, others)
            self._found[named] = (run(self._flat), returned)
        step, returned = self._found[named]
        result: dict[str, Tensors] = {}
        for (group, name), tensor in zip(returned, step(flattened(others)), strict=True):
            result.setdefault(group, {})[name] = tensor
        return result


def flattened(groups: Groups) -> list[Tensor]:
    """Return all tensors of the groups, in their order."""
    return [tensor for tensors in groups.values() for tensor in tensors.values()]


def _in_place(graph: torch.fx.GraphModule, fixed: int) -> Run:
    """Return the recorded operations one by one, with updates in place on a CPU."""
    return computed_once(mark_once(by_onednn(descend_in_place(graph)), fixed), fixed)


def _compiled_or_in_place(graph: torch.fx.GraphModule, flat: list[Tensor], fixed: int) -> Run:
    """Return the recorded operations compiled, or one by one where compiling them fails."""
    try:
        run = _compiled(graph, flat, fixed)
        given = [tensor.clone() for tensor in flat]
        run(given[:fixed])(given[fixed:])
    except Exception as error:
        warnings.warn(
            "A local step could not be compiled; its operations run one by one, which takes longer "
            f"({type(error).__name__}: {str(error).partition(chr(10))[0]}). "
            "program='record' does so without trying.",
            RuntimeWarning,
            stacklevel=2,
        )
        return _in_place(graph, fixed)
    return run


def _compiled(graph: torch.fx.GraphModule, flat: list[Tensor], fixed: int) -> Run:
    """Return the recorded operations compiled, and the products of matrices between them as they are."""
    # Inductor imports what warns of a missing GPU wherever there is a CUDA compiler.
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)

    def compiled(part: torch.fx.GraphModule, given: list[Tensor]) -> Step:
        # As they lie in memory, for that is what is compiled: a copy can have other strides.
        made = torch._inductor.compile(part, [*given])
        return lambda tensors: list(made(*tensors))

    parts = take_products(copy.deepcopy(graph), flat, compiled, fixed)
    if parts is not None:
        return computed_once(parts, fixed)
    whole = compiled(graph, flat)
    return lambda given: lambda others: whole([*given, *others])


def _captured(graph: torch.fx.GraphModule, flat: list[Tensor], fixed: int, pool: Pool) -> Run:
    """Return a replay of the recorded operations, which read and write where fixed tensors lie.

    A tensor that is given again in the place where it was captured costs nothing; another's values
    are copied there first, as are all that are not fixed, which have places of their own. What comes
    back is overwritten by the next run.
    """
    static = [*flat[:fixed], *(tensor.clone() for tensor in flat[fixed:])]
    replay, returned = cuda_graph(graph, static, pool)

    def run(tensors: list[Tensor]) -> list[Tensor]:
        for place, tensor in zip(static, tensors, strict=True):
            if place is not tensor:
                place.copy_(tensor)
        replay()
        return list(returned)

    return lambda given: lambda others: run([*given, *others])


def cuda_graph(
    graph: torch.fx.GraphModule, static: list[Tensor], pool: Pool
) -> tuple[Callable[[], None], list[Tensor]]:
    """Return what replays ``graph`` on ``static``, whose values stay, and where its results lie.

    Raises
    ------
    CaptureError
        Capturing began and did not come to its end.
    """
    device = static[0].device
    with torch.cuda.device(device):
        saved = [tensor.clone() for tensor in static]
        side, here = _side_stream(device), torch.cuda.current_stream(device)
        side.wait_stream(here)
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                graph(*static)
        here.wait_stream(side)
        captured, returned = _capture(graph, static, side, pool)
        for tensor, value in zip(static, saved, strict=True):
            tensor.copy_(value)

    def replay(_alive: object = graph) -> None:  # its constants are where the graph reads them
        with torch.cuda.device(device):
            captured.replay()

    return replay, returned


def _capture(
    graph: torch.fx.GraphModule, static: list[Tensor], side: torch.cuda.Stream, pool: Pool
) -> tuple[torch.cuda.CUDAGraph, list[Tensor]]:
    """Return a CUDA graph of what ``graph`` does with ``static``, and where its results lie.

    cuBLAS keeps one workspace for all that runs on a stream. It is let go before and after, so that
    each trainer's graphs have theirs, in their own pool, and not one that dies with another trainer's.
    """
    here, captured = torch.cuda.current_stream(), torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    torch._C._cuda_clearCublasWorkspaces()
    try:
        with torch.cuda.graph(captured, pool.handle, side, capture_error_mode="thread_local"):
            returned = list(graph(*static))
    except RuntimeError as error:
        raise CaptureError(
            f"a CUDA graph was not captured to its end, and this process's GPU memory is in disorder "
            f"({type(error).__name__}: {error}). Start the run again; if memory was short, with a "
            "smaller clients-together, or fewer processes on the GPU."
        ) from error
    finally:
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.set_stream(here)  # PyTorch stays on the other one where capturing fails
    return captured, returned


@functools.cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream on which all graphs of a device are captured, one after another."""
    return torch.cuda.Stream(device)
