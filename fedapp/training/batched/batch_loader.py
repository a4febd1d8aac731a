"""The mini-batches of several clients side by side, padded and masked.

Each client's batches are those that the sequential trainer draws for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedapp.data.dataset import Examples
from fedapp.data.transforms.transform import Transform
from fedapp.training.batches import (
    Batch,
    StoredExamples,
    as_targets,
    counted_targets,
    load_stored,
    transform_generator,
)
from fedapp.training.round_plan import RoundPlan, passes

WIDTHS_PER_OCTAVE = 8
"""Batch widths between a power of two and the next, where B is infinite or grows."""

WINDOW = 1 << 20
"""Bytes of inputs that are drawn at once on a CPU: what its cache holds."""

GPU_WINDOW = 1 << 28
"""The same on a GPU, where the number of calls is what costs time."""

WHOLE_COHORT = 10**9
"""More clients than any cohort has."""

CLIENTS_PER_CORE = 5
"""Clients whose weights a core's cache holds, for small networks."""


@dataclass(frozen=True)
class ClientBatching:
    """How many clients share a compiled step; ``equal``: only clients with equal numbers of steps.

    Where fewer than ``clients`` are equal, half of them or a quarter ... train together, but at least
    CLIENTS_PER_CORE; others train alone. So few steps are traced.
    """

    clients: int
    equal: bool = False

    def __str__(self) -> str:
        names = {1: "one client", WHOLE_COHORT: "a cohort"}
        return names.get(self.clients, f"{self.clients} clients")

    def chunks(self, steps: Sequence[int], runs: int) -> Iterator[Sequence[int]]:
        """Yield the positions of clients that train together, given their ``steps``, of ``runs`` runs."""
        size = runs if self.equal and runs > 1 else self.clients * runs
        start = 0
        while start < len(steps):
            width = size if runs > 1 or not self.equal else self._num_equal(steps[start:])
            yield range(start, min(start + width, len(steps)))
            start += width

    def _num_equal(self, steps: Sequence[int]) -> int:
        """Return how many of the next clients train together, all with the same number of steps."""
        width = self.clients
        while width >= min(CLIENTS_PER_CORE, self.clients):
            if len(steps) >= width and len(set(steps[:width])) == 1:
                return width
            width //= 2
        return 1


ONE_CLIENT = ClientBatching(1)


@dataclass(frozen=True)
class BatchIndices:
    """The examples of each local step of one client: ``index`` and ``mask`` [steps, b]."""

    index: NDArray[np.int64]
    mask: NDArray[np.bool_]

    @classmethod
    def of(cls, plan: RoundPlan, n: int, rng: np.random.Generator, width: int) -> BatchIndices:
        """Return the indices for a client of ``n`` examples; padding repeats example 0."""
        index = np.zeros((plan.num_steps(n), width), np.int64)
        mask = np.zeros(index.shape, np.bool_)
        step = 0
        for order in passes(plan, n, rng):
            for start in range(0, len(order), plan.batch(n)):
                batch = order[start : start + plan.batch(n)]
                index[step, : len(batch)] = batch
                mask[step, : len(batch)] = True
                step += 1
        return cls(index, mask)


