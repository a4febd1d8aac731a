"""Runs in one batch: each gives the numbers that it gives alone, whatever the others do."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedapp.client_app import app as client_app
from fedapp.config.read import read_config
from fedapp.data.dataset import Examples
from fedapp.engines.in_process import InlineGrid
from fedapp.federation.callback import Callback, ServerState
from fedapp.federation.round_result import RoundResult
from fedapp.runs.status import status
from fedapp.server import run
from fedapp.studies.sweep.execute import Job, execute_run, execute_together
from fedapp.studies.sweep.identity import Request
from fedapp.studies.sweep.record import RunRecord
from fedapp.studies.sweep.store import Store
from fedapp.training.algorithm import ClientContext, ClientExtras
from fedapp.training.batched.run_batching import RunBatch, current_run_batch
from fedapp.training.round_plan import RoundPlan
from fedapp.training.trainer import CaptureError, ClientResult, ClientTask
from tests.conftest import SMALL, largest_difference, slow_but
from tests.in_process import metrics, model

SECONDS = 120
BATCHED: dict[str, Any] = {"trainer": "batched", "program": "record", "2nn.hidden": 8}


def in_one_batch(works: Sequence[Callable[[], Any]]) -> list[Any]:
    """Do each work in a thread that takes part in one batch; return what it returns or raises."""
    run_batch = RunBatch(len(works))
    found: list[Any] = [None] * len(works)

    def take_part(place: int) -> None:
        try:
            with run_batch.taking_part():
                found[place] = works[place]()
        except BaseException as error:
            found[place] = error

    threads = [
        threading.Thread(target=take_part, args=(p,), daemon=True) for p in range(len(works))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
        assert not thread.is_alive()
    return found


# ---------------------------------------------------------------- the batch


PLAN = RoundPlan(1, 0, 1, "epoch", 0.1)


def task(value: float) -> ClientTask:
    examples = Examples(np.full((1, 1), value), np.zeros(1, np.int64))
    return ClientTask(ClientContext({}), examples, np.random.default_rng(0))


class Doubling:
    """Gives each client a draw and twice its example; notes how many came at a time."""

    def __init__(self, error: type[BaseException] = ValueError) -> None:
        self.sizes: list[int] = []
        self.error = error

    def train(self, tasks: Sequence[ClientTask], plan: RoundPlan) -> list[ClientResult]:
        self.sizes.append(len(tasks))
        draws = [task.rng.random() for task in tasks]
        values = [float(task.examples.inputs[0, 0]) for task in tasks]
        if any(value < 0 for value in values):
            raise self.error("a negative example")
        return [
            ClientResult({"x": torch.tensor([2 * value, draw])}, 1, 1, 0.0, ClientExtras())
            for value, draw in zip(values, draws, strict=True)
        ]


def rounds_of(trainer: Doubling, values: Sequence[float]) -> Callable[[], list[float]]:
    """Return a run that trains one client after another, one a round."""

    def work() -> list[float]:
        run_batch = current_run_batch()
        assert run_batch is not None
        replies = [run_batch.client_updates(trainer.train, [task(v)], PLAN) for v in values]
        return [float(reply[0].params["x"][0]) for reply in replies]

    return work


def test_all_runs_of_a_batch_train_together_until_they_end() -> None:
    trainer = Doubling()
    found = in_one_batch(
        [rounds_of(trainer, [1, 2, 3]), rounds_of(trainer, [4]), rounds_of(trainer, [5, 6])]
    )
    assert found == [[2, 4, 6], [8], [10, 12]]
    assert sorted(trainer.sizes) == [1, 2, 3]
    assert current_run_batch() is None


@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_a_run_that_raises_does_not_harm_the_others_and_draws_nothing_twice(
    error: type[BaseException],
) -> None:
    trainer, draws = Doubling(error), []

    def drawing() -> None:
        for value in (1.0, 1.0):
            run_batch = current_run_batch()
            assert run_batch is not None
            [reply] = run_batch.client_updates(trainer.train, [task(value)], PLAN)
            draws.append(float(reply.params["x"][1]))

    [wrong, fine] = in_one_batch([rounds_of(trainer, [-1]), drawing])
    assert isinstance(wrong, error)
    assert fine is None
    first = np.float32(np.random.default_rng(0).random())
    assert draws == [first, first]


def test_a_run_that_calls_exit_while_it_trains_ends_itself_and_no_other() -> None:
    """Its clients may be trained in the thread of another run."""

    class Exits(Doubling):
        def train(self, tasks: Sequence[ClientTask], plan: RoundPlan) -> list[ClientResult]:
            if any(float(task.examples.inputs[0, 0]) < 0 for task in tasks):
                sys.exit("accuracy is enough")
            return super().train(tasks, plan)

    trainer = Exits()
    [wrong, fine] = in_one_batch([rounds_of(trainer, [-1]), rounds_of(trainer, [1, 2])])
    assert isinstance(wrong, SystemExit)
    assert fine == [2, 4]


def test_after_half_a_capture_nobody_trains_anew() -> None:
    """A GPU whose memory is in disorder gives no numbers to be trusted."""

    class Captures(Doubling):
        def train(self, tasks: Sequence[ClientTask], plan: RoundPlan) -> list[ClientResult]:
            self.sizes.append(len(tasks))
            raise CaptureError("not captured to its end")

    trainer = Captures()
    found = in_one_batch([rounds_of(trainer, [1]), rounds_of(trainer, [2])])
    assert [type(each) for each in found] == [CaptureError] * 2
    assert trainer.sizes == [2]


def test_a_run_that_raises_before_it_trains_leaves_the_batch() -> None:
    trainer = Doubling()

    def fails() -> None:
        raise OSError("no data")

    [wrong, fine] = in_one_batch([fails, rounds_of(trainer, [1, 2])])
    assert isinstance(wrong, OSError)
    assert fine == [2, 4]


def test_a_thread_that_takes_no_part_is_in_no_batch() -> None:
    run_batch = RunBatch(1)
    with run_batch.taking_part():
        assert current_run_batch() is run_batch
    assert current_run_batch() is None


def test_what_has_another_plan_is_trained_for_itself() -> None:
    trainer, other = Doubling(), RoundPlan(2, 0, 1, "epoch", 0.1)

    def differs() -> None:
        run_batch = current_run_batch()
        assert run_batch is not None
        run_batch.client_updates(trainer.train, [task(1)], other)

    in_one_batch([rounds_of(trainer, [1]), differs])
    assert trainer.sizes == [1, 1]


# ---------------------------------------------------------------- whole runs


class Raising(Callback):
    """Raises after a round."""

    def __init__(self, after: int) -> None:
        self.after = after

    def on_round(self, result: RoundResult, state: ServerState) -> bool:
        if state.round == self.after:
            raise OSError("the disk is gone")
        return False


def work(folder: Path, more: Mapping[str, Any], *callbacks: Callback) -> Callable[[], None]:
    values = {**SMALL, **BATCHED, "run-dir": str(folder), **more}

    def go() -> None:
        run(InlineGrid(client_app, values, [{}]), read_config(values), list(callbacks))

    return go


FALLING = {"local-epochs": 3, "local-epochs-decay": 0.5}
"""E = 3, 2, 1: the others' E is 1, so that this run trains with them from its third round on."""
UNEQUAL = {"partitioner": "sgm", "sgm.sigma": 0.8}
"""Seeds draw other sizes: clients of some runs have more steps than those of others."""


