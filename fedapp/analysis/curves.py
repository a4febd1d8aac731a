"""Measures on learning curves (McMahan et al. 2017, section 3)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def monotone(values: Sequence[float]) -> list[float]:
    """Return the best value over all prior rounds, for every round; nan counts as nothing yet."""
    filled = np.where(np.isnan(values), -np.inf, np.asarray(values, dtype=float))
    return [float(v) for v in np.maximum.accumulate(filled)] if len(filled) else []


def rounds_to_target(
    rounds: Sequence[float], values: Sequence[float], target: float
) -> float | None:
    """Return where the monotone curve crosses ``target``, by linear interpolation, or None.

    "We ... [make] each curve monotonically improving by taking the best value of test-set accuracy
    achieved over all prior rounds. We then calculate the number of rounds where the curve crosses
    the target accuracy, using linear interpolation between the discrete points."
    """
    best = monotone(values)
    for i, value in enumerate(best):
        if value >= target:
            if i == 0 or not np.isfinite(best[i - 1]):
                return float(rounds[i])
            share = (target - best[i - 1]) / (value - best[i - 1])
            return float(rounds[i - 1] + share * (rounds[i] - rounds[i - 1]))
    return None
