"""`fedapp doctor`: the commands that it says use the whole machine."""

from __future__ import annotations

import re

import pytest

from fedapp import doctor
from fedapp.config import read_config


@pytest.mark.parametrize("gpus", [1, 2, 4])
@pytest.mark.parametrize("cores", [1, 2, 3, 6, 7, 16, 96])
def test_every_actor_finds_a_share_of_a_gpu(
    cores: int, gpus: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray gives each actor a part of one GPU, in ten-thousandths; six shares of 0.17 are too many."""
    monkeypatch.setattr(doctor, "cores", lambda: cores)
    monkeypatch.setattr(doctor.torch.cuda, "device_count", lambda: gpus)
    said = " ".join(command for _, command in doctor.commands(read_config({})))
    found = re.search(r"num-gpus=([0-9.]+)", said)
    assert found is not None
    share = float(found[1])
    assert share == round(share, 4) > 0
    assert gpus * int(1 / share + 1e-9) >= cores


def test_without_a_gpu_no_share_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.torch.cuda, "device_count", lambda: 0)
    assert not any("num-gpus" in command for _, command in doctor.commands(read_config({})))
