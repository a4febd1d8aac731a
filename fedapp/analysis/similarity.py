"""Similarity of clients' updates: cosine similarity, and distance of their models.

Seo et al. 2024, section 5 and Figure 13. An update is a mapping from parameter names to tensors;
a layer is the module that parameters belong to, its weight and bias together.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

CHUNK = 1 << 18
"""Columns of a Gram matrix's factor that are held in float64 at once."""


def layers(names: Iterable[str]) -> dict[str, list[str]]:
    """Return parameter names by layer: ``conv1.weight`` and ``conv1.bias`` belong to ``conv1``."""
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(name.rpartition(".")[0] or name, []).append(name)
    return found


def gram(updates: Sequence[Mapping[str, Tensor]], names: Sequence[str]) -> Tensor:
    """Return the inner products of m updates over the parameters ``names``: [m, m], float64."""
    total = torch.zeros(len(updates), len(updates), dtype=torch.float64)
    for name in names:
        rows = [update[name].detach().flatten() for update in updates]
        for chunk in zip(*(row.split(CHUNK) for row in rows), strict=True):
            columns = torch.stack(chunk).to(torch.float64)
            total += (columns @ columns.T).cpu()
    return total


def cosines(inner: Tensor) -> Tensor:
    """Return the cosine of every pair: [m, m] from inner products [m, m].

    Pairs with a zero vector are nan.
    """
    norms = inner.diagonal().sqrt()
    return (inner / torch.outer(norms, norms)).clamp(-1.0, 1.0)


def mean_pairwise(matrix: Tensor) -> float:
    """Return the mean over all pairs i < j of ``matrix`` [m, m] that are not nan; or nan."""
    row, column = torch.triu_indices(len(matrix), len(matrix), offset=1)
    return float(matrix[row, column].nanmean())


def layer_similarity(updates: Sequence[Mapping[str, Tensor]]) -> dict[str, float]:
    """Return by layer the cosine similarity of m updates, averaged over all pairs of them.

    Seo et al. 2024, Figure 13. Updates that are zero in a layer are left out of its mean.
    """
    names = layers(updates[0]) if updates else {}
    return {layer: mean_pairwise(cosines(gram(updates, own))) for layer, own in names.items()}


def distances(updates: Sequence[Mapping[str, Tensor]], weights: Sequence[float]) -> list[float]:
    """Return each update's L2 distance from their weighted mean: m numbers."""
    total = sum(weights)
    squares = [0.0] * len(updates)
    for name in updates[0] if updates else ():
        rows = [update[name].detach().to(torch.float64) for update in updates]
        mean = torch.zeros_like(rows[0])
        for row, weight in zip(rows, weights, strict=True):
            mean += row * (weight / total)
        squares = [s + float((r - mean).square().sum()) for s, r in zip(squares, rows, strict=True)]
    return [math.sqrt(square) for square in squares]
