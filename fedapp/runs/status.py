"""``fedapp status``: the state of a run, read from its directory."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedapp.federation.callback import RoundMetrics
from fedapp.federation.round_result import UNCHANGED
from fedapp.runs.directory import RunDirectory, resume_command
from fedapp.runs.lock import END_MESSAGE
from fedapp.runs.metrics import faults_by_kind, read_metrics, rounds_without_effect
from fedapp.runs.stored_run import StoredRun, read_run, state_before_start

SECONDS_PARTS = ("wait", "transfer", "train", "evaluate")
"""The parts of a round's seconds that are shown."""

NODE = re.compile(r"Node (\d+)( \(.*?\))? is (accepted|rejected): (.*)", re.DOTALL)
"""The log's line about a node."""


def status(path: Path) -> list[tuple[str, str]]:
    """Return the state of the run in ``path`` as (label, value) pairs; its code is not executed.

    Raises
    ------
    CheckpointError
        There is no run, or its files are damaged.
    """
    directory = RunDirectory(path.absolute())
    messages = _log_messages(directory)
    if messages and (state := state_before_start(path)):
        last = _end_reason(messages) or [("log", messages[-1])]
        return [("run", str(directory.path)), ("state", state), *_rejected(messages), *last]
    run = read_run(path)
    trained = [record for record in run.records if record["round"] > 0]
    state = run.state
    rows = [("run", str(directory.path)), ("state", state)]
    rows += _end_reason(messages) if state == "stopped" else []
    rows.append(("rounds", f"{run.rounds} of {run.planned}{rounds_without_effect(trained)}"))
    rows += _accuracy(run.records) + _rejected(messages)
    if trained:
        rows.append(("last round", _last(trained[-1])))
        rows.append(("faults", faults_by_kind(trained)))
        rows.append(("seconds a round", _seconds(trained)))
    if state != "running":
        rows.append(("resume", _resume(run)))
    return rows


def without_effect(directory: RunDirectory) -> str:
    """Return why no round of a run changed the model; empty if one did, or if there was no round."""
    trained = [record for record in read_metrics(directory.metrics) if record["round"] > 0]
    if not trained or any(record["model_changed"] for record in trained):
        return ""
    messages = [text for text in _log_messages(directory) if text.endswith(UNCHANGED)]
    return next(iter(trained[-1].get("failures", {}).values()), (messages or ["see its log"])[-1])


def _log_messages(directory: RunDirectory) -> list[str]:
    """Return the messages of the run's log, without lines that are cut off."""
    try:
        lines = directory.log.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return []
    messages = []
    for line in lines:
        try:
            messages.append(str(json.loads(line)["message"]))
        except (ValueError, KeyError, TypeError):
            continue
    return messages


def _end_reason(messages: Sequence[str]) -> list[tuple[str, str]]:
    """Return what ended the run, if that is the last message; a resumed run appends its own."""
    last = messages[-1] if messages else ""
    return (
        [("ended because", last.removeprefix(END_MESSAGE))] if last.startswith(END_MESSAGE) else []
    )


def _rejected(messages: Sequence[str]) -> list[tuple[str, str]]:
    """Return the rejected nodes and why, without those that were accepted later."""
    rejected: dict[str, str] = {}
    for message in messages:
        if (match := NODE.fullmatch(message)) is None:
            continue
        node, name, outcome, why = match.groups(default="")
        rejected.pop(node, None)
        if outcome == "rejected":
            rejected[node] = f"node {node}{name}: {why}"
    return [("rejected", "\n".join(rejected.values()))] if rejected else []


def _accuracy(records: Sequence[RoundMetrics]) -> list[tuple[str, str]]:
    scored = [record for record in records if record.get("test_accuracy") is not None]
    if not scored:
        errors = [record["test_rmse"] for record in records if "test_rmse" in record]
        shown = "not finite" if not errors or errors[-1] is None else f"{errors[-1]:.6g}"
        return [("RMSE", shown)] if errors else []
    best = max(scored, key=lambda record: record["test_accuracy"])
    *_, last = (record["test_accuracy"] for record in records if "test_accuracy" in record)
    shown = "not finite" if last is None else f"{last:.4f}"
    return [("accuracy", f"{shown}, best {best['test_accuracy']:.4f} in round {best['round']}")]


def _last(record: RoundMetrics) -> str:
    """Return how many clients took part in a round, and why others did not."""
    parts = [f"{record['replied']} of {len(record['clients'])} clients"]
    if record.get("late_replies"):
        parts.append(f"{record['late_replies']} late replies dropped")
    if record.get("checkpoint_error"):
        parts.append(f"no checkpoint: {record['checkpoint_error']}")
    failures = [f"client {k}: {why}" for k, why in record.get("failures", {}).items()]
    return "\n".join([", ".join(parts), *failures])


def _seconds(trained: Sequence[RoundMetrics]) -> str:
    """Return the median seconds of a round and of its parts."""
    spent: list[Mapping[str, Any]] = [record["seconds"] for record in trained]
    total = statistics.median(seconds["round"] for seconds in spent)
    parts = [
        f"{part} {statistics.median(seconds.get(part, 0.0) for seconds in spent):.2f}"
        for part in SECONDS_PARTS
    ]
    return f"{total:.2f} (median): {', '.join(parts)}"


def _resume(run: StoredRun) -> str:
    """Return from which round the run can be resumed, and by which command of its engine."""
    round_, finished, path = run.resume_round, run.is_finished, run.directory.path
    if round_ is None:
        return "not possible: there is no checkpoint of a round that the metrics reach"
    if finished and round_ < run.planned and run.has_reached_target:
        return f"finished: target-accuracy = {run.target} is reached"
    if finished and round_ < run.planned:
        return f"finished: max-epsilon, a callback or a sweep ended it after round {round_}"
    command = resume_command(path)
    if finished:
        return f"finished; for more, raise num-server-rounds: {command}"
    return f"from round {round_}: {command}"
