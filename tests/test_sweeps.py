"""Grids, tuned cells and their plans, on runs that are made up: a curve is a formula."""

from __future__ import annotations

import dataclasses
import errno
import inspect
import io
import json
import math
import shutil
from importlib.metadata import version
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from fedapp.config.read import read_config
from fedapp.config.registry import FAMILIES, source_digest
from fedapp.errors import ConfigError, FedappError, RunError
from fedapp.federation.evaluation import evaluation_metrics
from fedapp.runs.checkpoint import checkpoint_rounds
from fedapp.runs.directory import RunDirectory, read_stored
from fedapp.runs.metrics import read_metrics
from fedapp.studies.papers.options import ReproduceOptions
from fedapp.studies.papers.reproduce import reproduce
from fedapp.studies.papers.results import cell_result
from fedapp.studies.sweep import grid
from fedapp.studies.sweep.command import sweep_settings
from fedapp.studies.sweep.execute import execute_run
from fedapp.studies.sweep.grid import Row, as_lines, expand, make_rows, split_grid, write_rows
from fedapp.studies.sweep.identity import EXECUTION, Request
from fedapp.studies.sweep.plans import retry_failures, run_plans
from fedapp.studies.sweep.record import RunRecord, problem_of, read_record
from fedapp.studies.sweep.scheduler import Schedule, SchedulerOptions, in_groups
from fedapp.studies.sweep.search import (
    Candidate,
    Cell,
    RateGrid,
    SearchResult,
    fixed,
    is_inside,
    replay,
    search,
)
from fedapp.studies.sweep.store import Store
from fedapp.training import build as setup

BASE = {"num-clients": 10, "2nn.hidden": 8}


def record(accuracy, run="r", status="complete", **more) -> RunRecord:
    count = len(accuracy)
    zeros = [0.0] * count
    given_ = {"loss": zeros, "train_loss": zeros, "gradients": [0] * count, **more}
    return RunRecord(
        run=run,
        settings={},
        status=status,
        rounds=list(range(count)),
        accuracy=accuracy,
        **given_,
    )


# ---------------------------------------------------------------- identity


def test_a_run_is_its_settings_and_not_how_it_is_carried_out() -> None:
    run = Request.of({**BASE, "learning-rate": 0.1}, 10).run
    same = {"threads": 2, "pictures": False, "device": "cpu", "checkpoint-every": 3, "seed": 0}
    assert Request.of({**BASE, "learning-rate": 0.1, **same}, 99, 0.9).run == run
    assert Request.of({**BASE, "learning-rate": 0.1, "num-server-rounds": 7}, 10).run == run
    assert Request.of({**BASE, "learning-rate": 0.2}, 10).run != run
    assert Request.of({**BASE, "learning-rate": 0.1, "seed": 1}, 10).run != run


CARRIED_OUT_OTHERWISE = {
    "num-server-rounds": 7,
    "target-accuracy": 0.5,
    "run-dir": "elsewhere",
    "pictures": False,
    "data-cache": "elsewhere",
    "checkpoint-every": 3,
    "checkpoint-seconds": 5.0,
    "device": "cpu",
    "threads": 2,
    "trainer": "sequential",
    "program": "record",
    "clients-together": 2,
    "min-nodes": 2,
    "node-timeout": 9.0,
    "round-deadline": 9.0,
}


@pytest.mark.parametrize("key", sorted(EXECUTION - {"callbacks"}))  # these in test_own_callbacks
def test_no_key_of_execution_makes_another_run(key: str) -> None:
    more = {key: CARRIED_OUT_OTHERWISE.get(key, True), "run-dir": "here"}
    assert Request.of({**more, **BASE}, 3).run == Request.of(BASE, 3).run


def test_how_far_a_run_goes_is_asked_for_and_no_setting() -> None:
    own = {**BASE, "num-server-rounds": 7, "target-accuracy": 0.5}
    assert Request.of(own, 10, 0.9) == Request.of(BASE, 10, 0.9)


def test_whole_numbers_and_their_floats_are_the_same_setting() -> None:
    values = {"partitioner": "dirichlet", "learning-rate": 1, "dirichlet.alpha": 1}
    floats = {"partitioner": "dirichlet", "learning-rate": 1.0, "dirichlet.alpha": 1.0}
    assert Request.of(values, 1).run == Request.of(floats, 1).run


def test_defaults_are_left_out_of_the_identity() -> None:
    assert Request.of({"batch-size": 10}, 1).canonical == {"dataset": "digits"}


def test_data_are_known_by_their_name_and_content_and_not_by_their_place(tmp_path: Path) -> None:
    for place, word in (("a", "fine"), ("b", "fine"), ("c", "good")):
        folder = tmp_path / place / "moods"
        folder.mkdir(parents=True)
        for split in ("train", "test"):
            (folder / f"{split}.csv").write_text(f"sentence,label\n{word},1\nawful,0\n")
    settings = {"num-clients": 2, "model": "char-lstm"}
    runs = [
        Request.of({**settings, "dataset": str(tmp_path / place / "moods")}, 1) for place in "abc"
    ]
    assert runs[0].run == runs[1].run != runs[2].run
    assert str(runs[0].canonical["dataset"]).startswith("moods@")


def test_a_trace_is_known_by_its_content_and_not_by_its_place(tmp_path: Path) -> None:
    for name, rows in (("a", "1,0\n0,1\n"), ("b", "1,0\n0,1\n"), ("c", "1,1\n0,1\n")):
        (tmp_path / name).write_text(rows)
    settings = {**BASE, "sampler": "availability", "num-clients": 2}
    runs = [
        Request.of({**settings, "availability.trace": str(tmp_path / name)}, 1).run
        for name in "abc"
    ]
    assert runs[0] == runs[1] != runs[2]
    assert "availability.trace" not in Request.of(settings, 1).canonical
    missing = {**settings, "availability.trace": "no.csv"}
    with pytest.raises(ConfigError, match=r"availability\.trace = 'no\.csv': cannot be read"):
        assert Request.of(missing, 1).run


