"""``fedapp status``: what it says of runs that go on, have stopped, or are finished."""

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys

import pytest
from flwr.app import MessageType
from flwr.supercore.run import RunNotRunningException
from safetensors.torch import save_file
from typer.testing import CliRunner

from fedapp.cli.main import app
from fedapp.errors import ConfigError, RunError
from fedapp.runs import final_outputs, lock
from fedapp.runs.callbacks import Checkpoints, Metrics
from fedapp.runs.directory import RunDirectory, read_stored
from fedapp.runs.final_outputs import summarise
from fedapp.runs.lock import END_MESSAGE, is_locked, locked, logged
from fedapp.runs.model_sharpness import last_round
from fedapp.runs.status import _last, status, without_effect
from tests import killed
from tests.damages import raises
from tests.in_process import client_app, model, run


def test_a_finished_run(tmp_path):
    folder = run(tmp_path / "run")
    rows = dict(status(folder))
    assert rows["state"] == "finished"
    assert rows["rounds"] == "3 of 3"
    assert rows["accuracy"].startswith("0.")
    assert rows["faults"] == "none"
    assert rows["last round"] == "5 of 5 clients"
    assert rows["resume"].startswith("finished; for more, raise num-server-rounds: fedapp run")


def test_a_run_without_effect_says_why_theta_stayed_as_it_was(tmp_path):
    """All clients replied well, and the server's step was infinite."""
    folder = run(tmp_path / "run", num_server_rounds=2, server_learning_rate=1e300)
    said = without_effect(RunDirectory(folder))
    assert said.startswith("round 2: algorithm = 'fedavg' makes nan or infinite values")
    assert without_effect(RunDirectory(run(tmp_path / "other"))) == ""


def test_a_run_of_a_deployment_is_resumed_by_flower(tmp_path):
    folder = run(tmp_path / "run")
    stored = json.loads((folder / "config.json").read_text())
    stored["found"]["engine"] = "flower"
    (folder / "config.json").write_text(json.dumps(stored))
    (folder / "summary.json").unlink()
    said = dict(status(folder))["resume"]
    assert said.startswith("from round 3: flwr run . CONNECTION --run-config ")
    assert said.endswith(f"{folder / 'resume.toml'} --stream")
    copy = shutil.copytree(folder, tmp_path / "copy")
    said = dict(status(copy))["resume"]
    assert said.endswith(f"{copy / 'resume.toml'} --stream  # first set run-dir in it to {copy}")


def test_a_run_whose_metrics_were_cut_goes_on_and_other_files_are_no_checkpoints(tmp_path):
    folder = run(tmp_path / "run")
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join(lines[:2]))
    (folder / "checkpoints" / "round-000003 (copy).json").write_text("{}")
    rows = dict(status(folder))
    assert rows["state"] == "stopped"
    assert rows["resume"].startswith("from round 0: ")


def stop_after(round_, monkeypatch, callback=Metrics):
    """Interrupt runs when ``callback`` has done its work after a round."""
    write = callback.on_round

    def stop(self, result, state):
        write(self, result, state)
        if state.round == round_:
            raise KeyboardInterrupt
        return False

    monkeypatch.setattr(callback, "on_round", stop)


def test_a_stopped_run_says_who_failed_and_how_to_go_on(tmp_path, monkeypatch):
    def call(message, context):
        reply = client_app(message, context)
        if context.node_id == 1 and message.metadata.message_type == MessageType.TRAIN:
            raises(message, reply)
        return reply

    stop_after(2, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "run", call=call, checkpoint_every=1)
    rows = dict(status(tmp_path / "run"))
    assert (rows["state"], rows["ended because"]) == ("stopped", "it was interrupted")
    assert rows["rounds"] == "2 of 3"
    assert rows["faults"] == "raised 6"
    assert rows["last round"].startswith("2 of 5 clients\nclient ")
    assert "no space left on device" in rows["last round"]
    assert rows["resume"].startswith("from round 1: fedapp run --resume ")


def failing(message, context):
    """Fail at every client."""
    reply = client_app(message, context)
    if message.metadata.message_type == MessageType.TRAIN:
        raises(message, reply)
    return reply


