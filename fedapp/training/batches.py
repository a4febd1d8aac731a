"""Arrays to tensors on the device, and a client's mini-batches in the order that it visits them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedapp.data.dataset import IGNORE, Examples
from fedapp.data.transforms.transform import Transform
from fedapp.training.device import laid_out
from fedapp.training.round_plan import LocalPlan, passes


@dataclass(frozen=True)
class Batch:
    """A mini-batch: ``inputs`` [b, ...], ``targets`` [b, ...]; ``mask`` [b] is 0 for padding."""

    inputs: Tensor
    targets: Tensor
    mask: Tensor | None = None


def mean_over_targets(values: Tensor, batch: Batch) -> Tensor:
    """Return the mean of ``values`` [b] or [b, T] over the targets that count: a scalar."""
    counted = which_count(batch).to(values.dtype)
    return (values * counted).sum() / counted.sum().clamp(min=1)


def which_count(batch: Batch) -> Tensor:
    """Return which targets a mean loss is taken over: [b] or [b, T], of bools.

    Not padding: neither that of a text, IGNORE, nor that of a batch. Floats are all targets.
    """
    targets = batch.targets
    whole = targets.is_floating_point()
    counted = torch.ones_like(targets, dtype=torch.bool) if whole else targets != IGNORE
    if batch.mask is None:
        return counted
    return counted & (batch.mask > 0).view(-1, *[1] * (targets.dim() - 1))


class Stored(NamedTuple):
    """Inputs and targets on a device, as they are stored."""

    inputs: Tensor
    targets: Tensor


def stored(examples: Examples, device: torch.device) -> Stored:
    """Return the examples on ``device``; on the CPU they are not copied."""
    parts = (examples.inputs, examples.targets)
    return Stored(*(torch.from_numpy(np.ascontiguousarray(part)).to(device) for part in parts))


def as_targets(targets: Tensor) -> Tensor:
    """Return stored targets as int64, or as the floats that they are."""
    return targets if targets.is_floating_point() else targets.long()


def to_device(examples: Examples, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return inputs as they are stored and targets as int64 (or as floats), on ``device``."""
    inputs, targets = stored(examples, device)
    return inputs, as_targets(targets)


def ends(examples: Examples, *, causal: bool) -> NDArray[np.int64] | None:
    """Return up to which step each sequence has targets that count: [n], at least 1.

    None where all steps are needed: a network that is not causal, or one target an example.
    """
    if not causal or examples.targets.ndim < 2:
        return None
    counted = np.asarray(examples.targets != IGNORE)
    last = counted.shape[1] - counted[:, ::-1].argmax(1)
    return np.where(counted.any(1), last, 1)


def batches(
    examples: Examples,
    plan: LocalPlan,
    rng: np.random.Generator,
    transform: Transform,
    device: torch.device,
    dtype: torch.dtype,
    format_: torch.memory_format = torch.contiguous_format,
    *,
    causal: bool = False,
) -> Iterator[Batch]:
    """Yield the mini-batches of one turn of a client that holds ``examples``, images in ``format_``.

    A transform that draws at random draws for every batch anew; any other is applied once to all of
    the client's data. For a ``causal`` network sequences end with the batch's last target that counts.
    """
    inputs, targets = to_device(examples, device)
    until = ends(examples, causal=causal)
    source = source_of_draws(transform, rng)
    if not transform.draws:
        inputs = transform.test(inputs, dtype)
    size = plan.batch(len(targets))
    for order in passes(plan, len(targets), rng):
        index = torch.from_numpy(order).to(device)
        drawn = zip(inputs[index].split(size), targets[index].split(size), strict=True)
        for start, (x, y) in zip(range(0, len(order), size), drawn, strict=True):
            if until is not None:
                end = int(until[order[start : start + size]].max())
                x, y = x[:, :end], y[:, :end]
            if transform.draws:
                draws = torch.rand(len(x), transform.draws, generator=source)
                x = transform.train(x, dtype, draws.to(device))
            yield Batch(laid_out(x, format_), y)


def source_of_draws(transform: Transform, rng: np.random.Generator) -> torch.Generator:
    """Return what a transform's numbers are drawn from in one turn: its seed is the next of ``rng``."""
    source = torch.Generator()
    return source.manual_seed(int(rng.integers(2**63 - 1))) if transform.draws else source
