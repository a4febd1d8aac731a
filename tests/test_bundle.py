"""The app bundle (FAB) that Flower builds of the project and unpacks for every run."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from flwr.cli.build import build_fab_from_disk

ROOT = Path(__file__).resolve().parent.parent
LIMIT = 10_000_000
"""Bytes that Flower takes."""
LEFT_OUT = ("fedapp/studies/", "fedapp/cli/")
"""What neither a node nor a ServerApp needs."""


def test_bundle_holds_the_whole_app_and_is_small() -> None:
    content = build_fab_from_disk(ROOT)
    assert len(content) < LIMIT
    bundle = zipfile.ZipFile(io.BytesIO(content))
    sources = {
        path.relative_to(ROOT).as_posix()
        for package in ("fedapp", "strategies")
        for path in (ROOT / package).rglob("*.py")
    }
    sources = {path for path in sources if not path.startswith(LEFT_OUT)}
    wanted = sources | {"LICENSE", "README.md", "pyproject.toml"}
    assert wanted == {name for name in bundle.namelist() if not name.startswith(".info/")}


@pytest.mark.process
def test_an_unpacked_bundle_imports_both_apps(tmp_path: Path) -> None:
    """From its own folder alone: what is left out is not there, and is not asked for."""
    zipfile.ZipFile(io.BytesIO(build_fab_from_disk(ROOT))).extractall(tmp_path)
    code = (
        "import importlib.util, fedapp.client_app, fedapp.server_app, strategies.strategy; "
        "print(fedapp.client_app.__file__, importlib.util.find_spec('fedapp.studies'))"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-P", "-c", code]
    said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert said.stdout.split() == [str(tmp_path / "fedapp" / "client_app.py"), "None"]


def test_dependencies_are_pinned_for_the_environments_that_flower_makes() -> None:
    bundle = zipfile.ZipFile(io.BytesIO(build_fab_from_disk(ROOT)))
    pins = tomllib.loads(bundle.read("pyproject.toml").decode())["tool"]["uv"]
    wanted = (ROOT / "constraints.txt").read_text().splitlines()
    assert pins["constraint-dependencies"] == wanted
    assert all(line.count("==") == 1 and "//" not in line for line in wanted)
