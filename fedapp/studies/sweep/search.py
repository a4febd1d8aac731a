"""Plans: what runs are wanted next, as a function of the records of those before.

A plan is a generator that yields requests, gets their records, and returns its outcome. Because
what it yields depends on those records alone, a plan is replayed from its start whenever a run
ends, or when the program is started again: it keeps nothing else, and so nothing can be lost.

The plan of a tuned cell finds the best learning rate of a grid that grows until the best lies inside it
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

from fedapp.config.run_config import Scalar
from fedapp.studies.sweep.identity import Request
from fedapp.studies.sweep.record import RunRecord

Steps = Generator[Sequence[Request], Sequence[RunRecord], "SearchResult"]
Find = Callable[[Request], RunRecord | None]


@dataclass(frozen=True)
class SearchResult:
    """What a plan found: the records it chose, one a seed, and all that it tried, by candidate.

    ``chosen`` says which candidate was best (its settings beside the plan's own); ``inside`` is
    whether the best rate lies inside the grid, with worse ones on both sides.
    """

    runs: Sequence[RunRecord]
    chosen: Candidate | None = None
    tried: Sequence[Candidate] = ()
    inside: bool = True


@dataclass(frozen=True)
class Candidate:
    """Settings that were tried, with their records; ``score`` is lower for the better."""

    settings: tuple[tuple[str, bool | int | float | str], ...]
    records: Sequence[RunRecord]
    score: tuple[float, float]


@dataclass(frozen=True)
class SearchProgress:
    """Where a plan stands: the requests still missing, or its outcome."""

    missing: Sequence[Request]
    outcome: SearchResult | None


def stage(steps: Steps, find: Find) -> SearchProgress:
    """Replay a plan with the records there are and return where it stands."""
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
    """Plan these requests and nothing else."""
    records = yield requests
    return SearchResult(records)


Measure = Literal["rounds", "accuracy"]
Candidates = Generator[Sequence[Request], Sequence[RunRecord], list[Candidate]]


@dataclass(frozen=True)
class Rates:
    """The grid of a key: ``start * 10^(i * step)`` for i from middle - width to middle + width.

    The middle comes first; then the others, cut where they have done ``patience`` times the
    rounds of the best so far. While the best lies on an edge the grid grows there by one step, at
    most ``most`` times. ``seeds`` are the runs that a rate is judged by. A cell whose best rate is
    expected elsewhere has another ``middle`` and the same grid, so that its runs are those of others.
    """

    start: float
    step: float = 1 / 3
    width: int = 1
    most: int = 6
    patience: float = 1.5
    middle: int = 0
    key: str = "learning-rate"
    seeds: tuple[int, ...] = (0,)

    def rate(self, place: int) -> float:
        """Return the rate ``place`` steps from the start, to six digits."""
        return float(f"{self.start * 10 ** (place * self.step):.6g}")


@dataclass(frozen=True)
class Cell:
    """One number of a table or line of a figure: settings, how far, which seeds, what is tuned.

    ``options`` are further keys with the values to try, each with a grid of rates of its own.
    With measure ``rounds`` the best needs the fewest rounds to ``target``; with ``accuracy`` it
    has the highest mean test accuracy of the last ``window`` evaluations. ``draw`` is to which round
    the best is continued, for its curve; 0: no further.
    """

    settings: Mapping[str, Scalar]
    rounds: int
    target: float = 0.0
    seeds: tuple[int, ...] = (0,)
    rates: Rates | None = None
    options: Mapping[str, Sequence[Scalar]] = field(default_factory=dict)
    measure: Measure = "rounds"
    window: int = 1
    draw: int = 0

    def request(self, settings: Mapping[str, Scalar], seed: int, rounds: int) -> Request:
        """Return the request for a run of this cell."""
        target = self.target if self.measure == "rounds" else 0.0
        return Request.of({**self.settings, **settings, "seed": seed}, rounds, target)

    def score(self, records: Sequence[RunRecord]) -> tuple[float, float]:
        """Return how bad the runs of one candidate are: compare as tuples."""
        accuracy = _mean([record.final_accuracy(self.window) for record in records])
        if self.measure == "accuracy":
            return (-accuracy, 0.0)
        needed = [record.rounds_to(self.target) for record in records]
        reached = [value for value in needed if value is not None]
        best = _mean([record.best_accuracy for record in records])
        return (_mean(reached) if len(reached) == len(records) else math.inf, -best)


def search(cell: Cell) -> Steps:
    """Plan a cell: find the best candidate, then run it with every seed, as far as it is drawn."""
    tried = yield from _candidates(cell)
    best = min(tried, key=lambda candidate: candidate.score) if tried else None
    chosen = dict(best.settings) if best else {}
    runs = yield [cell.request(chosen, seed, cell.rounds) for seed in cell.seeds]
    if cell.draw:
        longer = replace(cell, target=0.0)
        runs = yield [longer.request(chosen, seed, cell.draw) for seed in cell.seeds]
    return SearchResult(runs, best, tried, best is None or is_inside(cell, best, tried))


def _candidates(cell: Cell) -> Candidates:
    """Yield the requests that tuning needs, and return every candidate with its records."""
    tried: list[Candidate] = []
    for values in itertools.product(*cell.options.values()):
        option = dict(zip(cell.options, values, strict=True))
        if cell.rates is not None:
            tried += yield from _along_the_rates(cell, cell.rates, option)
        elif option:
            records = yield [cell.request(option, seed, cell.rounds) for seed in cell.seeds]
            tried.append(_candidate(cell, option, records))
    return tried


def _along_the_rates(cell: Cell, rates: Rates, option: Mapping[str, Scalar]) -> Candidates:
    found: dict[int, Candidate] = {}
    places = [rates.middle]
    while places:
        limit = _limit(cell, rates, found)
        settings = [{**option, rates.key: rates.rate(place)} for place in places]
        wanted = [cell.request(each, seed, limit) for each in settings for seed in rates.seeds]
        records = yield wanted
        for number, (place, each) in enumerate(zip(places, settings, strict=True)):
            own = records[number * len(rates.seeds) : (number + 1) * len(rates.seeds)]
            found[place] = _candidate(cell, each, own)
        places = _next_places(rates, found)
    return [found[place] for place in sorted(found)]


def _candidate(
    cell: Cell, settings: Mapping[str, Scalar], records: Sequence[RunRecord]
) -> Candidate:
    return Candidate(tuple(sorted(settings.items())), records, cell.score(records))


def _limit(cell: Cell, rates: Rates, found: Mapping[int, Candidate]) -> int:
    """Return how long a further rate may run: it cannot be the best after that."""
    best = min((candidate.score[0] for candidate in found.values()), default=math.inf)
    if cell.measure == "accuracy" or not math.isfinite(best):
        return cell.rounds
    return min(cell.rounds, math.ceil(best * rates.patience))


def _next_places(rates: Rates, found: Mapping[int, Candidate]) -> list[int]:
    """Return the places to try next: the rest of the grid, then beyond an edge that is the best."""
    grid = range(rates.middle - rates.width, rates.middle + rates.width + 1)
    rest = [place for place in grid if place not in found]
    if rest:
        return rest
    # Of equals the smallest, as the search takes it in the end: rates that all fail lead further down.
    best = min(sorted(found), key=lambda place: found[place].score)
    beyond = {min(found): min(found) - 1, max(found): max(found) + 1}.get(best)
    if beyond is None or abs(beyond - rates.middle) > rates.width + rates.most:
        return []
    return [beyond]


def is_inside(cell: Cell, best: Candidate, tried: Sequence[Candidate]) -> bool:
    """Return whether the best candidate's rate has rates below and above it that were tried."""
    if cell.rates is None:
        return True
    key = cell.rates.key
    option = {name: value for name, value in best.settings if name != key}
    along = [
        float(dict(each.settings)[key])
        for each in tried
        if option.items() <= dict(each.settings).items()
    ]
    return min(along) < float(dict(best.settings)[key]) < max(along)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.inf
