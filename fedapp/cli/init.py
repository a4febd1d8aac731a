"""``fedapp init``: a folder with components of one's own, which runs as it is."""

from __future__ import annotations

import importlib.util
import keyword
import re
import sys
from importlib.metadata import version
from pathlib import Path

import fedapp
from fedapp.cli.key_table import config_table
from fedapp.cli.template import rings, signs
from fedapp.config.settings import Scalar
from fedapp.errors import ConfigError
from fedapp.files import as_folder, as_path, disk_space_needed

NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
TEMPLATE = "fedapp.cli.template"
CHANGES: dict[str, Scalar] = {"algorithm": "signs", "dataset": "rings", "num-server-rounds": 10}
"""The settings of the new app that differ from the defaults."""

PYPROJECT = """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{name}"
version = "0.1.0"
description = "Components for fedapp"
license = {{ file = "LICENSE" }}
requires-python = ">=3.11"
dependencies = ["fedapp=={fedapp}", "flwr[simulation]>={flwr},<{next_flwr}"]

# The names of the components. An installed package adds its own in the same way.
[project.entry-points."fedapp.algorithms"]
signs = "{package}.signs:Signs"

[project.entry-points."fedapp.datasets"]
rings = "{package}.rings:Rings"

[tool.hatch.build.targets.wheel]
packages = ["{package}"]

[tool.pytest.ini_options]
pythonpath = ["."]
testpaths = ["tests"]

[tool.flwr.app]
publisher = "{name}"
fab-format-version = 1
flwr-version-target = "{flwr}"
fab-include = ["{package}/**/*.py", "LICENSE", "README.md"]

[tool.flwr.app.components]
serverapp = "fedapp.server_app:app"
clientapp = "fedapp.client_app:app"

# Every key that a run of this app may set: Flower refuses others. `fedapp keys signs` lists those of a
# component.
{table}
"""

README = """# {name}

An app of [fedapp](https://pypi.org/project/fedapp/) with components of its own: the algorithm `signs`
(`{package}/signs.py`) and the data set `rings` (`{package}/rings.py`).

```bash
fedapp run                   # in this process, with the settings of pyproject.toml
fedapp run signs.scale=0.1   # another value
pytest                       # the tests; pip install pytest
export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1   # use this environment, in which fedapp is
flwr run . --stream          # in Flower's simulation
```

On real machines that have fedapp installed, `flwr run . CONNECTION --stream` sends the code of this
folder to the nodes. fedapp's pages on own code and on real devices tell more.

A new component is a file in `{package}/` and a line among the entry points of `pyproject.toml`; its
parameters are further lines of `[tool.flwr.app.config]`.
"""

LICENSE = """Replace this text by the licence of {name}. Flower's app format asks for this file.
"""


def create_app(folder: Path) -> list[Path]:
    """Write an app into the new ``folder`` and return its files.

    Raises
    ------
    ConfigError
        The folder is there already or cannot be made, or its name is none of an app.
    RunError
        The disk is full.
    """
    folder = as_path(folder, f"NAME {folder}")
    name = folder.absolute().name
    package = name.replace("-", "_")
    _check_name(name, package)
    if any(as_folder(folder, "NAME").iterdir()):
        raise ConfigError(
            f"{folder}: is there already, and must be new or empty. Choose another name, or remove it."
        )
    texts = {
        "pyproject.toml": _pyproject(name, package),
        "README.md": README.format(name=name, package=package),
        "LICENSE": LICENSE.format(name=name),
        f"{package}/__init__.py": f'"""Components of {name}."""\n',
        f"{package}/signs.py": _template("signs.py", package),
        f"{package}/rings.py": _template("rings.py", package),
        f"tests/test_{package}.py": _template("test_app.py", package),
    }
    with disk_space_needed(folder, "remove the folder, and start again"):
        for path, text in texts.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text, encoding="utf-8")
    return [folder / path for path in texts]


def _check_name(name: str, package: str) -> None:
    if keyword.iskeyword(package):
        raise ConfigError(
            f"{name!r}: is a keyword of Python, which no package may be called. Choose another name, as "
            "in my-app."
        )
    if not NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r}: must be small letters, digits and hyphens, and begin with a letter, as in my-app."
        )
    if package in sys.stdlib_module_names or importlib.util.find_spec(package) is not None:
        raise ConfigError(
            f"{name!r}: Python has a module {package!r} already, which would be imported in its place. "
            "Choose another name, as in my-app."
        )


def _pyproject(name: str, package: str) -> str:
    flwr = version("flwr")
    major, minor = (int(part) for part in flwr.split(".")[:2])
    table = config_table(CHANGES, [signs.Signs, rings.Rings])
    versions = {"fedapp": fedapp.__version__, "flwr": flwr, "next_flwr": f"{major}.{minor + 1}"}
    return PYPROJECT.format(name=name, package=package, table=table, **versions)


def _template(file: str, package: str) -> str:
    """Return a file of the template with the package's name in its imports."""
    text = (Path(signs.__file__).parent / file).read_text(encoding="utf-8")
    return text.replace(TEMPLATE, package)
