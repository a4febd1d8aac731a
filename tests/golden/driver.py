"""Carries out the pinned runs with whichever fedapp is imported.

It stands by itself and knows of fedapp only what users know: the command of ``pyproject.toml``, the
two apps, the run-config keys and the files of a run's folder. So one driver runs the same list with
two commits, whatever their packages are called inside:

    python -P driver.py TREE RUNS.json FOLDER
"""

from __future__ import annotations

import contextlib
import importlib
import io
import itertools
import json
import logging
import math
import re
import shutil
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from flwr.app import Array, Context, Error, Message, MessageType, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.serverapp import Grid
from flwr.supercore.run import Run as FlowerRun
from flwr.supercore.task_identity import TaskIdentity

Scalar = bool | int | float | str
RUN_ID = 1
PLACE = re.compile(r" \(\S+, line \d+, in \S+\)")
"""Where an error was raised, which moves with the code."""


@dataclass(frozen=True)
class Run:
    """One run. Without ``faults`` and ``kill_after`` it is started as ``fedapp run`` starts it.

    ``after`` is a run to carry out first; "{after}" in the settings stands for its folder, "{data}"
    for the folder of the generated data sets. ``faults`` maps a round to what node 1 does in it.
    ``kill_after`` is a round: in the next, after node 1 has replied, the run is cut off, and resumed.
    """

    name: str
    settings: Mapping[str, Scalar]
    nodes: int = 1
    after: str = ""
    faults: Mapping[str, str] = field(default_factory=dict)
    kill_after: int = 0


@dataclass(frozen=True)
class Result:
    """What a run left behind: its metrics, the final parameters, and why it failed, if it did."""

    records: list[dict[str, Any]]
    params: dict[str, np.ndarray]
    error: str = ""


class Killed(BaseException):
    """Ends a run as Ctrl-C does; tests/test_resume.py kills processes."""


# ---------------------------------------------------------------------- faults of node 1


def _change(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Message], None]:
    def damage(reply: Message) -> None:
        records = list(reply.content.array_records.values())
        assert records, "the reply has no arrays to damage"
        for record in records:
            for name in list(record):
                record[name] = Array(change(record[name].numpy().copy()))

    return damage


def _report(column: str, change: Callable[[float], float]) -> Callable[[Message], None]:
    def damage(reply: Message) -> None:
        tables = [record for record in reply.content.metric_records.values() if column in record]
        assert tables, f"the reply reports no {column!r} to damage"
        for table in tables:
            table[column] = [change(value) for value in table[column]]

    return damage


FAULTS: Mapping[str, Callable[[Message], None]] = {
    "sends nan": _change(lambda values: np.full_like(values, np.nan)),
    "sends too much": _change(lambda values: values + 1e9),
    "holds one more": _report("examples", lambda n: n + 1),
    "weighs more": _report("weight", lambda weight: weight * 1e6),
    "weighs nothing": _report("weight", lambda weight: 0.0),
}
"""What node 1 does to a good reply.

It may also fail ("raises"), reply when the next messages are sent ("slow"), and damage what client 0 has
kept before it works ("spoils states").
"""


class ScriptedGrid(Grid):
    """Flower's Grid over calls of the ClientApp in this process, some of which go wrong."""

    def __init__(self, run: Run, settings: Mapping[str, Scalar], kill_after: int = 0) -> None:
        self.client_app = importlib.import_module("fedapp.client_app").app
        self.faults, self.kill_after = run.faults, kill_after
        self.folder = Path(str(settings["run-dir"]))
        self.contexts = {
            node: Context(
                RUN_ID,
                node,
                {"partition-id": node - 1, "num-partitions": run.nodes},
                RecordDict(),
                dict(settings),
            )
            for node in range(1, run.nodes + 1)
        }
        self._ids = itertools.count(1)
        self._pending: dict[str, Message] = {}
        self._late: set[str] = set()
        self._run = FlowerRun.create_empty(RUN_ID)
        self.seen: list[tuple[Message, Message]] = []
        identity = RUN_ID, SUPERLINK_NODE_ID, 1
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = identity

    def set_run(self, run: FlowerRun) -> None:
        self._run = run

    @property
    def run(self) -> FlowerRun:
        return self._run

    def create_message(self, *args: Any, **named: Any) -> Message:
        raise NotImplementedError

    def send_and_receive(self, messages: Iterable[Message], **named: Any) -> list[Message]:
        raise NotImplementedError

    def get_node_ids(self) -> list[int]:
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = []
        self._late.clear()
        for message in messages:
            key = f"message-{next(self._ids)}"
            message.metadata.__dict__["_message_id"] = key
            self._pending[key] = message
            ids.append(key)
            if self._fault(message) == "slow":
                self._late.add(key)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        wanted = set(message_ids) - self._late
        key = next((key for key in self._pending if key in wanted), None)
        return [] if key is None else [self._answer(self._pending.pop(key))]

    def _fault(self, message: Message) -> str:
        """Return what goes wrong with the answer to a message, if anything does."""
        is_train = message.metadata.message_type == MessageType.TRAIN
        if not is_train or message.metadata.dst_node_id != 1:
            return ""
        return self.faults.get(message.metadata.group_id, "")

    def _answer(self, message: Message) -> Message:
        node, kind = message.metadata.dst_node_id, message.metadata.message_type
        is_last = kind == MessageType.TRAIN and node == max(self.contexts)
        if self.kill_after and is_last and message.metadata.group_id == str(self.kill_after + 1):
            raise Killed
        fault = self._fault(message)
        if fault == "raises":
            return Message(Error(1, "OSError: no space left on device"), reply_to=message)
        if fault == "spoils states":
            for file in self.folder.glob("client-states/0/*.safetensors"):
                file.write_bytes(b"spoilt")
        try:
            reply = self.client_app(message, self.contexts[node])
        except Exception as error:
            return Message(Error(1, f"{type(error).__name__}: {error}"), reply_to=message)
        if fault in FAULTS:
            FAULTS[fault](reply)
        self.seen.append((message, reply))
        return reply


