"""The trainer and the threads of a run whose configuration leaves them open."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fedapp import node
from fedapp.config.read import items_of, read_config
from fedapp.config.settings import Scalar
from fedapp.data.dataset import Task
from fedapp.data.node_data import NodeData, read_node_data
from fedapp.federation.messages import decode_train_request, encode_train_request
from fedapp.machine import cores
from fedapp.runs.directory import RunDirectory
from fedapp.studies.sweep.scheduler import SchedulerOptions
from fedapp.training import execution
from fedapp.training.client import TrainRequest
from fedapp.training.execution import (
    chosen_threads,
    chosen_trainer,
    fastest_num_threads,
    local_steps,
    measured_threads,
)
from fedapp.training.round_plan import RoundPlan
from fedapp.training.trainer import Trainer
from tests.conftest import Run, largest_difference
from tests.in_process import model


def taking(*seconds: float) -> Callable[[int], float]:
    """Return a stopwatch with the seconds of 1, 2, 4 ... threads."""
    return lambda threads: seconds[threads.bit_length() - 1]


@pytest.mark.parametrize(
    ("stopwatch", "most", "threads"),
    [
        (taking(8.0, 5.0, 3.0, 2.9), 8, 4),  # the last doubling gains 3 %
        (taking(8.0, 8.1), 2, 1),
        (taking(8.0, 4.0, 2.0), 3, 2),  # no fourth core
        (taking(8.0, 9.0, 1.0), 4, 1),  # what gets worse is not looked beyond
        (taking(8.0), 1, 1),
    ],
)
def test_threads_double_as_long_as_it_pays(
    stopwatch: Callable[[int], float], most: int, threads: int
) -> None:
    assert fastest_num_threads(stopwatch, most) == threads


def test_the_measurement_trains_and_leaves_the_threads_as_they_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(4)), raising=False)
    seen = []

    def noted(seconds: Callable[[int], float], most: int) -> int:
        seen.append((seconds(1), most))
        return 2

    monkeypatch.setattr("fedapp.training.execution.fastest_num_threads", noted)
    config = read_config({"model": "linear", "threads": 0, "algorithm": "scaffold"})
    before = torch.get_num_threads()
    assert measured_threads(config, read_node_data(config, None), processes=2) == 2
    (taken, most) = seen[0]
    assert taken > 0
    assert most == 2
    assert torch.get_num_threads() == before


def test_what_is_timed_are_the_clients_that_train_together_with_so_many_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Five a thread, those with most examples, of the ten of a round; the time is by client."""
    given = {"trainer": "batched", "device": "cpu", "num-clients": 20, "local-epochs": 1}
    config = read_config({**given, "threads": 0, "batch-size": 2, "program": "record"})
    monkeypatch.setattr("fedapp.training.build.choose_program", lambda *_: "compile")
    seen = []

    def timed(trainer: Trainer, request: TrainRequest, *_: object) -> None:
        seen.append((request.plan.steps, str(trainer), request.clients))

    monkeypatch.setattr("fedapp.training.execution.train_cohort", timed)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1}, raising=False)
    measured_threads(config, read_node_data(config, None))
    steps, trainers, clients = zip(*dict.fromkeys(seen), strict=True)
    assert set(steps) == {5}
    assert [name.split(", ")[1] for name in trainers] == [
        "5 clients a program",
        "10 clients a program",
    ]
    assert [len(each) for each in clients] == [5, 10]
    assert clients[1][:5] == clients[0]


def test_no_measurement_where_there_is_one_core_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1}, raising=False)
    config = read_config({"threads": 0})
    assert measured_threads(config, read_node_data(config, None), processes=2) == 1


