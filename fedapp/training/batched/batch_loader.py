"""The mini-batches of several clients side by side: padded, masked, drawn as one client draws them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedapp.data.dataset import Examples
from fedapp.data.transforms.transform import Transform
from fedapp.training.algorithm import Batch
from fedapp.training.batches import Stored, as_targets, source_of_draws, stored, which_count
from fedapp.training.round_plan import LocalPlan, passes

EIGHTHS = 8

WINDOW = 1 << 20
"""Bytes of inputs that are drawn at once on a CPU: what its cache holds."""

GPU_WINDOW = 1 << 28
"""The same on a GPU: calls are what costs time there."""


WHOLE_COHORT = 10**9
"""More clients than any cohort has."""


FEW = 5
"""Clients whose weights a core's cache holds, for small networks."""


@dataclass(frozen=True)
class ClientBatching:
    """How many clients are one program; ``equal``: only such as take as many steps as each other.

    Where fewer are alike than ``clients``, half of them or a quarter ... train together, but not
    fewer than FEW; others train alone. So there are few programs to record.
    """

    clients: int
    equal: bool = False

    def __str__(self) -> str:
        few = {1: "one client", WHOLE_COHORT: "a cohort"}
        return few.get(self.clients, f"{self.clients} clients")

    def chunks(self, steps: Sequence[int], runs: int) -> Iterator[Sequence[int]]:
        """Yield the places of clients of ``runs`` runs, who take so many ``steps``, by program."""
        size = runs if self.equal and runs > 1 else self.clients * runs
        start = 0
        while start < len(steps):
            width = size if runs > 1 or not self.equal else self._alike(steps[start:])
            yield range(start, min(start + width, len(steps)))
            start += width

    def _alike(self, steps: Sequence[int]) -> int:
        """Return how many of the next clients train together, all with the same number of steps."""
        width = self.clients
        while width >= min(FEW, self.clients):
            if len(steps) >= width and len(set(steps[:width])) == 1:
                return width
            width //= 2
        return 1


ONE = ClientBatching(1)


@dataclass(frozen=True)
class Places:
    """Which examples each local step of one client takes: ``index`` and ``mask`` [steps, b]."""

    index: NDArray[np.int64]
    mask: NDArray[np.bool_]

    @classmethod
    def of(cls, plan: LocalPlan, n: int, rng: np.random.Generator, width: int) -> Places:
        """Return the places of a client of ``n`` examples; padding repeats example 0."""
        index = np.zeros((plan.num_steps(n), width), np.int64)
        mask = np.zeros(index.shape, np.bool_)
        step = 0
        for order in passes(plan, n, rng):
            for start in range(0, len(order), plan.batch(n)):
                taken = order[start : start + plan.batch(n)]
                index[step, : len(taken)] = taken
                mask[step, : len(taken)] = True
                step += 1
        return cls(index, mask)