# ---------------------------------------------------------------------- runs


def execute(run: Run, folder: Path) -> Result:
    """Carry out a run in ``folder``/its name, once the run it begins with is there."""
    settings = prepared(run, folder)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        error = _carry_out(run, settings)
    return left_behind(folder / run.name, error)


def prepared(run: Run, folder: Path) -> dict[str, Scalar]:
    """Return a run's settings, and write the files that they name."""
    settings = {key: _placed(value, run, folder) for key, value in run.settings.items()}
    settings |= {"run-dir": str(folder / run.name), "data-cache": str(folder / "cache")}
    for name in DATA:
        if f"/{name}" in str(settings.get("dataset", "")):
            write_data(name, folder / "data")
    if "start.safetensors" in str(settings.get("initial-model", "")):
        write_start(folder / "data")
    return settings


def left_behind(where: Path, error: str = "") -> Result:
    """Return what a run left in its folder; the folder that it is in stands as "."."""
    around = str(where.parent)
    error = PLACE.sub("", error.replace(around, "."))
    if not where.exists():
        return Result([], {}, error)
    lines = (where / "metrics.jsonl").read_text().replace(around, ".").splitlines()
    params = where / "model.safetensors"
    tensors = safetensors.numpy.load_file(params) if params.exists() else {}
    return Result([json.loads(PLACE.sub("", line)) for line in lines], tensors, error)


def _placed(value: Scalar, run: Run, folder: Path) -> Scalar:
    if not isinstance(value, str):
        return value
    return value.replace("{after}", str(folder / run.after)).replace("{data}", str(folder / "data"))


def _carry_out(run: Run, settings: dict[str, Scalar]) -> str:
    """Run to the end; return why it failed, or nothing."""
    if run.kill_after:
        try:
            start(ScriptedGrid(run, settings, run.kill_after), settings)
        except Killed:
            settings = {**settings, "resume": True}
        else:
            raise AssertionError(f"{run.name} was not killed")
    if run.faults or run.kill_after or settings.get("num-clients") == 0:
        try:
            start(ScriptedGrid(run, settings), settings)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return ""
    return command(["run", *words(settings), "--nodes", str(run.nodes)])


def start(grid: Grid, settings: Mapping[str, Scalar]) -> None:
    """Run the ServerApp over the grid's nodes."""
    app = importlib.import_module("fedapp.server_app").app
    app(grid, Context(RUN_ID, SUPERLINK_NODE_ID, {}, RecordDict(), dict(settings)))


def words(settings: Mapping[str, Scalar]) -> list[str]:
    """Return settings as the command line takes them."""
    return [f"{key}={json.dumps(value)}" for key, value in settings.items()]


def command(arguments: Sequence[str]) -> str:
    """Call the ``fedapp`` command in this process; return its last words if it failed."""
    import fedapp

    tree = Path(str(fedapp.__file__)).parents[1]
    scripts = tomllib.loads((tree / "pyproject.toml").read_text())["project"]["scripts"]
    module, _, name = scripts["fedapp"].partition(":")
    before, sys.argv = sys.argv, ["fedapp", *arguments]
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            getattr(importlib.import_module(module), name)()
    except SystemExit as ended:
        lines = said.getvalue().strip().splitlines() or [""]
        return "" if ended.code in (0, None) else f"exit {ended.code}: {lines[-1]}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        sys.argv = before
    return ""


# ---------------------------------------------------------------------- generated data sets

LINES = (
    "to be or not to be that is the question",
    "all the world is a stage",
    "now is the winter of our discontent",
    "the rest is silence",
    "out out brief candle",
    "what is in a name",
)


def _images(count: int, shape: tuple[int, ...], seed: int) -> dict[str, Any]:
    """Return noise whose mean grows with its label."""
    from PIL import Image

    rng = np.random.default_rng(seed)
    labels = (np.arange(count) * 7 % 10).tolist()
    pixels = rng.integers(0, 128, (count, *shape)) + 12 * np.reshape(
        labels, (-1,) + (1,) * len(shape)
    )
    files = []
    for image in pixels.astype(np.uint8):
        buffer = io.BytesIO()
        Image.fromarray(image).save(buffer, format="PNG")
        files.append({"bytes": buffer.getvalue(), "path": None})
    return {"image": files, "label": labels}


