"""The recipes for Weights & Biases and MLflow in docs/callbacks.md, run offline against the packages."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conftest import Run
from tests.in_process import metrics
from tests.own_app import app_in, write

if TYPE_CHECKING:  # the packages are imported by the tests alone: both take a second and more
    from wandb.proto.wandb_internal_pb2 import Record

pytestmark = [pytest.mark.process]

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "callbacks.md").read_text()
RECIPES = dict(
    zip(
        ("to_wandb.py", "to_mlflow.py"),
        re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL),
        strict=True,
    )
)
"""The recipes of the page, by the name of the file."""


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a folder with the recipes, in which this process works, without a network."""
    folder = tmp_path / "app"
    write(folder, RECIPES)
    monkeypatch.chdir(folder)
    variables = {
        "WANDB_MODE": "offline",
        "WANDB_SILENT": "true",
        "WANDB_CACHE_DIR": str(tmp_path / "cache"),
        "WANDB_CONFIG_DIR": str(tmp_path / "config"),
        "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with app_in(folder):
        yield folder


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_short(name: str) -> None:
    assert len(RECIPES[name].splitlines()) - RECIPES[name].count("\n\n") < 25


BLOCK, HEADER = 32768, struct.Struct("<IHB")  # as in LevelDB's logs: checksum, length, part
WHOLE, LAST = 1, 4


def in_offline_file(file: Path) -> Iterator[Record]:
    """Yield the records that Weights & Biases has written into a file."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, position, parts = file.read_bytes(), 7, b""  # after the file's own header
    while position < len(content):
        if BLOCK - position % BLOCK < HEADER.size:
            position += BLOCK - position % BLOCK
            continue
        _, length, part = HEADER.unpack_from(content, position)
        position += HEADER.size
        parts += content[position : position + length]
        position += length
        if part in (WHOLE, LAST):
            yield Record.FromString(parts)
            parts = b""


def test_weights_and_biases_has_every_number_of_every_round(app: Path, run: Run) -> None:
    import wandb

    settings = {"callbacks": "./to_wandb.py", "wandb.project": "digits"}
    folder = run("first", num_server_rounds=2, **settings)
    wandb.teardown()  # until its process has written everything
    (file,) = (folder / "wandb").glob("offline-run-*/*.wandb")
    records = list(in_offline_file(file))
    (started,) = [each.run for each in records if each.WhichOneof("record_type") == "run"]
    assert (started.project, started.run_id) == ("digits", "first")
    config = {item.key: json.loads(item.value_json) for item in started.config.update}
    assert config["learning-rate"] == 0.2
    history = [
        {
            "/".join(item.nested_key) or item.key: json.loads(item.value_json)
            for item in each.history.item
        }
        for each in records
        if each.WhichOneof("record_type") == "history"
    ]
    assert [row["_step"] for row in history] == [0, 1, 2]
    for row, record in zip(history, metrics(folder), strict=True):
        assert row["test_accuracy"] == record["test_accuracy"]
        assert row.get("train_loss") == record.get("train_loss")


def test_mlflow_has_every_number_and_a_resume_continues_its_run(app: Path, run: Run) -> None:
    from mlflow import MlflowClient

    same = {"callbacks": "./to_mlflow.py"}
    run("first", num_server_rounds=1, **same)
    folder = run("first", num_server_rounds=2, resume=True, **same)
    client = MlflowClient()
    (found,) = client.search_runs(["0"])
    assert (found.info.run_name, found.info.status) == ("first", "FINISHED")
    assert found.data.params["learning-rate"] == "0.2"
    records = metrics(folder)
    for key in ("test_accuracy", "train_loss"):
        logged = client.get_metric_history(found.info.run_id, key)
        expected = [(each["round"], each[key]) for each in records if key in each]
        assert [(each.step, each.value) for each in logged] == expected
    assert len(client.get_metric_history(found.info.run_id, "seconds/train")) == 2
