"""What callbacks leave behind."""

import errno
import io
import math
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fedapp.client_app import app as client_app
from fedapp.config.read import read_config
from fedapp.engines.in_process import InlineGrid
from fedapp.federation.callback import Callback, ServerState
from fedapp.federation.round_result import RoundResult
from fedapp.runs import callbacks
from fedapp.runs.callbacks import Checkpoints, Metrics, ProgressReport, TensorBoardWriter
from fedapp.runs.checkpoint import load_checkpoint
from fedapp.runs.directory import RunDirectory
from fedapp.runs.metrics import read_metrics, to_line
from fedapp.server import run as run_server
from tests.in_process import SMALL


def result(round_, seconds=0.5, **numbers):
    scores = {"clients": [1, 2], "model_changed": True} | numbers
    return RoundResult(round_, scores=scores, seconds={"train": seconds, "round": seconds})


def scalars(folder, tag):
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(tag)]


def test_tensorboard_shows_every_number_and_forgets_what_a_resume_does_again(tmp_path):
    first = TensorBoardWriter(RunDirectory(tmp_path))
    first.on_start(ServerState(0, {}))
    for round_ in (1, 2, 3):
        first.on_round(result(round_, test_accuracy=round_ / 4), ServerState(round_, {}))
    first.close()
    assert scalars(tmp_path, "test_accuracy") == [(1, 0.25), (2, 0.5), (3, 0.75)]
    assert scalars(tmp_path, "seconds/train") == [(1, 0.5), (2, 0.5), (3, 0.5)]

    resumed = TensorBoardWriter(RunDirectory(tmp_path))
    resumed.on_start(ServerState(1, {}))
    resumed.on_round(result(2, test_accuracy=0.375), ServerState(2, {}))
    resumed.close()
    assert scalars(tmp_path, "test_accuracy") == [(1, 0.25), (2, 0.375)]


def test_events_that_cannot_be_written_at_the_end_fail_no_run(tmp_path, caplog):
    """The thread that writes them raises its error where the file is closed."""

    def close():
        raise OSError(errno.ENOSPC, "No space left on device")

    writer = TensorBoardWriter(RunDirectory(tmp_path))
    writer._writer = SimpleNamespace(close=close)
    writer.close()
    assert "tensorboard lacks its last events: [Errno 28] No space left" in caplog.text


def test_a_run_goes_on_without_a_folder_for_events(tmp_path, caplog):
    (tmp_path / "tensorboard").write_text("")
    writer = TensorBoardWriter(RunDirectory(tmp_path))
    writer.on_start(ServerState(0, {}))
    writer.close()
    assert "No further events in" in caplog.text


def test_every_callback_is_closed_also_after_one_that_fails(tmp_path):
    closed = []

    class Tracker(Callback):
        def __init__(self, name):
            self.name = name

        def close(self):
            closed.append(self.name)
            if self.name == "first":
                raise OSError("disk full")

    values = {**SMALL, "num-server-rounds": 1, "run-dir": str(tmp_path / "run")}
    trackers = [Tracker("first"), Tracker("second")]
    with pytest.raises(OSError, match="disk full"):
        run_server(InlineGrid(client_app, values, [{}]), read_config(values), trackers)
    assert closed == ["first", "second"]


