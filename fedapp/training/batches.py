"""Mini-batches: examples on the device, a client's batches in order, and the targets that count."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedapp.data.dataset import IGNORE, Examples
from fedapp.data.transforms.transform import Transform
from fedapp.training.device import to_memory_format
from fedapp.training.round_plan import RoundPlan, passes
from fedapp.training.tensors import Tensors, prefixed, scaled

TARGETS = "number/targets"
"""Name of a number of targets among an algorithm's tensors, which no parameter has."""


@dataclass(frozen=True)
class Batch:
    """A mini-batch: ``inputs`` [b, ...], ``targets`` [b, ...]; ``mask`` [b] is 0 for padding."""

    inputs: Tensor
    targets: Tensor
    mask: Tensor | None = None


def mean_over_targets(values: Tensor, batch: Batch) -> Tensor:
    """Return the mean of ``values`` [b] or [b, T] over the targets that count: a scalar."""
    counted = counted_targets(batch).to(values.dtype)
    return (values * counted).sum() / counted.sum().clamp(min=1)


def counted_targets(batch: Batch) -> Tensor:
    """Return the mask of the targets that count in a mean loss: [b] or [b, T], of bools.

    The padding of a text (IGNORE) and of a batch does not count. Floats are all targets.
    """
    targets = batch.targets
    all_count = targets.is_floating_point()
    counted = torch.ones_like(targets, dtype=torch.bool) if all_count else targets != IGNORE
    if batch.mask is None:
        return counted
    return counted & (batch.mask > 0).view(-1, *[1] * (targets.dim() - 1))


def gradient_sum(
    prefix: str, gradient: Mapping[str, Tensor], batch: Batch, dtype: torch.dtype
) -> Tensors:
    """Return the sum of the targets' gradients as ``prefix/name``, and their number as TARGETS.

    ``gradient`` is their mean over the batch.
    """
    size = counted_targets(batch).sum().to(dtype)
    return prefixed(prefix, scaled(gradient, size)) | {TARGETS: size}


class StoredExamples(NamedTuple):
    """Inputs and targets on a device, in their stored types."""

    inputs: Tensor
    targets: Tensor


def load_stored(examples: Examples, device: torch.device) -> StoredExamples:
    """Return the examples on ``device``; on the CPU they are not copied."""
    parts = (examples.inputs, examples.targets)
    return StoredExamples(
        *(torch.from_numpy(np.ascontiguousarray(part)).to(device) for part in parts)
    )


def as_targets(targets: Tensor) -> Tensor:
    """Return targets as int64; floats stay as they are."""
    return targets if targets.is_floating_point() else targets.long()


def to_device(examples: Examples, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return inputs in their stored type and targets as int64 (or floats), on ``device``."""
    inputs, targets = load_stored(examples, device)
    return inputs, as_targets(targets)


def sequence_ends(examples: Examples, *, causal: bool) -> NDArray[np.int64] | None:
    """Return the end of each sequence's targets that count: [n], at least 1.

    None where all steps are needed: a network that is not causal, or one target an example.
    """
    if not causal or examples.targets.ndim < 2:
        return None
    counted = np.asarray(examples.targets != IGNORE)
    last = counted.shape[1] - counted[:, ::-1].argmax(1)
    return np.where(counted.any(1), last, 1)


def batches(
    examples: Examples,
    plan: RoundPlan,
    rng: np.random.Generator,
    transform: Transform,
    device: torch.device,
    dtype: torch.dtype,
    memory_format: torch.memory_format = torch.contiguous_format,
    *,
    causal: bool = False,
) -> Iterator[Batch]:
    """Yield the mini-batches of one client update on ``examples``, images in ``memory_format``.

    A random transform is applied to every batch; any other once, to all of the client's data. For a
    ``causal`` network sequences end with the batch's last target that counts.
    """
    inputs, targets = to_device(examples, device)
    ends = sequence_ends(examples, causal=causal)
    generator = transform_generator(transform, rng)
    if not transform.draws:
        inputs = transform.test(inputs, dtype)
    size = plan.batch(len(targets))
    for order in passes(plan, len(targets), rng):
        indices = torch.from_numpy(order).to(device)
        drawn = zip(inputs[indices].split(size), targets[indices].split(size), strict=True)
        for start, (x, y) in zip(range(0, len(order), size), drawn, strict=True):
            if ends is not None:
                end = int(ends[order[start : start + size]].max())
                x, y = x[:, :end], y[:, :end]
            if transform.draws:
                draws = torch.rand(len(x), transform.draws, generator=generator)
                x = transform.train(x, dtype, draws.to(device))
            yield Batch(to_memory_format(x, memory_format), y)


def transform_generator(transform: Transform, rng: np.random.Generator) -> torch.Generator:
    """Return the generator of a transform's draws in one client update, seeded from ``rng``."""
    generator = torch.Generator()
    return generator.manual_seed(int(rng.integers(2**63 - 1))) if transform.draws else generator