def test_a_run_goes_on_with_its_trace_at_another_place(tmp_path: Path) -> None:
    settings = {**BASE, "sampler": "availability", "num-clients": 2, "fraction-train": 1.0}
    store, trace = Store(tmp_path / "sweep"), tmp_path / "first.csv"
    trace.write_text("1,0\n0,1\n")
    for rounds, name in enumerate(("first.csv", "second.csv"), 1):
        trace = trace.rename(tmp_path / name)
        request = Request.of({**settings, "availability.trace": str(trace)}, rounds)
        found = execute_run(request, store, lambda *_: False)
        assert found is not None
        assert (found.problem, found.last_round) == ("", rounds)


# ---------------------------------------------------------------- records


def test_a_record_satisfies_what_it_reached() -> None:
    found = record([0.1, 0.5, 0.7, 0.6])
    assert found.satisfies(Request.of(BASE, 3))
    assert not found.satisfies(Request.of(BASE, 4))
    assert found.satisfies(Request.of(BASE, 100, target=0.7))
    assert not found.satisfies(Request.of(BASE, 100, target=0.71))
    assert record([0.1], status="diverged").satisfies(Request.of(BASE, 100))
    assert record([0.1], problem="max-epsilon ended it").satisfies(Request.of(BASE, 100))


def test_a_record_is_cut_to_what_is_asked_for() -> None:
    found = record([0.1, 0.5, 0.7, 0.6], status="diverged", problem="nan")
    assert found.until(Request.of(BASE, 2)).rounds == [0, 1, 2]
    assert found.until(Request.of(BASE, 2)).status == "complete"
    assert found.until(Request.of(BASE, 9, target=0.5)).accuracy == [0.1, 0.5]
    assert found.until(Request.of(BASE, 9)) == found


def test_a_record_has_no_round_in_which_a_shorter_run_ended() -> None:
    """Evaluated every other round, and in round 3, to which another request went, and in round 5."""
    evaluated = dict(zip((0, 2, 3, 4, 5), (0.1, 0.5, 0.7, 0.6, 0.8), strict=True))
    found = RunRecord(
        run="r",
        settings={"eval-every": 2},
        status="complete",
        rounds=list(evaluated),
        accuracy=list(evaluated.values()),
    )
    assert found.until(Request.of(BASE, 3)).rounds == [0, 2, 3]
    assert found.until(Request.of(BASE, 5)).rounds == [0, 2, 4, 5]
    assert found.until(Request.of(BASE, 5)).accuracy == [0.1, 0.5, 0.6, 0.8]
    last_only = found.model_copy(update={"settings": {"eval-every": 0}, "problem": "it ended"})
    assert last_only.until(Request.of(BASE, 9)).rounds == [0, 5]
    assert last_only.until(Request.of(BASE, 9)).problem == "it ended"


def test_a_target_is_not_reached_in_a_round_in_which_a_shorter_run_ended() -> None:
    """Evaluated every five rounds, and in round 8, to which another request went."""
    accuracy = [0.1, 0.5, 0.91, 0.9, 0.93, 0.95]
    every = {"run": "r", "settings": {"eval-every": 5}, "status": "complete"}
    found = RunRecord(**every, rounds=[0, 5, 8, 10, 15, 20], accuracy=accuracy)
    request = Request.of(BASE, 20, target=0.905)
    assert found.until(request).rounds == [0, 5, 10, 15]
    assert found.until(Request.of(BASE, 8, target=0.905)).rounds == [0, 5, 8]
    short = RunRecord(**every, rounds=[0, 5, 8], accuracy=accuracy[:3])
    assert not short.satisfies(request)
    assert short.satisfies(Request.of(BASE, 8, target=0.905))


@pytest.mark.parametrize("status", ["failed", "diverged"])
def test_what_is_done_stays_done_when_a_longer_run_fails(status: str) -> None:
    """The problem came after the rounds that are asked for; before them, or in the last, it counts."""
    later = record([0.1, 0.5, 0.7], status=status, problem="round 3: the test loss is not finite")
    assert later.until(Request.of(BASE, 2)).status == "complete"
    assert later.until(Request.of(BASE, 2)).final_accuracy() == 0.7
    assert later.until(Request.of(BASE, 9, target=0.7)).status == "complete"
    assert later.until(Request.of(BASE, 3)) == later
    last = later.model_copy(update={"problem": "round 2: the test loss is not finite"})
    assert last.until(Request.of(BASE, 2)) == last


def metrics_of(folder: Path, rounds: int) -> Path:
    """Write a run's files: evaluated every other round, round t takes t seconds and 10 t updates."""
    folder.mkdir()
    found = {"config": {"trainer": "batched"}, "found": {}, "versions": {}}
    (folder / "config.json").write_text(json.dumps(found))
    rows: list[dict[str, object]] = [
        {"round": 0, "test_accuracy": 0.0, "test_loss": 1.0, "seconds": {"evaluate": 0.5}}
    ]
    for t in range(1, rounds + 1):
        numbers = {"updates": 10.0 * t, "bytes_down": 100 * t, "bytes_up": 7, "steps": 3}
        scored = {} if t % 2 else {"test_accuracy": 0.1 * t, "test_loss": 1.0}
        agreed = {"similarity": {"fc": 1.0 / t}, "seconds": {"round": float(t)}}
        rows.append({"round": t, "model_changed": True, **numbers, **scored, **agreed})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_a_record_cut_to_a_request_is_that_of_a_run_that_stopped_there(tmp_path: Path) -> None:
    """Whatever other cell extended the run that they share."""
    request, early = Request.of(BASE, 4), Request.of(BASE, 100, target=0.2)
    far = read_record(request, metrics_of(tmp_path / "far", 8))
    assert (far.updates, far.bytes_down, far.seconds) == (45.0, 450, 36.5)
    cut = far.until(request)
    assert cut == read_record(request, metrics_of(tmp_path / "near", 4))
    assert (cut.updates, cut.bytes_down, cut.bytes_up, cut.seconds) == (25.0, 250, 7, 10.5)
    stopped = far.until(early)  # reached in round 2 of the 100 that it might take
    assert stopped == read_record(request, metrics_of(tmp_path / "early", 2))
    assert [row["round"] for row in stopped.agreement] == [1, 2]


def test_a_run_ended_with_its_first_problem(tmp_path: Path) -> None:
    metrics = metrics_of(tmp_path / "run", 4) / "metrics.jsonl"
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    rows[3] |= {"model_changed": False, "failures": {"1": "its update is not finite"}}
    rows[4] |= {"model_changed": False, "failures": {"1": "OSError: gone"}}
    metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = read_record(Request.of(BASE, 4), metrics.parent)
    assert (found.status, found.problem) == ("diverged", "round 3: its update is not finite")


