"""`fedapp doctor`: the commands that it says use the whole machine."""

from __future__ import annotations

import pytest
import torch

from fedapp.cli import doctor
from fedapp.config.read import read_config


def said(monkeypatch: pytest.MonkeyPatch, gpus: int, **settings: str) -> str:
    monkeypatch.setattr(doctor, "cores", lambda: 16)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr("fedapp.training.device.compute_exactly", lambda device: None)
    return "\n".join(command for _, command in doctor.commands(read_config(dict(settings))))


@pytest.mark.parametrize("gpus", [1, 4])
def test_on_gpus_there_is_a_process_for_each(gpus: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two on one take turns, and each has half of a cohort; every actor needs a share to see one."""
    commands = said(monkeypatch, gpus)
    actors = f"num-supernodes={gpus} client-resources-num-cpus=1 client-resources-num-gpus=1"
    assert actors in commands
    assert (f"--workers {gpus}" in commands) == (gpus > 1)
    assert f"--jobs {8 * gpus} " in commands


@pytest.mark.parametrize(
    ("address", "where"), [("", "here"), ("head:6379", "cluster at head:6379")]
)
def test_it_says_where_workers_are(
    address: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", address)
    assert where in dict(doctor.facts(read_config({"device": "cpu"})))["workers"]


@pytest.mark.parametrize(("gpus", "device"), [(0, "auto"), (2, "cpu")])
def test_on_the_cpu_there_is_a_process_for_each_core(
    gpus: int, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = said(monkeypatch, gpus, device=device)
    assert "--workers 16" in commands
    assert "num-supernodes=16 client-resources-num-cpus=1" in commands
    assert "num-gpus" not in commands


def test_a_gpu_whose_driver_is_too_old_is_said_to_be_unusable(monkeypatch):
    """The driver counts it, and CUDA does not start."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    rows = dict(doctor.facts(read_config({})))
    assert rows["GPUs"].startswith("1, unusable: the driver is too old for CUDA")
    assert rows["device"].startswith("cpu")