@pytest.mark.parametrize("together", slow_but((1,), (1, 0, 2), (2,)))
@pytest.mark.parametrize("algorithm", slow_but(("fedavg",), ("fedavg", "scaffold")))
def test_runs_of_unequal_sizes_and_lengths_are_what_they_are_alone(
    algorithm: str, together: int, tmp_path: Path
) -> None:
    """Four runs: one ends after its second round, one raises in its third."""
    runs: dict[str, dict[str, Any]] = {
        "a": {"learning-rate": 0.1},
        "b": {"learning-rate": 0.3, "seed": 1, "num-server-rounds": 2},
        "c": {"learning-rate": 0.03, "seed": 2, "learning-rate-decay": 0.5, **FALLING},
        "d": {"learning-rate": 0.2},
    }
    common = {**UNEQUAL, "clients-together": together, "algorithm": algorithm}
    common |= {"num-server-rounds": 5, "device": "cpu"}
    runs = {name: {**common, **more} for name, more in runs.items()}
    for name, more in runs.items():
        if name != "d":
            work(tmp_path / "alone" / name, more)()
    works = [
        work(tmp_path / "stacked" / name, more, *([Raising(3)] if name == "d" else []))
        for name, more in runs.items()
    ]
    assert [type(each) for each in in_one_batch(works)] == [type(None)] * 3 + [OSError]
    for name in "abc":
        alone, stacked = (tmp_path / how / name for how in ("alone", "stacked"))
        assert largest_difference(model(stacked), model(alone)) < 1e-9
        assert {p.name for p in stacked.iterdir()} == {p.name for p in alone.iterdir()}
        check_records(metrics(stacked), metrics(alone))
        mine, theirs = (json.loads((f / "config.json").read_text()) for f in (stacked, alone))
        assert {**mine["config"], "run-dir": ""} == {**theirs["config"], "run-dir": ""}
        assert mine["found"] == theirs["found"]


