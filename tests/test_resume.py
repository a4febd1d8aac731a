"""A killed run that is resumed ends with the very bits that the uninterrupted run ends with."""

import contextlib
import json
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
import torch
from flwr.app import MessageType
from typer.testing import CliRunner

from fedapp import server
from fedapp.cli.main import app as command_line
from fedapp.client_app import app as client_app
from fedapp.config.read import read_config
from fedapp.engines.grid import error_reply
from fedapp.engines.in_process import InlineGrid, run_inline
from fedapp.errors import CheckpointError, ConfigError
from fedapp.federation.callback import ServerState
from fedapp.runs.checkpoint import checkpoint_rounds, load_checkpoint, save_checkpoint
from fedapp.runs.directory import create, reopen
from fedapp.runs.lock import END_MESSAGE, locked
from fedapp.runs.metrics import drop_scores, to_line
from fedapp.runs.status import status
from fedapp.server_app import app as server_app
from tests import killed
from tests.data_files import image_features, image_splits, write_parquet
from tests.in_process import SMALL, TWENTY, metrics, run

ROUNDS, EVERY = 11, 3
SETTINGS = {**SMALL, "num-server-rounds": ROUNDS, "checkpoint-every": EVERY}


def final(folder):
    """Return the bytes of the final model and the metrics without the clock's."""
    return (folder / "model.safetensors").read_bytes(), metrics(folder)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return the uninterrupted runs by their number of nodes."""
    folders = {}

    def of(nodes):
        if nodes not in folders:
            folders[nodes] = tmp_path_factory.mktemp("whole") / f"nodes-{nodes}"
            settings = {**SETTINGS, "run-dir": folders[nodes]}
            assert killed.run(settings, nodes=nodes) == 0
        return folders[nodes]

    return of


def killed_run(folder, point, round_, **options):
    code = killed.run({**SETTINGS, "run-dir": folder}, kill=(point, round_), **options)
    assert code == -signal.SIGKILL
    assert not (folder / "model.safetensors").exists()


KILLS = [
    ("while_training", 8, 6),
    ("in_the_checkpoints_tensors", 6, 3),
    ("in_the_line_of_metrics", 9, 6),
    ("in_the_last_files", 11, 11),
]
MORE_KILLS = [
    ("while_training", 1, 0),
    ("in_the_line_of_metrics", 0, 0),
    ("after_checkpoint", 6, 6),
    ("before_the_checkpoints_description", 9, 6),
    ("in_the_line_of_metrics", 7, 6),
]


@pytest.mark.parametrize(
    ("point", "round_", "goes_on_after"),
    [*KILLS, *(pytest.param(*kill, marks=pytest.mark.slow) for kill in MORE_KILLS)],
)
def test_a_killed_run_resumes_to_the_same_bits(point, round_, goes_on_after, tmp_path, whole):
    folder = tmp_path / "run"
    killed_run(folder, point, round_)
    kept = sorted(path.stem for path in (folder / "checkpoints").glob("round-*.json"))
    assert kept[-1] == f"round-{goes_on_after:06d}"
    assert killed.run({}, resume=folder) == 0
    assert final(folder) == final(whole(1))


@pytest.mark.parametrize("point", ["interrupted_while_training", "terminated_while_training"])
def test_a_stopped_run_goes_on_after_its_last_finished_round(point, tmp_path, whole):
    folder = tmp_path / "run"
    assert killed.run({**SETTINGS, "run-dir": folder}, kill=(point, 9)) == 1
    assert checkpoint_rounds(folder / "checkpoints") == [8, 6]
    assert killed.run({}, resume=folder) == 0
    assert final(folder) == final(whole(1))


@pytest.mark.slow
def test_replies_in_another_order_give_the_same_bits(tmp_path, whole):
    folder = tmp_path / "run"
    killed_run(folder, "while_training", 5, nodes=3, last_first=True)
    assert killed.run({}, resume=folder, last_first=False) == 0
    assert final(folder) == final(whole(3))
    assert killed.run({**SETTINGS, "run-dir": tmp_path / "late"}, nodes=3, last_first=True) == 0
    assert final(tmp_path / "late") == final(whole(3))


@pytest.mark.slow
def test_a_run_killed_twice_resumes_to_the_same_bits(tmp_path, whole):
    folder = tmp_path / "run"
    killed_run(folder, "in_the_line_of_metrics", 5)
    assert killed.run({}, resume=folder, kill=("while_training", 10)) == -signal.SIGKILL
    assert killed.run({}, resume=folder) == 0
    assert final(folder) == final(whole(1))


def test_a_damaged_last_checkpoint_gives_way_to_the_one_before(tmp_path, whole):
    folder = tmp_path / "run"
    killed_run(folder, "while_training", 8)
    last = folder / "checkpoints" / "round-000006.safetensors"
    last.write_bytes(last.read_bytes()[:-1])
    assert killed.run({}, resume=folder) == 0
    assert final(folder) == final(whole(1))


def test_resume_extends_the_number_of_rounds(tmp_path, whole):
    folder = tmp_path / "run"
    assert killed.run({**SETTINGS, "run-dir": folder, "num-server-rounds": 5}) == 0
    assert killed.run({"num-server-rounds": ROUNDS}, resume=folder) == 0
    assert final(folder) == final(whole(1))
    assert json.loads((folder / "config.json").read_text())["config"]["num-server-rounds"] == ROUNDS


@pytest.mark.parametrize("every", [2, 0])
def test_a_longer_run_has_no_scores_of_the_round_in_which_the_shorter_one_ended(every, tmp_path):
    """Of round 3, which is the last of the shorter one, and not one of those of `eval-every`."""
    whole = run(tmp_path / "whole", eval_every=every, num_server_rounds=5)
    folder = run(tmp_path / "run", eval_every=every, num_server_rounds=3)
    assert "test_loss" in metrics(folder)[-1]
    run(folder, eval_every=every, num_server_rounds=3, resume=True)
    assert "test_loss" in metrics(folder)[-1]
    run(folder, eval_every=every, num_server_rounds=5, resume=True)
    assert final(folder) == final(whole)


def test_of_a_former_last_round_only_scores_are_removed(tmp_path):
    """Round 0 may lack some of them: no client answered in time."""
    none, path = float("nan"), tmp_path / "metrics.jsonl"
    first = {"round": 0, "seconds": {"evaluate": 1.0}, "test_loss": none, "test_accuracy": none}
    kept = {
        "round": 1,
        "seconds": {"round": 1.0},
        "train_loss": 1.0,
        "client_train_loss": {"3": 1.0},
    }
    scores = {"test_loss": 0.5, "test_rmse": 1.0, "client_loss": 0.5, "client_clients": 2}
    path.write_text(to_line(first) + to_line(kept | scores | {"training_set_loss": 0.25}))
    drop_scores(path, 1)
    assert path.read_text() == to_line(first) + to_line(kept)


def test_a_finished_run_that_is_resumed_stays_as_it_is(tmp_path, whole):
    folder = tmp_path / "run"
    shutil.copytree(whole(1), folder)
    (folder / "model.safetensors").unlink()
    assert killed.run({}, resume=folder) == 0
    assert final(folder) == final(whole(1))


def test_a_run_killed_after_it_reached_its_target_does_not_go_on(tmp_path, whole):
    reached = metrics(whole(1))[7]["test_accuracy"]
    first = next(r["round"] for r in metrics(whole(1)) if r["test_accuracy"] >= reached)
    folder = tmp_path / "run"
    settings = {**SETTINGS, "run-dir": folder, "target-accuracy": reached}
    assert killed.run(settings, kill=("in_the_last_files", 0)) == -signal.SIGKILL
    assert killed.run({}, resume=folder) == 0
    assert metrics(folder) == metrics(whole(1))[: first + 1]


def wait_for_rounds(folder, count, process):
    """Wait until a run has written the lines of `count` rounds, and is still there."""
    end = time.monotonic() + 240
    path = folder / "metrics.jsonl"
    while not path.exists() or path.read_text().count("\n") < count:
        assert time.monotonic() < end
        assert process.poll() is None
        time.sleep(0.005)


@pytest.mark.process
def test_the_command_killed_from_outside_resumes_to_the_same_bits(tmp_path, whole):
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "fedapp.cli.main", "run"]
    words = [f"{key}={value}" for key, value in {**SETTINGS, "run-dir": folder}.items()]
    with subprocess.Popen([*command, *words], cwd=tmp_path) as process:
        wait_for_rounds(folder, 6, process)
        process.kill()
    assert not (folder / "model.safetensors").exists()
    subprocess.run([*command, "--resume", str(folder)], cwd=tmp_path, check=True)
    assert final(folder) == final(whole(1))


@pytest.mark.parametrize(
    "settings",
    [
        {"algorithm": "fedavg"},
        {"algorithm": "scaffold", "scaffold.option": "I", "partitioner": "dirichlet"},
        {"algorithm": "fedadam", "sampler": "by-size", "weighting": "uniform", "seed": 3},
    ],
    ids=lambda settings: settings["algorithm"],
)
def test_a_run_is_done_again_by_its_own_settings(settings, tmp_path):
    """By the command that the report and the page about run directories print."""
    first, again = (tmp_path / name for name in ("first", "again"))
    given = {**SMALL, "num-server-rounds": 2, "run-dir": first, "pictures": "false", **settings}
    for words in (
        [f"{key}={value}" for key, value in given.items()],
        [str(first / "resume.toml"), "resume=false", f"run-dir={again}"],
    ):
        done = CliRunner().invoke(command_line, ["run", *words])
        assert done.exit_code == 0, done.output
    assert final(again) == final(first)
    assert (again / "partition.json").read_bytes() == (first / "partition.json").read_bytes()


@pytest.mark.nightly
@pytest.mark.process
@pytest.mark.timeout(900)
def test_a_killed_simulation_resumes_with_its_file_of_settings(simulation):
    whole = simulation.run({**TWENTY, "precision": "float32"}, "float32-20")
    folder = simulation.folder / "killed"
    settings = simulation.write_settings({**TWENTY, "checkpoint-every": 3}, "killed")
    process = simulation.begin(settings, "killed")
    wait_for_rounds(folder, 9, process)
    simulation.kill_server_app()
    process.terminate()
    assert not (folder / "model.safetensors").exists()
    simulation.wait_for(simulation.begin(folder / "resume.toml", "killed"), "killed")
    assert "Resuming after round" in (simulation.folder / "killed.log").read_text()
    assert final(folder) == final(whole)


def test_other_settings_are_refused_by_key(whole):
    folder = whole(1)
    stored = json.loads((folder / "config.json").read_text())["config"]
    other = {"learning-rate": 0.3, "seed": 7, "2nn.hidden": 17}
    free = {"num-server-rounds": 99, "node-timeout": 1.0, "min-nodes": 7}
    values = {**stored, "resume": True, "run-dir": str(folder)}
    with pytest.raises(ConfigError) as error:
        reopen(read_config({**values, **other, **free}))
    for key, value in other.items():
        assert f"{key} = {value!r} (the run has {stored[key]!r})" in str(error.value)
    for key in free:
        assert f"{key} =" not in str(error.value)
    assert f"fedapp run --resume {folder}" in str(error.value)
    reopen(read_config({**values, **free}))


def test_a_run_goes_on_with_its_data_at_another_place(tmp_path):
    """The data is known by its content: another folder with the same files is the same data."""
    settings = {"num_clients": 2, "checkpoint_every": 1}
    for name, images in (("old", 4), ("new", 4), ("other", 3)):
        write_parquet(tmp_path / name, image_splits(images), image_features())
    folder = run(tmp_path / "run", dataset=str(tmp_path / "old"), num_server_rounds=1, **settings)
    shutil.rmtree(tmp_path / "old")
    again = {**settings, "num_server_rounds": 2, "resume": True}
    run(folder, dataset=str(tmp_path / "new"), **again)
    assert metrics(folder)[-1]["round"] == 2
    with pytest.raises(CheckpointError, match=r"not the data that .* dataset=FOLDER"):
        run(folder, dataset=str(tmp_path / "other"), **again)


def test_a_run_resumed_elsewhere_names_both_places(tmp_path):
    """Another device, torch and commit; resumed once more, nothing is added."""
    settings = {"checkpoint_every": 1, "resume": True}
    folder = run(tmp_path / "run", **{**settings, "resume": False, "num_server_rounds": 1})
    stored = json.loads((folder / "config.json").read_text())
    here = stored["versions"]["torch"]
    stored["found"]["device"], stored["versions"]["torch"] = "cuda (H100)", "2.10.0"
    (folder / "config.json").write_text(json.dumps(stored))
    for rounds in (2, 3):
        run(folder, num_server_rounds=rounds, **settings)
        resumed = json.loads((folder / "config.json").read_text())
        assert resumed["found"]["device"] == "cuda (H100), then cpu"
        assert resumed["versions"] == stored["versions"] | {"torch": f"2.10.0, then {here}"}


def test_fewer_rounds_than_are_done_are_refused(tmp_path):
    folder = run(tmp_path / "run")
    before = (folder / "config.json").read_bytes()
    with pytest.raises(
        ConfigError, match=r"num-server-rounds = 1: .* has done 3 rounds. Set at least 3"
    ):
        run(folder, resume=True, num_server_rounds=1)
    assert (folder / "config.json").read_bytes() == before


def test_a_folder_without_a_run_is_refused(tmp_path):
    config = read_config({"resume": True, "run-dir": str(tmp_path)})
    with pytest.raises(CheckpointError, match="holds no run"):
        reopen(config)


def test_a_run_made_while_another_waited_for_the_folder_is_not_written_over(tmp_path, monkeypatch):
    """Both find the folder new; the first ends while the second waits until it is free."""
    folder = tmp_path / "run"

    @contextlib.contextmanager
    def waiting(directory, *, new):
        monkeypatch.setattr(server, "locked", locked)
        run(folder)
        with locked(directory, new=new):
            yield

    monkeypatch.setattr(server, "locked", waiting)
    with pytest.raises(ConfigError, match="holds a run already"):
        run(folder, seed=1)
    assert json.loads((folder / "config.json").read_text())["config"]["seed"] == 0
    assert metrics(folder)[-1]["round"] == 3
    assert END_MESSAGE not in (folder / "log.jsonl").read_text()  # the first's, which did not fail


def test_a_run_goes_on_whatever_another_version_had_for_defaults_of_what_it_does_not_use(tmp_path):
    """An older version wrote down the parameters of all components, of which one has changed since."""
    folder = run(tmp_path / "run", num_server_rounds=2)
    stored = json.loads((folder / "config.json").read_text())
    assert not [key for key in stored["config"] if key.startswith(("fedpa.", "mnist-cnn."))]
    assert stored["config"]["2nn.hidden"] == SMALL["2nn.hidden"]
    stored["config"] |= {"fedpa.steps-per-sample": 2, "gone.parameter": 1}
    (folder / "config.json").write_text(json.dumps(stored))
    assert metrics(run(folder, num_server_rounds=3, resume=True))[-1]["round"] == 3
    assert "fedpa" not in (folder / "resume.toml").read_text()


@pytest.mark.parametrize("num_clients", [10, 0])
def test_a_run_that_is_resumed_by_its_file_has_as_many_nodes_too(num_clients, tmp_path):
    """One node would be the only client, with the data of all, and the bound of DP-FedAvg not its."""
    folder = tmp_path / "run"
    values = {**SMALL, "num-clients": num_clients, "num-server-rounds": 2, "run-dir": str(folder)}
    run_inline(server_app, client_app, values, 3)
    before = metrics(folder)
    values |= {"num-server-rounds": 3, "resume": True}
    with pytest.raises(ConfigError, match=r"--nodes 1: the run in .* has 3 nodes.*--resume"):
        run_inline(server_app, client_app, values, 1)
    assert metrics(folder) == before
    run_inline(server_app, client_app, values, 3)
    assert metrics(folder)[-1]["round"] == 3


class WorkersGrid(InlineGrid):
    """As with workers, of which the second fails while it answers."""

    option = "--workers"
    run_info = {"engine": "workers", "workers": 2}  # noqa: RUF012

    def _answer(self, message):
        if message.metadata.message_type == MessageType.QUERY and message.metadata.dst_node_id == 2:
            return error_reply(message, "its worker died")
        return super()._answer(message)


def test_a_run_that_began_while_a_worker_failed_is_resumed_with_as_many(tmp_path):
    folder = run(tmp_path / "run", grid=WorkersGrid, num_server_rounds=2)
    stored = json.loads((folder / "config.json").read_text())["found"]
    assert (stored["nodes"], stored["workers"]) == (2, 2)
    run(folder, grid=WorkersGrid, num_server_rounds=3, resume=True)
    assert metrics(folder)[-1]["round"] == 3


def test_a_run_of_devices_is_not_resumed_without_them(tmp_path):
    """They would be replaced by nodes that share the server's data."""
    folder, parts = tmp_path / "run", [{"partition-id": k, "num-partitions": 2} for k in range(2)]
    values = {**SMALL, "num-clients": 0, "num-server-rounds": 2, "run-dir": str(folder)}
    server.run(InlineGrid(client_app, values, parts), read_config(values))
    stored = json.loads((folder / "config.json").read_text())
    stored["found"]["engine"] = "flower"
    (folder / "config.json").write_text(json.dumps(stored))
    values |= {"num-server-rounds": 3, "resume": True}
    with pytest.raises(ConfigError, match=r"the clients of the run.*with: flwr run . CONNECTION"):
        server.run(InlineGrid(client_app, values, parts), read_config(values))
    assert metrics(folder)[-1]["round"] == 2


