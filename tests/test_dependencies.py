"""What is imported is declared, and where; what a device installs is enough to train on it."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from fedapp.cli import main as cli
from tests.data_files import image_features, image_splits, write_parquet

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DEVICE = [line for line in (ROOT / "deploy/device.txt").read_text().splitlines() if line[0] != "#"]
OURS = {"fedapp", "strategies", "deploy", "benchmarks", "tests"}
PEERS = {"fedjax", "haiku", "jax", "pfl"}
"""Frameworks that a benchmark measures where they are installed; they need another environment."""
WITH_TORCH = {"triton"}
"""Which PyTorch requires on Linux; the app does without it elsewhere."""
COMMANDS = {
    "furo",
    "ipykernel",
    "mypy",
    "myst-parser",
    "pre-commit",
    "pytest-timeout",
    "pytest-xdist",
    "ruff",
    "sphinx",
}
"""Developers' tools that are run, or loaded by others, and not imported."""
NOT_IMPORTED = {"scikit-learn"}
"""Of which the digits are read as a file."""

DISTRIBUTIONS = {
    module: {canonicalize_name(name) for name in names}
    for module, names in packages_distributions().items()
}


def of_extra(name: str, extra: str) -> list[Requirement]:
    """Return what an installed distribution requires with this extra; "" is none."""
    lines = map(Requirement, requires(name) or [])
    return [each for each in lines if each.marker is None or each.marker.evaluate({"extra": extra})]


def names(requirements: list[str]) -> set[str]:
    """Return the distributions that are asked for, also by an extra of another: Ray by Flower's."""
    found = set()
    for wanted in map(Requirement, requirements):
        if wanted.name != "fedapp":
            found.add(canonicalize_name(wanted.name))
            own = {each.name for each in of_extra(wanted.name, "")}
            for extra in wanted.extras:
                found |= {each.name for each in of_extra(wanted.name, extra)} - own
    return found


BASE = names(PROJECT["dependencies"])
DEPLOY, ONNX, DEVELOPERS = (
    names(PROJECT["optional-dependencies"][extra]) for extra in ("deploy", "onnx", "dev")
)
GROUPS = {
    "app": (("fedapp", "strategies"), (), BASE),
    "deploy": (("deploy",), (), BASE | DEPLOY),
    "developers": (("benchmarks", "tests", "docs"), (), BASE | DEPLOY | ONNX | DEVELOPERS),
}
"""Folders, those in them that belong to another group, and what they may import."""


def imported(folders: tuple[str, ...], without: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yield files and the packages that they import, also inside functions."""
    for path in (path for folder in folders for path in (ROOT / folder).rglob("*.py")):
        file = path.relative_to(ROOT).as_posix()
        if file.startswith(without or ("-",)):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                modules = [str(node.module)]
            for module in {each.partition(".")[0] for each in modules}:
                if module not in sys.stdlib_module_names | OURS | PEERS | WITH_TORCH:
                    yield file, module


@pytest.mark.parametrize("group", GROUPS)
def test_what_is_imported_is_declared(group: str) -> None:
    folders, without, declared = GROUPS[group]
    for file, module in imported(folders, without):
        assert DISTRIBUTIONS[module] & declared, f"{file} imports {module}, which is not declared"


def test_what_is_declared_is_imported() -> None:
    found = {
        group: {name for _, module in imported(*where[:2]) for name in DISTRIBUTIONS[module]}
        for group, where in GROUPS.items()
    }
    assert BASE - found["app"] == NOT_IMPORTED
    assert found["deploy"] >= DEPLOY
    assert DEVELOPERS - found["developers"] == COMMANDS


def test_pins_of_runs_are_among_those_of_developers_and_none_of_their_tools() -> None:
    runs, all_ = (
        (ROOT / f).read_text().splitlines() for f in ("constraints.txt", "constraints-dev.txt")
    )
    assert set(runs) < set(all_)
    pinned = {canonicalize_name(line.partition("==")[0]) for line in runs}
    assert pinned >= BASE | DEPLOY
    assert not pinned & COMMANDS


def test_a_missing_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def without(**_: object) -> None:
        raise ModuleNotFoundError("No module named 'onnx'", name="onnx")

    monkeypatch.setattr(cli, "app", without)
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1].endswith("Run: pip install 'fedapp[onnx]'")


def test_a_device_asks_for_what_the_app_does() -> None:
    bounds = {re.sub(r"\[.*\]", "", requirement) for requirement in PROJECT["dependencies"]}
    assert set(DEVICE) < bounds


def closure(requirements: list[str]) -> set[str]:
    """Return the distributions that an installation of these brings, as they are installed here."""
    found: set[tuple[str, str]] = set()
    todo = [Requirement(each) for each in requirements]
    while todo:
        wanted = todo.pop()
        for extra in ("", *wanted.extras):
            if (key := (canonicalize_name(wanted.name), extra)) not in found:
                found.add(key)
                todo += of_extra(*key)
    return {name for name, _ in found}


TRAIN = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in REFUSED:
            raise ModuleNotFoundError(f"{name} is not installed on a device", name=name)

sys.meta_path.insert(0, Refuse())
from flwr.app import Context, Message, RecordDict
from fedapp.client_app import app
from fedapp.config.read import read_config
from fedapp.data.load import load_node_data
from fedapp.engines.grid import set_identity
from fedapp.federation.arrays import to_arrays
from fedapp.federation.messages import encode_train_request
from fedapp.training.build import initial_parameters
from fedapp.training.client import TrainRequest
from fedapp.training.round_plan import RoundPlan

values = {"num-clients": 0, "data-cache": CACHE, "device": "cpu"}
config = read_config(values)
theta = initial_parameters(config, load_node_data(config, DATA).task)
set_identity(1)
request = TrainRequest(RoundPlan.of(config, 1), (0,))
message = Message(encode_train_request(request, to_arrays(theta)), 1, "train")
node_config = {"data-path": DATA, "client-id": 0}
reply = app(message, Context(1, 1, node_config, RecordDict(), values))
print(list(reply.content["clients"]["examples"]), *sorted(reply.content))
"""


@pytest.mark.process
def test_a_device_trains_with_what_it_installs_alone(tmp_path: Path) -> None:
    """Neither Ray nor TensorBoard nor matplotlib is installed by the list of `deploy/device.txt`."""
    there = closure(DEVICE)
    assert not there & {"ray", "tensorboard", "matplotlib", "flwr-datasets", "scikit-learn"}
    refused = {module for module, owners in DISTRIBUTIONS.items() if not owners & there} - OURS
    assert {"ray", "tensorboard", "matplotlib"} <= refused
    data = write_parquet(tmp_path / "data", image_splits(), image_features())
    given = {"REFUSED": refused, "DATA": str(data), "CACHE": str(tmp_path / "cache")}
    code = "".join(f"{name} = {value!r}\n" for name, value in given.items()) + TRAIN
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.split() == ["[4]", "arrays", "clients", "failures", "metrics"], done.stderr
