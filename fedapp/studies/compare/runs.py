"""The runs in folders, the settings in which they differ, and labels made of these."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from fedapp.config.read import option_fields
from fedapp.config.registry import FAMILIES
from fedapp.config.settings import Scalar
from fedapp.errors import CheckpointError
from fedapp.files import natural_order
from fedapp.runs.formatting import setting
from fedapp.runs.own_code import COMPONENTS
from fedapp.runs.stored_run import StoredRun
from fedapp.studies.sweep.identity import EXECUTION

MARKS = ("metrics.jsonl", "log.jsonl", "resume.toml")
"""Files of which a run's folder has one from its start on."""
ENVIRONMENT = ("engine", "nodes", "workers")
"""What was determined for a run and is compared like a setting."""
DETERMINED = ("device", "trainer", "threads")
"""Settings of which what was determined for the run is compared, and not "auto" or 0."""
NOT_COMPARED = ("run-dir", "resume")
FAMILY_KEYS = tuple(family.key for family in FAMILIES)

Differing = Mapping[str, Sequence[Scalar | None]]
"""Each run's value of the settings in which runs differ; None: the run has no such parameter."""


def is_run(folder: Path) -> bool:
    """Return whether a folder is that of a run."""
    return any((folder / name).is_file() for name in (*MARKS, "config.json"))


def find_runs(path: Path) -> list[Path]:
    """Return ``path`` if it is a run, or else the runs in it, by name; numbers in names count as such.

    Raises
    ------
    CheckpointError
        There is no such folder, or no run in it.
    """
    if is_run(path):
        return [path]
    if not path.is_dir():
        raise CheckpointError(
            f"{str(path)!r} holds no run (there is no such folder). Give the folder that a run logs "
            "first, or one that holds such folders."
        )
    if runs := sorted(_runs_in(path), key=lambda run: natural_order(str(run))):
        return runs
    raise CheckpointError(
        f"{str(path)!r} holds no run (config.json is missing, and no folder in it is one of a run). Give "
        "the folder that a run logs first, or one that holds such folders."
    )


def _runs_in(path: Path) -> Iterator[Path]:
    for folder, inside, files in os.walk(path):
        if Path(folder) != path and any(name in files for name in MARKS):
            inside.clear()
            yield Path(folder)
        inside[:] = [name for name in inside if not name.startswith(".")]


def names_of(paths: Sequence[Path]) -> list[str]:
    """Return the folders' names, or where two are equal their paths below the common folder."""
    paths = [path.resolve() for path in paths]
    if len({path.name for path in paths}) == len(paths):
        return [path.name for path in paths]
    above = os.path.commonpath([path.parent for path in paths])
    return [str(path.relative_to(above)) for path in paths]


def differing_settings(runs: Sequence[StoredRun]) -> dict[str, list[Scalar | None]]:
    """Return the settings in which runs differ: components, each with its parameters, others, execution.

    A key that an earlier version did not have is not compared, nor a parameter of a component that only
    some runs have, at its default.
    """
    every = [_settings_of(run) for run in runs]
    values = {key: [settings.get(key) for settings in every] for key in _ordered_keys(runs, every)}
    for key in FAMILY_KEYS:
        if key in values:
            values[key] = _with_digests(values[key], [_digest(run, key) for run in runs])
    if _is_same([run.run_info.get("fingerprint") for run in runs]):
        values.pop("dataset", None)
    return {key: values[key] for key in sorted(values, key=_place) if _differs(key, values[key])}


def _place(key: str) -> int:
    """Return 0 for components and their parameters, 1 for other settings, 2 for execution."""
    if is_execution(key):
        return 2
    return int(key not in FAMILY_KEYS and "." not in key)


def is_execution(key: str) -> bool:
    """Return whether a setting does not identify a run, but says how and how long it runs."""
    return key in EXECUTION or key in ENVIRONMENT


def _is_same(values: Sequence[object]) -> bool:
    return None not in values and len(set(values)) == 1


