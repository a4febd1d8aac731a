"""The noise of measured numbers: one model, by which every claim is judged.

A number is measured once a seed: of several cells, from their runs of the same seed, which begin with the
same weights, and with the same partition if the cells have it in common. What a seed does to all of them
so cancels in their differences. The mean over n seeds is known to within t s / sqrt(n), the interval of
95 % confidence, s the standard deviation over the seeds; with three seeds t is 4.3. Their range, which is
narrower, misses the median of what they are drawn from one time in four. With fewer than three seeds the
deviation is pooled from comparable cells with three, and from the two seeds if there are two; t is still
that of three seeds, since the deviations of cells differ by more than chance. Ratios have all of this of
the logarithms.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

CONFIDENCE = 0.95
SEEDS = 3
"""The least number of seeds whose own deviation counts."""

Numbers = Mapping[int, float]
"""A cell's numbers by seed."""
Signs = Mapping[int, int]
"""A sum of cells, each with the sign of its place."""


@dataclass(frozen=True)
class Interval:
    """A number and the interval that it is known to be in."""

    low: float
    value: float
    high: float


def contrast(
    cells: Sequence[Numbers],
    signs: Signs,
    comparable: Sequence[Numbers] = (),
    logarithm: bool = False,
    confidence: float = CONFIDENCE,
) -> tuple[float, float | None]:
    """Return a signed sum of the cells' means over the seeds that all have, and half of its interval.

    Half of the interval is None if neither the seeds nor the ``comparable`` cells give a deviation; two
    equal seeds give none. With ``logarithm`` the sum is of the means' logarithms.
    """
    chosen, sign = [cells[place] for place in signs], np.array(list(signs.values()))
    table = _by_seed(chosen)
    value = float(sign @ _scaled(table.mean(axis=1), logarithm))
    each = sign @ _scaled(table, logarithm)
    pooled = None if len(each) >= SEEDS else _pooled(comparable, len(signs) > 1, logarithm)
    variance, freedom = pooled or (0.0, 0)
    freedom_in_all = freedom + len(each) - 1
    if not freedom_in_all:
        return value, None
    squares = freedom * variance * float(sign @ sign) + float(np.sum((each - each.mean()) ** 2))
    if len(each) < SEEDS and not squares:
        return value, None
    known = freedom_in_all if len(each) >= SEEDS else min(freedom_in_all, SEEDS - 1)
    t = float(stdtrit(known, (1 + confidence) / 2))
    return value, t * math.sqrt(squares / freedom_in_all / len(each))


def _pooled(
    comparable: Sequence[Numbers], compared: bool, logarithm: bool
) -> tuple[float, int] | None:
    """Return the pooled variance over seeds of the cells with three, and its degrees of freedom.

    Of a number that is ``compared`` at the same seed, it is the variance that two cells and more leave
    without the seeds' means. None without such cells, or if they are equal, which says nothing of others.
    """
    several = [each for each in comparable if len(each) >= SEEDS]
    if logarithm:
        several = [each for each in several if min(each.values()) > 0]
    if not several:
        return None
    table = _scaled(_by_seed(several), logarithm)
    rest = table - table.mean(axis=1, keepdims=True)
    groups, seeds = table.shape
    if compared and groups > 1:
        rest -= rest.mean(axis=0)
        groups -= 1
    freedom = groups * (seeds - 1)
    if np.allclose(rest, 0.0, atol=1e-9 * np.abs(table).max()):
        return None
    return float(np.sum(rest**2)) / freedom, freedom


def _by_seed(cells: Sequence[Numbers]) -> NDArray[np.float64]:
    """Return the cells' numbers of the seeds that all have, [cell, seed]."""
    seeds = sorted(set.intersection(*(set(each) for each in cells)))
    return np.array([[each[seed] for seed in seeds] for each in cells])


def _scaled(numbers: NDArray[np.float64], logarithm: bool) -> NDArray[np.float64]:
    return np.log(numbers) if logarithm else numbers
