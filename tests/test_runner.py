"""The runner as processes: workers that die, and a runner that is killed again and again."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from rich.console import Console

from fedapp.cli import main as cli
from fedapp.runs import lock
from fedapp.runs.metrics import read_metrics
from fedapp.runs.status import status
from fedapp.studies.sweep import execute as execute_module
from fedapp.studies.sweep.command import sweep_settings
from fedapp.studies.sweep.execute import execute_run
from fedapp.studies.sweep.identity import Request
from fedapp.studies.sweep.scheduler import Schedule, SchedulerOptions
from fedapp.studies.sweep.search import Plans, SearchResult, fixed
from fedapp.studies.sweep.store import Store
from fedapp.studies.sweep.workers import Worker, WorkerEvent
from tests.killed import PROCESSES

pytestmark = pytest.mark.process
SMALL = {"num-clients": 10, "local-epochs": 1, "2nn.hidden": 16, "device": "cpu"}
ROUNDS = 60
SECONDS = 300


def quiet() -> Console:
    return Console(file=io.StringIO())


def requests(rates, rounds: int = ROUNDS, **more) -> list[Request]:
    """Return a run for each rate, with a checkpoint every third round."""
    base = {**SMALL, "checkpoint-every": 3, "pictures": False}
    return [Request.of({**base, "learning-rate": rate, **more}, rounds) for rate in rates]


def execute(
    plans: Plans, store: Store, **options: Any
) -> tuple[dict[str, SearchResult], dict[str, str]]:
    """Return the plans' results and the runs that failed or diverged, of one worker."""
    schedule = Schedule(plans, store, SchedulerOptions(jobs=1, **options), quiet())
    return schedule.run(), schedule.failed


@pytest.mark.usefixtures("forked_workers")
def test_runs_that_diverge_or_whose_worker_dies_are_named_and_do_not_stop_the_rest(
    tmp_path: Path,
) -> None:
    good, wild = requests([0.1, 1e30], rounds=3)
    [broken] = requests([0.1], rounds=3, dataset="quadratic", model="2nn")
    store = Store(tmp_path)
    plans = {
        name: (lambda r=r: fixed([r])) for name, r in zip("abc", (wild, broken, good), strict=True)
    }
    outcomes, failed = execute(plans, store)
    statuses = {name: outcome.runs[0].status for name, outcome in outcomes.items()}
    assert statuses == {"a": "diverged", "b": "failed", "c": "complete"}
    assert set(failed) == {wild.run, broken.run}
    assert "not finite" in failed[wild.run]
    assert outcomes["c"].runs[0].last_round == 3
    inode = (store.folder(good.run) / "record.json").stat().st_ino
    execute(plans, Store(tmp_path))
    assert (store.folder(good.run) / "record.json").stat().st_ino == inode  # nothing ran again

    [longer] = requests([0.1], rounds=6)
    assert longer.run == good.run
    outcomes, _ = execute({"d": lambda: fixed([longer])}, Store(tmp_path))
    assert outcomes["d"].runs[0].rounds == [0, 1, 2, 3, 4, 5, 6]
    assert [row["round"] for row in read_metrics(store.folder(good.run) / "metrics.jsonl")] == [
        *range(7)
    ]


@pytest.mark.usefixtures("forked_workers")
def test_a_run_that_records_its_updates_serves_the_one_that_does_not(tmp_path: Path) -> None:
    [plain] = requests([0.1], rounds=3)
    [recording] = requests([0.1], rounds=3, **{"record-updates": True})
    plans = {"a": lambda: fixed([plain]), "b": lambda: fixed([recording])}
    outcomes, _ = execute(plans, Store(tmp_path))
    assert outcomes["a"].runs == outcomes["b"].runs
    assert not Store(tmp_path).folder(plain.run).exists()
    alone, _ = execute({"a": plans["a"]}, Store(tmp_path / "alone"))
    [served], [own] = outcomes["a"].runs, alone["a"].runs
    assert (served.run, own.run) == (recording.run, plain.run)
    assert served.loss == pytest.approx(own.loss, rel=1e-5)
    assert served.accuracy == own.accuracy
    assert Store(tmp_path / "alone").find(recording) is None  # it has no updates


