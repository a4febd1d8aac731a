"""What a release is made of: one version everywhere, and a wheel that runs alone."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import fedapp
from deploy.processes import BIN
from tests.printed import ROOT

VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
UV = BIN / "uv"


def test_the_version_is_the_same_everywhere() -> None:
    assert fedapp.__version__ == VERSION
    assert f"\nversion: {VERSION}\n" in (ROOT / "CITATION.cff").read_text()
    changes = (ROOT / "CHANGELOG.md").read_text()
    assert re.findall(r"^## \[(.*?)\] - \d{4}-\d\d-\d\d$", changes, re.MULTILINE)[0] == VERSION


@pytest.mark.pages
@pytest.mark.process
@pytest.mark.timeout(900)
def test_the_wheel_runs_in_an_empty_environment_and_folder(tmp_path: Path) -> None:
    """What is installed is uv's cache, by hard links where both are on one disk."""
    empty, python = tmp_path / "empty", tmp_path / "venv" / "bin" / "python"
    empty.mkdir()
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    variables |= {"FEDAPP_CACHE": str(tmp_path / "cache")}

    def done(*command: str | Path, cwd: Path = empty) -> str:
        run = subprocess.run(command, cwd=cwd, env=variables, capture_output=True, text=True)
        assert run.returncode == 0, f"{command}\n{run.stdout[-3000:]}{run.stderr[-3000:]}"
        return run.stdout

    done(UV, "build", "--wheel", "--out-dir", tmp_path / "dist", cwd=ROOT)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    assert wheel.name == f"fedapp-{VERSION}-py3-none-any.whl"
    done(UV, "venv", "--python", sys.executable, tmp_path / "venv")
    pins = ROOT / "constraints.txt"
    done(UV, "pip", "install", "--python", python, "--constraint", pins, wheel)
    command = python.with_name("fedapp")
    done(command, "run", "num-server-rounds=2", "run-dir=run")
    assert json.loads((empty / "run" / "summary.json").read_text())["rounds"] == 2
    assert (empty / "run" / "report.html").exists()
    assert "mcmahan-table1-2nn" in done(command, "reproduce", "--list")
    done(command, "init", "my-app")
    done(command, "run", "num-server-rounds=1", cwd=empty / "my-app")
    where = done(python, "-c", "import fedapp; print(fedapp.__version__, fedapp.__file__)").split()
    assert where[0] == VERSION
    assert Path(where[1]).is_relative_to(tmp_path / "venv")
