"""Which records and keys travel: ``messages.json`` has them by run, message, and direction."""

from __future__ import annotations

import re
from pathlib import Path

from flwr.app import Message

from tests.golden.driver import Run, ScriptedGrid, prepared, start
from tests.golden.runs import BY_NAME, DIGITS

EVALUATED = {**DIGITS, "evaluation": "both", "num-server-rounds": 2}
RUNS = (
    Run("fedavg", EVALUATED, 2),
    Run("scaffold", {**EVALUATED, "algorithm": "scaffold"}, 2),
    Run("fedmedian", {**EVALUATED, "algorithm": "fedmedian"}, 2),
    Run("normalised", {**BY_NAME["normalised-by-client"].settings, "num-server-rounds": 1}, 2),
    Run("own-clients", BY_NAME["nodes-are-clients"].settings, 3),
)


def found(folder: Path) -> dict[str, dict[str, list[str]]]:
    """Return the keys of each record, sorted, by run, message and direction."""
    keys: dict[str, dict[str, list[str]]] = {}
    for run in RUNS:
        settings = prepared(run, folder)
        grid = ScriptedGrid(run, settings)
        start(grid, settings)
        for pair in grid.seen:
            kind = pair[0].metadata.message_type
            for way, message in zip(("message", "reply"), pair, strict=True):
                _note(keys.setdefault(f"{run.name}: {kind} {way}", {}), message)
    return {name: dict(sorted(keys[name].items())) for name in sorted(keys)}


def _note(records: dict[str, list[str]], message: Message) -> None:
    """Add the keys of a message's records; "arrays.3" of client 3 is "arrays.k"."""
    for name, record in message.content.items():
        name = re.sub(r"\.\d+$", ".k", name)
        kind = f"{name}: {type(record).__name__}"
        records[kind] = sorted({*records.get(kind, []), *record})
