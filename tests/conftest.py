"""Shared fixtures: small runs in this process, away from the user's own files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fedapp.client_app import app as client_app
from fedapp.config import read_config
from fedapp.engines.inline import run_inline
from fedapp.runs.callbacks import read_metrics
from fedapp.server_app import app as server_app

Run = Callable[..., Path]

SMALL = {
    "num-server-rounds": 3,
    "num-clients": 6,
    "fraction-train": 0.5,
    "local-epochs": 1,
    "batch-size": 32,
    "precision": "float64",
    "pictures": False,
}


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDAPP_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("FEDAPP_CACHE", str(tmp_path / "cache"))
    torch.set_num_threads(1)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run a small setting with ``settings`` over it; return the run directory."""

    def start(name: str = "run", nodes: int = 1, **settings: Any) -> Path:
        values = {key.replace("_", "-"): value for key, value in settings.items()}
        folder = tmp_path / name
        run_inline(server_app, client_app, {**SMALL, "run-dir": str(folder), **values}, nodes)
        return folder

    return start


def model_of(folder: Path) -> dict[str, torch.Tensor]:
    """Return the final parameters of a run."""
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


def metrics_of(folder: Path) -> list[dict[str, Any]]:
    """Return a run's records without the times, which differ from run to run."""
    return [
        {key: value for key, value in record.items() if key != "seconds"}
        for record in read_metrics(folder / "metrics.jsonl")
    ]


def largest_difference(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    """Return the largest absolute difference between two sets of parameters."""
    assert a.keys() == b.keys()
    return max(float((a[name] - b[name]).abs().max()) for name in a)


def small_config(**settings: Any) -> Any:
    """Return the small setting as a RunConfig."""
    return read_config({**SMALL, **{k.replace("_", "-"): v for k, v in settings.items()}})