def _settings_of(run: StoredRun) -> dict[str, Scalar]:
    settings = {key: value for key, value in run.settings.items() if key not in NOT_COMPARED}
    of_run = {key: run.run_info[key] for key in (*ENVIRONMENT, *DETERMINED) if key in run.run_info}
    return {**settings, **of_run}


def _ordered_keys(runs: Sequence[StoredRun], every: Sequence[Mapping[str, Scalar]]) -> list[str]:
    """Return all keys in their order, each component's parameters after the key that chooses it."""
    keys: dict[str, None] = {}
    for key in dict.fromkeys(key for settings in every for key in settings if "." not in key):
        keys[key] = None
        if key in FAMILY_KEYS:
            for run, settings in zip(runs, every, strict=True):
                own = run.run_info.get(COMPONENTS, {}).get(key, {}).get("name", settings.get(key))
                keys |= dict.fromkeys(name for name in settings if name.startswith(f"{own}."))
    return list(keys | dict.fromkeys(key for settings in every for key in settings))


def _digest(run: StoredRun, key: str) -> str:
    if key == "dataset":
        return str(run.run_info.get("fingerprint", ""))
    return str(run.run_info.get(COMPONENTS, {}).get(key, {}).get("sha256", ""))


def _with_digests(values: Sequence[Scalar | None], digests: Sequence[str]) -> list[Scalar | None]:
    """Return names of components, with their digests where one name is of different code or data."""
    by_name: dict[Scalar | None, set[str]] = {}
    for value, digest in zip(values, digests, strict=True):
        by_name.setdefault(value, set()).add(digest)
    return [
        f"{value}@{digest[:12]}" if len(by_name[value]) > 1 else value
        for value, digest in zip(values, digests, strict=True)
    ]


def _differs(key: str, values: Sequence[Scalar | None]) -> bool:
    given = {value for value in values if value is not None}
    if len(given) > 1:
        return True
    if "." not in key or None not in values:
        return False
    field = option_fields().get(key)
    return field is None or given != {field.get_default()}


def run_labels(differing: Differing, names: Sequence[str]) -> list[str]:
    """Return a label for each run: values of as few settings as tell the runs apart.

    Components count before other settings, and settings of execution last. Runs with the same settings
    are told apart by their names.
    """
    chosen = _telling_apart(differing, len(names))
    labels = [
        ", ".join(phrase(key, value) for key in chosen if (value := differing[key][i]) is not None)
        for i in range(len(names))
    ]
    return [
        label if label and labels.count(label) == 1 else f"{label} ({name})" if label else name
        for label, name in zip(labels, names, strict=True)
    ]


def _telling_apart(differing: Differing, number: int) -> list[str]:
    def groups(keys: Sequence[str]) -> int:
        return len({tuple(differing[key][i] for key in keys) for i in range(number)})

    chosen: list[str] = []
    left = sorted(differing, key=_rank)
    while left and groups(chosen) < number:
        tier = [key for key in left if _rank(key) == _rank(left[0])]
        best = max(tier, key=lambda key: groups([*chosen, key]))
        if groups([*chosen, best]) > groups(chosen):
            chosen.append(best)
            left.remove(best)
        else:
            left = left[len(tier) :]
    return chosen


def _rank(key: str) -> int:
    """Return 0 for components, 1 for other settings, 2 for parameters, 3 for execution."""
    if is_execution(key):
        return 3
    return 0 if key in FAMILY_KEYS else 1 + ("." in key)


def phrase(key: str, value: Scalar) -> str:
    """Return a setting in a label: a component by its name, a parameter without its component's."""
    if key in FAMILY_KEYS:
        return Path(str(value)).name
    return f"{key.rpartition('.')[2]} {setting(value) or 'none'}"


def by_settings(differing: Differing, index: int) -> list[tuple[bool, bool, float, str]]:
    """Return a sort key of run ``index``: its settings in their order, numbers by size."""
    key = []
    for values in differing.values():
        value = values[index]
        is_number = isinstance(value, int | float)
        size = float(value) if isinstance(value, int | float) else 0.0
        key.append((value is not None, not is_number, size, "" if is_number else str(value)))
    return key