def test_a_record_written_before_it_could_be_cut_whole_is_still_read(tmp_path: Path) -> None:
    whole = read_record(Request.of(BASE, 8), metrics_of(tmp_path / "run", 8))
    old = {k: v for k, v in whole.model_dump().items() if not k.endswith("_until")}
    cut = RunRecord(**old).until(Request.of(BASE, 4))
    assert (cut.last_round, cut.updates, cut.seconds) == (4, 45.0, 36.5)


def test_rounds_to_a_target_are_interpolated_on_the_best_so_far() -> None:
    assert record([0.0, 0.4, 0.2, 0.8]).rounds_to(0.5) == pytest.approx(2.25)
    assert record([0.0, None, 0.5]).rounds_to(0.6) is None
    assert record([None, None, 0.5]).rounds_to(0.5) == 2  # nothing is known to interpolate from


def test_accuracy_at_the_end_is_a_mean_of_the_last_and_nothing_if_it_diverged() -> None:
    assert record([0.0, 0.4, 0.6]).final_accuracy(2) == pytest.approx(0.5)
    assert record([0.9, 0.9], status="diverged").final_accuracy() == 0.0


@pytest.mark.parametrize(
    ("row", "status"),
    [
        ({"round": 1, "test_loss": 2.3, "model_changed": True}, "complete"),
        ({"round": 1, "test_loss": None, "model_changed": True}, "diverged"),
        ({"round": 1, "test_loss": math.inf, "model_changed": True}, "diverged"),
        (
            {
                "round": 1,
                "model_changed": False,
                "failures": {"3": "arrays: an update of norm 1e9, above 1"},
                "faults": {"norm": 1},
            },
            "diverged",
        ),
        (
            {
                "round": 1,
                "model_changed": False,
                "failures": {"3": "arrays: an update of norm 1e9"},
                "faults": {"norm": 1, "raised": 1},
            },
            "failed",
        ),
        ({"round": 1, "model_changed": False, "failures": {"3": "is not finite"}}, "diverged"),
        ({"round": 1, "model_changed": False, "failures": {"3": "OSError: gone"}}, "failed"),
        ({"round": 1, "test_loss": math.nan, "client_clients": 4}, "diverged"),
        (evaluation_metrics(read_config({"evaluation": "clients"}), None) | {"round": 1}, "failed"),
    ],
)
def test_a_run_ends_when_it_cannot_go_on(row, status) -> None:
    assert problem_of(row)[0] == status


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    request = Request.of(BASE, 1)
    store = Store(tmp_path)
    store.folder(request.run).mkdir()
    (store.folder(request.run) / "record.json").write_text('{"run": 1')
    with pytest.raises(Exception, match=r"record\.json is damaged"):
        store.find(request)


# ---------------------------------------------------------------- plans


class Imagined:
    """Runs that need ``needed(settings)`` rounds to accuracy 1 (None: never), on a straight line."""

    def __init__(self, needed) -> None:
        self.needed, self.asked = needed, []

    def __call__(self, request: Request) -> RunRecord | None:
        if request not in self.asked:
            return None
        rounds = self.needed(dict(request.settings))
        slope = 0.1 / request.rounds if rounds is None else 1 / rounds
        return record([slope * t for t in range(request.rounds + 1)]).until(request)

    def do(self, cell: Cell) -> SearchResult:
        """Carry out one request after another; what is asked depends on the records alone."""
        while True:
            now = replay(search(cell), self)
            if now.outcome is not None:
                return now.outcome
            self.asked.append(now.missing[-1])


class Fallen(Imagined):
    """Those at 0.215443 are as accurate as at 0.1 up to round 7, and then no longer accurate."""

    def __call__(self, request: Request) -> RunRecord | None:
        found = super().__call__(request)
        if found is None or rate(dict(request.settings)) != 0.215443:
            return found
        return record([min(t, 7) / 40 if t < 8 else 0.0 for t in range(request.rounds + 1)])


class Stopped(Imagined):
    """Those at one rate end in round 5, failed or diverged, at an accuracy of 0.8."""

    def __init__(self, needed, at: float, status: str) -> None:
        super().__init__(needed)
        self.at, self.status = at, status

    def __call__(self, request: Request) -> RunRecord | None:
        found = super().__call__(request)
        if found is None or rate(dict(request.settings)) != self.at:
            return found
        values = [0.16 * t for t in range(6)]
        return record(values, status=self.status, problem=f"round 6: {self.status}")


def tuned(**more) -> Cell:
    return Cell(BASE, rounds=1000, target=1.0, rates=RateGrid(start=0.1, **more))


def rate(settings) -> float:
    return settings["learning-rate"]


def test_the_grid_starts_in_the_middle_and_gives_up_on_worse_rates() -> None:
    runs = Imagined(lambda s: {0.1: 40, 0.215443: 60, 0.0464159: 100}[rate(s)])
    outcome = runs.do(tuned())
    assert dict(runs.asked[0].settings)["learning-rate"] == 0.1
    assert runs.asked[0].rounds == 1000
    assert [request.rounds for request in runs.asked[1:]] == [15, 15, 60, 60]  # 1.5 times the 40
    assert dict(outcome.chosen.settings) == {"learning-rate": 0.1}
    assert outcome.inside
    needed = {rate(dict(c.settings)): c.records[0].rounds_to(1.0) for c in outcome.tried}
    assert needed == {0.1: 40, 0.215443: 60, 0.0464159: None}


def test_a_rate_may_take_the_last_round_in_which_it_could_be_the_best() -> None:
    """1.5 times 41 rounds are 61.5: round 62 ends them."""
    runs = Imagined(lambda s: {0.1: 41, 0.215443: 60, 0.0464159: 100}[rate(s)])
    runs.do(tuned())
    assert {request.rounds for request in runs.asked[3:]} == {62}


