"""Workers on a Ray cluster of two nodes, which RAY_ADDRESS names, and one that has no room."""

import json
import re
import subprocess
import sys

import pytest
import ray
from ray.util import placement_group, remove_placement_group

from benchmarks.scaling import bytes_stored
from deploy.federation import Federation
from deploy.processes import BIN
from fedapp.cli import main as cli
from fedapp.engines.ray_cluster import LOCAL, Cluster
from fedapp.errors import ConfigError
from tests.conftest import largest_difference
from tests.in_process import SMALL, TWENTY, metrics, model, run
from tests.raylets import raylets


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """Return the address of a Ray cluster of two nodes with one CPU each."""
    with raylets(tmp_path_factory.mktemp("cache")) as started:
        yield started.address


def fedapp_run(monkeypatch, *options, command="run", **settings):
    """Call `fedapp run`, or another command, in this process and return its exit status."""
    words = [f"{k.replace('_', '-')}={json.dumps(v)}" for k, v in settings.items()]
    small = [f"{k}={json.dumps(v)}" for k, v in SMALL.items()]
    monkeypatch.setattr(sys, "argv", ["fedapp", command, *options, *small, *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return ended.value.code or 0


def log_of(folder):
    return [json.loads(line)["message"] for line in (folder / "log.jsonl").open()]


@pytest.mark.cluster
@pytest.mark.process
def test_both_nodes_train_and_the_numbers_are_those_of_one_process(address, tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", address)
    folder = tmp_path / "there"
    assert fedapp_run(monkeypatch, "--workers", "2", min_nodes=2, run_dir=str(folder)) == 0
    (said,) = (line for line in log_of(folder) if line.startswith("Workers: "))
    nodes = re.findall(r"1 on [\d.]+ \(node (\w{8})\)", said)
    assert len(set(nodes)) == 2
    assert f"2 workers in the Ray cluster at {address} (RAY_ADDRESS): " in said
    assert said.endswith(", each with 1 CPU and 0 GPU")
    assert sorted(places_of_actors(address)) == sorted(nodes)

    reference = run(tmp_path / "here")
    assert all(record["replied"] == len(record["clients"]) for record in metrics(folder)[1:])
    assert [r.get("clients") for r in metrics(folder)] == [
        r.get("clients") for r in metrics(reference)
    ]
    assert largest_difference(model(folder), model(reference)) <= 1e-6


@pytest.mark.cluster
@pytest.mark.nightly
@pytest.mark.process
def test_workers_may_have_parts_of_a_node(address, tmp_path, monkeypatch):
    options = ("--workers", "3", "--cpus-per-worker", "0.5", "--ray-address", address)
    folder = tmp_path / "run"
    assert fedapp_run(monkeypatch, *options, run_dir=str(folder)) == 0
    (said,) = (line for line in log_of(folder) if line.startswith("Workers: 3 workers in "))
    assert "(--ray-address): " in said
    assert sorted(re.findall(r"(\d) on [\d.]+ \(node", said)) == ["1", "2"]
    assert said.endswith(", each with 0.5 CPU and 0 GPU")


@pytest.mark.cluster
@pytest.mark.nightly
@pytest.mark.process
def test_theta_goes_to_a_node_once_a_round(address, tmp_path, monkeypatch):
    """Four workers, two a node: each node stores theta once, for two cohorts and two evaluations."""
    options = ("--workers", "4", "--cpus-per-worker", "0.5", "--ray-address", address)
    folder, rounds, before = tmp_path / "run", 6, bytes_stored(address)
    settings = {"2nn.hidden": 200, "num_server_rounds": rounds, "eval_train_examples": 1200}
    assert fedapp_run(monkeypatch, *options, run_dir=str(folder), min_nodes=4, **settings) == 0
    size = sum(tensor.nbytes for tensor in model(folder).values())
    theta, replies, pulled = (rounds + 1) * size, 2 * rounds * size, 2 * rounds * size
    after = bytes_stored(address)
    stored = sorted(after[node] - before[node] for node in after)
    assert stored == [
        pytest.approx(theta + replies, rel=0.02),
        pytest.approx(theta + replies + pulled, rel=0.02),  # the server's node
    ]


OWN = """
import os
from pathlib import Path
from strategies.fedavg import FedAvg
import fedapp
from helper import SCALE

class Mine(FedAvg):
    name = "mine"

    def finalize(self, params, context, steps):
        Path(PLACE, str(os.getpid())).write_text(fedapp.__file__ + "\\n" + __file__ + "\\n")
        return super().finalize(params, context, steps)
"""


@pytest.mark.cluster
@pytest.mark.process
def test_the_nodes_get_the_app_and_components_of_ones_own(address, tmp_path):
    """They have neither: the nodes were started in another folder, and with another path."""
    app, places = tmp_path / "app", tmp_path / "places"
    places.mkdir()
    (app / "parts").mkdir(parents=True)
    (app / "helper.py").write_text("SCALE = 1.0\n")
    (app / "parts" / "mine.py").write_text(f"PLACE = {str(places)!r}\n{OWN}")
    own = {"algorithm": "./parts/mine.py", "run-dir": str(tmp_path / "run"), "min-nodes": 2}
    words = [f"{key}={json.dumps(value)}" for key, value in {**SMALL, **own}.items()]
    command = [BIN / "fedapp", "run", "--workers", "2", "--ray-address", address, *words]
    done = subprocess.run(command, cwd=app, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    lines = [path.read_text().splitlines() for path in places.iterdir()]
    brought = [line for line in lines if line[1] != str(app / "parts" / "mine.py")]
    assert len(brought) == 2, "the server calls the rule as well"
    assert all("/runtime_resources/" in path for line in brought for path in line)


@pytest.mark.cluster
@pytest.mark.nightly
@pytest.mark.process
def test_flowers_simulation_takes_the_cluster_of_the_variable(address, tmp_path):
    """`flwr run .` on a SuperLink with RAY_ADDRESS: an actor on each node, and the same numbers."""
    (tmp_path / "flwr").mkdir()
    started = Federation(tmp_path / "flwr", simulation=True)
    started.environment["RAY_ADDRESS"] = address
    settings = {**TWENTY, "num-server-rounds": 4}
    try:
        started.start_superlink()
        folder = started.run(settings, "run", "num-supernodes=2 client-resources-num-cpus=1")
    finally:
        started.stop()
    assert len(set(places_of_actors(address, "ClientAppActor"))) == 2
    reference = run(tmp_path / "here", num_server_rounds=4)
    assert all(record["replied"] == len(record["clients"]) for record in metrics(folder)[1:])
    assert largest_difference(model(folder), model(reference)) <= 1e-6


def places_of_actors(address, kind="Worker"):
    """Return the beginnings of the ids of the nodes on which actors of a class ran."""
    ray.init(address, logging_level="ERROR")
    try:
        actors = ray._private.state.actors().values()
        return [a["Address"]["NodeID"][:8] for a in actors if a["ActorClassName"] == kind]
    finally:
        ray.shutdown()


@pytest.mark.cluster
@pytest.mark.process
def test_without_room_the_error_says_what_each_node_has(address, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("RAY_ADDRESS", address)
    ray.init(address, logging_level="ERROR")
    taken = placement_group([{"CPU": 1}])
    try:
        assert taken.wait(30)
        options = ("--workers", "2", "--worker-timeout", "3")
        assert fedapp_run(monkeypatch, *options, run_dir=str(tmp_path / "run")) == 2
        assert fedapp_run(monkeypatch, "--workers", "1", run_dir=str(tmp_path / "one")) == 0
        options = ("--jobs", "2", "--worker-timeout", "1", "--cpus-per-worker", "1")
        places = ("--ray-address", "auto", "--runs", str(tmp_path / "runs"))
        assert fedapp_run(monkeypatch, *options, *places, command="sweep") == 2
    finally:
        remove_placement_group(taken)
        ray.shutdown()
    last, of_sweep = (line for line in capsys.readouterr().err.splitlines() if "Error" in line)
    assert "--jobs 2: not enough free resources" in of_sweep
    assert (
        f"--workers 2: not enough free resources in the Ray cluster at {address} (RAY_ADDRESS) within 3 s"
        in last
    )
    assert "Each asks for 1 CPU and 0 GPU" in last
    nodes = re.findall(r"[\d.]+ \(node \w+\) 1 CPU \((\d) free\) and 0 GPU \(0 free\)", last)
    assert sorted(nodes) == ["0", "1"]
    assert "--worker-timeout SECONDS" in last
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("option", "variable", "expected"),
    [
        ("", "", LOCAL.address),
        ("", "10.0.0.1:6379", "10.0.0.1:6379"),
        ("10.0.0.2:6379", "10.0.0.1:6379", "10.0.0.2:6379"),
        ("local", "10.0.0.1:6379", LOCAL.address),
        ("", "local", LOCAL.address),
        ("", "auto", "auto"),
        ("ray://head:10001", "http://head:8265", "ray://head:10001"),
    ],
)
def test_the_option_wins_over_the_variable(option, variable, expected, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", variable)
    assert Cluster.from_option(option).address == expected


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("http://head:8265", "`ray job submit --address http://head:8265 -- fedapp run "),
        ("head", "no address of a Ray cluster"),
        ("grpc://head:1", "no address of a Ray cluster"),
        ("ray://head", "no address of a Ray cluster"),
    ],
)
def test_other_addresses_are_refused_with_those_that_are_meant(address, said, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(ConfigError, match=rf"^RAY_ADDRESS '{address}': .*{said}.*ray://HOST:10001"):
        Cluster.from_option("")
