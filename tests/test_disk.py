"""A disk that is full: the run goes on, says so, and loses nothing that it had."""

import contextlib
import errno
import json
import os
from logging import INFO
from pathlib import Path
from types import SimpleNamespace

import pytest
from flwr.common.logger import log

from fedapp import files
from fedapp.errors import RunError
from fedapp.federation.callback import ServerState
from fedapp.federation.round_result import RoundResult
from fedapp.files import append_or_restore
from fedapp.runs import callbacks
from fedapp.runs.callbacks import Checkpoints, Metrics
from fedapp.runs.checkpoint import checkpoint_rounds
from fedapp.runs.directory import RunDirectory
from fedapp.runs.lock import LogFile, logged
from fedapp.runs.metrics import to_line
from fedapp.runs.status import status
from tests import killed
from tests.in_process import SMALL, metrics, run

SETTINGS = {**SMALL, "num-server-rounds": 6, "checkpoint-every": 2}


def final(folder):
    records = [{k: v for k, v in r.items() if k != "checkpoint_error"} for r in metrics(folder)]
    return (folder / "model.safetensors").read_bytes(), records


@pytest.mark.process
def test_a_full_disk_at_a_checkpoint_is_named_and_costs_nothing(tmp_path):
    """The kernel refuses to let files grow, in a process of its own."""
    settings = {**SETTINGS, "run-dir": tmp_path / "run"}
    assert killed.run(settings, kill=("no_room_for_the_checkpoint", 4)) == 0
    assert killed.run({**SETTINGS, "run-dir": tmp_path / "whole"}) == 0
    errors = {r["round"]: r.get("checkpoint_error") for r in metrics(tmp_path / "run")}
    assert {k: v for k, v in errors.items() if v} == {5: "File too large after round 4"}
    assert final(tmp_path / "run") == final(tmp_path / "whole")
    assert not list((tmp_path / "run").rglob("*.tmp"))


