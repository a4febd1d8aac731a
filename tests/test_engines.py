"""Every engine carries the same run: the same clients each round, the same parameters."""

import re

import numpy as np
import pytest
import torch

from deploy.federation import federation
from fedapp.data.embedded.digits import Digits
from fedapp.engines.ray_cluster import LOCAL, connected
from fedapp.engines.ray_placement import WorkerRequest
from fedapp.engines.ray_workers import run_workers
from fedapp.server_app import app as server_app
from tests import killed
from tests.data_files import png, write_parquet
from tests.in_process import SMALL, TWENTY, metrics, model

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]

TOLERANCE = {"float64": 1e-9, "float32": 1e-5}


@pytest.fixture(scope="module")
def deployment(tmp_path_factory):
    """Return a SuperLink with two SuperNodes for virtual clients, and one with data of its own."""
    folder = tmp_path_factory.mktemp("deployment")
    write_digits(folder / "node-0", slice(0, 300))
    with federation(folder, simulation=False) as started:
        started.start_node("virtual-a")
        started.start_node("virtual-b")
        started.start_node("own-0", data_path=str(folder / "node-0"), client_id=0)
        yield started


@pytest.fixture(scope="module")
def in_process(tmp_path_factory):
    """Return the folder of `fedapp run`, run once, by settings and number of nodes."""
    folders = {}

    def of(nodes, **settings):
        key = (nodes, *settings.items())
        if key not in folders:
            folders[key] = tmp_path_factory.mktemp("in-process") / "run"
            values = {**SMALL, **settings, "run-dir": folders[key]}
            assert killed.run(values, nodes=nodes) == 0
        return folders[key]

    return of


class Workers:
    """Two Ray workers for each run, on one local cluster."""

    def __init__(self, folder):
        self.folder = folder

    def run(self, settings, name):
        """Run to the end and return the run's folder."""
        values = {**settings, "run-dir": str(self.folder / name)}
        run_workers(server_app, values, WorkerRequest(2))
        return self.folder / name


@pytest.fixture(scope="module")
def workers(tmp_path_factory):
    """Return what runs on Ray workers."""
    with connected(LOCAL):
        yield Workers(tmp_path_factory.mktemp("workers"))


CHANGING = {"local-epochs": 3, "local-epochs-decay": 0.5, "batch-size-growth": 1.5}


ON_RAY = [
    ("scaffold", "workers"),
    pytest.param("scaffold", "simulation", marks=pytest.mark.nightly),
    pytest.param("moon", "simulation", marks=pytest.mark.nightly),
    pytest.param("krum", "simulation", marks=pytest.mark.nightly),
]


@pytest.mark.parametrize(("algorithm", "engine"), ON_RAY)
def test_algorithms_on_ray(algorithm, engine, request, in_process):
    """What clients keep, upload and send each by itself survives Ray's processes."""
    settings = {"algorithm": algorithm, "precision": "float64", "num-server-rounds": 4}
    reference = in_process(2, **settings)
    folder = request.getfixturevalue(engine).run({**SMALL, **settings}, algorithm)
    assert [r.get("clients") for r in metrics(folder)] == [
        r.get("clients") for r in metrics(reference)
    ]
    theirs = model(reference)
    for name, tensor in model(folder).items():
        assert float((tensor - theirs[name]).abs().max()) <= TOLERANCE["float64"]


def test_the_simulation_trains_k_clients_with_its_two_nodes(simulation):
    # The run of `test_engines_agree`.
    settings = {"precision": "float64", "num-server-rounds": 20, **CHANGING}
    records = metrics(simulation.run({**TWENTY, **settings}, "float64-20"))
    assert {client for record in records[1:] for client in record["clients"]} == set(range(10))
    assert "2 simulated SuperNodes" in (simulation.folder / "float64-20.log").read_text()


# Deployments come last, for their processes ask for work all the time.
# A round of a deployment takes about 8 s, whatever the clients do: a SuperNode asks for messages
# every 3 s, and starts a process that imports PyTorch for each. So it gets fewer rounds.
RUNS = [
    ("one node in process", "float64", 20),
    ("one node in process", "float32", 20),
    ("workers", "float64", 20),
    ("simulation", "float64", 20),
    pytest.param("simulation", "float32", 20, marks=pytest.mark.nightly),
    ("deployment", "float32", 2),
]


