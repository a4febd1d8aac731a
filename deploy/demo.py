"""``make deploy-demo``: a deployment on this machine, as ``docs/deploy.md`` builds it on several.

TLS and SuperNode authentication are on. Three devices hold a third of the handwritten digits each,
or of MNIST where $FEDAPP_DATA has it, and train for some rounds. Everything that was started ends
with the demonstration, also when it fails or is interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import datasets
import numpy as np
import pyarrow.parquet as pq

from deploy.credentials import make_credentials
from deploy.federation import Federation
from deploy.processes import interruptible
from fedapp.config.settings import Scalar
from fedapp.data.dataset import Examples
from fedapp.data.embedded.digits import Digits

DEVICES = ("device-0", "device-1", "device-2")
ROUNDS = 4


def mnist() -> Path | None:
    """Return the folder of MNIST's Parquet files, where $FEDAPP_DATA has it."""
    folder = Path(os.environ.get("FEDAPP_DATA", "")).expanduser() / "mnist"
    return folder if os.environ.get("FEDAPP_DATA") and folder.is_dir() else None


def write_devices(
    folder: Path, source: Path | None = None, devices: Sequence[str] = DEVICES
) -> str:
    """Write each device's ``train.parquet``, its share of the digits or of MNIST's files in `source`.

    Returns the data set that the server tests on.
    """
    for number, device in enumerate(devices):
        path = folder / device / "data" / "train.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        if source:
            table = pq.read_table(next(source.glob("train*.parquet")))
            mine = np.arange(number, table.num_rows, len(devices))
            pq.write_table(table.take(mine), path)
        else:
            train = Digits().load().train
            mine = np.arange(number, len(train), len(devices))
            _write_digits(Examples(train.inputs[mine], train.targets[mine]), path)
    return str(source) if source else "digits"


def _write_digits(examples: Examples, path: Path) -> None:
    columns = {
        "image": list((examples.inputs[:, 0] * 255).astype(np.uint8)),
        "label": [int(label) for label in examples.targets],
    }
    kinds = {
        "image": datasets.Image(),
        "label": datasets.ClassLabel(names=[str(digit) for digit in range(10)]),
    }
    datasets.Dataset.from_dict(columns, datasets.Features(kinds)).to_parquet(path)


def demonstrate(folder: Path) -> Path:
    """Run the demonstration in ``folder`` and return the run's folder."""
    credentials = make_credentials(folder / "credentials", ["127.0.0.1"], DEVICES)
    started = Federation(folder, credentials=credentials)
    try:
        say(f"SuperLink at {started.address}, TLS and node authentication on")
        started.start_superlink()
        dataset = write_devices(folder, mnist())
        for number, device in enumerate(DEVICES):
            say(f"{device}: its key is registered, its SuperNode starts")
            started.register(device)
            data = str(folder / device / "data")
            state = str(folder / device / "state")
            started.start_node(device, data_path=data, client_id=number, state_path=state)
        say(f"flwr run: {ROUNDS} rounds, test data {dataset}")
        settings: dict[str, Scalar] = {
            "num-clients": 0,
            "fraction-train": 1.0,
            "min-nodes": len(DEVICES),
            "num-server-rounds": ROUNDS,
            "round-deadline": 300.0,
            "dataset": dataset,
            "data-cache": str(folder / "cache"),
        }
        process = started.begin(started.write_settings(settings, "run"), "run")
        follow(folder / "run" / "metrics.jsonl", process)
        started.wait_for(process, "run")
    except KeyboardInterrupt:
        say("interrupted: ending what was started")
        raise
    finally:
        if left := started.stop():
            raise RuntimeError(f"processes are left: {', '.join(map(str, left))}")
    say("every process has ended")
    return folder / "run"


def follow(metrics: Path, process: subprocess.Popen[bytes]) -> None:
    """Print each round as its line appears, until the run's command ends."""
    shown = 0
    while True:
        over = process.poll() is not None
        lines = metrics.read_text().splitlines() if metrics.exists() else []
        for line in lines[shown:]:
            record = json.loads(line)
            clients = f", {record['replied']} devices" if "replied" in record else ""
            say(f"round {record['round']}: accuracy {record['test_accuracy']:.4f}{clients}")
        shown = len(lines)
        if over:
            return
        time.sleep(0.3)


def say(text: str) -> None:
    """Print one line at once, if there is still somebody to read it."""
    with contextlib.suppress(OSError):
        print(f"[deploy-demo] {text}", flush=True)


def main() -> int:
    """Run the demonstration in a new folder; 0 if the accuracy rose and nothing is left."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    interruptible()
    datasets.disable_progress_bars()
    folder = Path(tempfile.mkdtemp(prefix="fedapp-demo-"))
    say(f"everything is in {folder}")
    try:
        run = demonstrate(folder)
    except KeyboardInterrupt:
        say("every process has ended")
        return 130
    except RuntimeError as error:
        print(error, file=sys.stderr)
        say(f"failed: {str(error).splitlines()[0]}")
        return 1
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    first, last = records[0]["test_accuracy"], records[-1]["test_accuracy"]
    say(f"accuracy {first:.4f} -> {last:.4f}; the run is in {run}")
    if last <= first:
        say("failed: the accuracy did not rise")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
