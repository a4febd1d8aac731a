"""Where a program finds all but its batches: places that stay where they are from turn to turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from fedapp.training.algorithm import ClientContext
from fedapp.training.device import laid_out
from fedapp.training.tensors import Tensors

SHARED = frozenset({"global_params", "broadcast", "rate"})
"""The groups of tensors that all clients of a run share; the others have a row for each."""

Layout = Literal["alone", "one run", "several runs"]
"""Whose rows a program's tensors have: one client's, without rows; a run's clients'; several runs'."""


class BufferPool:
    """Tensors that stay where they are: a CUDA graph reads and writes them there.

    What each client has of its own has ``rows`` places; fewer clients take the first ones of them.
    """

    def __init__(self, device: torch.device, format_: torch.memory_format, rows: int = 0) -> None:
        self.device, self.format, self.rows = device, format_, rows
        self._whole: dict[tuple[str, str, torch.Size], Tensor] = {}
        self._places: dict[tuple[str, str, torch.Size], Tensor] = {}
        self._last: dict[str, tuple[Mapping[str, Tensor], Tensors]] = {}

    def placed(self, group: str, rows: Sequence[Mapping[str, Tensor]], *, alone: bool) -> Tensors:
        """Copy the clients' tensors to their places: [c, ...], or one client's as they are."""
        if alone:
            return {name: self._alone(group, name, tensor) for name, tensor in rows[0].items()}
        return {name: self._rows(group, name, [row[name] for row in rows]) for name in rows[0]}

    def sent(self, group: str, rows: Sequence[Mapping[str, Tensor]], *, shared: bool) -> Tensors:
        """Place what the server sent; what a cohort's turns share, once for the whole cohort."""
        if not shared:
            return self.placed(group, rows, alone=False)
        last, placed = self._last.get(group, (None, {}))
        if last is not rows[0]:
            placed = self.placed(group, rows, alone=True)
            self._last[group] = (rows[0], placed)
        return placed

    def first(self, group: str, tensors: Mapping[str, Tensor], count: int) -> Tensors:
        """Return the places of the first ``count`` clients, of a group that has rows."""
        shapes = {name: torch.Size((count, *t.shape[1:])) for name, t in tensors.items()}
        return {name: self._place(group, name, t, shapes[name]) for name, t in tensors.items()}

    def _alone(self, group: str, name: str, tensor: Tensor) -> Tensor:
        key = (group, name, tensor.shape)
        if key not in self._places:
            self._places[key] = laid_out(tensor.to(self.device), self.format).clone()
        return self._places[key].copy_(tensor)

    def _rows(self, group: str, name: str, tensors: Sequence[Tensor]) -> Tensor:
        one = tensors[0]
        place = self._place(group, name, one, torch.Size((len(tensors), *one.shape)))
        if all(tensor is one for tensor in tensors):
            return place.copy_(one)
        return torch.stack([tensor.to(self.device) for tensor in tensors], out=place)

    def _place(self, group: str, name: str, like: Tensor, shape: torch.Size) -> Tensor:
        """Return the first of the rows of ``shape``, as the very object that it was before."""
        key, row = (group, name, shape), shape[1:]
        if key not in self._places:
            whole = self._whole.get((group, name, row))
            if whole is None:
                whole = torch.empty((self.rows, *row), dtype=like.dtype, device=self.device)
                self._whole[group, name, row] = whole
            self._places[key] = whole[: shape[0]]
        return self._places[key]


def layout_of(contexts: Sequence[ClientContext]) -> Layout:
    """Return whose turns these are: what a run's clients are sent is one object."""
    if len(contexts) == 1:
        return "alone"
    senders = {
        (id(context.global_params), id(context.broadcast), context.learning_rate)
        for context in contexts
    }
    return "one run" if len(senders) == 1 else "several runs"


def shared_groups(layout: Layout) -> frozenset[str]:
    """Return the groups that have no rows."""
    return SHARED if layout == "one run" else frozenset()


def split_rows(tensors: Tensors, count: int, alone: bool) -> list[Tensors]:
    """Return a copy of each client's tensors; on a GPU as parts of one copy, which is one launch."""
    if alone:
        return [_copies(tensors)]
    if any(tensor.device.type != "cpu" for tensor in tensors.values()):
        whole = _copies(tensors)
        return [{name: tensor[row] for name, tensor in whole.items()} for row in range(count)]
    return [_copies({n: tensor[row] for n, tensor in tensors.items()}) for row in range(count)]


def _copies(tensors: Tensors) -> Tensors:
    return {n: t.clone(memory_format=torch.contiguous_format) for n, t in tensors.items()}
