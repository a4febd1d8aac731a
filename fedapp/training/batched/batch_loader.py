"""The mini-batches of several clients side by side, padded and masked.

Each client's batches are those that the sequential trainer draws for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

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
from fedapp.training.device import to_memory_format
from fedapp.training.round_plan import RoundPlan, passes
from fedapp.training.tensors import Tensors
from fedapp.training.trainer import ClientTask

WIDTHS_PER_OCTAVE = 8
"""Batch widths between a power of two and the next, where B is infinite or grows."""

WINDOW = 1 << 20
"""Bytes of inputs that are drawn at once on a CPU: what its cache holds."""

GPU_WINDOW = 1 << 28
"""The same on a GPU, where the number of calls is what costs time."""

MAX_SHARE = 0.5
"""Share of a GPU's free memory that a data set may take; larger ones are loaded client by client."""


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


def rows_of_steps(steps: Sequence[int], allowed: Sequence[int]) -> NDArray[np.int64]:
    """Return the number of clients in each step's batch, given their ``steps``, most first.

    It is that of all clients, or the smallest of the ``allowed`` ones that covers those with steps left.
    """
    active = (np.asarray(steps) > np.arange(max(steps))[:, None]).sum(1)
    counts = np.unique([len(steps), *allowed])
    return np.asarray(counts[np.searchsorted(counts, active)])


@dataclass(frozen=True)
class ClientBatches:
    """One mini-batch of each of c clients.

    ``tensors``: inputs and targets [c, b, ...], mask [c, b], and, where not all of the loader's clients
    take this step, active [c]. A single client's have no c. ``sizes`` [c]: the targets that count.
    """

    tensors: Tensors
    sizes: Tensor


class BatchLoader:
    """Loads the batches of several clients, from data on the device.

    Batches are gathered by index from the data set that the clients share, which stays on the device,
    or from copies of the clients' own, and transformed for several steps at once. Random numbers are
    drawn on the CPU, as the sequential trainer draws them, and copied to the device once.
    """

    def __init__(
        self,
        transform: Transform,
        device: torch.device,
        dtype: torch.dtype,
        memory_format: torch.memory_format = torch.contiguous_format,
    ) -> None:
        self.transform, self.device, self.dtype = transform, device, dtype
        self.memory_format = memory_format
        self._last: tuple[Examples, StoredExamples] | None = None

    def batches(
        self, tasks: Sequence[ClientTask], plan: RoundPlan, allowed_rows: Sequence[int] = ()
    ) -> Iterator[ClientBatches]:
        """Yield as many batches as the client with the most steps, which is the first one, takes.

        Each is of the first ``rows_of_steps`` clients; ``tasks`` are in the order of their steps.
        """
        steps = [plan.num_steps(len(task.examples)) for task in tasks]
        width = padded_width(plan, [len(task.examples) for task in tasks])
        inputs, targets, rows = self._stored([task.examples for task in tasks])
        index, mask, draws = (t.to(self.device) for t in self._draw(tasks, plan, rows, width))
        masks = (mask.to(self.dtype), mask.any(2))
        step_bytes = width * inputs[0].numel() * self.dtype.itemsize
        for start, end, count in self._windows(rows_of_steps(steps, allowed_rows), step_bytes):
            window = (slice(start, end), slice(count))
            indices = index[window]
            flat, numbers = indices.flatten(), draws[window].flatten(0, 2)
            x = self.transform.train(inputs.index_select(0, flat), self.dtype, numbers)
            batch = Batch(x, as_targets(targets.index_select(0, flat)), mask[window].flatten())
            sizes = counted_targets(batch).unflatten(0, indices.shape).flatten(2).sum(2)
            examples = (t.unflatten(0, indices.shape) for t in (batch.inputs, batch.targets))
            tensors = (*examples, *(t[window] for t in masks), sizes)
            unbound = zip(*(tensor.unbind() for tensor in tensors), strict=True)
            for step, (x, y, weight, active, size) in enumerate(unbound, start):
                group = {"inputs": x, "targets": y, "mask": weight}
                if len(tasks) == 1:
                    group = {name: tensor[0] for name, tensor in group.items()}
                    group["inputs"] = to_memory_format(group["inputs"], self.memory_format)
                elif step >= min(steps):
                    group["active"] = active
                yield ClientBatches(group, size)

    def _windows(self, rows: NDArray[np.int64], step_bytes: int) -> Iterator[tuple[int, int, int]]:
        """Yield first step, end, and number of clients of the batches that are gathered at once."""
        most = (WINDOW if self.device.type == "cpu" else GPU_WINDOW) // step_bytes
        start = 0
        while start < len(rows):
            count = int(rows[start])
            last = int(np.searchsorted(-rows, -count, side="right"))
            end = min(last, start + max(1, most // count))
            yield start, end, count
            start = end

    def _stored(
        self, clients: Sequence[Examples]
    ) -> tuple[Tensor, Tensor, list[NDArray[np.int64]]]:
        """Return inputs [N, ...] and targets as stored, and the rows of each client's examples."""
        shared = self.shared(clients)
        if shared is not None:
            return shared.inputs, shared.targets, [examples.indices for examples in clients]
        each = [load_stored(examples, self.device) for examples in clients]
        ends = np.cumsum([len(examples) for examples in clients])
        rows = [np.arange(end - len(e), end) for end, e in zip(ends, clients, strict=True)]
        if len(each) == 1:
            return each[0].inputs, each[0].targets, rows
        inputs, targets = ([*part] for part in zip(*each, strict=True))
        return torch.cat(inputs), torch.cat(targets), rows

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
        return base.inputs.nbytes + base.targets.nbytes <= MAX_SHARE * free

    def _draw(
        self,
        tasks: Sequence[ClientTask],
        plan: RoundPlan,
        rows: Sequence[NDArray[np.int64]],
        width: int,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return index and mask [steps, c, b] and the transform's draws [steps, c, b, d], on the CPU.

        Padding repeats a client's first example.
        """
        steps = max(plan.num_steps(len(task.examples)) for task in tasks)
        shape = (steps, len(tasks), width)
        index, mask = np.zeros(shape, np.int64), np.zeros(shape, np.bool_)
        draws = torch.zeros(*shape, self.transform.draws)
        for client, (task, own) in enumerate(zip(tasks, rows, strict=True)):
            generator = transform_generator(self.transform, task.rng)
            index[:, client] = own[0]
            size, step = plan.batch(len(own)), 0
            for order in passes(plan, len(own), task.rng):
                for start in range(0, len(order), size):
                    batch = own[order[start : start + size]]
                    index[step, client, : len(batch)] = batch
                    mask[step, client, : len(batch)] = True
                    step += 1
            if self.transform.draws:
                real = torch.from_numpy(mask[:, client])
                numbers = torch.rand(int(real.sum()), self.transform.draws, generator=generator)
                draws[:, client][real] = numbers
        return torch.from_numpy(index), torch.from_numpy(mask), draws
