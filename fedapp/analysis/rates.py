"""Theoretical rates of first-order methods on an m-strongly convex, M-smooth quadratic.

A method is its step eta and momentum beta. The bounds are on f(x_t) - f* for quadratics
x'Ax / 2 - b'x; Nesterov's holds for every such function.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Method:
    """A method with its parameters for m and M: the best on a quadratic, or of its theorem (Nesterov)."""

    name: str
    step: float
    momentum: float
    nesterov: bool
    rate: float
    """Factor by which the distance to the optimum falls in a step, in the long run, at worst."""


def gradient_descent(m: float, big_m: float) -> Method:
    """Return eta = 2 / (m + M), with rate (kappa - 1) / (kappa + 1), kappa = M / m."""
    return Method("gradient descent", 2 / (m + big_m), 0.0, False, (big_m - m) / (big_m + m))


def heavy_ball(m: float, big_m: float) -> Method:
    """Return Polyak's eta = 4 / (sqrt M + sqrt m)^2 and beta = rate^2.

    The rate is (sqrt kappa - 1) / (sqrt kappa + 1) (Polyak 1964).
    """
    rate = (sqrt(big_m) - sqrt(m)) / (sqrt(big_m) + sqrt(m))
    return Method("heavy ball", 4 / (sqrt(big_m) + sqrt(m)) ** 2, rate**2, False, rate)


def accelerated(m: float, big_m: float) -> Method:
    """Return Nesterov's eta = 1 / M and beta = (sqrt kappa - 1) / (sqrt kappa + 1).

    The rate is sqrt(1 - 1 / sqrt kappa) (Nesterov 2004, Theorem 2.2.3, constant step scheme III).
    """
    momentum = (sqrt(big_m) - sqrt(m)) / (sqrt(big_m) + sqrt(m))
    return Method("Nesterov", 1 / big_m, momentum, True, sqrt(1 - sqrt(m / big_m)))


def bound(method: Method, gap: float, distance: float, m: float, steps: int) -> Array:
    """Return the bound on f(x_t) - f* for t = 0 .. steps: [steps + 1].

    ``gap`` is f(x_0) - f* and ``distance`` ||x_0 - x*||. Gradient descent: gap rate^2t. Heavy ball:
    gap ((1 + (1 + rate) t) rate^t)^2, from the double root that each end of the spectrum has.
    Nesterov: (gap + m / 2 distance^2) rate^2t.
    """
    t = np.arange(steps + 1)
    if method.nesterov:
        return np.asarray((gap + m / 2 * distance**2) * method.rate ** (2 * t))
    grown = 1 + (1 + method.rate) * t if method.momentum else np.ones(steps + 1)
    return np.asarray(gap * (grown * method.rate**t) ** 2)
