"""``fedapp init``: a folder that runs as it is, in every engine."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from flwr.cli.build import build_fab_from_disk
from typer.testing import CliRunner

from deploy.federation import Federation, federation
from fedapp.cli.init import create_app
from fedapp.cli.main import app as command_line
from fedapp.config.read import defaults
from tests.in_process import metrics
from tests.own_app import ROWS, app_in, write

ROOT = Path(__file__).resolve().parent.parent
FILES = {
    *("LICENSE", "README.md", "pyproject.toml"),
    *(f"my_app/{name}.py" for name in ("__init__", "rings", "signs")),
}
OWN_CALLBACK = "my_app.rows:Rows"
SMALL = {
    "num-clients": 4,
    "num-server-rounds": 2,
    "precision": "float64",
    "device": "cpu",
    "pictures": False,
}


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a new app, in which this process works."""
    create_app(tmp_path / "my-app")
    monkeypatch.chdir(tmp_path / "my-app")
    with app_in(tmp_path / "my-app") as folder:
        yield folder


def test_the_files_and_the_keys_of_a_new_app(app: Path) -> None:
    written = {path.relative_to(app).as_posix() for path in app.rglob("*") if path.is_file()}
    assert written == {*FILES, "tests/test_my_app.py"}
    assert not any("fedapp.cli.template" in path.read_text() for path in app.rglob("*.py"))
    table = tomllib.loads((app / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    assert (table["signs"], table["rings"]) == ({"scale": 0.01}, {"examples": 1500, "noise": 0.1})
    keys = {key.partition(".")[0] for key in defaults()} | {"signs", "rings"}
    assert set(table) == keys


def test_the_bundle_has_the_users_code(app: Path) -> None:
    bundle = zipfile.ZipFile(io.BytesIO(build_fab_from_disk(app)))
    assert {name for name in bundle.namelist() if not name.startswith(".info/")} == FILES


def test_a_new_app_runs(app: Path) -> None:
    words = [f"{key}={str(value).lower()}" for key, value in SMALL.items()]
    result = CliRunner().invoke(command_line, ["run", *words, "run-dir=run"])
    assert result.exception is None, result.output
    assert metrics(app / "run")[-1]["test_accuracy"] > 0.9
    copies = {path.relative_to(app / "run").as_posix() for path in app.rglob("components/*/*/*.py")}
    assert copies == {
        f"components/{key}/my_app/{name}.py"
        for key, own in (("algorithm", "signs"), ("dataset", "rings"))
        for name in ("__init__", own)
    }


def rounds_reported(folder: Path) -> list[int]:
    """Return the rounds that the app's callback was given."""
    calls = map(json.loads, (folder / "rows.jsonl").read_text().splitlines())
    return [call[1] for call in calls if call[0] == "round"]


@pytest.mark.process
def test_the_tests_of_a_new_app_pass(app: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert re.search("2 passed", done.stdout), done.stdout


@pytest.mark.process
@pytest.mark.timeout(600)
def test_a_sweep_and_workers_have_the_apps_code(app: Path) -> None:
    """Both are other processes; equal numbers show that both train by the app's algorithm."""
    write(app, {"my_app/rows.py": ROWS})
    words = [f"{key}={str(value).lower()}" for key, value in SMALL.items()]
    words.append(f"callbacks={OWN_CALLBACK}")
    for command in (
        ["sweep", "--jobs", "1", *words, "signs.scale=[0.01,0.02]"],
        ["run", "--workers", "1", *words, "run-dir=workers"],
        ["run", *words, "run-dir=here"],
    ):
        result = CliRunner().invoke(command_line, command)
        assert result.exception is None, result.output
    assert metrics(app / "workers") == metrics(app / "here")
    stored = [path.parent for path in (app / "runs" / "sweeps").glob("*/components")]
    accuracies = {metrics(folder)[-1]["test_loss"] for folder in stored}
    assert len(accuracies) == 2
    assert metrics(app / "here")[-1]["test_loss"] in accuracies
    for folder in (*stored, app / "workers", app / "here"):
        assert rounds_reported(folder) == [0, 1, 2]


@pytest.mark.process
@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("simulation", [True, False], ids=["simulation", "deployment"])
def test_flower_runs_a_new_app(app: Path, tmp_path: Path, simulation: bool) -> None:
    write(app, {"my_app/rows.py": ROWS})
    words = [f"{key}={str(value).lower()}" for key, value in SMALL.items()]
    CliRunner().invoke(command_line, ["run", *words, "--nodes", "2", "run-dir=here"])
    with federation(tmp_path / "federation", simulation=simulation) as started:
        _start_nodes(started, 0 if simulation else 2)
        settings = {**SMALL, "min-nodes": 2, "callbacks": OWN_CALLBACK}
        folder = started.run(settings, "run", app=app)
        log = (started.folder / "run.log").read_text()
    assert "my-app.my-app.0.1.0" in log
    losses = [[record["test_loss"] for record in metrics(each)] for each in (folder, app / "here")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-9)
    copy = folder / "components" / "algorithm" / "my_app" / "signs.py"
    assert copy.read_bytes() == (app / "my_app" / "signs.py").read_bytes()
    assert rounds_reported(folder) == [0, 1, 2]


def _start_nodes(started: Federation, number: int) -> None:
    for index in range(number):
        started.start_node(f"node-{index}")
