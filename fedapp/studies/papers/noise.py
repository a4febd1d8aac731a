"""The noise of measured numbers: one model, by which every claim is judged.

A cell's number is its mean over n seeds. It is known to within t s / sqrt(n), the interval of 95 %
confidence, s the standard deviation over its seeds; of several cells by Welch's formula for unequal
deviations. With three seeds t is 4.3 for one cell and 2.8 to 4.3 for two: the range of three seeds, which
is narrower, misses their median one time in four. A cell with fewer than three has the pooled
deviation of comparable cells with three. Ratios have all of this of the logarithms.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

CONFIDENCE = 0.95
SEEDS = 3
"""The least number of seeds of a cell whose deviation counts for others."""


@dataclass(frozen=True)
class Interval:
    """A number and the interval that it is known to be in."""

    low: float
    value: float
    high: float


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds, its squared standard error, and the degrees of freedom of its deviation.

    ``pool``: the values of other cells from which the deviation is; () where it is the cell's own.
    """

    mean: float
    variance: float
    freedom: int
    pool: tuple[tuple[float, ...], ...] = ()


def estimate(
    values: Sequence[float], comparable: Sequence[Sequence[float]], *, logarithm: bool = False
) -> Estimate | None:
    """Estimate a cell's number from its ``values``, one a seed; None if its deviation is unknown.

    With fewer than three seeds the deviation is the pooled one of the ``comparable`` cells with three,
    if any of these differ. With ``logarithm`` the estimate is of the mean's logarithm.
    """
    mean = float(np.mean(values))
    shown = math.log(mean) if logarithm else mean
    several = [each for each in comparable if len(each) >= SEEDS]
    own = len(values) >= SEEDS or not any(np.ptp(each) for each in several)
    groups = [values] if own else several
    if logarithm:
        groups = [np.log(each).tolist() for each in groups if min(each) > 0]
    freedom = sum(len(each) - 1 for each in groups)
    if not freedom:
        return None
    squares = sum(float(np.var(each)) * len(each) for each in groups)
    pool = () if own else tuple(map(tuple, groups))
    return Estimate(shown, squares / freedom / len(values), freedom, pool)


def half_width(estimates: Sequence[Estimate]) -> float:
    """Return half of the interval of a sum or difference of estimates (Welch 1947).

    Estimates whose deviation is that of the same other cells have its degrees of freedom together.
    """
    variances, freedoms = defaultdict[object, float](float), dict[object, int]()
    for place, each in enumerate(estimates):
        source = each.pool or place
        variances[source] += each.variance
        freedoms[source] = each.freedom
    total = sum(variances.values())
    if not total:
        return 0.0
    freedom = total**2 / sum(variances[s] ** 2 / freedoms[s] for s in variances)
    return float(stdtrit(freedom, (1 + CONFIDENCE) / 2)) * math.sqrt(total)


def contrast(
    estimates: Sequence[Estimate], signs: Mapping[int, int], resolution: float = 0.0
) -> Interval:
    """Return the interval of a sum of estimates with signs, by their places.

    ``resolution`` is the least half of an interval, whatever the seeds.
    """
    value = sum(sign * estimates[place].mean for place, sign in signs.items())
    half = max(half_width([estimates[place] for place in signs]), resolution)
    return Interval(value - half, value, value + half)
