"""Plans: what runs are wanted next, as a function of the records of those before.

A plan is a generator that yields requests, gets their records, and returns its outcome. Because
what it yields depends on those records alone, a plan is replayed from its start whenever a run
ends, or when the program is started again: it keeps nothing else, and so nothing can be lost.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

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
