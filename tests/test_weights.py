"""Runs that begin with the weights of another: ``initial-model``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import safetensors.torch
import torch

from fedapp.config.read import read_config
from fedapp.data.dataset import Task
from fedapp.errors import ConfigError
from fedapp.studies.sweep.identity import Request
from fedapp.training.build import initial_parameters
from tests.conftest import Run
from tests.in_process import metrics, model


def test_a_run_begins_with_the_final_model_of_another(run: Run) -> None:
    first = run("first", num_server_rounds=2)
    second = run("second", num_server_rounds=1, initial_model=str(first), learning_rate=0.05)
    third = run("third", num_server_rounds=1, initial_model=str(first / "model.safetensors"))
    begun, ended = metrics(second)[0], metrics(first)[-1]
    assert (begun["test_loss"], begun["test_accuracy"]) == (
        ended["test_loss"],
        ended["test_accuracy"],
    )
    assert metrics(third)[0]["test_loss"] == begun["test_loss"]
    digest = json.loads((second / "config.json").read_text())["found"]["initial_model"]
    assert digest == json.loads((third / "config.json").read_text())["found"]["initial_model"]
    assert len(digest) == 64


def test_nothing_else_of_a_run_depends_on_its_weights(run: Run, tmp_path: Path) -> None:
    """A run that begins with what the seed would have drawn is the run without the key."""
    plain = run("plain", num_server_rounds=2)
    rate = 1e-300  # no weight moves by it
    drawn = run("drawn", num_server_rounds=1, learning_rate=rate)
    again = run("again", num_server_rounds=2, initial_model=str(drawn))
    for name, tensor in model(plain).items():
        assert torch.equal(tensor, model(again)[name])


def test_a_resume_does_not_need_the_weights_that_the_run_began_with(run: Run) -> None:
    first = run("first", num_server_rounds=1)
    whole = run("whole", num_server_rounds=4, initial_model=str(first))
    run("cut", num_server_rounds=2, initial_model=str(first))
    (first / "model.safetensors").unlink()
    cut = run("cut", num_server_rounds=4, initial_model=str(first), resume=True)
    for name, tensor in model(whole).items():
        assert torch.equal(tensor, model(cut)[name])


def test_weights_that_do_not_fit_are_refused_before_there_is_a_run(
    run: Run, tmp_path: Path
) -> None:
    first = run("first", num_server_rounds=1)
    tensors = model(first)
    name = min(tensors)
    damaged, broken = tmp_path / "damaged.safetensors", tmp_path / "broken.safetensors"
    damaged.write_bytes((first / "model.safetensors").read_bytes()[:100])
    safetensors.torch.save_file(
        {**tensors, name: torch.full_like(tensors[name], float("nan"))}, broken
    )
    other = {"2nn.hidden": 8}
    said = {
        "there is no file": {"initial-model": str(tmp_path / "none.safetensors")},
        "is of another model": {"initial-model": str(first), **other},
        "cannot be read as safetensors": {"initial-model": str(damaged)},
        f"holds nan or infinite values: {name!r}": {"initial-model": str(broken)},
    }
    for problem, settings in said.items():
        with pytest.raises(ConfigError, match=problem):
            run("second", **settings)
    assert not (tmp_path / "second").exists()


def test_a_sweep_knows_weights_by_their_content(run: Run, tmp_path: Path) -> None:
    first, second = run("first", num_server_rounds=1), run("second", num_server_rounds=2)
    copied = tmp_path / "copy.safetensors"
    copied.write_bytes((first / "model.safetensors").read_bytes())
    names = [Request.of({"initial-model": str(path)}, 3).run for path in (first, copied, second)]
    assert names[0] == names[1] != names[2]
    assert names[0] != Request.of({}, 3).run


def test_seeds_begin_with_weights_of_their_own() -> None:
    task = Task("image", (1, 8, 8), 10)
    one, two = (initial_parameters(read_config({"seed": seed}), task) for seed in (0, 1))
    assert not any(torch.equal(one[name], two[name]) for name in one)
