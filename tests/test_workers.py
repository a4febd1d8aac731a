"""The engine of Ray workers: shares of a machine, a death, a cluster that is there already."""

import json
import os
import queue
import sys
from contextlib import ExitStack, nullcontext

import pytest
import ray
from ray._private import ray_constants, services
from typer.testing import CliRunner

from deploy.processes import free_port
from fedapp.cli.main import app
from fedapp.cli.run import _resumed
from fedapp.engines import ray_cluster
from fedapp.engines.ray_actors import ActorPool, PoolActor
from fedapp.engines.ray_cluster import LOCAL, Cluster, connected
from fedapp.engines.ray_placement import WorkerRequest, place_workers
from fedapp.engines.ray_workers import run_workers
from fedapp.errors import ConfigError, RunError
from fedapp.server_app import app as server_app
from fedapp.studies.sweep import cluster_workers
from fedapp.studies.sweep.cluster_workers import ClusterWorkers, RunActor
from fedapp.studies.sweep.identity import Request
from tests import killed
from tests.conftest import largest_difference
from tests.in_process import SMALL, metrics, model, run


@pytest.mark.parametrize(
    ("cpus", "gpus", "workers", "expected"),
    [
        (2, 0, 2, (1.0, 0.0)),
        (8, 0, 2, (1.0, 0.0)),
        (2, 0, 3, (0.5, 0.0)),
        (2, 0, 5, (0.3333, 0.0)),
        (16, 1, 4, (1.0, 0.25)),
        (16, 2, 3, (1.0, 0.5)),  # 2/3 each would leave no place for the third
        (16, 4, 2, (1.0, 1.0)),
    ],
)
def test_every_worker_finds_a_place(cpus, gpus, workers, expected):
    share = WorkerRequest(workers).resources({"CPU": cpus, "GPU": gpus}, gpu=True)
    assert (share.cpus, share.gpus) == expected
    assert cpus * int(1 / share.cpus) >= workers
    assert not gpus or gpus * int(1 / share.gpus) >= workers


@pytest.mark.parametrize(("cluster", "loopback"), [(LOCAL, True), (Cluster("auto"), False)])
def test_an_instance_of_ray_listens_on_the_loopback_alone(cluster, loopback, monkeypatch):
    """Ray asks for its machine's address when it starts; elsewhere than on Linux this is the loopback."""
    given = []
    monkeypatch.setattr(ray_constants, "ENABLE_RAY_CLUSTER", True)
    monkeypatch.setattr(services, "node_ip_address_from_perspective", lambda _: "10.0.0.4")
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    monkeypatch.setattr(ray, "init", lambda *_, **__: given.append(services.get_node_ip_address()))
    with connected(cluster):
        assert given == ["127.0.0.1" if loopback else "10.0.0.4"]
        assert ray_constants.ENABLE_RAY_CLUSTER


def test_a_run_on_the_cpu_takes_no_gpu():
    assert WorkerRequest(2).resources({"CPU": 4.0, "GPU": 1.0}, gpu=False).gpus == 0


def test_options_are_taken_for_a_share():
    there = {"CPU": 4.0, "GPU": 1.0}
    asked = WorkerRequest(2, cpus=1.5).resources(there, gpu=True)
    assert (asked.cpus, asked.gpus) == (1.5, 0.5)
    asked = WorkerRequest(2, gpus=0.25).resources(there, gpu=True)
    assert (asked.cpus, asked.gpus) == (1.0, 0.25)
    with pytest.raises(ConfigError, match=r"^--gpus-per-worker 1\.5: Ray gives .* or whole ones"):
        WorkerRequest(2, gpus=1.5)


def test_a_resumed_run_keeps_its_workers(tmp_path):
    stored = {"config": {}, "found": {"engine": "workers", "nodes": 3, "workers": 3}}
    (tmp_path / "config.json").write_text(json.dumps(stored))
    assert _resumed(tmp_path, {}, None, 0)[1:] == (3, 3)
    assert _resumed(tmp_path, {}, 3, 3)[1:] == (3, 3)
    assert _resumed(tmp_path, {"run-dir": str(tmp_path)}, None, 0)[0]["run-dir"] == str(tmp_path)
    with pytest.raises(ConfigError, match=r"--workers 2: the run in .* has 3 workers"):
        _resumed(tmp_path, {}, None, 2)
    with pytest.raises(ConfigError, match=r"--nodes 4: the run in .* has 3 nodes"):
        _resumed(tmp_path, {}, 4, 0)
    with pytest.raises(ConfigError, match=r"run-dir = 'elsewhere': --resume continues .* in that"):
        _resumed(tmp_path, {"run-dir": "elsewhere"}, None, 0)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--workers", "2", "--nodes", "5"], "--nodes 5: each of the 2 workers is one node"),
        (["--ray-address", "here:1"], "--ray-address here:1: has no effect"),
        (["--worker-timeout", "5"], "--worker-timeout 5.0: has no effect"),
        (
            ["--cpus-per-worker", "2"],
            "--cpus-per-worker 2.0: has no effect, because the run has no",
        ),
    ],
)
def test_options_without_effect_are_refused(options, said):
    found = CliRunner().invoke(app, ["run", *options])
    assert isinstance(found.exception, ConfigError)
    assert said in str(found.exception)