def test_what_was_found_is_kept_on_resume(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedapp.training.execution.chosen_threads", lambda *_: 1)
    given = {"threads": 0, "model": "linear"}
    whole = run("whole", num_server_rounds=4, **given)
    cut = run("cut", num_server_rounds=2, **given)
    stored = json.loads(RunDirectory(cut).config.read_text())
    assert (stored["config"]["threads"], stored["found"]["threads"]) == (0, 1)

    def refused(*_: object) -> int:
        raise AssertionError("measured again")

    monkeypatch.setattr("fedapp.training.execution.chosen_threads", refused)
    again = run("cut", num_server_rounds=4, resume=True, **given)
    assert largest_difference(model(again), model(whole)) == 0.0


@pytest.mark.parametrize(
    ("engine", "nodes", "side_by_side"), [("inline", 4, 1), ("workers", 4, 4), ("flower", 2, 2)]
)
def test_nodes_that_are_processes_share_the_cores(
    engine: str, nodes: int, side_by_side: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedapp.training.execution.measured_threads", lambda *given: given[2])
    config = read_config({"threads": 0})
    node_data = read_node_data(config, None)
    found = {"engine": engine, "nodes": nodes}
    executed = execution.executed_config(config, node_data, sizes_of(node_data), found)
    assert executed.threads == found["threads"] == side_by_side


def test_a_short_run_and_one_without_data_here_take_one_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ten of twenty clients take 5 * 8 steps a round: 5,000 steps are 12.5 rounds."""
    monkeypatch.setattr("fedapp.training.execution.measured_threads", lambda *_: 2)
    for rounds, threads in ((12, 1), (13, 2)):
        config = read_config({"num-server-rounds": rounds})
        node_data = read_node_data(config, None)
        assert chosen_threads(config, node_data, sizes_of(node_data)) == threads
    own = replace(node_data, partition=None)
    assert chosen_threads(config, own, [72] * 20) == 1


def sizes_of(node_data: NodeData) -> NDArray[np.int64]:
    assert node_data.partition is not None
    return node_data.partition.sizes


def test_local_steps_of_a_run() -> None:
    """E = 2, B = 10: 2, 4, 2 and 6 steps, 3.5 in the mean; ten rounds of two clients."""
    settings = {"num-server-rounds": 10, "num-clients": 4, "local-epochs": 2, "batch-size": 10}
    assert local_steps(read_config(settings), [10, 20, 5, 25]) == 70.0


LIGHT: dict[str, Scalar] = {"num-server-rounds": 125}  # of 400 local steps: 50,000
IMAGES = Task("image", (1, 28, 28), 10)
DIGITS = Task("image", (1, 8, 8), 10)
TEXT = Task("tokens", (80,), 90, num_symbols=90)


@pytest.mark.parametrize(
    ("settings", "task", "expected"),
    [
        (LIGHT, IMAGES, "batched"),
        ({"num-server-rounds": 124}, IMAGES, "auto"),
        ({**LIGHT, "trainer": "sequential"}, IMAGES, "sequential"),
        ({"num-server-rounds": 1, "trainer": "batched"}, IMAGES, "batched"),
        ({**LIGHT, "program": "record"}, IMAGES, "auto"),
        ({**LIGHT, "batch-size": 0}, IMAGES, "auto"),
        ({"num-server-rounds": 13, "model": "mnist-cnn"}, IMAGES, "batched"),
        ({"num-server-rounds": 12, "model": "mnist-cnn"}, IMAGES, "auto"),
        ({**LIGHT, "model": "char-lstm"}, TEXT, "auto"),
        (
            {**LIGHT, "model": "cnn-bn", "algorithm": "fedbn", "evaluation": "clients"},
            DIGITS,
            "auto",
        ),
    ],
    ids=str,
)
def test_auto_is_batched_where_that_pays(
    settings: dict[str, Scalar], task: Task, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedapp.training.build.can_compile", lambda: True)
    config = read_config({"device": "cpu", **settings})
    assert chosen_trainer(config, task, [72] * 20) == expected


def test_auto_is_left_to_nodes_where_this_machine_is_no_measure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = read_config(LIGHT)
    monkeypatch.setattr("fedapp.training.build.can_compile", lambda: False)
    assert chosen_trainer(config, IMAGES, [72] * 20) == "auto"
    monkeypatch.setattr("fedapp.training.execution.choose_device", lambda _: torch.device("cuda"))
    assert chosen_trainer(config, IMAGES, [72] * 20) == "auto"


def test_what_was_chosen_is_written_and_kept_on_resume(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that has not written it is of a version in which ``auto`` was sequential on a CPU."""
    given = {"device": "cpu", "program": "record", "local_epochs": 1}
    batched = model(run("batched", num_server_rounds=2, trainer="batched", **given))
    monkeypatch.setattr(execution, "chosen_trainer", lambda *_: "batched")
    chosen = run("chosen", num_server_rounds=1, **given)
    stored = json.loads(RunDirectory(chosen).config.read_text())
    assert (stored["config"]["trainer"], stored["found"]["trainer"]) == ("auto", "batched")
    monkeypatch.setattr(execution, "chosen_trainer", lambda *_: "auto")
    again = run("chosen", num_server_rounds=2, resume=True, **given)
    assert largest_difference(model(again), batched) == 0.0
    sequential = run("sequential", num_server_rounds=1, **given)
    file = RunDirectory(sequential).config
    stored = json.loads(file.read_text())
    assert stored["found"].pop("trainer") == "auto"
    file.write_text(json.dumps(stored))
    monkeypatch.setattr(execution, "chosen_trainer", lambda *_: "batched")
    run("sequential", num_server_rounds=2, resume=True, **given)
    assert "trainer" not in json.loads(file.read_text())["found"]


def test_a_node_without_a_compiler_trains_one_by_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("fedapp.training.build.can_compile", lambda: False)

    def made(**settings: Scalar) -> str:
        items = items_of({"device": "cpu", **settings})
        return str(node._make_trainer(items, IMAGES, 1, "batched"))

    assert made(model="2nn") == "sequential on cpu"
    assert "No C++ compiler" in caplog.text
    assert made(model="2nn", program="record").startswith("batched on cpu")
    assert made(model="mnist-cnn").startswith("batched on cpu")


def test_the_cores_are_those_that_the_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no affinity (macOS), all that the machine has."""
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 3}, raising=False)
    assert (cores(), SchedulerOptions().processes(["auto"])) == (2, 2)
    monkeypatch.delattr("os.sched_getaffinity")
    config = read_config({"threads": 0})
    assert (cores(), SchedulerOptions().processes(["auto"])) == (8, 8)
    assert measured_threads(config, read_node_data(config, None), processes=8) == 1


@pytest.mark.parametrize(("asked", "used"), [(2, 2), (4, 3)])
def test_a_node_evaluates_with_as_many_threads_as_it_trains(
    asked: int, used: int, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's own; then the node's: evaluation, training, evaluation. Three cores are there."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2}, raising=False)
    called: list[int] = []
    monkeypatch.setattr("torch.set_num_threads", called.append)
    run(num_server_rounds=1, evaluation="clients", threads=asked)
    assert called == [used] * 4


def test_a_node_is_told() -> None:
    order = TrainRequest(RoundPlan(threads=3), (0,))
    assert decode_train_request(encode_train_request(order, _empty()))[0] == order


def _empty():
    from fedapp.federation.arrays import to_arrays

    return to_arrays({})
