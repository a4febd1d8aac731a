"""Whether the data of two places belong to one task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from fedapp.data.dataset import Task
from fedapp.errors import DataError, plain

TYPES: Mapping[str, type] = {
    "kind": str,
    "input-shape": list,
    "num-classes": int,
    "labels": list,
    "num-symbols": int,
    "vocabulary": str,
    "one-label": bool,
}
"""What a node says of its task, by name."""


def describe_task(task: Task) -> dict[str, Any]:
    """Return a task as the plain values of a message; ``read_task`` gives it back."""
    return {
        "kind": task.kind,
        "input-shape": list(task.input_shape),
        "num-classes": task.num_classes,
        "labels": list(task.labels),
        "num-symbols": task.num_symbols,
        "vocabulary": task.vocabulary,
        "one-label": task.one_label,
    }


def read_task(said: Mapping[str, Any]) -> Task:
    """Return the task that ``describe_task`` made these values of, among others.

    Raises
    ------
    DataError
        One of them is missing, or of another type.
    """
    for key, kind in TYPES.items():
        if type(said.get(key)) is not kind:
            found = f"{key} = {plain(repr(said[key]))}" if key in said else f"no {key}"
            raise DataError(
                f"it says {found} of its data, where a {kind.__name__} is expected; install the "
                "server's version of this package"
            )
    return Task(
        kind=cast("Any", said["kind"]),
        input_shape=tuple(said["input-shape"]),
        num_classes=said["num-classes"],
        labels=tuple(map(str, said["labels"])),
        num_symbols=said["num-symbols"],
        vocabulary=said["vocabulary"],
        one_label=said["one-label"],
    )


def task_differences(expected: Task, found: Task) -> list[str]:
    """Return what keeps data of task ``found`` out of a federation of task ``expected``.

    Each item is a phrase such as "input shape (1, 28, 28) instead of (3, 32, 32)"; there is none
    where they agree. Labels without names agree where there are as many: a network has an output
    for each.
    """
    pairs = {
        "task": (_kind(found), _kind(expected)),
        "input shape": (found.input_shape, expected.input_shape),
        "vocabulary": (found.vocabulary, expected.vocabulary),
        "number of symbols": (found.num_symbols, expected.num_symbols),
    }
    different = [
        f"{name} {plain(repr(a))} instead of {b!r}" for name, (a, b) in pairs.items() if a != b
    ]
    return different + _label_differences(expected, found)


def _kind(task: Task) -> str:
    return f"{task.kind} with one label" if task.one_label else task.kind


def _label_differences(expected: Task, found: Task) -> list[str]:
    if expected.labels and found.labels and expected.labels != found.labels:
        return [f"labels {_names(found.labels)} instead of {_names(expected.labels)}"]
    if found.num_classes != expected.num_classes:
        return [f"{found.num_classes} classes instead of {expected.num_classes}"]
    return []


def _names(labels: tuple[str, ...]) -> str:
    shown = plain(", ".join(labels[:5]))
    return f"({shown}, ... {len(labels)} in all)" if len(labels) > 5 else f"({shown})"