@pytest.fixture(scope="module")
def cluster():
    """Return the address of a Ray cluster, to which this process is connected; others may be, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ray_cluster, "_loopback_alone", nullcontext)  # as `ray start --head` listens
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # Ray's workers need dying_client
        with connected(LOCAL):
            yield ray.get_runtime_context().gcs_address


@pytest.mark.process
def test_a_worker_that_dies_is_replaced(cluster, tmp_path):
    settings = {
        "num-server-rounds": 4,
        "min-nodes": 2,
        "node-timeout": 60.0,
        "run-dir": str(tmp_path / "run"),
    }
    run_workers(server_app, SMALL | settings, WorkerRequest(2), client_app="tests.dying_client:app")
    records = metrics(tmp_path / "run")[1:]
    assert [record["replied"] for record in records] == [5, 3, 5, 5]
    assert records[1]["faults"] == {"crashed": 2}
    failures = records[1]["failures"]
    assert len(failures) == 2
    assert all("its worker died" in reason for reason in failures.values())
    assert set(map(int, failures)) < set(records[1]["clients"])


class Elsewhere(PoolActor):
    """An actor whose second one has another folder under the same name."""

    def __init__(self, number):
        super().__init__(".")
        self.other = number == 2

    def touch(self, path):
        return super().touch(path.with_name("elsewhere") if self.other else path)


@pytest.mark.process
def test_a_folder_that_not_all_share_is_named(cluster, tmp_path):
    with place_workers(LOCAL, WorkerRequest(2, 0.5), gpu=False) as placement:
        pool = ActorPool(placement, Elsewhere, lambda number: (number,))
        where = (
            r"run-dir: worker 2 on [\d.]+ \(node \w+\) and others do not see each other's files in "
        )
        with pytest.raises(ConfigError, match=f"^{where}{tmp_path}. It is kept there: choose"):
            pool.require_shared(tmp_path, "run-dir", "It is kept there")
        with pytest.raises(FileNotFoundError):
            pool.require_shared(tmp_path / "none", "run-dir", "It is kept there")
    assert [path.name for path in tmp_path.iterdir()] == ["elsewhere"]


@pytest.mark.process
def test_a_cluster_that_is_there_already(cluster, tmp_path):
    """Another process uses it and goes on with its run; the numbers are those of one process."""
    settings = {"precision": "float64", "run-dir": str(tmp_path / "there")}
    reference = run(tmp_path / "here", num_server_rounds=4, precision="float64")
    first = SMALL | settings | {"num-server-rounds": 2}
    assert killed.run(first, workers=2, ray_address=cluster) == 0
    again = {"num-server-rounds": 4}
    folder = tmp_path / "there"
    assert killed.run(again, resume=folder, ray_address=cluster) == 0
    assert json.loads((folder / "config.json").read_text())["found"]["workers"] == 2
    assert [r.get("clients") for r in metrics(folder)] == [
        r.get("clients") for r in metrics(reference)
    ]
    assert largest_difference(model(folder), model(reference)) <= 1e-9


@pytest.mark.parametrize("kind", ["", "ray://"])
def test_an_address_without_a_cluster(kind, monkeypatch):
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    there = Cluster(f"{kind}127.0.0.1:{free_port()}", "RAY_ADDRESS")
    with (
        pytest.raises(
            RunError, match=rf"^RAY_ADDRESS '{there.address}': there is no Ray cluster \("
        ),
        connected(there),
    ):
        pass


def test_a_sweeps_workers_that_are_closed_twice_start_no_ray(monkeypatch):
    """Ray, which the first call has shut down, would start by itself in the second."""
    calls, ended = [], []
    monkeypatch.setattr(cluster_workers.ray, "get", lambda *given, **more: calls.append(given))
    workers = object.__new__(ClusterWorkers)
    workers.members, workers._stack = [], ExitStack()
    workers._stack.callback(ended.append, "cluster")
    workers.close()
    assert (calls, ended) == ([], ["cluster"])


def test_a_run_of_a_sweep_that_calls_exit_in_a_worker_has_failed(monkeypatch, tmp_path):
    def leave(*given):
        sys.exit("accuracy is enough")

    monkeypatch.setattr(cluster_workers, "execute", leave)
    actor = object.__new__(RunActor)
    actor._root, actor._stop, actor._raylet, actor._events = tmp_path, None, 0, queue.Queue()
    actor._execute([(Request.of(SMALL, 3), "a run")])
    [event] = actor.events()
    assert event.done
    assert event.problem.startswith("SystemExit: accuracy is enough")
