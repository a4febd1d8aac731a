"""The input tensors of a compiled step other than the batches, at addresses that do not change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from fedapp.training.algorithm import ClientContext
from fedapp.training.device import to_memory_format
from fedapp.training.tensors import Groups, Tensors, copies

Layout = Literal["one client", "one run", "several runs"]
"""What the rows of a step's tensors are: one client, without rows; a run's clients; several runs'."""

RUN_GROUPS = frozenset({"global_params", "broadcast", "rate"})
"""The groups of tensors that all clients of a run share."""

CLIENT_GROUPS = frozenset({"params", "velocity", "state", "round_randomness", "labels"})
"""The groups of which every client has its own tensors."""

WITHOUT_ROWS: Mapping[Layout, frozenset[str]] = {
    "one client": RUN_GROUPS | CLIENT_GROUPS,
    "one run": RUN_GROUPS,
    "several runs": frozenset(),
}
"""The groups whose tensors have no dimension for the clients."""


def layout_of(contexts: Sequence[ClientContext], *, share: bool) -> Layout:
    """Return the layout for clients with these contexts; clients of one run share their objects.

    Unless they ``share``, each has copies, as in "several runs".
    """
    if len(contexts) == 1:
        return "one client"
    runs = {
        (id(context.global_params), id(context.broadcast), context.learning_rate)
        for context in contexts
    }
    return "one run" if share and len(runs) == 1 else "several runs"


class BufferPool:
    """Tensors at fixed addresses, which CUDA graphs read and write.

    A group of tensors that differ between clients has ``rows`` rows; fewer clients use the first ones.
    """

    def __init__(self, device: torch.device, format_: torch.memory_format, rows: int = 0) -> None:
        self.device, self.memory_format, self.rows = device, format_, rows
        self._full: dict[tuple[str, str, torch.Size], Tensor] = {}
        self._buffers: dict[tuple[str, str, torch.Size], Tensor] = {}
        self._last: dict[str, tuple[Mapping[str, Tensor], Tensors]] = {}

    def fill(self, group: str, clients: Sequence[Mapping[str, Tensor]], layout: Layout) -> Tensors:
        """Copy the clients' tensors to the buffers of a group, and return these.

        They are [c, ...], or the first client's in a group without rows. What the server sent is copied
        once for all chunks of a cohort.
        """
        first = clients[0]
        if group not in WITHOUT_ROWS[layout]:
            return {n: self._copy_rows(group, n, [each[n] for each in clients]) for n in first}
        last, buffers = self._last.get(group, (None, {}))
        if last is not first:
            buffers = {n: self._copy_single(group, n, tensor) for n, tensor in first.items()}
            if group in RUN_GROUPS:
                self._last[group] = (first, buffers)
        return buffers

    def first_rows(self, groups: Groups, count: int, layout: Layout) -> Groups:
        """Return the buffers of the first ``count`` clients."""
        return {
            group: tensors
            if group in WITHOUT_ROWS[layout]
            else {n: self._buffer(group, n, t, (count, *t.shape[1:])) for n, t in tensors.items()}
            for group, tensors in groups.items()
        }

    def _copy_single(self, group: str, name: str, tensor: Tensor) -> Tensor:
        key = (group, name, tensor.shape)
        if key not in self._buffers:
            on_device = to_memory_format(tensor.to(self.device), self.memory_format)
            self._buffers[key] = on_device.clone()
        return self._buffers[key].copy_(tensor)

    def _copy_rows(self, group: str, name: str, tensors: Sequence[Tensor]) -> Tensor:
        one = tensors[0]
        buffer = self._buffer(group, name, one, (len(tensors), *one.shape))
        if all(tensor is one for tensor in tensors):
            return buffer.copy_(one)
        return torch.stack([tensor.to(self.device) for tensor in tensors], out=buffer)

    def _buffer(self, group: str, name: str, like: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Return the first rows, of ``shape``; the same object for the same shape."""
        row = torch.Size(shape[1:])
        key = (group, name, torch.Size(shape))
        if key not in self._buffers:
            full = self._full.get((group, name, row))
            if full is None:
                full = torch.empty((self.rows, *row), dtype=like.dtype, device=self.device)
                self._full[group, name, row] = full
            self._buffers[key] = full[: shape[0]]
        return self._buffers[key]


def split_rows(tensors: Tensors, count: int, layout: Layout) -> list[Tensors]:
    """Return a copy of each client's tensors; on a GPU views of one copy, which is one launch."""
    if layout == "one client":
        return [copies(tensors)]
    if any(tensor.device.type != "cpu" for tensor in tensors.values()):
        stacked = copies(tensors)
        return [{name: tensor[row] for name, tensor in stacked.items()} for row in range(count)]
    return [copies({n: tensor[row] for n, tensor in tensors.items()}) for row in range(count)]