def test_the_file_that_resumes_a_run_is_toml_whatever_its_folder_is_called(tmp_path):
    folder = run(tmp_path / 'läuft "🌳"', num_server_rounds=1)
    assert tomllib.loads((folder / "resume.toml").read_text())["run-dir"] == str(folder)


def test_a_checkpoint_has_the_clients_that_were_used(tmp_path):
    """And the devices that were not, yet; with virtual clients, and from 0.2.0, it has no sizes."""
    theta = {"weight": torch.ones(2)}
    for sizes in ({3: 70, 4: 10, 5: 90}, {}):
        save_checkpoint(tmp_path, ServerState(1, theta, {}, {5: 1, 3: 1}, sizes))
        state = load_checkpoint(tmp_path)
        assert (state.last_used_round, state.sizes) == ({3: 1, 5: 1}, sizes)


def devices(folder, parts, rounds, **settings):
    """Run SCAFFOLD on these of three devices, one of which trains in a round; return the state."""
    values = {**SMALL, "num-clients": 0, "fraction-train": 0.0, "algorithm": "scaffold", **settings}
    values |= {"num-server-rounds": rounds, "run-dir": str(folder)}
    own = {"num-partitions": 3, "state-path": str(folder / "own")}
    nodes = [{"partition-id": k, **own} for k in parts]
    server.run(InlineGrid(client_app, values, nodes), read_config(values))
    return load_checkpoint(folder / "checkpoints")