def test_a_worker_that_dies_between_two_runs_is_replaced(tmp_path: Path) -> None:
    [request] = requests([0.1], rounds=2)
    worker = Worker(1, tmp_path)
    os.kill(worker.process.pid or 0, signal.SIGKILL)
    worker.process.join()
    worker.assign([request])
    while worker.requests:
        news = worker.events()
    assert news[-1].problem == ""
    found = Store(tmp_path).find(request)
    assert found is not None
    assert found.last_round == 2
    worker.pipe.close()
    worker.process.join()


@pytest.mark.nightly
def test_when_the_time_is_up_runs_are_cut_at_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is begun any more; what was running goes on another time, and ends the same."""
    [short], [long] = requests([0.1], rounds=3), requests([0.3], rounds=10**6)
    [later] = requests([0.2], rounds=3)
    store = Store(tmp_path / "cut")
    monkeypatch.setattr(
        Schedule, "seconds_left", lambda _: 0.0 if rounds_done(store.root) >= 10 else 60.0
    )
    plans = {
        name: (lambda r=r: fixed([r])) for name, r in (("a", short), ("b", long), ("c", later))
    }
    outcomes, failed = execute(plans, store, hours=1.0)
    assert list(outcomes) == ["a"]
    assert not failed
    assert not store.folder(later.run).exists()
    done = len(read_metrics(store.folder(long.run) / "metrics.jsonl")) - 1
    assert (store.folder(long.run) / "checkpoints" / f"round-{done:06d}.json").exists()

    monkeypatch.undo()
    [further] = requests([0.3], rounds=done + 5)
    curves = []
    for root in (store.root, tmp_path / "whole"):
        again, _ = execute({"b": lambda: fixed([further])}, Store(root))
        curves.append((again["b"].runs[0].accuracy, again["b"].runs[0].loss))
    assert curves[0] == curves[1]


@pytest.mark.timeout(60)
def test_a_run_that_another_process_is_at_work_on_is_not_waited_for_when_all_stops(
    tmp_path: Path,
) -> None:
    [request] = requests([0.1], rounds=1)
    with Store(tmp_path).lock(request.run):
        assert execute_run(request, Store(tmp_path), lambda round_, accuracy: True) is None
    assert execute_run(request, Store(tmp_path), lambda round_, accuracy: False).last_round == 1


def test_a_run_that_is_stopped_can_be_resumed_and_is_not_finished(tmp_path: Path) -> None:
    [request] = requests([0.1], rounds=4)
    assert execute_run(request, Store(tmp_path), lambda round_, accuracy: round_ == 2) is None
    folder = tmp_path / request.run
    rows = dict(status(folder))
    assert rows["resume"].startswith("from round 2: fedapp run --resume ")
    assert rows["ended because"] == "its sweep was stopped"
    assert not (folder / "model.safetensors").exists()
    assert execute_run(request, Store(tmp_path), lambda round_, accuracy: False).last_round == 4


def test_a_run_that_is_stopped_in_its_last_round_ends(tmp_path: Path) -> None:
    [request] = requests([0.1], rounds=2)
    record = execute_run(request, Store(tmp_path), lambda round_, accuracy: round_ == 2)
    assert (record.status, record.last_round) == ("complete", 2)
    assert dict(status(tmp_path / request.run))["state"] == "finished"


@pytest.mark.parametrize("target", [0.0, 0.12])
def test_a_run_that_was_killed_before_its_last_files_is_resumed_for_them(
    target: float, tmp_path: Path
) -> None:
    """And runs no round again, also where its target ended it."""
    [request] = requests([0.1], rounds=9 if target else 3, **{"eval-every": 2})
    request = Request.of(dict(request.settings), request.rounds, target)
    store, folder = Store(tmp_path), tmp_path / request.run
    record = execute_run(request, store, lambda *_: False)
    metrics = (folder / "metrics.jsonl").read_bytes()
    for name in ("model.safetensors", "record.json"):
        (folder / name).unlink()
    again = execute_run(request, Store(tmp_path), lambda *_: False)
    assert (again.rounds, again.loss) == (record.rounds, record.loss)
    assert (folder / "metrics.jsonl").read_bytes() == metrics
    assert dict(status(folder))["state"] == "finished"

    [shorter] = requests([0.1], rounds=2, **{"eval-every": 2})
    (folder / "model.safetensors").unlink()
    (folder / "record.json").unlink()
    assert execute_run(shorter, Store(tmp_path), lambda *_: False).status == "complete"
    assert not (folder / "model.safetensors").exists()  # it is that of the longer request


def test_a_run_that_is_resumed_by_hand_is_not_recorded_as_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the runs after it go on meanwhile."""
    [request], store = requests([0.1], rounds=2), Store(tmp_path)
    monkeypatch.setattr(execute_module, "LOCK_TIMEOUT", 0.0)
    monkeypatch.setattr(lock, "LOCK_TIMEOUT", 0.0)
    folder = store.folder(request.run)
    folder.mkdir()
    with FileLock(folder / ".lock"):
        assert execute_run(request, store, lambda *_: False) is None
        with monkeypatch.context() as patch:  # it begins in this moment
            patch.setattr(execute_module, "is_locked", lambda directory: False)
            assert execute_run(request, store, lambda *_: False) is None
        assert store.find(request) is None
        console = Console(file=io.StringIO(), width=200)
        schedule = Schedule({}, store, SchedulerOptions(), console)
        for _ in range(2):
            schedule._report("a", WorkerEvent(request, done=True))
        assert console.file.getvalue() == (
            f"a  {request.run}  waits: another process runs it, in {folder}\n"
        )
    assert execute_run(request, store, lambda *_: False).status == "complete"


