"""A Ray cluster that loses a node in a round, and gets another one later."""

import time

import pytest
from flwr.serverapp import ServerApp
from in_process import SMALL, metrics
from raylets import NODE, raylets

from fedapp.config.read import read_config
from fedapp.engines.ray_cluster import Cluster
from fedapp.engines.ray_placement import WorkerRequest
from fedapp.engines.ray_workers import run_workers
from fedapp.federation.callback import Callback
from fedapp.server_app import run

pytestmark = [pytest.mark.cluster, pytest.mark.process, pytest.mark.timeout(240)]

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
            self.added = self.cluster.add_node(**NODE)
            self.until = time.monotonic() + SECONDS
        if self.added and time.monotonic() > self.until:
            return True
        return self.added is not None and self.connected[-3:] == [2, 2, 2]


def test_a_node_that_dies_costs_one_round_and_another_one_joins(tmp_path):
    folder = tmp_path / "run"
    settings = {"num-server-rounds": 100_000, "min-nodes": 2, "run-dir": str(folder)}
    watching = []

    def serve(grid, context):
        watching.append(AddNode(cluster, grid))
        run(grid, read_config(context.run_config), watching)

    server_app = ServerApp()
    server_app.main()(serve)
    with raylets(tmp_path / "cache") as cluster:
        there, two = Cluster(cluster.address), WorkerRequest(2)
        run_workers(server_app, SMALL | settings, two, there, client_app="dying_node:app")

    records = metrics(folder)[1:]
    assert records[1]["faults"]["crashed"] == 5 - records[1]["replied"] > 0
    assert [record["replied"] for record in records if record["round"] != 2] == [5] * (
        len(records) - 1
    )
    assert watching[0].connected[:2] == [2, 2]
    assert watching[0].connected[3:7] == [1] * 4
    assert watching[0].connected[-3:] == [2] * 3
