"""Plans of runs, and the search for the learning rate of a cell.

A plan is a generator that yields requests, receives their records, and returns a result. Its requests
depend on the records only, so a plan has no state to save: it is replayed from its start whenever a run
ends or the program is restarted.

The search extends a grid of learning rates until the best lies inside it
(McMahan et al. 2017, section 3): "training over a sufficiently wide grid of learning rates (typically
11-13 values for eta on a multiplicative grid of resolution 10^(1/3) or 10^(1/6)). We checked to
ensure the best learning rates were in the middle of our grids."
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from fedapp.config.settings import Scalar
from fedapp.studies.sweep.identity import Request
from fedapp.studies.sweep.record import RunRecord

Steps = Generator[Sequence[Request], Sequence[RunRecord], "SearchResult"]
Plan = Callable[[], Steps]
Plans = Mapping[str, Plan]
Find = Callable[[Request], RunRecord | None]
LEARNING_RATE = "learning-rate"
TRIAL = 1 / 4
"""The share of a further learning rate's rounds that are its trial."""
NOT_MEASURED = (math.inf, math.inf)
"""The score of a candidate of which a run failed: after all others."""


@dataclass(frozen=True)
class SearchResult:
    """The records of the best candidate, one a seed, and all candidates.

    ``chosen`` is the best candidate; ``inside`` is whether its rate lies inside the grid.
    """

    runs: Sequence[RunRecord]
    chosen: Candidate | None = None
    tried: Sequence[Candidate] = ()
    inside: bool = True

    @property
    def records(self) -> list[RunRecord]:
        """The records of the best candidate, then of all candidates."""
        return [*self.runs, *(record for each in self.tried for record in each.records)]


@dataclass(frozen=True)
class Candidate:
    """Settings that were tried, with their records; a lower ``score`` is better."""

    settings: tuple[tuple[str, Scalar], ...]
    records: Sequence[RunRecord]
    score: tuple[float, float]

    @property
    def failed(self) -> bool:
        """Whether one of its runs failed; one that diverged is a measurement."""
        return self.score == NOT_MEASURED


@dataclass(frozen=True)
class SearchProgress:
    """The progress of a plan: the requests without a record, or its result."""

    missing: Sequence[Request]
    outcome: SearchResult | None


def replay(steps: Steps, find: Find) -> SearchProgress:
    """Replay a plan with the records that ``find`` returns."""
    try:
        requests = next(steps)
        while True:
            records = [find(request) for request in requests]
            known = [record for record in records if record is not None]
            if len(known) < len(requests):
                pairs = zip(requests, records, strict=True)
                return SearchProgress(
                    [request for request, record in pairs if record is None], None
                )
            requests = steps.send(known)
    except StopIteration as stop:
        return SearchProgress([], stop.value)


def fixed(requests: Sequence[Request]) -> Steps:
    """Plan fixed requests."""
    records = yield requests
    return SearchResult(records)


SearchMeasure = Literal["rounds", "accuracy"]
CandidateSteps = Generator[Sequence[Request], Sequence[RunRecord], list[Candidate]]


class RateGrid(BaseModel):
    """The grid of learning rates: ``start * 10^(i * step)`` for i from middle - width to middle + width.

    The middle comes first; the others stop after ``patience`` times the rounds of the best so far, or
    after a trial, the first quarter of these, if they are far behind it (:func:`_is_behind`). While the
    best lies on an edge, the grid grows there by one step, at most ``most`` times. ``seeds`` are the
    runs that a rate is compared by. Cells with different best rates differ in ``middle`` and share the
    grid, so that they share runs.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    start: float = Field(gt=0)
    step: float = Field(1 / 3, gt=0)
    width: int = Field(1, ge=0)
    most: int = Field(6, ge=0)
    patience: float = Field(1.5, ge=1)
    middle: int = 0
    seeds: tuple[int, ...] = (0,)

    def rate(self, index: int) -> float:
        """Return the rate at an index of the grid (0: ``start``), to six digits."""
        return float(f"{self.start * 10 ** (index * self.step):.6g}")


@dataclass(frozen=True)
class Cell:
    """A number of a table or a line of a figure: settings, rounds, seeds and search.

    ``options`` are further keys with the values to try, each with its own grid of rates. With measure
    ``rounds`` the best candidate needs the fewest rounds to ``target``; with ``accuracy`` it has the
    highest mean test accuracy of the last ``window`` evaluations. The best candidate's runs continue to
    round ``draw`` for their curves (0: no further).
    """

    settings: Mapping[str, Scalar]
    rounds: int
    target: float = 0.0
    seeds: tuple[int, ...] = (0,)
    rates: RateGrid | None = None
    options: Mapping[str, Sequence[Scalar]] = field(default_factory=dict)
    measure: SearchMeasure = "rounds"
    window: int = 1
    draw: int = 0

    def request(self, settings: Mapping[str, Scalar], seed: int, rounds: int) -> Request:
        """Return the request for a run of this cell."""
        target = self.target if self.measure == "rounds" else 0.0
        return Request.of({**self.settings, **settings, "seed": seed}, rounds, target)

    def score(self, records: Sequence[RunRecord]) -> tuple[float, float]:
        """Return the score of a candidate's runs; tuples compare, lower is better."""
        if any(record.status == "failed" for record in records):
            return NOT_MEASURED
        accuracy = _mean([record.final_accuracy(self.window) for record in records])
        if self.measure == "accuracy":
            return (-accuracy, 0.0)
        needed = [record.rounds_to(self.target) for record in records]
        reached = [value for value in needed if value is not None]
        best = _mean([record.best_accuracy for record in records])
        return (_mean(reached) if len(reached) == len(records) else math.inf, -best)


