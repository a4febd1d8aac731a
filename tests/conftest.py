"""Shared fixtures: small runs in this process, away from the user's own files."""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.supercore.task_identity import TaskIdentity
from hypothesis import HealthCheck, settings

from deploy.federation import Federation, federation
from fedapp.client_app import app as client_app
from fedapp.config import read, registry
from fedapp.config.read import read_config
from fedapp.engines.grid import RUN_ID
from fedapp.engines.in_process import run_inline
from fedapp.server_app import app as server_app
from tests import killed

# The same examples every time, and none that fails because the machine was busy.
for profile, examples in (("quick", 25), ("thorough", 100)):
    settings.register_profile(
        profile,
        max_examples=examples,
        derandomize=True,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )

Run = Callable[..., Path]
Component = Callable[[str, str, str], None]

SMALL = {
    "num-server-rounds": 3,
    "num-clients": 6,
    "fraction-train": 0.5,
    "local-epochs": 1,
    "batch-size": 32,
    "precision": "float64",
    "pictures": False,
}


def pytest_configure(config: pytest.Config) -> None:
    """Let all processes of the session share compiled steps, of this session alone."""
    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported
    if "PYTEST_XDIST_WORKER" not in os.environ:
        compiled = tempfile.TemporaryDirectory(prefix="fedapp-compiled-")
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = compiled.name
        os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
        os.environ["OMP_WAIT_POLICY"] = "passive"  # of the workers: threads that wait take no core
        config.add_cleanup(compiled.cleanup)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let files go first that wait for processes, Flower's before others, then those with long tests.

    The short rest fills the time until all are done.
    """
    flower = {"deployment", "simulation"}
    place: dict[Path, int] = {}
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        if item.get_closest_marker("process"):
            found = int(flower.isdisjoint(fixtures))
        else:
            found = 2 if item.get_closest_marker("slow") else 3
        place[item.path] = min(found, place.get(item.path, found))
    items.sort(key=lambda item: place[item.path])


@pytest.fixture(scope="session")
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the data cache of the tests of one process: what one has read and split all others have."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, cache_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDAPP_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("FEDAPP_CACHE", str(cache_folder))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # processes are killed, no machine
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _on_the_cpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ``device='auto'`` be the CPU in this process, but for the tests of a GPU."""
    if "cuda" not in request.fixturenames:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture
def cuda() -> torch.device:
    """Return the first GPU; skip where there is none."""
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    return torch.device("cuda:0")


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run a small setting with ``settings`` over it; return the run directory."""

    def start(name: str = "run", nodes: int = 1, **settings: Any) -> Path:
        values = {key.replace("_", "-"): value for key, value in settings.items()}
        folder = tmp_path / name
        run_inline(server_app, client_app, {**SMALL, "run-dir": str(folder), **values}, nodes)
        return folder

    return start


@pytest.fixture
def server_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process be a ServerApp's for one test: Flower stamps messages with its identity."""
    for name, value in (("_run_id", RUN_ID), ("_node_id", SUPERLINK_NODE_ID), ("_task_id", 1)):
        monkeypatch.setattr(TaskIdentity, name, value)


@pytest.fixture
def component(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Component]:
    """Put code into a package as one more file of components, for one test."""
    modules: list[str] = []

    def forget() -> None:
        registry._find_components.cache_clear()
        read.option_fields.cache_clear()
        read.config_of.cache_clear()

    def put(package: str, module: str, code: str) -> None:
        folder = tmp_path / package
        folder.mkdir()
        (folder / f"{module}.py").write_text(code)
        parent = importlib.import_module(package)
        monkeypatch.setattr(parent, "__path__", [*parent.__path__, str(folder)])
        modules.append(f"{package}.{module}")
        forget()

    yield put
    for name in modules:
        sys.modules.pop(name, None)
    monkeypatch.undo()
    forget()


@pytest.fixture(scope="session")
def real_data() -> Path:
    """Return the folder with mnist, cifar10 and shakespeare; skip where there is none."""
    folder = os.environ.get("FEDAPP_DATA")
    if not folder:
        pytest.skip("needs FEDAPP_DATA, the folder with mnist, cifar10 and shakespeare")
    return Path(folder)


@pytest.fixture(scope="module")
def simulation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """Return a SuperLink that simulates SuperNodes: two, which is Flower's default.

    It ends with the file's last test: a SuperLink takes a tenth of a core where nobody uses it.
    """
    with federation(tmp_path_factory.mktemp("simulation"), simulation=True) as started:
        yield started


@pytest.fixture
def forked_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork the workers of sweeps, which else start as new processes and import PyTorch for seconds."""
    monkeypatch.setattr("fedapp.studies.sweep.workers.PROCESSES", killed.PROCESSES)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: Any, call: Any) -> Any:
    """Show the logs of Flower's processes where a test that uses them fails."""
    report = yield
    if report.failed:
        for name, value in getattr(item, "funcargs", {}).items():
            if isinstance(value, Federation):
                report.sections.append((f"logs of {name}", value.logs()))
    return report


def slow_but(
    quick: Collection[Any], values: Iterable[Any], slow: Collection[Any] | None = None
) -> list[Any]:
    """Return the values as parameters; those that are not ``quick`` are of the longer rest.

    Of these, those that are not ``slow`` are nightly, where it is given.
    """

    def marked(value: Any) -> Any:
        if value in quick:
            return value
        nightly = slow is not None and value not in slow
        return pytest.param(value, marks=pytest.mark.nightly if nightly else pytest.mark.slow)

    return [marked(value) for value in values]


def largest_difference(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    """Return the largest absolute difference between two sets of parameters."""
    assert a.keys() == b.keys()
    return max(float((a[name] - b[name]).detach().abs().max()) for name in a)


def small_config(**settings: Any) -> Any:
    """Return the small setting as a RunConfig."""
    return read_config({**SMALL, **{k.replace("_", "-"): v for k, v in settings.items()}})
