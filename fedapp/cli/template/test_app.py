"""Tests of this app's components: ``pytest`` runs them."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import torch

from fedapp.cli.template.signs import Signs
from fedapp.client_app import app as client_app
from fedapp.config.settings import Scalar
from fedapp.engines.in_process import run_inline
from fedapp.server_app import app as server_app
from fedapp.training.algorithm import Batch, ClientContext

APP = Path(__file__).resolve().parents[1]


def test_a_step_is_the_sign_of_the_gradient_times_the_scale() -> None:
    params = {"w": torch.tensor([3.0, -2.0, 0.0])}
    context = ClientContext(global_params=params)
    direction, loss = Signs(scale=0.5).gradient(
        lambda at, *_: (dict(at), torch.tensor(1.0)),
        params,
        Batch(torch.empty(0), torch.empty(0)),
        context,
    )
    assert direction["w"].tolist() == [0.5, -0.5, 0.0]
    assert loss == 1


def test_a_run_learns_the_rings(tmp_path: Path) -> None:
    settings: dict[str, Scalar] = {
        "algorithm": "signs",
        "dataset": "rings",
        "num-server-rounds": 3,
        "pictures": False,
        "run-dir": str(tmp_path / "run"),
    }
    with contextlib.chdir(APP):
        run_inline(server_app, client_app, settings)
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    accuracies = [json.loads(line)["test_accuracy"] for line in lines]
    assert accuracies[-1] > max(accuracies[0], 0.5)
    assert (tmp_path / "run" / "components" / "algorithm").is_dir()