def check_records(mine: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> None:
    assert [record.keys() for record in mine] == [record.keys() for record in theirs]
    for left, right in zip(mine, theirs, strict=True):
        for key, value in right.items():
            wanted = pytest.approx(value, abs=1e-9) if isinstance(value, float) else value
            assert left[key] == wanted


def test_each_run_logs_its_own_lines(tmp_path: Path) -> None:
    in_one_batch([work(tmp_path / "a", {}), work(tmp_path / "b", {"seed": 1})])
    for name, other in ("ab", "ba"):
        said = (tmp_path / name / "log.jsonl").read_text()
        assert str(tmp_path / name) in said
        assert str(tmp_path / other) not in said
        assert said.count("round 3/3") == 1


# ---------------------------------------------------------------- the runs of a sweep


def request(rate: float, rounds: int = 3, **more: Any) -> Request:
    settings = {**SMALL, "learning-rate": rate, "program": "record", "device": "cpu", **more}
    return Request.of(settings, rounds)


def test_runs_that_cannot_join_the_others_come_after_them(tmp_path: Path) -> None:
    """One was begun with the sequential trainer; another process is at work on one."""
    store, alone = Store(tmp_path / "stacked"), Store(tmp_path / "alone")
    new, second, other = request(0.1), request(0.2), request(0.3)
    begun = request(0.4)
    execute_run(request(0.4, rounds=1), store, lambda *_: False)
    taken = store.lock(other.run)
    taken.acquire()
    ended: dict[str, RunRecord | None] = {}

    def job(wanted: Request) -> Job:
        def done(record: RunRecord | None) -> None:
            ended[wanted.run] = record
            if len(ended) == 2:
                taken.release()

        return Job(wanted, lambda *_: False, done)

    wanted = [begun, other, new, second]
    execute_together([job(each) for each in wanted], store)
    assert set(list(ended)[:2]) == {new.run, second.run}
    for each in wanted:
        mine, theirs = ended[each.run], execute_run(each, alone, lambda *_: False)
        assert mine is not None
        assert theirs is not None
        assert mine.status == "complete"
        assert mine.loss == pytest.approx(theirs.loss, rel=1e-5)
        assert Store(store.root).find(each) == mine
    trainers = {
        each.run: json.loads((store.folder(each.run) / "config.json").read_text())["config"][
            "trainer"
        ]
        for each in wanted
    }
    assert trainers == {
        new.run: "batched",
        second.run: "batched",
        other.run: "auto",
        begun.run: "auto",
    }


def test_a_run_whose_folder_is_damaged_is_named_and_the_others_go_on(tmp_path: Path) -> None:
    """Of one the configuration cannot be read, of one the record."""
    store = Store(tmp_path)
    fine, unread, damaged = request(0.1), request(0.2), request(0.3)
    for wanted, name in ((unread, "config.json"), (damaged, "record.json")):
        store.folder(wanted.run).mkdir()
        (store.folder(wanted.run) / name).write_text("{")
    ended: dict[str, RunRecord | None] = {}

    def job(wanted: Request) -> Job:
        return Job(wanted, lambda *_: False, lambda r: ended.update({wanted.run: r}))

    execute_together([job(fine), job(damaged), job(unread)], store)
    found = {run: record.status for run, record in ended.items() if record}
    assert found == {fine.run: "complete", damaged.run: "failed", unread.run: "failed"}
    problems = {run: record.problem for run, record in ended.items() if record}
    assert "record.json is damaged" in problems[damaged.run]
    assert "config.json is damaged" in problems[unread.run]


def test_a_run_that_fails_or_is_stopped_does_not_stop_the_others(tmp_path: Path) -> None:
    store = Store(tmp_path)
    wild, cut, fine = request(1e30), request(0.1, rounds=9), request(0.2)
    ended: dict[str, RunRecord | None] = {}

    def job(wanted: Request, until: int) -> Job:
        return Job(
            wanted, lambda round_, _: round_ >= until, lambda r: ended.update({wanted.run: r})
        )

    execute_together([job(wild, 99), job(cut, 2), job(fine, 99)], store)
    assert ended[cut.run] is None
    found = {run: record.status for run, record in ended.items() if record}
    assert found == {wild.run: "diverged", fine.run: "complete"}
    assert (store.folder(cut.run) / "checkpoints" / "round-000002.json").exists()


def test_a_run_whose_callback_calls_exit_has_failed(tmp_path: Path) -> None:
    """It ended its thread alone, and nobody heard of the end of the run."""
    (tmp_path / "exits.py").write_text(
        "import sys\nfrom fedapp.federation.callback import RunCallback\n\n\n"
        "class Exits(RunCallback):\n    name = 'exits'\n"
        "    def on_round(self, result, state):\n"
        "        sys.exit('accuracy is enough')\n"
    )
    ended: list[RunRecord | None] = []
    wanted = request(0.1, callbacks=str(tmp_path / "exits.py"))
    execute_together([Job(wanted, lambda *_: False, ended.append)], Store(tmp_path / "runs"))
    [record] = ended
    assert record is not None
    assert (record.status, record.problem) == ("failed", "SystemExit: accuracy is enough")
    end = dict(status(tmp_path / "runs" / wanted.run))["ended because"]
    assert end.startswith("SystemExit: accuracy is enough (")


def test_runs_of_other_rates_and_seeds_train_together() -> None:
    """Runs of a search: they differ in rate and seed, and take one program."""
    trainer = Doubling()

    def run_of(rate: float, seed: int) -> Callable[[], Any]:
        plan = replace(PLAN, learning_rate=rate, seed=seed)

        def work() -> Any:
            run_batch = current_run_batch()
            assert run_batch is not None
            return run_batch.client_updates(trainer.train, [task(1)], plan)

        return work

    in_one_batch([run_of(0.1, 0), run_of(0.3, 1)])
    assert trainer.sizes == [2]
