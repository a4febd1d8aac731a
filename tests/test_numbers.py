"""Every stored number of a run, a candidate and an experiment is what its records give."""

from __future__ import annotations

import itertools
import shlex
from dataclasses import replace

import pytest

from fedapp.config.read import parse_settings
from fedapp.studies.papers.cells import Cells, cells_without_data
from fedapp.studies.papers.results import CandidateResult, CellResult, Results, cell_result
from fedapp.studies.sweep.identity import Request
from fedapp.studies.sweep.record import RunRecord
from fedapp.studies.sweep.search import Candidate, Cell, SearchResult
from tests.paper_results import EXPERIMENTS, PUBLISHED, RECORDS

NOT_OF_THE_CELL = {
    "seed",
    "trainer",
    "threads",
    "checkpoint-every",
    "pictures",
    "num-server-rounds",
}


def planned_cells(results: Results) -> Cells:
    words = shlex.split(results.command)
    chosen = [word for flag, word in itertools.pairwise(words) if flag == "--set"]
    return cells_without_data(
        EXPERIMENTS[results.experiment], results.scale, parse_settings(chosen)
    )


def cut(run: str, rounds: int) -> RunRecord:
    return RECORDS[run].until(Request((), rounds))


def recomputed(stored: CellResult, planned: Cell) -> CellResult:
    """Return the cell's results, made again from the records of its runs."""
    found = SearchResult([cut(run.run, run.rounds) for run in stored.runs])
    own = replace(planned, seeds=tuple(run.seed for run in stored.runs))
    return cell_result(own, found, envelopes=False)


@pytest.mark.parametrize("results", PUBLISHED, ids=lambda r: f"{r.experiment}-{r.scale}")
def test_the_numbers_of_runs_are_those_of_their_records(results: Results) -> None:
    planned = planned_cells(results)
    for name, stored in results.cells.items():
        if not stored.runs:
            continue
        own = planned[name]
        assert own is not None, name
        again = recomputed(stored, own)
        assert (again.target, again.every) == (stored.target, stored.every), name
        assert stored.participants == again.participants, name
        for run, now in zip(stored.runs, again.runs, strict=True):
            assert now == run.model_copy(update={"problem": now.problem}), (name, run.seed)


def candidates_of(stored: CellResult, tried: CandidateResult) -> list[RunRecord]:
    """Return the records of a candidate: those with the cell's settings but for its own."""
    base = RECORDS[stored.runs[0].run].settings

    def others(settings: dict) -> dict:
        return {
            k: v
            for k, v in settings.items()
            if k not in NOT_OF_THE_CELL and k not in tried.settings
        }

    like = [
        record
        for record in RECORDS.values()
        if others(record.settings) == others(base) and record.settings.get("seed", 0) == 0
    ]
    stated = [r for r in like if all(r.settings.get(k) == v for k, v in tried.settings.items())]
    # A record does not state what is the default.
    silent = [r for r in like if all(r.settings.get(k, v) == v for k, v in tried.settings.items())]
    rounds = 10**9 if tried.problem else tried.rounds  # the problem may be of a later round
    return [record.until(Request((), rounds)) for record in stated or silent]


@pytest.mark.parametrize("results", PUBLISHED, ids=lambda r: f"{r.experiment}-{r.scale}")
def test_the_numbers_of_candidates_are_those_of_their_records(results: Results) -> None:
    """Of all rates that were tried, as far as they are judged by one seed."""
    planned = planned_cells(results)
    for name, stored in results.cells.items():
        own = planned[name]
        for tried in stored.tried if stored.runs and own else ():
            found = candidates_of(stored, tried)
            assert len(found) == 1, (name, tried.settings, len(found))
            each = Candidate(tuple(tried.settings.items()), found, (0.0, 0.0))
            assert own is not None
            without_runs = replace(own, seeds=())
            [again] = cell_result(
                without_runs, SearchResult([], None, [each]), envelopes=False
            ).tried
            assert again == tried, name