def test_a_rate_that_is_four_times_slower_than_the_best_has_a_trial_alone() -> None:
    """The middle is at 3/40 after 3 of the 15 rounds; 15/199 is more, and 15/201 is less."""
    runs = Imagined(lambda s: {0.1: 40, 0.215443: 199, 0.0464159: 201}[rate(s)])
    outcome = runs.do(tuned())
    rounds = {(rate(dict(request.settings)), request.rounds) for request in runs.asked[1:]}
    assert rounds == {(0.215443, 15), (0.0464159, 15), (0.215443, 60)}
    assert [candidate.records[0].last_round for candidate in outcome.tried] == [15, 40, 60]
    assert (dict(outcome.chosen.settings), outcome.inside) == ({"learning-rate": 0.1}, True)


def test_a_rate_that_fell_to_chance_has_a_trial_alone() -> None:
    """Its best accuracy is that of the middle, in the first half of its trial."""
    runs = Fallen(lambda s: 40 if rate(s) == 0.1 else 60)
    outcome = runs.do(tuned())
    ends = {rate(dict(each.settings)): each.records[0].last_round for each in outcome.tried}
    assert ends == {0.0464159: 60, 0.1: 40, 0.215443: 15}


def test_a_rate_with_which_one_seed_keeps_up_goes_on() -> None:
    def needed(settings):
        slow = rate(settings) == 0.215443 or settings["seed"] == 0
        return 40 if rate(settings) == 0.1 else (900 if slow else 60)

    outcome = Imagined(needed).do(tuned(seeds=(0, 1)))
    ends = {rate(dict(each.settings)): each.records[0].last_round for each in outcome.tried}
    assert ends == {0.0464159: 60, 0.1: 40, 0.215443: 15}


def test_where_no_round_of_a_trial_was_evaluated_a_rate_goes_on() -> None:
    """Of a run that had already gone further the last round of a shorter request has no scores."""
    runs = Imagined(lambda s: {0.1: 40, 0.215443: 60}.get(rate(s)))
    cell = dataclasses.replace(tuned(), settings={**BASE, "eval-every": 20})
    runs.do(cell)
    assert {request.rounds for request in runs.asked[1:]} == {15, 60}


def test_a_rate_that_a_seed_does_not_reach_the_target_with_is_not_the_best() -> None:
    def needed(settings):
        if rate(settings) == 0.1:
            return {0: 10, 1: None}[settings["seed"]]
        return {0.215443: 20, 0.464159: 40}.get(rate(settings), 60) + 2 * settings["seed"]

    outcome = Imagined(needed).do(tuned(seeds=(0, 1)))
    assert dict(outcome.chosen.settings) == {"learning-rate": 0.215443}
    found = {rate(dict(c.settings)): [r.rounds_to(1.0) for r in c.records] for c in outcome.tried}
    assert found[0.215443] == [20, 22]
    assert [value[0] for value in found.values()] == [60, 10, 20, None]  # 1.5 * 21 rounds at last


def test_without_a_target_the_highest_accuracy_after_all_rounds_is_the_best() -> None:
    """A target that the settings of a table leave behind neither ends a run nor scores it."""
    runs = Imagined(lambda s: {0.1: 2000, 0.215443: 1500, 0.0464159: 3000}.get(rate(s), 9000))
    outcome = runs.do(dataclasses.replace(tuned(), target=0.2, measure="accuracy"))
    assert dict(outcome.chosen.settings) == {"learning-rate": 0.215443}
    assert {(request.rounds, request.target) for request in runs.asked} == {(1000, 0.0)}
    assert outcome.runs[0].final_accuracy() == pytest.approx(1000 / 1500)


def test_the_best_rate_lies_inside_the_rates_of_its_own_option() -> None:
    tried = [
        Candidate((("batch-size", size), ("learning-rate", rate)), [], (score, 0.0))
        for size, rate, score in ((1, 0.1, 5), (1, 0.2, 4), (1, 0.4, 6), (2, 0.1, 3), (2, 0.2, 2))
    ]
    assert is_inside(tuned(), tried[1], tried)
    assert not is_inside(tuned(), tried[4], tried)  # 0.4 was tried with the other option alone


def test_the_grid_grows_until_the_best_lies_inside() -> None:
    runs = Imagined(lambda s: 10 + 100 * abs(math.log10(rate(s)) - math.log10(2.15443)))
    outcome = runs.do(tuned())
    assert dict(outcome.chosen.settings) == {"learning-rate": 2.15443}
    assert max(rate(dict(c.settings)) for c in outcome.tried) == 4.64159
    assert outcome.inside


def test_a_search_that_begins_elsewhere_is_on_the_same_grid() -> None:
    """Two steps up, the rates 0.215443, 0.464159 and 1 are to six digits those that 0.1 leads to."""
    runs = Imagined(lambda s: {0.464159: 40, 0.215443: 30}.get(rate(s), 900))
    outcome = runs.do(tuned(middle=2, most=1))
    asked = [rate(dict(request.settings)) for request in runs.asked]
    assert asked[0] == 0.464159
    assert set(asked) == {0.464159, 0.215443, 1.0, 0.1}  # beyond the edge that is the best
    assert dict(outcome.chosen.settings) == {"learning-rate": 0.215443}
    assert outcome.inside
    falling = Imagined(lambda s: 1000 * rate(s)).do(tuned(middle=2, most=1))
    assert (
        min(rate(dict(c.settings)) for c in falling.tried) == 0.1
    )  # no further than one step beyond
    assert not falling.inside


def test_a_best_on_the_edge_of_all_that_may_be_tried_is_said() -> None:
    runs = Imagined(lambda s: 100 / rate(s))
    outcome = runs.do(tuned(most=1))
    assert not outcome.inside
    assert len(outcome.tried) == 4


def test_where_all_rates_are_equally_bad_the_grid_grows_downwards() -> None:
    runs = Imagined(lambda s: None)
    outcome = runs.do(tuned(most=2))
    assert len(outcome.tried) == 5
    assert max(rate(dict(c.settings)) for c in outcome.tried) == 0.215443
    assert not outcome.inside


def test_where_no_rate_reaches_the_target_the_highest_accuracy_counts() -> None:
    runs = Imagined(lambda s: 5000 if rate(s) == 0.1 else 9000)
    outcome = runs.do(tuned())
    assert dict(outcome.chosen.settings) == {"learning-rate": 0.1}
    assert outcome.runs[0].rounds_to(1.0) is None