def test_a_longer_request_leaves_the_result_of_a_shorter_one_as_it_was(tmp_path: Path) -> None:
    """They share a run, which is evaluated every other round, and where the shorter one ended."""
    short, long = (Request.of({**SMALL, "eval-every": 2}, rounds) for rounds in (3, 5))
    store = Store(tmp_path)
    before = execute_run(short, store, lambda round_, accuracy: False)
    execute_run(long, store, lambda round_, accuracy: False)
    after = Store(tmp_path).find(short)
    assert before is not None
    assert after is not None
    assert before.rounds == after.rounds == [0, 2, 3]
    assert before.accuracy == after.accuracy
    assert Store(tmp_path).find(long).rounds == [0, 2, 4, 5]


@pytest.mark.usefixtures("forked_workers")
def test_the_order_of_lengths_in_a_sweep_changes_no_row(tmp_path: Path) -> None:
    """All are one run, evaluated every five rounds, and where each of them ends."""

    def accuracies(lengths: str) -> dict[tuple[int, int], float]:
        folder = tmp_path / lengths
        words = [f"{key}={value}" for key, value in {**SMALL, "eval-every": 5}.items()]
        words.append(f"num-server-rounds={lengths}")
        sweep_settings(words, folder, folder / "to", "", SchedulerOptions(jobs=1), quiet())
        rows = json.loads((folder / "to" / "sweep.json").read_text())["rows"]
        return {(row["num-server-rounds"], row["rounds"]): row["accuracy"] for row in rows}

    rising = accuracies("[3,4,9]")
    assert sorted(rising) == [(3, 3), (4, 4), (9, 9)]
    assert accuracies("[9,4,3]") == rising


@pytest.mark.usefixtures("forked_workers")
def test_a_run_that_records_its_updates_stops_where_the_one_that_does_not_ends(
    tmp_path: Path,
) -> None:
    [plain] = requests([0.1], rounds=3, **{"eval-every": 5})
    [recording] = requests([0.1], rounds=6, **{"eval-every": 5, "record-updates": True})
    plans = {"a": lambda: fixed([recording]), "b": lambda: fixed([plain])}
    outcomes, _ = execute(plans, Store(tmp_path))
    assert outcomes["a"].runs[0].rounds == [0, 5, 6]
    assert outcomes["b"].runs[0].rounds == [0, 3]
    assert not Store(tmp_path).folder(plain.run).exists()


def test_a_worker_is_not_interrupted_while_it_begins(tmp_path: Path) -> None:
    """A terminal sends Ctrl-C to all processes; workers leave it to their parent."""
    before = signal.getsignal(signal.SIGINT)
    worker = Worker(1, tmp_path)
    assert signal.getsignal(signal.SIGINT) is before
    os.kill(worker.process.pid, signal.SIGINT)
    worker.stop.set()
    worker.pipe.close()
    worker.process.join(SECONDS)
    assert worker.process.exitcode == 0


def _sweep(folder: Path, stacked: int, trainer: str) -> None:
    """Be `fedapp sweep` over four runs, with two workers, in a session of its own."""
    os.setsid()
    settings = {**SMALL, "num-server-rounds": ROUNDS, "checkpoint-every": 3}
    settings |= {"trainer": trainer, "program": "record", "precision": "float64"}
    words = [f"{key}={value}" for key, value in settings.items()]
    grid = ["learning-rate=[0.03,0.1]", "seed=[0,1]"]
    try:
        jobs = 2 // stacked or 1
        cli.sweep([*words, *grid], jobs=jobs, runs=folder, to=folder / "out", stacked=stacked)
    except KeyboardInterrupt:
        sys.exit(130)