@pytest.mark.parametrize(("engine", "precision", "rounds"), RUNS)
def test_engines_agree(engine, precision, rounds, request, in_process):
    """E falls from 3 to 1 and B grows: what the server orders, every engine carries."""
    settings = {"precision": precision, "num-server-rounds": rounds, **CHANGING}
    reference = in_process(2, **settings)
    if engine == "one node in process":
        folder = in_process(1, **settings)
    else:
        name = f"{precision}-{rounds}"
        folder = request.getfixturevalue(engine).run({**TWENTY, **settings}, name)
    records, expected = metrics(folder), metrics(reference)
    assert len(records) == rounds + 1
    assert [r["local_epochs"] for r in records[1:]] == [3, 2, *[1] * (rounds - 2)]
    assert records[2]["batch_size"] == round(1.5 * records[1]["batch_size"])
    assert [r.get("clients") for r in records] == [r.get("clients") for r in expected]
    assert all(len(r["clients"]) == r["replied"] == 5 for r in records[1:])
    mine, theirs = model(folder), model(reference)
    assert list(mine) == list(theirs)
    for name, tensor in mine.items():
        assert tensor.dtype == getattr(torch, precision)
        distance = float((tensor - theirs[name]).abs().max())
        assert distance <= TOLERANCE[precision], f"{name} differs by {distance}"


def test_a_node_with_data_of_its_own_trains_no_virtual_client(deployment):
    # The run of `test_engines_agree`.
    settings = {"precision": "float32", "num-server-rounds": 2, **CHANGING}
    deployment.run({**TWENTY, **settings}, "float32-2")
    log = (deployment.folder / "float32-2.log").read_text()
    refused = re.findall(r"Node \d+ is rejected: (.*)", log)
    assert len(refused) == 1
    assert "num-clients = 10: this node has data of its own (data-path = " in refused[0]


def write_digits(folder, part, names=tuple("0123456789")):
    """Write some of the digits as pictures in `train.parquet` and `test.parquet`."""
    import datasets

    splits = {}
    dataset = Digits().load()
    for split, examples in (("train", dataset.train), ("test", dataset.test)):
        pixels = (examples.inputs[part, 0] * 255).astype(np.uint8)
        labels = [int(label) for label in examples.targets[part]]
        splits[split] = {"image": [png(image) for image in pixels], "label": labels}
    features = {"image": datasets.Image(), "label": datasets.ClassLabel(names=list(names))}
    return write_parquet(folder, splits, features)


@pytest.mark.nightly
def test_nodes_that_are_clients(deployment):
    """`num-clients = 0`: every node its own folder; the server reads a third for its test set."""
    folder = deployment.folder
    write_digits(folder / "server", slice(0, 100))
    write_digits(folder / "node-1", slice(300, 500))
    write_digits(folder / "other", slice(0, 50), names=[f"digit {i}" for i in range(10)])
    deployment.start_node("own-1", data_path=str(folder / "node-1"), client_id=1)
    deployment.start_node("own-1-again", data_path=str(folder / "node-1"), client_id=1)
    deployment.start_node("other", data_path=str(folder / "other"), client_id=2)
    settings = {
        **TWENTY,
        "num-clients": 0,
        "fraction-train": 1.0,
        "num-server-rounds": 2,
        "dataset": str(folder / "server"),
        "data-cache": str(folder / "cache"),
    }
    records = metrics(deployment.run(settings, "own"))
    assert [r["clients"] for r in records[1:]] == [[0, 1]] * 2
    assert [r["examples"] for r in records[1:]] == [500] * 2
    log = (folder / "own.log").read_text()
    refused = dict.fromkeys(re.findall(r"Node \d+ is rejected: (.*)", log))
    reasons = "\n".join(refused)
    assert re.search(r"client-id = 1: node \d+ is that client already", reasons)
    assert re.search(r"labels \(digit 0, .*\) instead of \(0, ", reasons)
    assert "neither data of its own nor a part" in reasons
