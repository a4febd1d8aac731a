"""What callbacks leave behind."""

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fedapp.runs.callbacks import Board
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
