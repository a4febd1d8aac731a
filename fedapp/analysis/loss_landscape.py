"""The loss around a model: the Hessian's largest eigenvalue, rises along directions, interpolation.

Seo et al. 2024, section 6: a larger learning rate "can skip sharp minima and converge on flatter
ones", a smaller batch size "encourages convergence to flatter minima". Keskar et al. 2017 measure
sharpness by the curvature of the training loss. A model is a mapping from parameter names to tensors
of d numbers in all; a vector [d] has them in the mapping's order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

Terms = Callable[[Mapping[str, Tensor]], Iterable[Tensor]]
"""From parameters to scalars whose sum is the loss, one at a time: batches, each with its share."""
Product = Callable[[Tensor], Tensor]
"""A symmetric matrix [d, d] as a function from a vector [d] to its product."""


@dataclass(frozen=True)
class Eigenpair:
    """An approximate eigenvalue and unit eigenvector [d].

    ``error`` is the norm of Av - value v: some eigenvalue of A lies within it of ``value``.
    ``products`` is the number of matrix-vector products computed.
    """

    value: float
    vector: Tensor
    error: float
    products: int


def flatten(tensors: Iterable[Tensor]) -> Tensor:
    """Return the tensors as one vector: [d]."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def unflatten(vector: Tensor, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a vector [d] in the names and shapes of ``like``."""
    parts = vector.split([tensor.numel() for tensor in like.values()])
    return {
        name: part.view(tensor.shape)
        for (name, tensor), part in zip(like.items(), parts, strict=True)
    }


def hessian_product(terms: Terms, theta: Mapping[str, Tensor]) -> Product:
    """Return v -> Hv for the Hessian H of the loss at ``theta``, by differentiating g'v."""
    leaves = {name: tensor.detach().clone().requires_grad_() for name, tensor in theta.items()}
    wanted = list(leaves.values())

    def product(vector: Tensor) -> Tensor:
        along = unflatten(vector, leaves).values()
        total = torch.zeros_like(vector)
        for term in terms(leaves):
            gradient = torch.autograd.grad(term, wanted, create_graph=True, materialize_grads=True)
            slope = sum(
                ((g * v).sum() for g, v in zip(gradient, along, strict=True)), vector.new_zeros(())
            )
            if slope.requires_grad:  # else the term is linear
                total += flatten(torch.autograd.grad(slope, wanted, materialize_grads=True))
        return total

    return product


def power_iteration(
    product: Product, start: Tensor, tolerance: float = 1e-2, most: int = 200, shift: float = 0.0
) -> Eigenpair:
    """Return the eigenvalue that with ``shift`` has the greatest magnitude, from ``start`` [d].

    It ends once the error is at most ``tolerance`` of the value, or after ``most`` products.
    """
    vector, products = start / start.norm(), 0
    while True:
        image = product(vector)
        products += 1
        value = float(vector @ image)
        error = float((image - value * vector).norm())
        image = image + shift * vector
        length = float(image.norm())
        if error <= tolerance * abs(value) or products >= most or not math.isfinite(length):
            return Eigenpair(value, vector, error, products)
        vector = image / length


def largest_eigenvalue(
    product: Product, start: Tensor, tolerance: float = 1e-2, most: int = 200
) -> Eigenpair:
    """Return the largest eigenvalue by power iteration from ``start`` [d].

    Where the eigenvalue of greatest magnitude is negative, or the iteration does not converge since one
    of the other sign is as great, the matrix is shifted so that the largest has the greatest magnitude.
    """
    found = power_iteration(product, start, tolerance, most)
    is_largest = found.value >= 0 and found.error <= tolerance * found.value
    if is_largest or not math.isfinite(found.error):
        return found
    shift = abs(found.value) + found.error
    moved = power_iteration(product, start, tolerance, most, shift)
    return replace(moved, products=found.products + moved.products)


def direction(like: Mapping[str, Tensor], generator: np.random.Generator) -> Tensor:
    """Return a vector of length 1 in a uniformly random direction: [d]."""
    size = sum(tensor.numel() for tensor in like.values())
    drawn = torch.from_numpy(generator.standard_normal(size)).to(next(iter(like.values())))
    unit: Tensor = drawn / drawn.norm()
    return unit


@torch.no_grad()
def value_at(terms: Terms, theta: Mapping[str, Tensor]) -> float:
    """Return the loss at ``theta``."""
    return sum(float(term) for term in terms(theta))


def rise(terms: Terms, theta: Mapping[str, Tensor], step: Tensor) -> float:
    """Return the rise of the loss from ``theta`` to theta + step, a vector [d].

    Over random directions of a quadratic with Hessian H its mean is |step|^2 tr(H) / (2 d).
    """
    moved = {name: theta[name] + part for name, part in unflatten(step, theta).items()}
    return value_at(terms, moved) - value_at(terms, theta)


def interpolate(
    first: Mapping[str, Tensor], second: Mapping[str, Tensor], share: float
) -> dict[str, Tensor]:
    """Return share * first + (1 - share) * second.

    McMahan et al. 2017, Figure 1; Goodfellow et al. 2015.
    """
    return {name: share * first[name] + (1 - share) * second[name] for name in first}
