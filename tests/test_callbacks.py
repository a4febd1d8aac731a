"""What callbacks leave behind."""

from types import SimpleNamespace

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fedapp.runs import callbacks
from fedapp.runs.callbacks import Board, Checkpoints
from fedapp.runs.directory import RunDirectory
from strategies.callbacks import ServerState


def record(round_, **numbers):
    seconds = {"train": 0.5}
    return {"round": round_, "seconds": seconds, "clients": [1, 2], "model_changed": True} | numbers


def scalars(folder, tag):
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(tag)]


def test_tensorboard_shows_every_number_and_forgets_what_a_resume_does_again(tmp_path):
    first = Board(RunDirectory(tmp_path))
    first.on_start(ServerState(0, {}))
    for round_ in (1, 2, 3):
        first.on_round(record(round_, test_accuracy=round_ / 4), ServerState(round_, {}))
    first.close()
    assert scalars(tmp_path, "test_accuracy") == [(1, 0.25), (2, 0.5), (3, 0.75)]
    assert scalars(tmp_path, "seconds/train") == [(1, 0.5), (2, 0.5), (3, 0.5)]

    resumed = Board(RunDirectory(tmp_path))
    resumed.on_start(ServerState(1, {}))
    resumed.on_round(record(2, test_accuracy=0.375), ServerState(2, {}))
    resumed.close()
    assert scalars(tmp_path, "test_accuracy") == [(1, 0.25), (2, 0.375)]


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
        checkpoints.on_round(record(round_), ServerState(round_, {}))
    checkpoints.on_end(ServerState(8, {}))
    assert rounds == written
