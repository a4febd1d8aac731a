"""Arithmetic and weighted means of named tensors. The arithmetic works under ``torch.func.vmap``."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

Tensors = dict[str, Tensor]
"""Named tensors: parameters, gradients, updates, or an algorithm's own state."""

Groups = Mapping[str, Mapping[str, Tensor]]
"""Named tensors in named groups: params, batch, ..."""

TINY = 1e-12
"""Added to norms in denominators, so that a zero gradient gives a zero direction, not nan."""


def zeros_like(tensors: Mapping[str, Tensor]) -> Tensors:
    """Return zeros of the same names, shapes and types."""
    return {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}


def copies(tensors: Mapping[str, Tensor]) -> Tensors:
    """Return contiguous copies, none of which shares memory with another."""
    return {name: _contiguous_copy(tensor) for name, tensor in tensors.items()}


def contiguous_copies(tensors: Mapping[str, Tensor]) -> Tensors:
    """Return copies on the CPU, none of which shares memory with another, as safetensors files need."""
    return {name: _contiguous_copy(tensor.cpu()) for name, tensor in tensors.items()}


def _contiguous_copy(tensor: Tensor) -> Tensor:
    return tensor.detach().clone(memory_format=torch.contiguous_format)


def add(a: Mapping[str, Tensor], b: Mapping[str, Tensor], scale: float | Tensor = 1.0) -> Tensors:
    """Return ``a + scale * b``, for the names of ``a``."""
    return {name: tensor + scale * b[name] for name, tensor in a.items()}


def scaled(tensors: Mapping[str, Tensor], scale: float | Tensor) -> Tensors:
    """Return ``scale * tensors``."""
    return {name: scale * tensor for name, tensor in tensors.items()}


def dot(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> Tensor:
    """Return the inner product over all names of ``a``: a scalar."""
    return torch.stack([(tensor * b[name]).sum() for name, tensor in a.items()]).sum()


def norm(tensors: Mapping[str, Tensor]) -> Tensor:
    """Return the L2 norm over all names: a scalar."""
    return dot(tensors, tensors).sqrt()


def all_finite(tensors: Iterable[Tensor]) -> bool:
    """Return whether no value is nan or infinite, with one device synchronisation."""
    return which_are_finite([tensors])[0]


def which_are_finite(groups: Iterable[Iterable[Tensor]]) -> list[bool]:
    """Return for each group whether no value is nan or infinite, with one device synchronisation."""
    extremes = [
        _extremes([t for t in group if t.is_floating_point() and t.numel()]) for group in groups
    ]
    values = [value for group in extremes for value in group]
    finite = iter(torch.stack(values).isfinite().cpu().tolist() if values else ())
    return [all(list(itertools.islice(finite, len(group)))) for group in extremes]


def _extremes(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return minimum and maximum of each tensor; on a GPU of all tensors at once, in two launches.

    This is faster than a mask of all values; with a nan both are nan. Tensors on the CPU are copied to
    the GPU on which the first one is.
    """
    if tensors and tensors[0].device.type != "cpu":
        tensors = [torch.cat([tensor.flatten().to(tensors[0].device) for tensor in tensors])]
    return [value for tensor in tensors for value in torch.aminmax(tensor)]


def prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> Tensors:
    """Return the tensors under the names ``prefix/name``."""
    return {f"{prefix}/{name}": tensor for name, tensor in tensors.items()}


def part(prefix: str, tensors: Mapping[str, Tensor]) -> Tensors:
    """Return the tensors whose names begin with ``prefix/``, without it."""
    start = f"{prefix}/"
    return {k.removeprefix(start): v for k, v in tensors.items() if k.startswith(start)}


class WeightedMean:
    """A weighted mean accumulated in float64, in the order in which terms are added.

    ``sum_i w_i x_i / sum_i w_i``; a mean of such means, weighted by their total weights, is the
    mean over all terms.
    """

    def __init__(self) -> None:
        self.total_weight = 0.0
        self._sum: Tensors = {}
        self._dtypes: dict[str, torch.dtype] = {}

    def add(self, tensors: Mapping[str, Tensor], weight: float) -> None:
        """Add one term; its tensors are not kept."""
        self.total_weight += weight
        for name, tensor in tensors.items():
            if name in self._sum:
                self._sum[name].add_(tensor.detach(), alpha=weight)
            else:
                self._sum[name] = tensor.detach().to(torch.float64) * weight
                self._dtypes[name] = tensor.dtype

    def mean(self) -> Tensors:
        """Return the mean, cast back to each tensor's own type; empty without a positive weight."""
        if self.total_weight <= 0:
            return {}
        return {
            name: (total / self.total_weight).to(self._dtypes[name])
            for name, total in self._sum.items()
        }


def weighted_mean(terms: Sequence[Mapping[str, Tensor]], weights: Sequence[float]) -> Tensors:
    """Return ``sum_i w_i x_i / sum_i w_i``, accumulated in float64 in the order given.

    Raises
    ------
    ZeroDivisionError
        No term has a positive weight.
    """
    mean = WeightedMean()
    for tensors, weight in zip(terms, weights, strict=True):
        mean.add(tensors, weight)
    if mean.total_weight <= 0:
        raise ZeroDivisionError("the mean of nothing: no term has a positive weight")
    return mean.mean()