@pytest.mark.parametrize(
    ("every", "seconds", "written"),
    [
        (0, 0.0, [8]),
        (3, 0.0, [3, 6, 8]),
        (0, 60.0, [3, 6, 8]),  # 0, 25, 50, 75 seconds: the third round ends too late
        (5, 60.0, [3, 5, 8]),  # the one of the fifth round puts off the next by time
        (1, 60.0, [1, 2, 3, 4, 5, 6, 7, 8]),
    ],
)
def test_checkpoints_by_rounds_and_by_seconds(tmp_path, monkeypatch, every, seconds, written):
    """Eight rounds of 25 seconds each."""
    clock, rounds = SimpleNamespace(now=0.0), []
    monkeypatch.setattr(callbacks, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr(callbacks, "save_checkpoint", lambda _, state: rounds.append(state.round))
    checkpoints = Checkpoints(RunDirectory(tmp_path), every, seconds)
    for round_ in range(1, 9):
        clock.now += 25.0
        checkpoints.on_round(result(round_), ServerState(round_, {}))
    checkpoints.on_end(ServerState(8, {}))
    assert rounds == written


def test_a_round_that_is_interrupted_in_its_evaluation_is_in_no_checkpoint(tmp_path):
    """The state is that of the round by then, and metrics.jsonl does not have it."""
    directory = RunDirectory(tmp_path)
    checkpoints = Checkpoints(directory, every=0, seconds=0.0)
    state = ServerState(1, {"w": torch.ones(1)})
    checkpoints.on_round(result(1), state)
    state.round, state.theta = 2, {"w": torch.zeros(1)}  # as ``FederatedStrategy._round`` does
    checkpoints.close()
    kept = load_checkpoint(directory.checkpoints)
    assert (kept.round, kept.theta["w"].item()) == (1, 1.0)


@pytest.mark.parametrize(("privacy", "kept"), [({"epsilon": 1.0}, 2), ({}, 1)], ids=["private", ""])
def test_a_private_run_keeps_also_a_charged_round_that_changed_nothing(tmp_path, privacy, kept):
    """A resume would draw it again, and charge for it again."""
    checkpoints = Checkpoints(RunDirectory(tmp_path), every=0, seconds=0.0)
    for round_, problem in ((1, ""), (2, "too few")):
        training = SimpleNamespace(problem=problem)
        checkpoints.on_round(
            SimpleNamespace(round=round_, privacy=privacy, training=training),
            ServerState(round_, {"w": torch.ones(1)}),
        )
    checkpoints.close()
    assert load_checkpoint(RunDirectory(tmp_path).checkpoints).round == kept


@pytest.mark.parametrize(("round_", "kept"), [(0, []), (1, [0, 1]), (2, [0, 1, 2])])
def test_a_resumed_run_has_no_round_twice(tmp_path, round_, kept):
    """Round 0, too, is evaluated again where a run goes on from its first checkpoint."""
    lines = (to_line({"round": number, "seconds": {}}) for number in range(3))
    (tmp_path / "metrics.jsonl").write_text("".join(lines))
    Metrics(RunDirectory(tmp_path)).on_start(ServerState(round_, {}))
    assert [record["round"] for record in read_metrics(tmp_path / "metrics.jsonl")] == kept


def test_why_a_run_ended_is_said_also_if_no_checkpoint_can_be_written(
    tmp_path, monkeypatch, caplog
):
    def no_room(folder, state):
        if state.round:
            raise MemoryError("no room for a copy")

    class Stop(Callback):
        def on_round(self, result, state):
            if result.round == 1:
                raise ValueError("the reason")
            return False

    monkeypatch.setattr(callbacks, "save_checkpoint", no_room)
    values = {**SMALL, "run-dir": str(tmp_path / "run")}
    with pytest.raises(ValueError, match="the reason"):
        run_server(InlineGrid(client_app, values, [{}]), read_config(values), [Stop()])
    assert "checkpoints: MemoryError: no room for a copy" in caplog.text


def test_the_bar_says_what_the_task_has(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    shown = io.StringIO()
    report = ProgressReport(6, Console(file=shown, force_terminal=True, width=100))
    report.on_start(ServerState(0, {}))
    report.on_round(result(1, 40.0, test_loss=0.25, test_rmse=0.5), ServerState(1, {}))
    report.on_round(result(2, 40.0), ServerState(2, {}))  # not evaluated
    report.close()
    last = shown.getvalue().splitlines()[-2]
    assert "loss 0.2500  RMSE 0.5000" in last
    assert "accuracy" not in last


def test_numbers_are_those_of_a_round_and_its_groups():
    similarity = {"fc1": 0.5, "fc2": None}
    found = result(1, similarity=similarity, faults={"late": 2}, client_train_loss={"3": 1.0})
    assert found.numbers == {
        "round": 1, "seconds/train": 0.5, "seconds/round": 0.5, "similarity/fc1": 0.5, "faults/late": 2,
    }  # fmt: skip


def test_a_round_line_says_no_number_that_there_is_none_of(caplog):
    """Nobody replied, so there is no training loss."""
    report = ProgressReport(6, Console(file=io.StringIO()))
    numbers = {"test_accuracy": 0.5, "test_loss": 1.25, "replied": 0, "train_loss": math.nan}
    report.on_round(result(3, 40.0, **numbers), ServerState(3, {}))
    numbers |= {"replied": 2, "train_loss": 0.25}
    report.on_round(result(4, 40.0, **numbers), ServerState(4, {}))
    assert caplog.messages == [
        "round 3/6, accuracy 0.5000, loss 1.2500, 0 of 2 clients, 40.00 s",
        "round 4/6, accuracy 0.5000, loss 1.2500, training loss 0.2500, 2 of 2 clients, 40.00 s",
    ]


def test_what_json_lacks_is_null():
    numbers = {"round": 1, "a": math.inf, "b": {"c": -math.inf, "d": math.nan}}
    assert to_line(numbers) == '{"round": 1, "a": null, "b": {"c": null, "d": null}}\n'