def padded_width(plan: LocalPlan, sizes: Sequence[int]) -> int:
    """Return the examples to which the batches of clients of these sizes are padded.

    A program is recorded for each width, so there are few: B, a quarter of B, ... where all clients
    hold less; with B = infinity, or growing from round to round, eighths of a power of two.
    """
    largest = max(plan.batch(n) for n in sizes)
    if plan.batch_size and not plan.growing:
        width = plan.batch_size
        while -(-width // 4) >= largest and width > 1:
            width = -(-width // 4)
        return width
    return rounded_up(largest, EIGHTHS)


def rounded_up(count: int, parts: int) -> int:
    """Return the next of few numbers: ``parts`` lie between a power of two and the next one."""
    unit = max(1 << max(count - 1, 1).bit_length() - 1, parts) // parts
    return -(-count // unit) * unit


def batch_size_buckets(count: int) -> list[int]:
    """Return ``count``, a quarter of it, a quarter of that, ... rounded up, down to 1."""
    found = [count]
    while found[-1] > 1:
        found.append(-(-found[-1] // 4))
    return found


@dataclass(frozen=True)
class Step:
    """One local step of c clients: [c, b, ...] and mask [c, b].

    For each client [c] ``sizes`` says how many targets count, ``active`` whether it has this step;
    ``together``: all clients of the turn have it.
    """

    inputs: Tensor
    targets: Tensor
    mask: Tensor
    sizes: Tensor
    active: Tensor
    together: bool


class DeviceDataset:
    """The data set whose examples clients hold, or a client's own, on the device as it is stored."""

    MOST = 0.5
    """Share of a GPU's free memory that a data set may take; larger ones come client by client."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._last: tuple[Examples, Stored] | None = None

    def shared(self, clients: Sequence[Examples]) -> Stored | None:
        """Return the one data set of which all the clients' examples are parts, if there is one."""
        whole = clients[0].base
        if any(examples.base is not whole for examples in clients):
            return None
        if self._last is None or self._last[0] is not whole:
            if not self._fits(whole):
                return None
            self._last = (whole, stored(whole, self.device))
        return self._last[1]

    def _fits(self, whole: Examples) -> bool:
        if self.device.type != "cuda":
            return True
        free, _ = torch.cuda.mem_get_info(self.device)
        return whole.inputs.nbytes + whole.targets.nbytes <= self.MOST * free


class BatchLoader:
    """The local steps of c clients, from data that stays on the device as it is stored.

    Batches are drawn by index from the data set that the clients share, or from copies of the
    clients' own, and transformed for several steps at once. What is drawn at random is drawn on the
    CPU, as one client alone draws it, and comes to the device once a turn.

    The clients come with those first that take the most steps. A step is of all clients, or, where
    it is of no more than the next of ``counts``, of so many.
    """

    def __init__(
        self,
        clients: Sequence[tuple[Examples, np.random.Generator]],
        plan: LocalPlan,
        transform: Transform,
        device_dataset: DeviceDataset,
        dtype: torch.dtype,
        counts: Sequence[int] = (),
    ) -> None:
        self.clients, self.plan, self.transform = clients, plan, transform
        self.device_dataset, self.device, self.dtype = device_dataset, device_dataset.device, dtype
        sizes = [len(examples) for examples, _ in clients]
        self.width = padded_width(plan, sizes)
        self.steps = [plan.num_steps(n) for n in sizes]
        training = (np.asarray(self.steps) > np.arange(max(self.steps))[:, None]).sum(1)
        several = np.unique([len(clients), *counts])
        self.rows = several[np.searchsorted(several, training)]
        """How many clients each step is of."""

    def __iter__(self) -> Iterator[Step]:
        """Yield as many steps as the client with the most steps takes."""
        inputs, targets, held = self._data()
        index, mask, draws = (part.to(self.device) for part in self._places(held))
        masks = (mask.to(self.dtype), mask.any(2))
        for start, end, rows in self._windows(inputs):
            part = (slice(start, end), slice(rows))
            places = index[part]
            taken, numbers = places.flatten(), draws[part].flatten(0, 2)
            shown = self.transform.train(inputs.index_select(0, taken), self.dtype, numbers)
            batch = Batch(shown, as_targets(targets.index_select(0, taken)), mask[part].flatten())
            sizes = which_count(batch).unflatten(0, places.shape).flatten(2).sum(2)
            drawn = (batch.inputs, batch.targets)
            whole = (*(t.unflatten(0, places.shape) for t in drawn), *(t[part] for t in masks))
            every = zip(*(tensor.unbind() for tensor in (*whole, sizes)), strict=True)
            for step, (x, y, weight, active, size) in enumerate(every, start):
                yield Step(x, y, weight, size, active, together=step < min(self.steps))

    def _windows(self, inputs: Tensor) -> Iterator[tuple[int, int, int]]:
        """Yield from which step to which batches are drawn at once, and of how many clients.

        Calls are saved, and a CPU's cache is not left.
        """
        most = WINDOW if self.device.type == "cpu" else GPU_WINDOW
        most //= self.width * inputs[0].numel() * self.dtype.itemsize
        start = 0
        while start < len(self.rows):
            rows = int(self.rows[start])
            last = int(np.searchsorted(-self.rows, -rows, side="right"))
            end = min(last, start + max(1, most // rows))
            yield start, end, rows
            start = end

    def _data(self) -> tuple[Tensor, Tensor, list[NDArray[np.int64]]]:
        """Return inputs [N, ...] and targets as they are stored, and which rows each client holds."""
        clients = [examples for examples, _ in self.clients]
        shared = self.device_dataset.shared(clients)
        if shared is not None:
            return shared.inputs, shared.targets, [examples.indices for examples in clients]
        each = [stored(examples, self.device) for examples in clients]
        ends = np.cumsum([len(examples) for examples in clients])
        rows = [np.arange(end - len(e), end) for end, e in zip(ends, clients, strict=True)]
        if len(each) == 1:
            return each[0].inputs, each[0].targets, rows
        inputs, targets = ([*part] for part in zip(*each, strict=True))
        return torch.cat(inputs), torch.cat(targets), rows

    def _places(self, rows: Sequence[NDArray[np.int64]]) -> tuple[Tensor, Tensor, Tensor]:
        """Return which of the ``rows`` each step takes, its mask, and the transform's draws, on the CPU.

        All [steps, c, b], and so many draws.
        """
        shape = (max(self.steps), len(self.clients), self.width)
        index, mask = np.zeros(shape, np.int64), np.zeros(shape, np.bool_)
        draws = torch.zeros(*shape, self.transform.draws)
        for client, (examples, rng) in enumerate(self.clients):
            source = source_of_draws(self.transform, rng)
            places = Places.of(self.plan, len(examples), rng, self.width)
            index[: len(places.index), client] = rows[client][places.index]
            index[len(places.index) :, client] = rows[client][0]
            mask[: len(places.mask), client] = places.mask
            if self.transform.draws:
                shown = torch.from_numpy(mask[:, client])
                numbers = torch.rand(int(shown.sum()), self.transform.draws, generator=source)
                draws[:, client][shown] = numbers
        return torch.from_numpy(index), torch.from_numpy(mask), draws