@pytest.mark.parametrize(
    ("at", "status", "chosen", "inside", "problems"),
    [
        (0.215443, "failed", 0.1, False, ["round 6: failed"]),
        (0.215443, "diverged", 0.1, True, []),
        (0.1, "failed", 0.215443, True, ["round 6: failed"]),  # the grid grows to 0.464159
        (0.0464159, "failed", 0.1, False, ["round 6: failed"]),
    ],
)
def test_a_rate_whose_run_failed_is_no_candidate(
    at: float, status: str, chosen: float, inside: bool, problems: list[str]
) -> None:
    """One that diverged is measured: it bounds the grid."""
    runs = Stopped(lambda s: {0.1: 80, 0.215443: 100}.get(rate(s), 150), at, status)
    outcome = runs.do(tuned())
    found = cell_result(tuned(), outcome, envelopes=False)
    assert (found.rate, found.inside, found.problems) == (chosen, inside, problems)


def test_a_failed_run_is_not_the_best_where_no_rate_reaches_the_target() -> None:
    outcome = Stopped(lambda s: 5000 if rate(s) == 0.0464159 else 9000, 0.1, "failed").do(tuned())
    assert dict(outcome.chosen.settings) == {"learning-rate": 0.0464159}
    assert max(outcome.runs[0].accuracy) == pytest.approx(0.2)


def test_where_the_runs_at_all_rates_failed_nothing_is_inside() -> None:
    outcome = Stopped(lambda _: 50, 0.1, "failed").do(tuned(width=0, most=0))
    assert not outcome.inside
    assert outcome.runs[0].status == "failed"


def test_the_other_seeds_and_the_longer_curve_come_at_the_best() -> None:
    runs = Imagined(lambda s: 20 if rate(s) == 0.1 else 30)
    outcome = runs.do(dataclasses.replace(tuned(), seeds=(0, 1, 2), draw=50))
    assert [r.last_round for r in outcome.runs] == [50, 50, 50]
    assert {dict(r.settings)["seed"] for r in runs.asked} == {0, 1, 2}
    assert all(rate(dict(r.settings)) == 0.1 for r in runs.asked if dict(r.settings)["seed"])


def test_where_nothing_is_tuned_no_grid_is_too_narrow() -> None:
    outcome = Imagined(lambda _: 20).do(Cell(BASE, rounds=100, target=1.0))
    assert (outcome.chosen, outcome.tried, outcome.inside) == (None, [], True)


def test_further_options_are_searched_with_the_rates() -> None:
    def needed(settings):
        return (20 if rate(settings) == 0.1 else 30) - 5 * settings["batch-size"]

    cell = dataclasses.replace(tuned(), options={"batch-size": (1, 2)})
    outcome = Imagined(needed).do(cell)
    assert dict(outcome.chosen.settings) == {"batch-size": 2, "learning-rate": 0.1}
    assert len(outcome.tried) == 6


@given(best=st.integers(-4, 4), steepness=st.floats(1.0, 60.0))
def test_any_valley_is_found_whatever_was_run_further_before(best: int, steepness: float) -> None:
    cell = tuned()
    goal = math.log10(cell.rates.rate(best))
    runs = Imagined(lambda s: 10 + steepness * abs(math.log10(rate(s)) - goal))
    runs.asked = [cell.request({"learning-rate": cell.rates.rate(3)}, 0, 1000)]
    outcome = runs.do(cell)
    assert dict(outcome.chosen.settings)["learning-rate"] == cell.rates.rate(best)


def test_a_plan_asks_for_what_is_missing() -> None:
    requests = [Request.of({**BASE, "seed": seed}, 3) for seed in range(3)]
    runs = Imagined(lambda _: 10)
    runs.asked = [requests[1]]
    assert replay(fixed(requests), runs).missing == [requests[0], requests[2]]


# ---------------------------------------------------------------- stacked runs


def test_runs_that_differ_in_rate_and_seed_alone_train_together() -> None:
    settings = [
        {"learning-rate": 0.1},
        {"learning-rate": 0.2, "batch-size": 5},
        {"learning-rate": 0.2},
        {"learning-rate": 0.2, "seed": 1},
        {"learning-rate": 0.3, "batch-size": 5},
    ]
    waiting = [(str(i), Request.of({**BASE, **more}, 3 + i)) for i, more in enumerate(settings)]

    def names(most: int) -> list[str]:
        return ["".join(name for name, _ in group) for group in in_groups(waiting, most)]

    assert names(1) == ["0", "1", "2", "3", "4"]
    assert names(2) == ["02", "14", "3"]
    assert names(9) == ["023", "14"]


def test_the_sequential_trainer_trains_no_two_runs_together() -> None:
    requests = [Request.of({**BASE, "seed": s, "trainer": "sequential"}, 3) for s in range(2)]
    assert len(in_groups([("a", each) for each in requests], 9)) == 2


# ---------------------------------------------------------------- the grid of the command line


def test_lists_are_the_grid() -> None:
    plain, grid = split_grid(["seed=[0, 1]", "algorithm=[fedavg, fedprox]", "momentum=0.5"])
    assert plain == ["momentum=0.5"]
    assert grid == {"seed": [0, 1], "algorithm": ["fedavg", "fedprox"]}
    assert len(expand({"num-clients": 5}, grid)) == 4


def test_words_in_a_list_mean_what_they_mean_alone() -> None:
    assert split_grid(["nesterov=[True, False]"])[1] == {"nesterov": [True, False]}
    assert split_grid(["x=['a, b', \"c\"]"])[1] == {"x": ["a, b", "c"]}
    assert split_grid(["dataset=[1.10, 1.20]"])[1] == {"dataset": ["1.10", "1.20"]}
    assert split_grid(["learning-rate=[1e-1, 1]"])[1] == {"learning-rate": [0.1, 1]}
    for text in ("[[1, 2], [3]]", "['a', [1]]", "['a]", "[]"):
        with pytest.raises(ConfigError, match="must be a list of values"):
            split_grid([f"x={text}"])


def test_the_later_of_two_settings_of_a_key_wins(tmp_path: Path) -> None:
    file = tmp_path / "s.toml"
    file.write_text("seed = 3\n")
    assert split_grid(["seed=[0, 1]", "momentum=[0, 1]", str(file)]) == (
        [str(file)],
        {"momentum": [0, 1]},
    )
    assert split_grid(["seed=[0, 1]", "seed=2"]) == (["seed=2"], {})
    assert split_grid(["seed=[0, 1]", "seed = [2]"]) == ([], {"seed": [2]})