def test_why_a_run_ended_is_said_until_a_resume_begins(tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(RunError, match="on-failure is 'stop'") as ended:
        run(folder, call=failing, on_failure="stop")
    assert dict(status(folder))["ended because"] == str(ended.value)
    whole = (folder / "log.jsonl").read_text()
    say(folder, f"Run directory: {folder}")
    assert "ended because" not in dict(status(folder))
    (folder / "log.jsonl").write_text(whole)
    run(folder, resume=True, on_failure="stop")
    rows = dict(status(folder))
    assert rows["state"] == "finished"
    assert "ended because" not in rows


@pytest.mark.parametrize(
    ("error", "by_flower", "said"),
    [
        (SystemExit(0), True, "Flower stopped it"),
        (SystemExit("enough"), False, r"SystemExit: enough \(tests/test_status.py, line"),
        (RunNotRunningException(), True, "Flower stopped it"),
        (ZeroDivisionError("by 0"), True, r"ZeroDivisionError: by 0 \(tests/test_status.py, line"),
        (RunError("make room\nand go on"), True, "make room\nand go on"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_last_line_of_a_log_says_what_ended_the_run(error, by_flower, said, tmp_path, capfd):
    with pytest.raises(type(error)), logged(RunDirectory(tmp_path), by_flower=by_flower):
        raise error
    line = json.loads((tmp_path / "log.jsonl").read_text().splitlines()[-1])
    assert line["level"] == "ERROR"
    assert re.match(END_MESSAGE + said, line["message"])
    assert END_MESSAGE not in capfd.readouterr().err


def test_a_stopped_run_of_which_a_report_was_written_is_not_finished(tmp_path, monkeypatch):
    stop_after(2, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "run", checkpoint_every=1)
    CliRunner().invoke(app, ["report", str(tmp_path / "run")], catch_exceptions=False)
    assert (tmp_path / "run" / "summary.json").exists()
    rows = dict(status(tmp_path / "run"))
    assert (rows["state"], rows["resume"][:12]) == ("stopped", "from round 1")


def test_a_finished_run_that_is_stopped_on_its_way_further_is_not_finished(tmp_path, monkeypatch):
    run(tmp_path / "run")
    stop_after(5, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "run", resume=True, num_server_rounds=7)
    rows = dict(status(tmp_path / "run"))
    assert (rows["state"], rows["rounds"]) == ("stopped", "5 of 7")
    assert rows["resume"].startswith("from round 4: ")


def test_a_run_whose_model_is_of_an_earlier_round_is_not_finished(tmp_path, monkeypatch):
    """A finished run that went on, and was stopped in a callback after its last round."""
    run(tmp_path / "run")
    stop_after(5, monkeypatch, Checkpoints)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "run", resume=True, num_server_rounds=5)
    rows = dict(status(tmp_path / "run"))
    assert (rows["state"], rows["rounds"]) == ("stopped", "5 of 5")
    assert rows["resume"].startswith("from round 5: ")
    run(tmp_path / "run", resume=True, num_server_rounds=5)
    assert dict(status(tmp_path / "run"))["state"] == "finished"


def test_a_run_that_reached_its_target_is_finished(tmp_path):
    folder = run(tmp_path / "run", target_accuracy=0.01, num_server_rounds=9)
    rows = dict(status(folder))
    assert rows["state"] == "finished"
    assert rows["rounds"] != "9 of 9"
    assert rows["resume"] == "finished: target-accuracy = 0.01 is reached"


def test_a_run_that_a_callback_ended_is_finished_until_more_rounds_are_planned(
    tmp_path, monkeypatch
):
    write = Metrics.on_round

    def end(self, result, state):
        return write(self, result, state) or state.round == 2

    monkeypatch.setattr(Metrics, "on_round", end)
    rows = dict(status(run(tmp_path / "run", num_server_rounds=9)))
    assert (rows["state"], rows["rounds"]) == ("finished", "2 of 9")
    assert rows["resume"].startswith(
        "finished: max-epsilon, a callback or a sweep ended it after round 2"
    )
    assert last_round(tmp_path / "run") == 2  # of its model
    stop_after(3, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "run", resume=True, num_server_rounds=9)
    assert dict(status(tmp_path / "run"))["state"] == "stopped"


def test_a_run_that_is_killed_while_its_last_files_are_written_is_not_finished(
    tmp_path, monkeypatch
):
    """Its summary and report are those of the run before it went on."""
    run(tmp_path / "run")

    def stop(directory, config):
        raise KeyboardInterrupt

    monkeypatch.setattr(final_outputs, "write_summary", stop)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "run", resume=True, num_server_rounds=5)
    rows = dict(status(tmp_path / "run"))
    assert (rows["state"], rows["rounds"]) == ("stopped", "5 of 5")
    assert rows["resume"].startswith("from round 5: ")


def test_a_run_that_spent_its_epsilon_is_finished(tmp_path):
    settings = {"dp-fedavg.noise": 1.0, "dp-fedavg.max-epsilon": 1.0, "weighting": "uniform"}
    settings |= {"algorithm": "dp-fedavg", "pictures": True}
    folder = run(tmp_path / "run", num_server_rounds=20, **settings)
    assert "Resume" not in (folder / "report.html").read_text()
    rows = dict(status(folder))
    assert rows["state"] == "finished"
    assert rows["resume"].startswith(
        "finished: max-epsilon, a callback or a sweep ended it after round"
    )


def test_seconds_are_medians_of_the_rounds_and_their_parts(tmp_path):
    folder = run(tmp_path / "run")
    spent = [
        {"round": t, "wait": w, "transfer": 0.5, "train": 1.0, "evaluate": 0.25}
        for t, w in ((2.0, 0.25), (4.0, 2.25), (9.0, 7.25))
    ]
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for record, seconds in zip(records[1:], spent, strict=True):
        record["seconds"] = seconds
    (folder / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    said = dict(status(folder))["seconds a round"]
    assert said == "4.00 (median): wait 2.25, transfer 0.50, train 1.00, evaluate 0.25"
    config, _ = read_stored(folder)
    assert summarise(records, config)["seconds_a_round_median"] == 4.0
    assert summarise(records[:3], config)["seconds_a_round_median"] == 3.0  # of 2 and 4


def test_a_run_that_goes_on_is_running_and_nobody_else_may_run_it(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(lock, "LOCK_TIMEOUT", 0.1)
    seen = []
    write = Metrics.on_round

    def look(self, result, state):
        write(self, result, state)
        if state.round == 1:
            seen.extend(status(self.path.parent))
            with pytest.raises(ConfigError, match="another process runs this run"):
                run(tmp_path / "run", resume=True)
            assert caplog.messages[-1] == f"Waiting for the active run in {self.path.parent}"
        return False

    monkeypatch.setattr(Metrics, "on_round", look)
    folder = run(tmp_path / "run")
    assert dict(seen)["state"] == "running"
    assert "resume" not in dict(seen)
    assert not is_locked(RunDirectory(folder))


def _die_while_locked(folder, seen):
    with locked(RunDirectory(folder)):
        seen.put(is_locked(RunDirectory(folder)))
        killed.die()


@pytest.mark.process
def test_the_folder_is_free_when_its_process_is_killed(tmp_path):
    seen = killed.PROCESSES.SimpleQueue()
    process = killed.PROCESSES.Process(target=_die_while_locked, args=(tmp_path, seen))
    process.start()
    process.join(killed.SECONDS)
    assert process.exitcode == -signal.SIGKILL
    assert seen.get()
    with locked(RunDirectory(tmp_path)):
        assert is_locked(RunDirectory(tmp_path))


def test_who_may_only_read_a_run_can_ask_for_its_status(tmp_path, monkeypatch):
    """That of a service, say, whose user is another."""
    folder = run(tmp_path / "run", num_server_rounds=1)
    opened = os.open

    def open_to_read(path, flags, *rest, **options):
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return opened(path, flags, *rest, **options)

    with locked(RunDirectory(folder)), monkeypatch.context() as patch:
        patch.setattr(os, "open", open_to_read)
        assert dict(status(folder))["state"] == "running"
    monkeypatch.setattr(os, "open", open_to_read)
    assert dict(status(folder))["state"] == "finished"


@pytest.mark.process
def test_the_command(tmp_path):
    folder = run(tmp_path / "run")
    command = [sys.executable, "-m", "fedapp.cli.main", "status", str(folder)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "3 of 3" in said
    # A command is there to be copied, however long the folder's name is.
    assert f"fedapp run --resume {folder}" in said


def say(folder, *messages):
    with (folder / "log.jsonl").open("a") as file:
        file.writelines(json.dumps({"level": "INFO", "message": m}) + "\n" for m in messages)


REJECTED = "Node 17 is rejected: num-classes = 3, but the server has 10"


def test_rejected_nodes_are_named_until_they_are_accepted(tmp_path):
    folder = run(tmp_path / "run")
    say(folder, "Node 17 is rejected: num-classes = 3, but the server has 10")
    say(folder, "Node 18 is rejected: no examples", "Node 18 is accepted: client 1")
    name = "Node 19 (device-0)"
    say(folder, f"{name} is rejected: no examples", f"{name} is rejected: old")
    (folder / "log.jsonl").open("a").write('{"message": "cut o')
    assert dict(status(folder))["rejected"].splitlines() == [
        "node 17: num-classes = 3, but the server has 10",
        "node 19 (device-0): old",
    ]


def test_a_run_that_waits_for_its_nodes(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    with locked(RunDirectory(folder)):
        say(folder, REJECTED, "Waiting for nodes: 0 of min-nodes = 1")
        rows = dict(status(folder))
    assert rows["state"] == "waiting for nodes"
    assert rows["rejected"].startswith("node 17")
    assert rows["log"] == "Waiting for nodes: 0 of min-nodes = 1"
    assert dict(status(folder))["state"] == "ended before its first round"
    say(folder, f"{END_MESSAGE}min-nodes = 1: only 0 accepted nodes")
    assert dict(status(folder))["ended because"] == "min-nodes = 1: only 0 accepted nodes"


def test_a_run_without_its_final_model_has_stopped(tmp_path):
    folder = run(tmp_path / "run")
    (folder / "model.safetensors").unlink()
    assert dict(status(folder))["state"] == "stopped"


def test_a_model_that_does_not_say_its_round_is_the_last(tmp_path):
    """As fedapp 0.2.0 wrote it."""
    folder = run(tmp_path / "run")
    save_file(model(folder), folder / "model.safetensors")
    assert dict(status(folder))["state"] == "finished"


def test_a_finished_run_that_was_resumed_and_killed_has_stopped(tmp_path, monkeypatch):
    run(tmp_path / "run")
    stop_after(5, monkeypatch, Checkpoints)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "run", resume=True, num_server_rounds=7)
    assert dict(status(tmp_path / "run"))["state"] == "stopped"


def test_the_last_round_counts_the_replies_that_came_late():
    row = {"replied": 3, "clients": [0, 1, 2, 4], "late_replies": 2}
    assert _last(row) == "3 of 4 clients, 2 late replies dropped"
