"""Measures on learning curves (McMahan et al. 2017, section 3)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def monotone(values: Sequence[float | None]) -> list[float]:
    """Return the best value over all prior rounds, for every round; None and nan are ignored."""
    array = np.asarray(values, dtype=float)
    filled = np.where(np.isnan(array), -np.inf, array)
    return [float(v) for v in np.maximum.accumulate(filled)] if len(filled) else []


def envelope(
    curves: Sequence[tuple[Sequence[int], Sequence[float]]],
) -> tuple[list[int], list[float]]:
    """Return the rounds of several curves, and at each the best value of any of them so far.

    "We plot metrics for the best performing rate selected individually for each x-axis value" (McMahan
    et al. 2017, section 3), and made monotone: a curve that ends early counts with its best value from
    then on. Greater is better; nan is ignored, and rounds before the first number are left out.
    """
    best: dict[int, float] = {}
    for round_, value in (
        (r, v) for rounds, values in curves for r, v in zip(rounds, values, strict=True)
    ):
        if np.isfinite(value):
            best[round_] = max(value, best.get(round_, -np.inf))
    order = sorted(best)
    return order, monotone([best[round_] for round_ in order])


def rounds_to_target(
    rounds: Sequence[float], values: Sequence[float | None], target: float
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
    """Return the round of the smallest loss and that loss, or None; None and nan are ignored.

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


def band(
    curves: Sequence[tuple[Sequence[float], Sequence[float]]],
) -> tuple[list[float], list[float], list[float], list[float]]:
    """Return x, mean, minimum and maximum of several curves (x, y), where all of them have a point.

    Seo et al. 2024, Figure 9: "the average of three independent runs, with the shaded region
    indicating the min-max range". nan in any curve leaves the point out.
    """
    tables = [dict(zip(x, y, strict=True)) for x, y in curves]
    common = sorted(set.intersection(*map(set, tables))) if tables else []
    rows = [(x, [table[x] for table in tables]) for x in common]
    complete = [(x, values) for x, values in rows if np.isfinite(values).all()]
    return (
        [x for x, _ in complete],
        [float(np.mean(values)) for _, values in complete],
        [float(min(values)) for _, values in complete],
        [float(max(values)) for _, values in complete],
    )


def communication(rounds: float, participants: int, down: int, up: int) -> float:
    """Return the bytes that ``participants`` clients send and receive in ``rounds``, also fractional.

    ``down`` and ``up`` are the bytes that one client receives and sends in a round.
    """
    return rounds * participants * (down + up)


def fluctuation(accuracy: Sequence[float | None]) -> float:
    """Return how far the changes between consecutive values of the last half are from their mean.

    That is the mean absolute deviation, which is 0 for a steady rise, and for fewer than three values.
    """
    last = [value for value in accuracy[len(accuracy) // 2 :] if value is not None]
    changes = np.diff(np.asarray(last, float))
    return float(np.abs(changes - changes.mean()).mean()) if changes.size else 0.0


def beyond_plateau(
    accuracy: Sequence[float | None], losses: Sequence[float | None]
) -> float | None:
    """Return the last training loss over that of the round in which the test accuracy plateaus.

    That is the first round within 0.001 of the best. Below 1, the training loss falls "even beyond
    the point where test-set accuracy plateaus" (McMahan et al. 2017, section 3). None without losses, or
    where one of the two is not finite or 0.
    """
    scored = [-np.inf if value is None else value for value in accuracy]
    if not scored or len(losses) != len(scored) or not np.isfinite(max(scored)):
        return None
    first = next(i for i, value in enumerate(scored) if value >= max(scored) - 0.001)
    at_plateau, last = losses[first], losses[-1]
    return last / at_plateau if at_plateau and last is not None else None


def relative_spread(losses: Sequence[Sequence[float]]) -> float | None:
    """Return the relative spread of clients' losses: standard deviation over mean, over the last half.

    ``losses`` has for each round those of its participants; the result is the mean over the rounds of
    the last half with two participants or more, None if there are none. In Figure 12 of
    Seo et al. 2024 the losses "decrease more uniformly" under IID, "at different rates" else.
    """
    last = [own for own in losses[len(losses) // 2 :] if len(own) > 1 and np.mean(own) > 0]
    return float(np.mean([np.std(own) / np.mean(own) for own in last])) if last else None