def test_a_run_of_devices_counts_those_that_are_away_after_a_resume(tmp_path):
    """SCAFFOLD's c is a mean over all three, one of which is gone for good and had not trained.

    A run that waited for three goes on with two if it is told to.
    """
    before = devices(tmp_path / "run", range(3), 1, **{"min-nodes": 3})
    assert len(before.last_used_round) == 1
    assert before.sizes.keys() == {0, 1, 2}
    assert sum(before.sizes.values()) == 1440
    there = sorted({*before.last_used_round, 0, 1})[:2]
    settings = {"min-nodes": 2, "node-timeout": 1.0, "resume": True}
    after = devices(tmp_path / "run", there, 2, **settings)
    assert (after.round, after.sizes) == (2, before.sizes)


def test_a_trace_may_move_and_not_change(tmp_path):
    """The run's own file is neither needed for its report."""
    trace, moved = tmp_path / "trace.csv", tmp_path / "moved.csv"
    trace.write_text("1,1\n" * 5 + "0,0\n" * 5)
    settings = {"sampler": "availability", "fraction_train": 0.3, "pictures": True}
    whole = run(
        tmp_path / "whole", **settings, **{"availability.trace": str(trace)}, num_server_rounds=4
    )
    settings["availability.trace"] = str(trace)
    folder = run(tmp_path / "run", **settings, num_server_rounds=2)
    moved.write_text(trace.read_text())
    trace.write_text("0,0\n" * 5 + "1,1\n" * 5)
    with pytest.raises(CheckpointError, match=r"availability\.trace = .*: not the file.*has moved"):
        run(folder, **settings, num_server_rounds=4, resume=True)
    trace.unlink()
    settings["availability.trace"] = str(moved)
    assert metrics(run(folder, **settings, num_server_rounds=4, resume=True)) == metrics(whole)
    moved.unlink()
    assert CliRunner().invoke(command_line, ["report", str(folder)]).exit_code == 0