def padded_width(plan: RoundPlan, sizes: Sequence[int]) -> int:
    """Return the examples to which the batches of clients of these sizes are padded.

    A step is traced for each width, so there are few: B, a quarter of B, ... where all clients hold
    less; with B = infinity, or growing from round to round, eighths of a power of two.
    """
    largest = max(plan.batch(n) for n in sizes)
    if plan.batch_size and not plan.growing:
        width = plan.batch_size
        while -(-width // 4) >= largest and width > 1:
            width = -(-width // 4)
        return width
    return rounded_up(largest, WIDTHS_PER_OCTAVE)


def rounded_up(count: int, per_octave: int) -> int:
    """Return the next of few numbers: ``per_octave`` between a power of two and the next one."""
    unit = max(1 << max(count - 1, 1).bit_length() - 1, per_octave) // per_octave
    return -(-count // unit) * unit


def batch_size_buckets(count: int) -> list[int]:
    """Return ``count``, a quarter of it, a quarter of that, ... rounded up, down to 1."""
    buckets = [count]
    while buckets[-1] > 1:
        buckets.append(-(-buckets[-1] // 4))
    return buckets


@dataclass(frozen=True)
class ClientBatches:
    """One mini-batch of each of c clients: [c, b, ...], and mask [c, b].

    For each client [c], ``sizes`` is the number of targets that count, and ``active`` whether the
    client takes this step; with ``all_active`` all the loader's clients take it.
    """

    inputs: Tensor
    targets: Tensor
    mask: Tensor
    sizes: Tensor
    active: Tensor
    all_active: bool


class DeviceDataset:
    """The data set of which clients hold parts, on the device."""

    MAX_SHARE = 0.5
    """Share of a GPU's free memory that a data set may take; larger ones are loaded client by client."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._last: tuple[Examples, StoredExamples] | None = None

    def shared(self, clients: Sequence[Examples]) -> StoredExamples | None:
        """Return the data set of which all the clients' examples are parts, or None."""
        base = clients[0].base
        if any(examples.base is not base for examples in clients):
            return None
        if self._last is None or self._last[0] is not base:
            if not self._fits(base):
                return None
            self._last = (base, load_stored(base, self.device))
        return self._last[1]

    def _fits(self, base: Examples) -> bool:
        if self.device.type != "cuda":
            return True
        free, _ = torch.cuda.mem_get_info(self.device)
        return base.inputs.nbytes + base.targets.nbytes <= self.MAX_SHARE * free


class BatchLoader:
    """Iterates over the local steps of c clients, from data on the device.

    Batches are gathered by index from the data set that the clients share, or from copies of the
    clients' own, and transformed for several steps at once. Random numbers are drawn on the CPU, as
    the sequential trainer draws them, and copied to the device once per loader.

    The clients must be sorted by their number of steps, most first. A batch has all clients, or as
    many of the first ones as the smallest of ``counts`` that covers those with steps left.
    """

    def __init__(
        self,
        clients: Sequence[tuple[Examples, np.random.Generator]],
        plan: RoundPlan,
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
        active = (np.asarray(self.steps) > np.arange(max(self.steps))[:, None]).sum(1)
        allowed = np.unique([len(clients), *counts])
        self.rows = allowed[np.searchsorted(allowed, active)]
        """The number of clients in each step's batch."""

    def __iter__(self) -> Iterator[ClientBatches]:
        """Yield as many batches as the client with the most steps takes."""
        inputs, targets, rows_of = self._load()
        index, mask, draws = (tensor.to(self.device) for tensor in self._draw(rows_of))
        masks = (mask.to(self.dtype), mask.any(2))
        for start, end, rows in self._windows(inputs):
            window = (slice(start, end), slice(rows))
            indices = index[window]
            flat, numbers = indices.flatten(), draws[window].flatten(0, 2)
            x = self.transform.train(inputs.index_select(0, flat), self.dtype, numbers)
            batch = Batch(x, as_targets(targets.index_select(0, flat)), mask[window].flatten())
            sizes = counted_targets(batch).unflatten(0, indices.shape).flatten(2).sum(2)
            examples = (t.unflatten(0, indices.shape) for t in (batch.inputs, batch.targets))
            tensors = (*examples, *(t[window] for t in masks), sizes)
            steps = zip(*(tensor.unbind() for tensor in tensors), strict=True)
            for step, (x, y, weight, active, size) in enumerate(steps, start):
                yield ClientBatches(x, y, weight, size, active, all_active=step < min(self.steps))

    def _windows(self, inputs: Tensor) -> Iterator[tuple[int, int, int]]:
        """Yield first step, end, and number of clients of the batches that are gathered at once."""
        most = WINDOW if self.device.type == "cpu" else GPU_WINDOW
        most //= self.width * inputs[0].numel() * self.dtype.itemsize
        start = 0
        while start < len(self.rows):
            rows = int(self.rows[start])
            last = int(np.searchsorted(-self.rows, -rows, side="right"))
            end = min(last, start + max(1, most // rows))
            yield start, end, rows
            start = end

    def _load(self) -> tuple[Tensor, Tensor, list[NDArray[np.int64]]]:
        """Return inputs [N, ...] and targets as stored, and the rows of each client's examples."""
        clients = [examples for examples, _ in self.clients]
        shared = self.device_dataset.shared(clients)
        if shared is not None:
            return shared.inputs, shared.targets, [examples.indices for examples in clients]
        each = [load_stored(examples, self.device) for examples in clients]
        ends = np.cumsum([len(examples) for examples in clients])
        rows = [np.arange(end - len(e), end) for end, e in zip(ends, clients, strict=True)]
        if len(each) == 1:
            return each[0].inputs, each[0].targets, rows
        inputs, targets = ([*part] for part in zip(*each, strict=True))
        return torch.cat(inputs), torch.cat(targets), rows

    def _draw(self, rows: Sequence[NDArray[np.int64]]) -> tuple[Tensor, Tensor, Tensor]:
        """Return index and mask [steps, c, b] and the transform's draws [steps, c, b, d], on the CPU."""
        shape = (max(self.steps), len(self.clients), self.width)
        index, mask = np.zeros(shape, np.int64), np.zeros(shape, np.bool_)
        draws = torch.zeros(*shape, self.transform.draws)
        for client, (examples, rng) in enumerate(self.clients):
            generator = transform_generator(self.transform, rng)
            batches = BatchIndices.of(self.plan, len(examples), rng, self.width)
            steps = len(batches.index)
            index[:steps, client] = rows[client][batches.index]
            index[steps:, client] = rows[client][0]
            mask[:steps, client] = batches.mask
            if self.transform.draws:
                real = torch.from_numpy(mask[:, client])
                numbers = torch.rand(int(real.sum()), self.transform.draws, generator=generator)
                draws[:, client][real] = numbers
        return torch.from_numpy(index), torch.from_numpy(mask), draws


def mean_over_steps(losses: list[Tensor], sizes: list[Tensor]) -> list[float]:
    """Return each client's mean loss, weighted by the targets that count: [steps][c] both to [c].

    Later steps can be of fewer clients, the first ones.
    """
    total, weight = (torch.zeros_like(losses[0], dtype=torch.float64) for _ in range(2))
    for count, group in groupby(range(len(losses)), key=lambda step: len(losses[step])):
        steps = [*group]
        weights = torch.stack([sizes[step] for step in steps]).double()
        values = torch.stack([losses[step] for step in steps]).double()
        total[:count] += (values.where(weights > 0, 0.0) * weights).sum(0)
        weight[:count] += weights.sum(0)
    return [float(loss) for loss in (total / weight.clamp(min=1)).cpu()]