def _lines(count: int, first: int) -> dict[str, Any]:
    rows = range(first, first + count)
    return {
        "client_id": [f"role-{row % 3}" for row in rows],
        "role": [f"role-{row % 3}" for row in rows],
        "line_no": list(rows),
        "text": [LINES[row % len(LINES)][: 12 + 9 * (row % 3)] for row in rows],
    }


IMAGE = {
    "image": {"_type": "Image"},
    "label": {"names": [str(label) for label in range(10)], "_type": "ClassLabel"},
}
TEXT = {
    name: {"dtype": "int64" if name == "line_no" else "string", "_type": "Value"}
    for name in ("client_id", "role", "line_no", "text")
}
DATA: Mapping[str, Callable[[], tuple[dict[str, Any], dict[str, Any], dict[str, Any]]]] = {
    "grey28": lambda: (IMAGE, _images(40, (28, 28), 1), _images(10, (28, 28), 2)),
    "colour32": lambda: (IMAGE, _images(24, (32, 32, 3), 3), _images(8, (32, 32, 3), 4)),
    "eighteen": lambda: (IMAGE, _images(18, (8, 8), 5), _images(10, (8, 8), 6)),
    "plays": lambda: (TEXT, _lines(18, 0), _lines(6, 18)),
}
"""Data sets by name: features, training and test columns."""


def write_data(name: str, folder: Path) -> None:
    """Write a data set as Parquet files into ``folder``/``name``, if it is not there."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if (folder / name).exists():
        return
    (folder / name).mkdir(parents=True)
    features, *splits = DATA[name]()
    info = json.dumps({"info": {"features": features}})
    for split, columns in zip(("train", "test"), splits, strict=True):
        table = pa.table(columns).replace_schema_metadata({"huggingface": info})
        pq.write_table(table, folder / name / f"{split}.parquet")


def write_start(folder: Path) -> None:
    """Write initial weights of the 2NN with eight hidden units on 8x8 images of ten classes.

    Every operation is exact or rounded once: they are the same on each machine.
    """
    rng = np.random.default_rng(7)
    layers = (("1", 8, 64), ("3", 8, 8), ("5", 10, 8))
    weights = {}
    for layer, outputs, inputs in layers:
        bound = 2 / math.sqrt(inputs)
        weights[f"{layer}.weight"] = (rng.random((outputs, inputs)) - 0.5) * bound
        weights[f"{layer}.bias"] = (rng.random(outputs) - 0.5) * bound
    folder.mkdir(parents=True, exist_ok=True)
    safetensors.numpy.save_file(weights, folder / "start.safetensors")


# ---------------------------------------------------------------------- what is compared

TIMED = ("seconds", "bytes_down", "bytes_up")


def numbers(result: Result) -> dict[str, Any]:
    """Return what is pinned of a run: metrics by name, norm and eight projections, the error.

    A metric is a list over the records, None where a record does not have it.
    """
    names = dict.fromkeys(key for record in result.records for key in record)
    pinned: dict[str, Any] = {
        name: [record.get(name) for record in result.records] for name in names if name not in TIMED
    }
    norm, projections = projected(result.params)
    return {"metrics": pinned, "norm": norm, "projections": projections, "error": result.error}


def projected(params: Mapping[str, np.ndarray]) -> tuple[float, list[float]]:
    """Return the norm of all parameters and the sums of theirs with eight fixed patterns of signs.

    A sum is divided by the root of their number: it is about as large as the root mean square.
    """
    rng = np.random.default_rng(20260101)
    square, sums, count = 0.0, np.zeros(8), 0
    for name in sorted(params):
        values = params[name].astype(np.float64).ravel()
        signs = np.frombuffer(rng.bytes(len(values)), np.uint8)
        square += float(values @ values)
        for bit in range(8):
            sums[bit] += float(np.sum(np.where(signs >> bit & 1, values, -values)))
        count += len(values)
    return math.sqrt(square), (sums / math.sqrt(max(count, 1))).tolist()


def main() -> None:
    """Carry out the runs of a JSON file with the fedapp of a tree; write what each left behind."""
    import fedapp

    tree, runs, folder = map(Path, sys.argv[1:4])
    if Path(str(fedapp.__file__)).parents[1].resolve() != tree.resolve():
        raise SystemExit(f"fedapp is imported from {fedapp.__file__}, not from {tree}")
    logging.getLogger("flwr").setLevel(logging.ERROR)
    for run in (Run(**run) for run in json.loads(runs.read_text())):
        result = execute(run, folder)
        (folder / run.name).mkdir(parents=True, exist_ok=True)
        found = {"records": result.records, "error": result.error}
        (folder / run.name / "result.json").write_text(json.dumps(found))
        for unused in ("checkpoints", "tensorboard", "client-states"):
            shutil.rmtree(folder / run.name / unused, ignore_errors=True)
        print(run.name, flush=True)


if __name__ == "__main__":
    main()
