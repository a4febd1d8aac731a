"""A Ray cluster that loses a node in a round, and gets another one later."""

import time

import pytest
from flwr.serverapp import ServerApp

from fedapp.config.read import read_config
from fedapp.engines.ray_cluster import Cluster
from fedapp.engines.ray_placement import WorkerRequest
from fedapp.engines.ray_workers import run_workers
from fedapp.federation.callback import Callback
from fedapp.server import run
from fedapp.server_app import app as server_app
from tests.conftest import largest_difference
from tests.in_process import SMALL, metrics, model
from tests.in_process import run as run_inline
from tests.raylets import add_node, raylets

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.process,
    pytest.mark.nightly,
    pytest.mark.timeout(240),
]

SECONDS = 60


class AddNode(Callback):
    """Adds a node five rounds after one was lost, and ends the run when its worker has trained."""

    def __init__(self, cluster, grid):
        self.cluster, self.grid = cluster, grid
        self.connected = []
        self.added = None
        self.until = None

    def on_round(self, result, state):
        self.connected.append(len(self.grid.get_node_ids()))
        if result.round == 7:
            self.added = add_node(self.cluster, 2)
            self.until = time.monotonic() + SECONDS
        if self.added and time.monotonic() > self.until:
            return True
        return self.added is not None and self.connected[-3:] == [2, 2, 2]


def test_a_node_that_dies_in_an_evaluation_costs_nothing(tmp_path):
    """The server evaluates its part, the others train everybody: the numbers of one process."""
    settings = {"num-server-rounds": 8, "min-nodes": 3, "eval-train-examples": 1200}
    values = SMALL | settings | {"run-dir": str(tmp_path / "there")}
    with raylets(tmp_path / "cache", nodes=3) as cluster:
        there, three = Cluster(cluster.address), WorkerRequest(3)
        run_workers(server_app, values, three, there, client_app="tests.dying_node:evaluating")
    there, here = tmp_path / "there", tmp_path / "here"
    reference = run_inline(here, num_server_rounds=8, eval_train_examples=1200)
    assert (there / "died").exists()
    assert all(record["replied"] == 5 for record in metrics(there)[1:])
    for record, expected in zip(metrics(there), metrics(reference), strict=True):
        for name in ("test_loss", "training_set_loss", "test_accuracy"):
            assert record[name] == pytest.approx(expected[name], abs=1e-6)
    assert largest_difference(model(there), model(reference)) <= 1e-6


def test_a_node_that_dies_costs_one_round_and_another_one_joins(tmp_path):
    folder = tmp_path / "run"
    settings = {"num-server-rounds": 100_000, "trainer": "sequential", "min-nodes": 2}
    settings["run-dir"] = str(folder)
    watching = []

    def serve(grid, context):
        watching.append(AddNode(cluster, grid))
        run(grid, read_config(context.run_config), watching)

    watched = ServerApp()
    watched.main()(serve)
    with raylets(tmp_path / "cache") as cluster:
        there, two = Cluster(cluster.address), WorkerRequest(2)
        run_workers(watched, SMALL | settings, two, there, client_app="tests.dying_node:app")

    records = metrics(folder)[1:]
    assert records[1]["faults"]["crashed"] == 5 - records[1]["replied"] > 0
    assert [record["replied"] for record in records if record["round"] != 2] == [5] * (
        len(records) - 1
    )
    assert watching[0].connected[:2] == [2, 2]
    assert watching[0].connected[3:7] == [1] * 4
    assert watching[0].connected[-3:] == [2] * 3
