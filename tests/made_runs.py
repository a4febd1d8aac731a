"""Run directories that no run has made: settings, and metrics as a test gives them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedapp.config.read import read_config, without_unused_parameters


def made_run(
    folder: Path,
    accuracy: Sequence[float | None] = (),
    loss: Sequence[float | None] = (),
    rmse: Sequence[float] = (),
    *,
    finished: bool = True,
    found: dict[str, Any] | None = None,
    **settings: Any,
) -> Path:
    """Make a run with these values in rounds 0, 1, ...; a round takes 2 s, 300 bytes down and 100 up.

    Settings have underscores for hyphens; `num-server-rounds` is that of the metrics unless given.
    """
    series = {"test_accuracy": accuracy, "test_loss": loss, "test_rmse": rmse}
    number = max(map(len, series.values()))
    given = {key.replace("_", "-"): value for key, value in settings.items()}
    config = read_config({"num-server-rounds": max(number - 1, 1), **given})
    values = without_unused_parameters(config.to_run_config())
    folder.mkdir(parents=True)
    info = {"fingerprint": "digits-2", "device": "cpu", "nodes": 1, "engine": "inline"}
    stored = {"config": values, "found": {**info, **(found or {})}, "versions": {}}
    (folder / "config.json").write_text(json.dumps(stored))
    lines = []
    for round_ in range(number):
        spent = {"round": 2.0} if round_ else {"evaluate": 0.5}
        trained = {"bytes_down": 300, "bytes_up": 100, "model_changed": True, "clients": [0]}
        scores = {key: own[round_] for key, own in series.items() if round_ < len(own)}
        record = {"round": round_, "seconds": spent, **(trained if round_ else {}), **scores}
        lines.append(json.dumps(record) + "\n")
    (folder / "metrics.jsonl").write_text("".join(lines))
    if finished:
        (folder / "checkpoints").mkdir()
        for name in (
            f"checkpoints/round-{number - 1:06d}.json",
            "summary.json",
            "model.safetensors",
        ):
            (folder / name).write_text("{}")
    return folder
