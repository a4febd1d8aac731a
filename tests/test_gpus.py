"""Machines with GPUs, pretended: a process each, and who trains elsewhere is named."""

from __future__ import annotations

import io
import logging
import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from rich.console import Console

from fedapp.config.read import read_config
from fedapp.machine import gpus
from fedapp.studies.sweep import workers
from fedapp.studies.sweep.identity import Request
from fedapp.studies.sweep.scheduler import Schedule, SchedulerOptions
from fedapp.studies.sweep.store import Store
from fedapp.studies.sweep.workers import Worker
from fedapp.training.device import describe_device
from tests.test_nodes import DIGITS, Nodes, RegisteredGrid, answer


@pytest.fixture
def _three(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with three GPUs and eight cores, of which no worker starts."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr("fedapp.studies.sweep.scheduler.cores", lambda: 8)
    monkeypatch.setattr(Worker, "_start", lambda self: None)


def started(folder: Path, effort: SchedulerOptions, **settings: str) -> list[str]:
    """Return which GPU each worker of four runs sees; empty: whatever there is."""
    schedule = Schedule({}, Store(folder), effort, Console(file=io.StringIO()))
    requests = [Request.of({**settings, "seed": seed}, 1) for seed in range(4)]
    there = schedule._workers(requests)
    there.grow(len(requests))
    return [worker.gpu for worker in there.members]


@pytest.mark.usefixtures("_three")
def test_runs_of_a_sweep_are_spread_over_the_gpus(tmp_path: Path) -> None:
    """A process each unless more are asked for; runs on the CPU, or on a GPU of their own, as before."""
    assert started(tmp_path, SchedulerOptions()) == ["0", "1", "2"]
    assert started(tmp_path, SchedulerOptions(jobs=4)) == ["0", "1", "2", "0"]
    assert started(tmp_path, SchedulerOptions(jobs=1)) == ["0"]
    assert started(tmp_path, SchedulerOptions(), device="cpu") == ["", "", "", ""]
    assert started(tmp_path, SchedulerOptions(), device="cuda:1") == ["", "", ""]


@pytest.mark.usefixtures("_three")
def test_workers_are_started_as_there_is_work_for_them(tmp_path: Path) -> None:
    """A search of a rate begins with one run, and then has several."""
    there = workers.Workers(3, tmp_path, ["0", "1"])
    for wanted, count in ((1, 1), (2, 2), (1, 2), (9, 3)):
        there.grow(wanted)
        assert len(there.members) == count
    assert [worker.gpu for worker in there.members] == ["0", "1", "0"]
    assert [worker.number for worker in there.members] == [1, 2, 3]


@pytest.mark.usefixtures("_three")
def test_gpus_keep_the_names_that_this_process_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    assert gpus() == ["0", "1", "2"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,1,7")
    assert gpus() == ["5", "1", "7"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpus() == []


@pytest.mark.parametrize("gpu", ["", "7"])
def test_a_worker_sees_its_gpu_alone(
    gpu: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Said before CUDA is used; here the worker's work is done by this process, and over at once."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    monkeypatch.setattr(workers.signal, "signal", lambda *_: None)
    monkeypatch.setattr(workers, "write_into", lambda log: None)
    # A worker has Flower's logger to itself; in this process other tests read of it.
    monkeypatch.setattr(logging.getLogger("flwr"), "setLevel", lambda level: None)
    mine, theirs = workers.PROCESSES.Pipe()
    mine.close()
    workers._work(theirs, workers.PROCESSES.Event(), tmp_path, tmp_path / "log", gpu)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == (gpu or "5,7")


def test_a_gpu_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"H100 number {device.index}")
    assert describe_device(torch.device("cuda:1")) == "cuda:1 (H100 number 1)"
    assert describe_device(torch.device("cpu")) == "cpu"


@pytest.mark.parametrize(
    ("server", "devices", "warned"),
    [
        ("cpu", ["cpu", "cpu"], 0),
        ("cpu", ["cuda:0", "cuda:1"], 0),
        ("cuda", ["cuda:0", "cuda:0"], 0),
        ("cuda", ["cpu", "cpu"], 1),
        ("cpu", ["cuda:0 (NVIDIA H100)", "cpu"], 1),
        ("cuda", ["cuda (NVIDIA H100)", "cuda:0"], 0),
        ("cpu", ["cpu", "cuda:0"], 1),
    ],
)
def test_nodes_that_train_on_another_device_are_named(
    server: str, devices: list[str], warned: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An actor of Flower's simulation without a share of a GPU sees none, and would say nothing."""
    said: list[str] = []
    monkeypatch.setattr(
        "fedapp.federation.nodes.log", lambda _, text, *given: said.append(text % given)
    )
    there = SimpleNamespace(type=server)
    monkeypatch.setattr("fedapp.federation.nodes.choose_device", lambda config: there)
    nodes = Nodes(read_config({}), DIGITS.task, DIGITS.fingerprint, np.full(100, 5))
    same = answer() | {"fingerprint": DIGITS.fingerprint}
    grid = RegisteredGrid({i: same | {"device": device} for i, device in enumerate(devices, 1)})
    assert nodes.connected(grid, 1.0) == [1, 2]
    assert sum("and not all nodes and the server" in text for text in said) == warned