def test_a_target_that_a_longer_run_would_not_see_does_not_end_it(tmp_path):
    """Round 5 is evaluated as the last of the shorter run; the longer one evaluates rounds 3 and 6."""
    given = {"eval_every": 3, "learning_rate": 0.3}
    accuracy = [
        r.get("test_accuracy", 0.0)
        for r in metrics(run(tmp_path / "all", **given | {"eval_every": 1}, num_server_rounds=6))
    ]
    assert max(accuracy[:5]) < accuracy[5] <= accuracy[6]
    given["target_accuracy"] = accuracy[5]
    whole = run(tmp_path / "whole", **given, num_server_rounds=9)
    folder = run(tmp_path / "run", **given, num_server_rounds=5)
    assert dict(status(folder))["state"] == "finished"
    run(folder, **given, num_server_rounds=9, resume=True)
    assert final(folder) == final(whole)
    assert metrics(folder)[-1]["round"] == 6


def test_a_server_state_that_is_theta_itself_can_be_written(tmp_path):
    theta = {"weight": torch.ones(2, 3)}
    save_checkpoint(tmp_path, ServerState(1, theta, dict(theta)))
    state = load_checkpoint(tmp_path)
    assert torch.equal(state.theta["weight"], theta["weight"])
    assert torch.equal(state.algorithm["weight"], theta["weight"])


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda theta: {**theta, "extra": torch.zeros(1)}, "is of another model: 'extra'"),
        (lambda theta: {name: t.double() for name, t in theta.items()}, "is of another model"),
        (lambda theta: {name: t * torch.nan for name, t in theta.items()}, "holds nan or infinite"),
    ],
    ids=["name", "type", "nan"],
)
def test_a_checkpoint_of_another_model_is_refused(damage, said, tmp_path):
    folder = run(tmp_path / "run", num_server_rounds=1)
    state = load_checkpoint(folder / "checkpoints")
    state.theta = damage(state.theta)
    save_checkpoint(folder / "checkpoints", state)
    with pytest.raises(CheckpointError, match=rf"the checkpoint in .* {said}.*another run-dir"):
        run(folder, num_server_rounds=2, resume=True)
    assert metrics(folder)[-1]["round"] == 1


