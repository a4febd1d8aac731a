"""The folder of the app: where components of one's own, and their modules, are looked for."""

from __future__ import annotations

import functools
import os
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fedapp
from fedapp.errors import ComponentError
from fedapp.files import as_path

APP_VARIABLE = "FEDAPP_APP"
"""The environment variable with the folder, for a process that works in another one."""
MANIFEST = "pyproject.toml"


def flower_folder() -> Path | None:
    """Return the folder into which Flower unpacked the app of this process; None outside of Flower.

    Flower puts it into ``sys.path``, and says it nowhere else.
    """
    home = Path(os.environ.get("FLWR_HOME", "~/.flwr")).expanduser()
    apps = str((home / "apps").absolute())
    unpacked = next((each for each in sys.path if os.path.dirname(each) == apps), None)  # noqa: PTH120
    return None if unpacked is None else Path(unpacked).resolve()


def app_folder() -> Path:
    """Return the folder of the app: Flower's copy of it, $FEDAPP_APP, or the working folder."""
    given = os.environ.get(APP_VARIABLE, "")
    return flower_folder() or as_path(given, f"{APP_VARIABLE} = {given!r}").resolve()


def add_to_path(folder: Path) -> None:
    """Let modules of ``folder`` be imported, as Flower does with those of an app."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def is_this_project(folder: Path) -> bool:
    """Return whether ``folder`` is the repository of this package, and no app that uses it."""
    return folder == Path(fedapp.__file__).resolve().parents[1]


@functools.cache
def manifest(folder: Path) -> Mapping[str, Any]:
    """Return the ``pyproject.toml`` of an app that runs this package's ServerApp; {} of other folders.

    Raises
    ------
    ComponentError
        It is not TOML.
    """
    path = folder / MANIFEST
    if is_this_project(folder) or not path.is_file():
        return {}
    text = path.read_text(encoding="utf-8", errors="replace")
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        if "fedapp." not in text:
            return {}
        raise ComponentError(f"{path}: cannot be read as TOML: {error}. Correct it.") from error
    app = _table(content, "tool", "flwr", "app", "components")
    return content if str(app.get("serverapp", "")).startswith("fedapp.") else {}


def entry_points_of(folder: Path, group: str) -> Mapping[str, str]:
    """Return the entry points that the app in ``folder`` declares in ``group``, by name."""
    declared = _table(manifest(folder), "project", "entry-points", group)
    return {name: str(value) for name, value in declared.items()}


def settings_of(folder: Path) -> Mapping[str, Any]:
    """Return the run-config of the app in ``folder``: its ``[tool.flwr.app.config]``."""
    return _table(manifest(folder), "tool", "flwr", "app", "config")


def _table(content: Mapping[str, Any], *keys: str) -> Mapping[str, Any]:
    for key in keys:
        inner = content.get(key, {})
        content = inner if isinstance(inner, dict) else {}
    return content
