"""The example of Algorithm 1 in plain PyTorch is what the engine does, and what it says it prints."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from fedapp.client_app import app as client_app
from fedapp.config.read import read_config
from fedapp.data.node_data import read_node_data
from fedapp.engines.in_process import InlineGrid
from fedapp.server import run as run_server
from fedapp.training.build import initial_parameters
from tests.conftest import SMALL, slow_but

EXAMPLE = Path(__file__).parents[1] / "examples" / "fedavg.py"


@pytest.fixture(scope="module")
def example() -> Any:
    spec = importlib.util.spec_from_file_location("example_fedavg", EXAMPLE)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


UNEQUAL = {"partitioner": "sizes", "fraction-train": 1.0}


@pytest.mark.parametrize(
    "settings",
    slow_but(
        (UNEQUAL,),
        ({"partitioner": "iid"}, UNEQUAL, {"partitioner": "shards", "fraction-train": 0.1}),
    ),
)
def test_the_example_takes_the_steps_of_the_engine(
    settings: dict[str, Any], example: Any, tmp_path: Path
) -> None:
    """Same draws, other code: theta after three rounds, to 1e-6 of its largest entry."""
    values = SMALL | {
        "2nn.hidden": 200,
        "num-server-rounds": 3,
        "seed": 7,
        "run-dir": str(tmp_path / "run"),
    }
    values |= {"local-epochs": 2, "batch-size": 10, "learning-rate": 0.2, **settings}
    config = read_config(values)
    run_server(InlineGrid(client_app, values, [{}]), config)
    theta = load_file(tmp_path / "run" / "model.safetensors")

    data = read_node_data(config, None)
    parts = [data.train(k) for k in range(config.num_clients)]
    clients = [(torch.from_numpy(p.inputs).double(), torch.from_numpy(p.targets)) for p in parts]
    w_0 = initial_parameters(config, data.dataset.task)
    rates = {"C": config.fraction_train, "E": 2, "B": 10, "eta": 0.2, "seed": 7}
    trajectory = example.fedavg(example.two_nn(64, 10), w_0, clients, **rates)
    w_3 = next(islice(trajectory, 3, None))
    assert w_3.keys() == theta.keys()
    for name in theta:
        torch.testing.assert_close(w_3[name], theta[name], rtol=0, atol=1e-6)


@pytest.mark.process
def test_the_example_runs_alone_and_learns() -> None:
    """With an isolated interpreter, so that no module of the package is imported."""
    command = [
        sys.executable,
        "-I",
        "-c",
        f"import runpy, sys; runpy.run_path({str(EXAMPLE)!r}, "
        "run_name='__main__'); assert not any(m.startswith('fedapp') for m in sys.modules)",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert len(lines) == 5
    assert float(lines[-1].rsplit(" ", 1)[1]) > 0.93


def test_the_example_has_about_a_hundred_lines() -> None:
    assert EXAMPLE.read_text().count("\n") < 120