def test_a_point_that_is_named_twice_is_one() -> None:
    assert expand({}, {"learning-rate": [1, 1.0, 0.1], "seed": [0, 0]}) == [
        {"learning-rate": 1, "seed": 0},
        {"learning-rate": 0.1, "seed": 0},
    ]


@pytest.mark.parametrize(
    ("settings", "best_of", "said"),
    [
        (
            ["trainer=[sequential, batched]"],
            "",
            r"trainer: .* would be one run\. Give it one value",
        ),
        (["seed=[0, 1]", "momentum=[0.0, 0.5]"], "seed", r"--best-of seed: .* One of: momentum"),
        (["run-dir=[a, b]"], "", "run-dir: a sweep names its runs itself"),
        (["learning-rate=-1"], "", "^learning-rate = -1"),
        (["dataset=/nowhere"], "", "dataset = '/nowhere': there is no such folder"),
    ],
)
def test_a_sweep_that_makes_no_sense_leaves_nothing(
    settings, best_of, said, tmp_path: Path
) -> None:
    runs, to = tmp_path / "runs", tmp_path / "to"
    with pytest.raises(FedappError, match=said):
        sweep_settings(settings, runs, to, best_of, SchedulerOptions(jobs=1), Console())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", ["[]", "[[1], [2]]"])
def test_a_senseless_list_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="must be a list of values"):
        split_grid([f"seed={text}"])


def test_a_list_that_is_not_closed_is_named_as_such() -> None:
    with pytest.raises(ConfigError, match=r"learning-rate = \[0.03,0.1: the list is not closed"):
        split_grid(["learning-rate=[0.03,0.1"])