def start(folder: Path, stacked: int = 1, trainer: str = "auto") -> Any:
    process = PROCESSES.Process(target=_sweep, args=(folder, stacked, trainer))
    process.start()
    return process


def ended(process: Any) -> int:
    """Wait for the process and return its exit code."""
    process.join(SECONDS)
    return int(process.exitcode)


def rounds_done(folder: Path) -> int:
    return sum(len(path.read_text().splitlines()) for path in folder.glob("*/metrics.jsonl"))


def wait_for_rounds(process: Any, folder: Path, count: int) -> None:
    """Wait until so many more rounds are done."""
    before, until = rounds_done(folder), time.monotonic() + SECONDS
    while rounds_done(folder) < before + count and process.is_alive():
        assert time.monotonic() < until
        time.sleep(0.02)


def living(group: int) -> list[str]:
    """Return the processes of a group that are not yet dead."""
    said = subprocess.run(["ps", "-eo", "pgid=,stat=,args="], capture_output=True, text=True)
    words = [line.split(maxsplit=2) for line in said.stdout.splitlines()]
    return [args for pgid, stat, args in words if pgid == str(group) and stat[0] != "Z"]


@pytest.mark.timeout(900)
@pytest.mark.nightly
@pytest.mark.parametrize("stacked", [1, 4])
@pytest.mark.parametrize("kills", [3, 10])
def test_a_runner_killed_again_and_again_loses_nothing_and_runs_nothing_twice(
    kills: int, stacked: int, tmp_path: Path
) -> None:
    """Also where all four runs train in one program: to rounding what each gives alone."""
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    ends: dict[str, int] = {}
    for number in range(kills):
        process = start(killed, stacked)
        wait_for_rounds(process, killed, 5)
        # Every other time the workers die with it; else they have to find out by themselves.
        (os.kill if number % 2 else os.killpg)(process.pid, signal.SIGKILL)
        assert ended(process) == -signal.SIGKILL
        for run, stamp in ends.items():  # what was done stays as it was
            assert (killed / run / "record.json").stat().st_mtime_ns == stamp
        ends = {p.parent.name: p.stat().st_mtime_ns for p in killed.glob("*/record.json")}
    assert ended(start(killed, stacked)) == 0
    assert ended(start(whole)) == 0

    journal = [json.loads(line) for line in (killed / "journal.jsonl").read_text().splitlines()]
    finished = Counter(line["run"] for line in journal if line["event"] == "complete")
    assert sorted(finished.values()) == [1, 1, 1, 1]
    assert sum(line["event"] == "continued" for line in journal) >= max(kills - 4, 1)
    for path in whole.glob("*/record.json"):
        mine = json.loads((killed / path.parent.name / "record.json").read_text())
        theirs = json.loads(path.read_text())
        assert mine["execution"]["trainer"] == ("auto" if stacked == 1 else "batched")
        exact = {"rel": 0.0, "abs": 0.0} if stacked == 1 else {"rel": 1e-5, "abs": 1e-9}
        assert mine["accuracy"] == pytest.approx(theirs["accuracy"], **exact)
        assert mine["loss"] == pytest.approx(theirs["loss"], **exact)
        rows = read_metrics(killed / path.parent.name / "metrics.jsonl")
        assert [row["round"] for row in rows] == list(range(ROUNDS + 1))


def test_a_signal_ends_the_round_writes_a_checkpoint_and_leaves_no_process(tmp_path: Path) -> None:
    process = start(tmp_path)
    wait_for_rounds(process, tmp_path, 5)
    os.kill(process.pid, signal.SIGTERM)
    assert ended(process) == 130
    journal = [json.loads(line) for line in (tmp_path / "journal.jsonl").read_text().splitlines()]
    stopped = [line for line in journal if line["event"] == "stopped"]
    assert stopped
    for line in stopped:
        checkpoints = tmp_path / line["run"] / "checkpoints"
        assert (checkpoints / f"round-{line['round']:06d}.json").exists()
    until = time.monotonic() + SECONDS
    while living(process.pid):
        assert time.monotonic() < until
        time.sleep(0.1)