def test_a_checkpoint_under_another_rounds_name_is_not_taken_for_it(tmp_path):
    """Copied by hand: its metrics would be those of another round."""
    save_checkpoint(tmp_path, ServerState(2, {"w": torch.ones(1)}))
    for ending in ("json", "safetensors"):
        shutil.copy(tmp_path / f"round-000002.{ending}", tmp_path / f"round-000005.{ending}")
    assert load_checkpoint(tmp_path).round == 2
    (tmp_path / "round-000002.json").unlink()
    with pytest.raises(CheckpointError, match="says that it is of round 2"):
        load_checkpoint(tmp_path)


def without_m(state):
    return {name: tensor for name, tensor in state.items() if not name.startswith("m/")}


@pytest.mark.parametrize(
    ("damage", "there"),
    [
        (without_m, "None"),
        (lambda state: {**state, "m/1.bias": torch.zeros(1)}, r"\(\(1,\), 'torch.float32'\)"),
        (lambda state: {**state, "m/1.bias": state["m/1.bias"].double()}, ".*'torch.float64'.*"),
    ],
    ids=["missing", "shape", "type"],
)
def test_a_server_state_of_another_algorithm_is_refused(damage, there, tmp_path):
    folder = run(tmp_path / "run", algorithm="fedadam")
    checkpoints = folder / "checkpoints"
    state = load_checkpoint(checkpoints)
    state.algorithm = damage(state.algorithm)
    save_checkpoint(checkpoints, state)
    said = (
        rf"is not of algorithm = 'fedadam': 'm/1.bias' is {there} there and \(\(16,\), .* run-dir"
    )
    with pytest.raises(CheckpointError, match=said):
        run(folder, algorithm="fedadam", resume=True, num_server_rounds=4)
    assert metrics(folder)[-1]["round"] == 3


