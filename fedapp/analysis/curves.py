"""Measures on learning curves (McMahan et al. 2017, section 3)."""

from __future__ import annotations

import itertools
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


def least(rounds: Sequence[int], losses: Sequence[float | None]) -> tuple[int, float] | None:
    """Return the round of the least loss and that loss, or None; None and nan do not count.

    The circle in the figures of Seo et al. 2024: "the point of overfitting ... as marked by the
    minimum test loss".
    """
    known = [
        (loss, round_)
        for round_, loss in zip(rounds, losses, strict=True)
        if loss is not None and np.isfinite(loss)
    ]
    if not known:
        return None
    loss, round_ = min(known)
    return round_, loss


def speed_up(baseline: float | None, rounds: float | None) -> float | None:
    """Return how many times fewer rounds are needed than by the baseline; None if either is."""
    return baseline / rounds if baseline and rounds else None


def band(
    curves: Sequence[tuple[Sequence[float], Sequence[float]]],
) -> tuple[list[float], list[float], list[float], list[float]]:
    """Return x, mean, least and greatest of several curves (x, y), where all of them have a point.

    Seo et al. 2024, Figure 9: "the average of three independent runs, with the shaded region
    indicating the min-max range". nan in any curve leaves the point out.
    """
    tables = [dict(zip(x, y, strict=True)) for x, y in curves]
    common = sorted(set.intersection(*map(set, tables))) if tables else []
    rows = [(x, [table[x] for table in tables]) for x in common]
    kept = [(x, values) for x, values in rows if np.isfinite(values).all()]
    return (
        [x for x, _ in kept],
        [float(np.mean(values)) for _, values in kept],
        [float(min(values)) for _, values in kept],
        [float(max(values)) for _, values in kept],
    )


def communication(rounds: float, participants: int, down: int, up: int) -> float:
    """Return the bytes that ``rounds`` of ``participants`` clients send and receive in all.

    ``down`` and ``up`` are what one client gets and sends in a round; a part of a round counts as
    that part.
    """
    return rounds * participants * (down + up)


def fluctuation(accuracy: Sequence[float | None]) -> float:
    """Return the mean change from one value to the next, either way, over the last half; 0 of few."""
    last = [value for value in accuracy[len(accuracy) // 2 :] if value is not None]
    changes = [abs(after - before) for before, after in itertools.pairwise(last)]
    return sum(changes) / len(changes) if changes else 0.0


def relative_spread(losses: Sequence[Sequence[float]]) -> float | None:
    """Return how far clients' losses lie apart: standard deviation over mean, of the last half.

    ``losses`` has for each round those of the clients that trained in it; the result is the mean over
    the rounds of the last half in which two and more did, None where there are none. In Figure 12 of
    Seo et al. 2024 the losses "decrease more uniformly" under IID, "at different rates" else.
    """
    last = [own for own in losses[len(losses) // 2 :] if len(own) > 1 and np.mean(own) > 0]
    return float(np.mean([np.std(own) / np.mean(own) for own in last])) if last else None
