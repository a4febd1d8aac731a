"""Whether the data of two places belong to one task."""

from __future__ import annotations

from fedapp.data.base import Task


def task_differences(expected: Task, found: Task) -> list[str]:
    """Return what keeps data of task ``found`` out of a federation of task ``expected``.

    Each item is a phrase such as "input shape (1, 28, 28) instead of (3, 32, 32)"; there is none
    where they agree. Plain integer
    labels without names agree where ``found`` has no more classes: a node need not hold them all.
    """
    pairs = {
        "task": (_kind(found), _kind(expected)),
        "input shape": (found.input_shape, expected.input_shape),
        "vocabulary": (found.vocabulary, expected.vocabulary),
    }
    different = [f"{name} {a!r} instead of {b!r}" for name, (a, b) in pairs.items() if a != b]
    return different + _label_differences(expected, found)


def _kind(task: Task) -> str:
    return f"{task.kind} with one label" if task.one_label else task.kind


def _label_differences(expected: Task, found: Task) -> list[str]:
    if expected.labels and found.labels:
        if expected.labels == found.labels:
            return []
        return [f"labels {_names(found.labels)} instead of {_names(expected.labels)}"]
    if found.num_classes == expected.num_classes:
        return []
    if found.num_classes < expected.num_classes and not found.labels:
        return []
    return [f"{found.num_classes} classes instead of {expected.num_classes}"]


def _names(labels: tuple[str, ...]) -> str:
    shown = ", ".join(labels[:5])
    return f"({shown}, ... {len(labels)} in all)" if len(labels) > 5 else f"({shown})"