@pytest.mark.parametrize("option", ["--runs", "--to"])
def test_a_file_where_a_folder_should_be_is_named_before_anything_runs(
    option: str, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    places = {"--runs": tmp_path / "runs", "--to": tmp_path / "to", option: tmp_path / "file" / "a"}
    with pytest.raises(ConfigError, match=f"{option} .*file/a: must be a folder"):
        sweep_settings(
            [], places["--runs"], places["--to"], "", SchedulerOptions(jobs=1), Console()
        )


@pytest.mark.parametrize("option", ["--runs", "--to"])
def test_a_folder_that_cannot_be_written_is_named_before_anything_runs(
    option: str, tmp_path: Path
) -> None:
    places = {"--runs": tmp_path / "runs", "--to": tmp_path / "to", option: Path("/proc/none")}
    with pytest.raises(ConfigError, match=f"{option} /proc/none: cannot be written"):
        sweep_settings(
            [], places["--runs"], places["--to"], "", SchedulerOptions(jobs=1), Console()
        )
    options = ReproduceOptions(
        "smoke", None, places["--runs"], places["--to"], SchedulerOptions(jobs=1), {}
    )
    with pytest.raises(ConfigError, match=f"{option} /proc/none: cannot be written"):
        reproduce(["seo-fig11"], options, Console(quiet=True))


def test_a_point_that_makes_no_sense_is_named() -> None:
    with pytest.raises(ConfigError, match=r"at learning-rate=-1: learning-rate = -1"):
        expand({}, {"learning-rate": [0.1, -1]})
    with pytest.raises(ConfigError, match="at learning-rate=-1"):
        expand({"learning-rate": 0.1}, {"learning-rate": [-1]})  # a point is over what all share


def test_rows_are_means_over_seeds_best_first(tmp_path: Path) -> None:
    points = [{"learning-rate": r, "seed": s} for r in (0.1, 0.2) for s in (0, 1)]
    finals = (0.5, 0.7, 0.8, 1.0)
    records = [record([0.0, final]) for final in finals]
    rows = make_rows(points, records, [0.0] * 4)
    assert [row.point["learning-rate"] for row in rows] == [0.2, 0.1]
    assert rows[0].mean == pytest.approx(0.9)
    assert (rows[1].flat()["accuracy-min"], rows[1].flat()["accuracy-max"]) == (0.5, 0.7)
    assert rows[1].flat()["best-accuracy"] == 0.7
    files = write_rows(rows, tmp_path, {"num-clients": 3})
    assert json.loads(files[0].read_text())["settings"] == {"num-clients": 3}
    assert files[1].read_text().splitlines()[0].startswith("learning-rate,runs,accuracy")


def test_best_of_keeps_one_value_of_a_key() -> None:
    points = [{"algorithm": a, "learning-rate": r} for a in "ab" for r in (0.1, 0.2)]
    records = [record([0.0, final]) for final in (0.5, 0.6, 0.9, 0.8)]
    rows = make_rows(points, records, [0.0] * 4, best_of="learning-rate")
    assert [(r.point["algorithm"], r.point["learning-rate"]) for r in rows] == [
        ("b", 0.1),
        ("a", 0.2),
    ]


def test_rows_with_a_target_are_sorted_by_rounds() -> None:
    slow, fast, never = (record(values) for values in ([0, 0.5, 1], [0, 1, 0.2], [0, 0.9, 0.9]))
    options = [Row({"x": 1}, [r], 1.0) for r in (slow, fast, never)]
    assert [row.needed for row in sorted(options, key=Row.sorting)] == [1.0, 2.0, None]
    assert Row({"x": 1}, [fast, slow], 1.0).needed == 1.5
    assert Row({"x": 1}, [fast, never], 1.0).needed is None


def test_a_regression_is_sorted_by_its_test_loss() -> None:
    points = [{"learning-rate": rate} for rate in (0.1, 0.2, 0.3)]
    records = [record([None] * 2).model_copy(update={"loss": [9.0, x]}) for x in (4.0, 1.0, 2.5)]
    rows = make_rows(points, records, [0.0] * 3)
    assert [row.point["learning-rate"] for row in rows] == [0.2, 0.3, 0.1]
    assert rows[0].cells()[1:3] == ["1.0000", "1.0000 - 1.0000"]
    assert (rows[0].flat()["loss"], rows[0].flat()["accuracy"]) == (1.0, None)
    assert as_lines(rows)[0].startswith("learning-rate  test loss  ")


def test_runs_without_an_accuracy_have_none_and_come_last(tmp_path: Path) -> None:
    points = [{"learning-rate": rate} for rate in (0.1, 0.2, 0.3)]
    wild = record([0.1, None], status="diverged", problem="nan")
    records = [wild, record([], status="failed", problem="KeyError"), record([0.0, 0.1])]
    rows = make_rows(points, records, [0.0] * 3)
    assert [row.point["learning-rate"] for row in rows] == [0.3, 0.1, 0.2]
    assert [row.cells()[1] for row in rows] == ["0.1000", "diverged", "failed"]
    files = write_rows(rows, tmp_path, {})
    flat = json.loads(files[0].read_text())["rows"]
    assert [row["accuracy"] for row in flat] == [0.1, None, None]
    assert [row["status"] for row in flat] == ["complete", "diverged", "failed"]
    assert [row["best-accuracy"] for row in flat] == [0.1, 0.1, None]
    assert files[1].read_text().splitlines()[3].startswith("0.2,1,,,,,,0,,0.0,failed,")


def test_a_mean_over_seeds_is_not_made_of_those_that_survived() -> None:
    records = [record([0.0, 0.9]), record([0.1, None], status="diverged")]
    [row] = make_rows([{"seed": 0}, {"seed": 1}], records, [0.0] * 2)
    assert row.mean is None
    assert row.cells()[:2] == ["diverged (1 of 2)", "0.9000 - 0.9000"]
    records[0] = record([], status="failed", problem="KeyError")
    [row] = make_rows([{"seed": 0}, {"seed": 1}], records, [0.0] * 2)
    assert row.cells()[0] == "failed (2 of 2)"  # the worst that became of a run


def test_a_row_with_fewer_seeds_than_others_says_so() -> None:
    """As after --hours, which ends a sweep between the seeds of a point."""
    points = [{"x": 0, "seed": 0}, {"x": 0, "seed": 1}, {"x": 1, "seed": 0}]
    records = [record([0.0, accuracy]) for accuracy in (0.8, 0.9, 0.95)]
    lines = as_lines(make_rows(points, records, [0.0] * 3))
    assert ["0.9500 (1 of 2)" in line for line in lines[-2:]] == [True, False]
    assert "0.8500  " in lines[-1]


def test_a_run_that_failed_before_is_shown_with_its_reason_and_the_remedy(tmp_path: Path) -> None:
    values = {"num-clients": 10, "num-server-rounds": 4}
    store = Store(tmp_path)
    broken = record([], Request.of(values, 4).run, "failed", problem="NameError: [x]")
    store.folder(broken.run).mkdir()
    store.keep(broken)
    said = Console(file=io.StringIO(), width=200)
    settings = [f"{key}={value}" for key, value in values.items()]
    problem = sweep_settings(
        settings, tmp_path, tmp_path / "to", "", SchedulerOptions(jobs=1), said
    )
    assert problem.startswith(f"1 run failed: {broken.run}: NameError: [x]. ")
    assert "--retry" in problem
    assert f"{broken.run}: NameError: [x]" in said.file.getvalue()  # type: ignore[attr-defined]


SHORT = {**BASE, "local-epochs": 1, "2nn.hidden": 8, "device": "cpu", "checkpoint-every": 1}


def do(request: Request, store: Store) -> RunRecord:
    found = execute_run(request, store, lambda *_: False)
    assert found is not None
    return found


def test_a_run_that_a_callback_ends_before_training_has_ended(tmp_path: Path) -> None:
    (tmp_path / "ends.py").write_text(
        "from fedapp.federation.callback import RunCallback\n\n\n"
        "class Ends(RunCallback):\n    name = 'ends'\n"
        "    def on_round(self, result, state):\n"
        "        return True\n"
    )
    found = do(Request.of({**SHORT, "callbacks": str(tmp_path / "ends.py")}, 2), Store(tmp_path))
    assert (found.rounds, found.problem) == (
        [0],
        "max-epsilon or a callback ended it after round 0",
    )


def test_brackets_in_a_reason_are_printed_as_they_are(tmp_path: Path) -> None:
    said, store, request = (
        Console(file=io.StringIO(), width=200),
        Store(tmp_path),
        Request.of(BASE, 2),
    )
    store.folder(request.run).mkdir()
    store.keep(record([], request.run, "failed", problem="OSError: cannot read [/data/x.npy]"))
    event = cast("Any", SimpleNamespace(request=request))
    Schedule({}, store, SchedulerOptions(), said)._report("a", event)
    assert "cannot read [/data/x.npy]" in said.file.getvalue()  # type: ignore[attr-defined]


def test_a_failed_run_is_tried_again_as_is_asked_now(tmp_path: Path) -> None:
    """A program that cannot run here is no part of what a run is, so it must not stay with it."""
    store = Store(tmp_path)
    broken = Request.of({**SHORT, "trainer": "batched", "program": "capture"}, 2)
    good = Request.of(SHORT, 2)
    assert broken.run == good.run
    assert do(broken, store).status == "failed"
    assert do(good, store).status == "failed"  # unless it is tried again, it is as it was
    retry_failures({"a": lambda: fixed([good])}, store)
    found = do(good, store)
    assert (found.status, found.rounds) == ("complete", [0, 1, 2])
    assert found.execution["trainer"] == "auto"


def test_a_run_that_failed_later_goes_on_from_its_last_good_round(tmp_path: Path) -> None:
    store = Store(tmp_path)
    early = do(Request.of(SHORT, 3), store)
    metrics = store.folder(early.run) / "metrics.jsonl"
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    rows[-1] |= {"model_changed": False, "failures": {"1": "OSError: gone"}}
    metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    store.keep(early.model_copy(update={"status": "failed", "problem": "OSError: gone"}))
    later = Request.of({**SHORT, "threads": 2}, 4)
    retry_failures({"a": lambda: fixed([later])}, store)
    found = do(later, store)
    assert (found.status, found.rounds) == ("complete", [0, 1, 2, 3, 4])
    assert found.accuracy == do(Request.of(SHORT, 4), Store(tmp_path / "whole")).accuracy
    stored, _ = read_stored(store.folder(early.run))
    assert stored.threads == 2
    journal = (store.root / "journal.jsonl").read_text().splitlines()
    assert '"continued"' in journal[-2]


def failed_from(round_: int, request: Request, store: Store) -> RunDirectory:
    """Do a run, and write into its files that from this round on it failed, on another machine."""
    early = do(request, store)
    directory = RunDirectory(store.folder(early.run))
    rows = read_metrics(directory.metrics)
    for row in rows[round_:]:
        row |= {"model_changed": False, "failures": {"1": "OSError: gone"}}
    directory.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    stored = json.loads(directory.config.read_text())
    stored["found"] |= {"threads": 64, "device": "cuda:7"}
    stored["versions"]["torch"] = "1.0"
    directory.config.write_text(json.dumps(stored))
    problem = f"round {round_}: OSError: gone"
    store.keep(early.model_copy(update={"status": "failed", "problem": problem}))
    return directory


def test_what_was_found_out_for_a_run_that_failed_is_found_out_anew(tmp_path: Path) -> None:
    store, request = Store(tmp_path), Request.of(SHORT, 3)
    directory = failed_from(3, request, store)
    assert retried(request, store) is None
    assert checkpoint_rounds(directory.checkpoints) == [2]
    stored, found = read_stored(tmp_path / request.run)
    assert stored.threads == 1  # runs of a sweep share the cores
    assert "threads" not in found
    execution = do(request, store).execution
    assert execution["device"] == "cuda:7, then cpu"
    assert execution["torch"] == f"1.0, then {version('torch')}"


def test_a_run_whose_checkpoints_are_all_of_failed_rounds_begins_again(tmp_path: Path) -> None:
    store, request = Store(tmp_path), Request.of(SHORT, 3)
    directory = failed_from(2, request, store)
    assert checkpoint_rounds(directory.checkpoints) == [3, 2]
    assert retried(request, store) is None
    assert not store.folder(request.run).exists()


def retried(request: Request, store: Store) -> RunRecord | None:
    """Return what is known of a run after its failure was forgotten."""
    retry_failures({"a": lambda: fixed([request])}, store)
    return store.find(request)


def test_a_run_that_diverged_is_a_result_and_not_tried_again(tmp_path: Path) -> None:
    store, request = Store(tmp_path), Request.of(BASE, 3)
    wild = record([0.1, None], request.run, "diverged", problem="nan")
    store.folder(wild.run).mkdir()
    store.keep(wild)
    retry_failures({"a": lambda: fixed([request])}, store)
    assert Store(tmp_path).find(request) == wild


def test_old_numbers_of_changed_code_are_named_and_not_of_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path)
    mine, published = Request.of(SHORT, 1), Request.of({**SHORT, "seed": 1}, 1)
    do(mine, store)
    recorded = {published.run: do(published, store).published}
    shutil.rmtree(store.folder(published.run))
    plans = {name: (lambda r=r: fixed([r])) for name, r in (("a", mine), ("b", published))}

    def said() -> str:
        console = Console(file=io.StringIO(), width=200)
        run_plans(plans, Store(tmp_path, recorded), SchedulerOptions(jobs=1), console)
        return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]

    assert said() == ""
    monkeypatch.setattr(setup, "source_digest", lambda component: f"new {component.name}")
    for part in ("algorithm 'fedavg'", "model '2nn'", f"rm -r {store.folder(mine.run)},"):
        assert part in said()
    assert published.run not in said()