@pytest.mark.process
def test_a_run_killed_after_a_full_disk_resumes_from_the_checkpoint_before(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    settings = {**SETTINGS, "run-dir": folder, "checkpoint-every": 3, "num-server-rounds": 3}
    assert killed.run(settings, kill=("no_room_for_the_checkpoint", 3)) != 0
    assert [path.stem for path in (folder / "checkpoints").glob("*.json")] == ["round-000000"]
    assert killed.run({}, resume=folder) == 0
    assert killed.run({**settings, "run-dir": tmp_path / "whole"}) == 0
    assert final(folder) == final(tmp_path / "whole")


def full(*arguments):
    raise OSError(errno.ENOSPC, "No space left on device")


@contextlib.contextmanager
def no_room_for(name):
    """Let nothing be written to files of this name."""
    opened = os.open

    def unless_the_file(path, *how):
        if Path(path).name.startswith(f".{name}."):
            full()
        return opened(path, *how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", unless_the_file)
        yield


def test_no_room_at_the_end_is_one_clear_error(tmp_path, monkeypatch):
    monkeypatch.setattr(callbacks, "save_checkpoint", full)
    with pytest.raises(RunError, match=r"checkpoints cannot be written \(No space left.*resume"):
        run(tmp_path / "run")
    why = dict(status(tmp_path / "run"))["ended because"]
    assert "checkpoints cannot be written (No space left on device). Free disk space" in why


@pytest.mark.parametrize("file", ["model.safetensors", "summary.json", "partition.svg"])
def test_no_room_for_what_a_run_ends_with_is_one_clear_error(file, tmp_path):
    """And leaves no part of a picture, which a report would show."""
    folder = tmp_path / "run"
    message = rf"{file} cannot be written \(No space .* and resume"
    with no_room_for(file), pytest.raises(RunError, match=message):
        run(folder, pictures=True)
    assert not (folder / file).exists()
    run(folder, pictures=True, resume=True)
    assert (folder / file).exists()


def test_what_may_not_be_written_is_not_called_full():
    denied = PermissionError(errno.EACCES, "Permission denied", "run/config.json")
    with (
        pytest.raises(
            RunError, match=r"run/config\.json .* denied\)\. Let this user .*, or else\."
        ),
        files.disk_space_needed(Path("run"), "or else"),
    ):
        raise denied


@pytest.mark.parametrize(
    "file", ["checkpoints/round-000000.safetensors", "task.json", "config.json"]
)
def test_no_room_at_the_start_is_one_clear_error_and_the_run_can_be_begun_again(file, tmp_path):
    folder = tmp_path / "run"
    with no_room_for(Path(file).name), pytest.raises(RunError) as ended:
        run(folder)
    assert str(ended.value) == (
        f"{folder / file} cannot be written (No space left on device). Free disk space, or choose "
        "another run-dir."
    )
    assert not list(folder.rglob("*.tmp"))
    assert final(run(folder)) == final(run(tmp_path / "whole"))


def test_a_power_cut_leaves_no_checkpoint_without_its_rounds(tmp_path, monkeypatch):
    """The lines of metrics are on the disk, and not only on their way, before a checkpoint is."""
    file, sync = tmp_path / "run" / "metrics.jsonl", os.fsync
    safe, behind = {}, []

    def synced(number):
        sync(number)
        status = os.fstat(number)
        safe[status.st_ino] = status.st_size
        if file.exists():
            behind.append(safe.get(file.stat().st_ino, 0) < file.stat().st_size)

    monkeypatch.setattr(os, "fsync", synced)
    run(tmp_path / "run", num_server_rounds=3, checkpoint_every=1)
    assert behind
    assert not any(behind)


def test_lines_of_metrics_wait_for_room(tmp_path, monkeypatch):
    tries = []

    def sometimes(path, text):
        tries.append(text)
        if len(tries) == 2:
            full()
        append_or_restore(path, text)

    monkeypatch.setattr(callbacks, "append_or_restore", sometimes)
    folder = run(tmp_path / "run")
    assert [r["round"] for r in metrics(folder)] == [0, 1, 2, 3]
    assert [text.count("\n") for text in tries] == [1, 1, 2, 1, 0]


def test_no_checkpoint_replaces_another_while_lines_of_metrics_wait(tmp_path, monkeypatch):
    """No resume could go on from it, without the lines of its rounds."""
    directory = RunDirectory(tmp_path)
    checkpoints = Checkpoints(directory, every=1, seconds=0.0)
    both = (Metrics(directory, checkpoints), checkpoints)

    def do(round_):
        for callback in both:
            callback.on_round(RoundResult(round_), ServerState(round_, {}))

    do(1)
    with monkeypatch.context() as patch:
        patch.setattr(callbacks, "append_or_restore", full)
        do(2)
        do(3)
    assert checkpoint_rounds(directory.checkpoints) == [1]
    assert checkpoints.problem == "No space left on device after round 3"
    for callback in both:
        callback.close()
    assert [r["round"] for r in metrics(tmp_path)] == [1, 2, 3]
    assert checkpoint_rounds(directory.checkpoints) == [3, 1]


def test_a_resume_on_a_full_disk_is_one_clear_error_and_rewrites_nothing_whole(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(to_line({"round": number, "seconds": {}}) for number in (1, 2)))
    lines = Metrics(RunDirectory(tmp_path))
    with no_room_for("metrics.jsonl"):
        lines.on_start(ServerState(2, {}))
        with pytest.raises(RunError, match=r"metrics.jsonl cannot be written \(No space"):
            lines.on_start(ServerState(1, {}))
    lines.on_start(ServerState(1, {}))
    assert [r["round"] for r in metrics(tmp_path)] == [1]


def test_an_append_that_fails_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "metrics.jsonl"
    append_or_restore(path, "one\n")

    class Full:
        def __init__(self, file):
            self.file = file

        def __enter__(self):
            return self

        def __exit__(self, *error):
            self.file.close()

        def write(self, text):
            self.file.write(text[:2])
            self.file.flush()
            full()

    opened = type(path).open
    monkeypatch.setattr(type(path), "open", lambda self, mode: Full(opened(self, mode)))
    with pytest.raises(OSError, match="No space"):
        append_or_restore(path, "two\n")
    monkeypatch.undo()
    assert path.read_text() == "one\n"


def test_a_file_that_cannot_be_written_leaves_nothing_beside_it(tmp_path, monkeypatch):
    monkeypatch.setattr(files.os, "fsync", full)
    (tmp_path / "x.json").write_text("old")
    with pytest.raises(OSError, match="No space"):
        files.write_json(tmp_path / "x.json", {"new": 1})
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]
    assert (tmp_path / "x.json").read_text() == "old"


def test_a_log_without_room_hides_no_error_and_prints_none(tmp_path, capfd, monkeypatch):
    without_room = SimpleNamespace(write=full, flush=full, close=full)
    monkeypatch.setattr(LogFile, "_open", lambda self: without_room)

    def ends():
        with logged(RunDirectory(tmp_path)):
            log(INFO, "a line")
            raise RunError("Make room")

    with pytest.raises(RunError, match="Make room"):
        ends()
    assert "Traceback" not in capfd.readouterr().err


def test_the_log_is_lines_of_json(tmp_path):
    folder = run(tmp_path / "run")
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    assert all(set(line) == {"time", "level", "message"} for line in lines)
    assert lines[0]["message"] == f"Run directory: {folder}"
    assert any("is accepted: 1440 examples" in line["message"] for line in lines)
