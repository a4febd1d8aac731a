"""The code of a run's own components: the copy in its folder, and its digests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedapp.config.app_folder import app_folder, flower_folder
from fedapp.config.components import FILE, choices, component_class, entry_points, family_of
from fedapp.config.own_code import OwnCode
from fedapp.config.registry import FAMILIES
from fedapp.config.run_config import RunConfig
from fedapp.errors import ComponentError
from fedapp.files import write_atomically

COMPONENTS = "components"
"""The folder of the copies, and the entry of the digests in ``config.json``."""


def digests(config: RunConfig) -> dict[str, Any]:
    """Return the entries of ``config.json``: name, SHA-256 and files by key, and the app's folder.

    There are none without own components. A callback's key is ``callbacks/<name>``.
    """
    found = {
        key: {"name": name, "sha256": code.digest, "files": list(code.files)}
        for key, name, code in own_code_of(config)
    }
    folder = {} if flower_folder() else {"app": str(app_folder())}
    return {COMPONENTS: found, **folder} if found else {}


def own_code_of(config: RunConfig) -> Iterator[tuple[str, str, OwnCode]]:
    """Yield key, name and source of each of the run's own components, callbacks included."""
    for key, code in config.own_code().items():
        yield key, config.name_of(key), code
    for callback in config.components("callbacks"):
        if callback.own_code is not None:
            yield f"callbacks/{callback.name}", callback.name, callback.own_code


def write_copies(folder: Path, config: RunConfig) -> None:
    """Write the source of each of the run's own components to ``components/<key>/``."""
    for key, _, code in own_code_of(config):
        write_files(folder / COMPONENTS / key, code)


def write_files(folder: Path, code: OwnCode) -> None:
    """Write the source of a component."""
    for name, source in code.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, source)


def reference_to_copy(config: RunConfig, key: str) -> str:
    """Return the value of ``key``, of an own component, for an app's folder with its files alone."""
    value = str(config.to_run_config()[key])
    value = entry_points(family_of(key), app_folder()).get(value, value)
    if match := FILE.fullmatch(value):
        path = next(iter(config.own_code()[key].files))
        return f"./{path}:{match['name']}" if match["name"] else f"./{path}"
    return value


def changed_code(folder: Path, values: Mapping[str, Any], run_info: Mapping[str, Any]) -> str:
    """Return which own components have other code than the run in ``folder`` was made with, or "".

    ``values``: a run-config. The message has both digests. Callbacks may have changed.
    """
    stored = run_info.get(COMPONENTS, {})
    problems = []
    for family in FAMILIES:
        value = values.get(family.key)
        if family.several or not isinstance(value, str) or not choices(family, value):
            continue
        component = component_class(family, value)
        now = component.own_code.digest if component.own_code is not None else ""
        if now != (before := stored.get(family.key, {}).get("sha256", "")):
            problems.append(
                f"{family.key} = {value!r}: the code of {component.name!r} is not that of the run in "
                f"{folder}. It has SHA-256 {now or 'none'}, and the run's {before or 'none'}. Put back "
                f"the files of {folder / COMPONENTS / family.key}, or start another run, in another "
                "run-dir."
            )
    return "\n".join(problems)


def missing_component(folder: Path, run_info: Mapping[str, Any], error: ComponentError) -> str:
    """Return the error of a run with a component that is not there, or cannot be imported."""
    copies = folder.absolute() / COMPONENTS
    copied = f" A copy of the code that the run used is in {copies}." if copies.is_dir() else ""
    app = run_info.get("app", "")
    start = f" The run was started in {app}: start there." if app else ""
    return f"{str(folder)!r}: a component of this run is not there. {error}{start}{copied}"