def test_a_folder_with_checkpoints_of_a_deleted_run_is_refused(tmp_path):
    folder = run(tmp_path / "run")
    (folder / "config.json").unlink()
    with pytest.raises(ConfigError, match=r"checkpoints of a run without .* Remove .*checkpoints"):
        run(folder)
    shutil.rmtree(folder / "checkpoints")
    assert metrics(run(folder))[-1]["round"] == 3


def test_runs_that_begin_in_the_same_second_have_folders_of_their_own(tmp_path, monkeypatch):
    """Another run makes the folder of this name just before."""
    monkeypatch.setenv("FEDAPP_RUNS", str(tmp_path))
    make, others = Path.mkdir, []

    def mkdir(self, *arguments, **options):
        if self.parent == tmp_path and not others:
            others.append(self)
            make(self)
        make(self, *arguments, **options)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    made = create(read_config({"dataset": "digits"})).path
    assert made == others[0].with_name(f"{others[0].name}-2")


def test_a_run_killed_before_it_was_one_is_begun_again(tmp_path, monkeypatch):
    """The checkpoint of round 0 comes before config.json, which makes the folder a run."""

    def die(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(server, "write_config", die)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "run")
    assert checkpoint_rounds(tmp_path / "run" / "checkpoints") == [0]
    assert metrics(run(tmp_path / "run"))[-1]["round"] == 3


