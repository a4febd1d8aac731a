"""The app bundle (FAB) that Flower builds of the project and unpacks for every run."""

from __future__ import annotations

import io
import tomllib
import zipfile
from pathlib import Path

from flwr.cli.build import build_fab_from_disk

ROOT = Path(__file__).resolve().parent.parent
LIMIT = 10_000_000
"""Bytes that Flower takes."""


def test_bundle_holds_the_whole_app_and_is_small() -> None:
    content = build_fab_from_disk(ROOT)
    assert len(content) < LIMIT
    bundle = zipfile.ZipFile(io.BytesIO(content))
    sources = {
        path.relative_to(ROOT).as_posix()
        for package in ("fedapp", "strategies")
        for pattern in ("*.py", "*.toml")
        for path in (ROOT / package).rglob(pattern)
    }
    wanted = sources | {"LICENSE", "README.md", "pyproject.toml"}
    assert wanted == {name for name in bundle.namelist() if not name.startswith(".info/")}


def test_dependencies_are_pinned_for_the_environments_that_flower_makes() -> None:
    bundle = zipfile.ZipFile(io.BytesIO(build_fab_from_disk(ROOT)))
    pins = tomllib.loads(bundle.read("pyproject.toml").decode())["tool"]["uv"]
    wanted = (ROOT / "constraints.txt").read_text().splitlines()
    assert pins["constraint-dependencies"] == wanted
    assert all(line.count("==") == 1 and "//" not in line for line in wanted)