def search(cell: Cell) -> Steps:
    """Plan a cell: find the best candidate, then run it with all seeds to the last round drawn."""
    tried = yield from _candidates(cell)
    best = min(tried, key=lambda candidate: candidate.score) if tried else None
    chosen = dict(best.settings) if best else {}
    runs = yield [cell.request(chosen, seed, cell.rounds) for seed in cell.seeds]
    if cell.draw:
        longer = replace(cell, target=0.0)
        runs = yield [longer.request(chosen, seed, cell.draw) for seed in cell.seeds]
    return SearchResult(runs, best, tried, best is None or is_inside(cell, best, tried))


def _candidates(cell: Cell) -> CandidateSteps:
    """Yield the requests of the search and return all candidates."""
    tried: list[Candidate] = []
    for values in itertools.product(*cell.options.values()):
        option = dict(zip(cell.options, values, strict=True))
        if cell.rates is not None:
            tried += yield from _search_rates(cell, cell.rates, option)
        elif option:
            records = yield [cell.request(option, seed, cell.rounds) for seed in cell.seeds]
            tried.append(_candidate(cell, option, records))
    return tried


def _search_rates(cell: Cell, rates: RateGrid, option: Mapping[str, Scalar]) -> CandidateSteps:
    candidates: dict[int, Candidate] = {}
    indices = [rates.middle]
    while indices:
        limit = _limit(cell, rates, candidates)
        going = indices
        best = candidates[_best(candidates)] if candidates else None
        if best and not best.failed and cell.measure == "rounds":
            trial = math.ceil(limit * TRIAL)
            candidates |= yield from _measure(cell, rates, option, indices, trial)
            going = [index for index in indices if not _is_behind(candidates[index], best, trial)]
        candidates |= yield from _measure(cell, rates, option, going, limit)
        indices = _next_indices(rates, candidates)
    return [candidates[index] for index in sorted(candidates)]


def _measure(
    cell: Cell, rates: RateGrid, option: Mapping[str, Scalar], indices: Sequence[int], rounds: int
) -> Generator[Sequence[Request], Sequence[RunRecord], dict[int, Candidate]]:
    """Yield the requests for rates of the grid, for a number of rounds, and return the candidates."""
    settings = [{**option, LEARNING_RATE: rates.rate(index)} for index in indices]
    records = yield [cell.request(each, seed, rounds) for each in settings for seed in rates.seeds]
    count = len(rates.seeds)
    return {
        index: _candidate(cell, each, records[number * count : (number + 1) * count])
        for number, (index, each) in enumerate(zip(indices, settings, strict=True))
    }


def _is_behind(candidate: Candidate, best: Candidate, trial: int) -> bool:
    """Return whether a rate learns four times slower than the best so far, or no longer.

    That is: with every seed, no round of the trial's second half is as accurate as the best rate was in
    the trial's first quarter.
    """
    return all(
        _most_accurate(own, trial / 2, trial, math.inf)
        < _most_accurate(other, 0, trial / 4, -math.inf)
        for own, other in zip(candidate.records, best.records, strict=True)
    )


def _most_accurate(record: RunRecord, after: float, until: float, default: float) -> float:
    """Return the best test accuracy of the evaluated rounds in (after, until]."""
    pairs = zip(record.rounds, record.accuracy, strict=True)
    values = [value for t, value in pairs if after < t <= until and value is not None]
    return max(values, default=default)


def _candidate(
    cell: Cell, settings: Mapping[str, Scalar], records: Sequence[RunRecord]
) -> Candidate:
    return Candidate(tuple(sorted(settings.items())), records, cell.score(records))


def _limit(cell: Cell, rates: RateGrid, candidates: Mapping[int, Candidate]) -> int:
    """Return the rounds after which a further rate can no longer be the best."""
    best = min((candidate.score[0] for candidate in candidates.values()), default=math.inf)
    if cell.measure == "accuracy" or not math.isfinite(best):
        return cell.rounds
    return min(cell.rounds, math.ceil(best * rates.patience))


def _best(candidates: Mapping[int, Candidate]) -> int:
    """Return the index of the best candidate.

    Of equal scores the smallest rate's, as in ``search``: if all rates fail, the grid grows downwards.
    """
    return min(sorted(candidates), key=lambda index: candidates[index].score)


def _next_indices(rates: RateGrid, candidates: Mapping[int, Candidate]) -> list[int]:
    """Return the indices to try next: the rest of the grid, then one beyond the best edge."""
    grid = range(rates.middle - rates.width, rates.middle + rates.width + 1)
    rest = [index for index in grid if index not in candidates]
    if rest:
        return rest
    best = _best(candidates)
    beyond = {min(candidates): min(candidates) - 1, max(candidates): max(candidates) + 1}.get(best)
    if beyond is None or abs(beyond - rates.middle) > rates.width + rates.most:
        return []
    return [beyond]


def is_inside(cell: Cell, best: Candidate, tried: Sequence[Candidate]) -> bool:
    """Return whether rates below and above the best candidate's were measured."""
    if cell.rates is None:
        return True
    option = {name: value for name, value in best.settings if name != LEARNING_RATE}
    along = [
        float(dict(each.settings)[LEARNING_RATE])
        for each in tried
        if option.items() <= dict(each.settings).items() and not each.failed
    ]
    return bool(along) and min(along) < float(dict(best.settings)[LEARNING_RATE]) < max(along)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.inf