def test_the_digest_of_a_component_is_of_its_file_and_of_its_familys_bases(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    algorithms = FAMILIES[0].components()
    before = {name: source_digest(algorithms[name]) for name in ("fedadam", "fedavg")}
    source_digest.cache_clear()
    real = inspect.getsource

    def edited(module: ModuleType) -> str:
        return real(module) + "#" * (module.__name__ == "strategies._server_optimizer")

    monkeypatch.setattr(inspect, "getsource", edited)
    after = {name: source_digest(algorithms[name]) for name in before}
    source_digest.cache_clear()
    assert after["fedadam"] != before["fedadam"]
    assert after["fedavg"] == before["fedavg"]


def test_a_sweep_of_targets_gives_the_rounds_to_each(tmp_path: Path) -> None:
    values = {"num-clients": 10, "num-server-rounds": 4}
    whole = record([0.0, 0.25, 0.5, 0.75, 1.0], run=Request.of(values, 4).run)
    store = Store(tmp_path)
    store.folder(whole.run).mkdir()
    store.keep(whole)
    settings = [*(f"{key}={value}" for key, value in values.items()), "target-accuracy=[0.5,0.75]"]
    quiet = Console(file=io.StringIO())
    sweep_settings(settings, tmp_path, tmp_path / "to", "", SchedulerOptions(jobs=1), quiet)
    rows = json.loads((tmp_path / "to" / "sweep.json").read_text())["rows"]
    assert {row["target-accuracy"]: row["rounds-to-target"] for row in rows} == {0.5: 2, 0.75: 3}


def test_the_table_of_a_sweep_is_printed_also_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {"num-clients": 10, "num-server-rounds": 1}
    store, done = Store(tmp_path), record([0.0, 0.25], run=Request.of(values, 1).run)
    store.folder(done.run).mkdir()
    store.keep(done)

    def full(*given: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "sweep.json")

    monkeypatch.setattr(grid, "write_json", full)
    settings, shown = [f"{key}={value}" for key, value in values.items()], io.StringIO()
    console, options = Console(file=shown, width=200), SchedulerOptions(jobs=1)
    with pytest.raises(RunError, match=r"sweep.json cannot be written \(No space left"):
        sweep_settings(settings, tmp_path, tmp_path / "to", "", options, console)
    assert "0.25" in shown.getvalue()


def test_a_score_is_the_mean_of_the_window() -> None:
    """The last evaluation alone would be 0.6; the mean of the last two is 0.45."""
    cell = Cell({}, 3, measure="accuracy", window=2)
    assert cell.score([record([0.0, 0.3, 0.6])]) == (pytest.approx(-0.45), 0.0)


def test_the_first_accuracy_is_interpolated_from_nothing() -> None:
    """Without an accuracy before it there is nothing to interpolate from, not an accuracy of 0."""
    assert record([None, None, 0.5]).rounds_to(0.25) == 2


def test_only_batched_runs_are_stacked() -> None:
    """The sequential trainer has no program to share."""
    assert Request.of({"trainer": "sequential", "seed": 1}, 5).common is None
    assert Request.of({"trainer": "batched", "seed": 1}, 5).common == (("trainer", "batched"),)