def test_a_checkpoint_outlives_older_and_later_ones(tmp_path):
    for round_ in (20, 40, 50, 30):
        save_checkpoint(tmp_path, ServerState(round_, {}))
    assert checkpoint_rounds(tmp_path) == [30]
    save_checkpoint(tmp_path, ServerState(35, {}))
    assert checkpoint_rounds(tmp_path) == [35, 30]
    assert load_checkpoint(tmp_path).round == 35


def test_a_users_own_copies_of_checkpoints_stay(tmp_path):
    names = ["best-round-000002.safetensors", "round-000002.safetensors.bak"]
    for name in names:
        (tmp_path / name).write_bytes(b"a copy")
    for round_ in (10, 20, 30):
        save_checkpoint(tmp_path, ServerState(round_, {}))
    assert checkpoint_rounds(tmp_path) == [30, 20]
    assert {*names} < {path.name for path in tmp_path.iterdir()}


def test_what_a_kill_left_half_written_goes_with_the_next_checkpoint(tmp_path):
    """Also tensors whose description was never written: each would be as large as the model."""
    for name in (".round-000010.safetensors.7.tmp", ".round-000010.json.7.tmp"):
        (tmp_path / name).write_bytes(b"half")
    (tmp_path / "round-000005.safetensors").write_bytes(b"whole, and not described")
    for round_ in (10, 20):
        save_checkpoint(tmp_path, ServerState(round_, {}))
    names = [
        f"round-0000{round_}.{ending}" for round_ in (10, 20) for ending in ("json", "safetensors")
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == names


def test_a_checkpoint_one_round_beyond_the_metrics_is_not_resumed_from(tmp_path):
    """A resume after round 5 would leave the line of round 5 out of metrics.jsonl."""
    for round_ in (4, 5):
        save_checkpoint(tmp_path, ServerState(round_, {"w": torch.ones(1)}))
    assert [load_checkpoint(tmp_path, reached).round for reached in (4, 5)] == [4, 5]
