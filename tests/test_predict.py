"""`fedapp predict` and `fedapp export`: what a run's model says of files, and the model elsewhere."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image
from typer.testing import CliRunner

from fedapp.cli.main import app
from fedapp.config.read import read_config
from fedapp.data.load import load_dataset
from fedapp.data.readers.rows import read_image, read_rows
from fedapp.data.table import Scaling, Statistics
from fedapp.data.text.symbols import Characters
from fedapp.errors import CheckpointError, ConfigError, DataError
from fedapp.runs import predict as predictions
from fedapp.runs.export import export, is_plain, script_of
from fedapp.runs.model_sharpness import Measurement, sharpness_of
from fedapp.runs.predict import Prediction, predict
from fedapp.runs.saved_model import load_data, load_model
from fedapp.training.build import example_inputs
from tests.conftest import slow_but
from tests.data_files import write_parquet
from tests.in_process import model as model_of
from tests.in_process import run as digits_run
from tests.own_app import app_in, reload, write
from tests.test_tables import clusters, csv, line, metrics, own, run


def said(folder: Path, *files: Path, length: int = 8) -> list[tuple[str | float, float | None]]:
    found = predict(load_model(folder), list(files), length)
    return [(each.value, each.probability) for each in found]


def test_rows_of_a_table_get_a_class_and_its_probability(tmp_path):
    data = clusters(tmp_path / "set")
    folder = run(tmp_path / "run", dataset=str(data), precision="float64")
    new = tmp_path / "new.csv"
    new.write_text("note,y,x\nhello,0.5,101\nworld,-1,118\n")
    stored = json.loads((folder / "table.json").read_text())["columns"]
    x = (np.array([101, 118]) - stored["x"]["mean"]) / stored["x"]["deviation"]
    y = (np.array([0.5, -1]) - stored["y"]["mean"]) / stored["y"]["deviation"]
    weights = {name: tensor.numpy() for name, tensor in model_of(folder).items()}
    logits = np.column_stack([x, y]) @ weights["1.weight"].T + weights["1.bias"]
    exponents = np.exp(logits)
    probabilities = exponents / exponents.sum(1, keepdims=True)
    for (name, probability), row in zip(said(folder, new), probabilities, strict=True):
        assert name == "abc"[row.argmax()]
        assert probability == pytest.approx(row.max(), rel=1e-12)
    result = CliRunner().invoke(app, ["predict", str(folder), str(new), "--json"])
    printed = json.loads(result.stdout)
    assert [each["row"] for each in printed] == [0, 1]
    assert [each["value"] for each in printed] == [name for name, _ in said(folder, new)]


def test_a_label_of_a_node_is_printed_without_control_characters(monkeypatch):
    found = [Prediction("a.csv", 0, "\x1b[31mred\nb", 0.5), Prediction("a.txt", -1, "two\nlines")]
    monkeypatch.setattr(predictions, "predict", lambda *_: found)
    monkeypatch.setattr("fedapp.runs.saved_model.load_model", lambda _: None)
    result = CliRunner().invoke(app, ["predict", "run", "a.csv"])
    assert result.stdout == "a.csv 0   [31mred b  0.5000\na.txt  two\nlines\n"


def test_a_regression_gives_numbers_and_categories_are_coded_as_in_training(tmp_path):
    rows = "town,x,price Rome,1,1.5 Bern,2,2.5 Rome,3,3.5"
    data = csv(tmp_path / "set", rows)
    keys = {"dataset": str(data), "input_keys": "town,x", "label_key": "price", "missing": "mean"}
    folder = run(tmp_path / "run", precision="float64", num_clients=1, **keys)
    new = write_parquet(tmp_path / "new", {"rows": {"town": ["Bern", "Oslo"], "x": [2.0, None]}})
    weights = {name: tensor.numpy() for name, tensor in model_of(folder).items()}
    coded = np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])  # Bern; unknown, and the mean
    expected = coded @ weights["1.weight"][0] + weights["1.bias"]
    found = said(folder, new / "rows.parquet")
    assert [probability for _, probability in found] == [None, None]
    np.testing.assert_allclose([value for value, _ in found], expected, rtol=1e-12)


def test_given_statistics_may_have_another_order_and_more_columns(tmp_path):
    """Also where an older version has written them to the run's table.json as they were given."""
    data = str(clusters(tmp_path / "set"))
    x, y, more = ({"mean": m, "deviation": d} for m, d in ((110.0, 8.0), (0.0, 1.0), (5.0, 2.0)))
    runs = []
    for name, columns in {"a": {"x": x, "y": y}, "b": {"y": y, "more": more, "x": x}}.items():
        given = tmp_path / f"{name}.json"
        given.write_text(json.dumps({"columns": columns}))
        runs.append(run(tmp_path / name, dataset=data, table_statistics=str(given)))
    ordered, other = runs
    stored = (ordered / "table.json").read_text()
    assert (other / "table.json").read_text() == stored
    new = tmp_path / "new.csv"
    new.write_text("y,x\n0.5,101\n-1,118\n")
    assert said(other, new) == said(ordered, new)
    older = {**json.loads(stored), "columns": {"y": y, "more": more, "x": x}}
    (other / "table.json").write_text(json.dumps(older))
    assert said(other, new) == said(ordered, new)
    export(load_model(other), tmp_path / "out", onnx=False)
    assert (tmp_path / "out" / "table.json").read_text() == stored


def test_the_data_of_a_run_are_coded_with_its_pooled_statistics(tmp_path):
    """Those of three nodes' 150 rows, and not of the dozen that the server has to train."""
    data = clusters(tmp_path / "set", parts=3)
    head, *rows = (data / "train.csv").read_text().split()
    (data / "train.csv").write_text("\n".join([head, *sorted(rows)[:12], rows[-1]]) + "\n")
    given = {"dataset": str(data), "num_clients": 0, "fraction_train": 1.0, "learning_rate": 0.1}
    folder = run(tmp_path / "run", configs=own(data, 3), num_server_rounds=8, **given)
    saved, found = load_model(folder), load_data(folder)
    inputs = torch.from_numpy(found.test.inputs).float()
    right = saved.module(inputs).argmax(1).numpy() == found.test.targets
    last = metrics(folder)[-1]
    assert right.mean() == pytest.approx(last["test_accuracy"])
    assert right.mean() > 0.5
    assert sharpness_of(folder, Measurement(examples=0, directions=1)).examples == 13
    with pytest.raises(ConfigError, match="not the data of the run"):
        load_data(folder, str(tmp_path / "node0"))


def test_statistics_that_were_moved_are_named_on_resume(tmp_path):
    data, given = str(clusters(tmp_path / "set")), tmp_path / "given.json"
    columns = {name: {"mean": 0.0, "deviation": 1.0} for name in "xy"}
    given.write_text(json.dumps({"columns": columns}))
    folder = run(tmp_path / "run", dataset=data, table_statistics=str(given))
    moved = given.rename(tmp_path / "moved.json")
    more = {"dataset": data, "num_server_rounds": 4, "resume": True}
    run(folder, **more, table_statistics=str(moved))
    moved.write_text(json.dumps({"columns": columns | {"x": {"mean": 1.0, "deviation": 1.0}}}))
    with pytest.raises(CheckpointError, match="not the data that"):
        run(folder, **more, table_statistics=str(moved))


def rows_of(file: Path, text: str, categories: tuple[str, ...]) -> list[list[float]]:
    file.write_text(text)
    return read_rows(file, Statistics({"code": categories}), "refuse").tolist()


def test_a_code_is_read_as_written_whatever_the_other_rows_are(tmp_path):
    file = tmp_path / "new.csv"
    for text in ("code\n08001\n", "code\n08001\nK1A\n"):
        assert rows_of(file, text, ("08001", "K1A"))[0] == [1, 0]
        assert rows_of(tmp_path / "NEW.CSV", text, ("08001", "K1A"))[0] == [1, 0]
    assert rows_of(file, "code\n8001\n", ("08001", "8001")) == [[0, 1]]


def test_a_code_that_is_not_known_as_written_is_read_as_a_number(tmp_path):
    text = "code\n3.0\n007\n1.50\nx\n"
    known = rows_of(tmp_path / "new.csv", text, ("1.5", "3", "7"))
    assert known == [[0, 1, 0], [0, 0, 1], [1, 0, 0], [0, 0, 0]]


def test_a_boolean_is_read_as_python_writes_it(tmp_path):
    """In training a column of true and false is one of booleans, and one of true and x is text."""
    for text in ("code\ntrue\nfalse\n", "code\nTRUE\nFALSE\n", "code\nTrue\nFalse\n"):
        assert rows_of(tmp_path / "new.csv", text, ("False", "True")) == [[0, 1], [1, 0]]
    assert rows_of(tmp_path / "new.csv", "code\ntrue\n", ("true", "True")) == [[1, 0]]


def test_a_text_for_a_number_is_refused_without_keys_of_a_run(tmp_path):
    file = tmp_path / "rows.parquet"
    datasets.Dataset.from_dict({"x": ["1"]}).to_parquet(file)
    statistics = Statistics({"x": Scaling(0.0, 1.0)})
    with pytest.raises(DataError, match=r"holds .*string, neither numbers.* Save it as numbers\.$"):
        read_rows(file, statistics, "refuse")


def test_images_are_predicted_as_in_the_test(tmp_path):
    folder = digits_run(tmp_path / "run", model="2nn")
    digits = load_dataset(read_config({})).test
    files = []
    for i in range(12):
        files.append(tmp_path / f"{i}.png")
        Image.fromarray(np.round(digits.inputs[i, 0] * 255).astype(np.uint8)).save(files[-1])
    outputs = load_model(folder).module(torch.from_numpy(digits.inputs[:12]))
    names = [str(int(best)) for best in outputs.argmax(1)]
    assert [name for name, _ in said(folder, *files)] == names


def spoken(folder: Path, *texts: str, **columns: list[object]) -> Path:
    table = {"text": list(texts), **columns}
    return write_parquet(folder, {"train": table, "test": table})


LSTM = {"hidden": 24, "embedding": 8, "layers": 1}


@pytest.mark.parametrize("unit", slow_but(("words",), ("characters", "words")))
def test_a_text_goes_on_as_the_training_text_does(tmp_path, unit):
    data = spoken(tmp_path / "set", *["one two three four five six"] * 24)
    model = "char-lstm" if unit == "characters" else "word-lstm"
    folder = digits_run(
        tmp_path / "run",
        dataset=str(data),
        model=model,
        text_unit=unit,
        text_unroll=12 if unit == "words" else 27,
        num_clients=1,
        fraction_train=1.0,
        learning_rate=4.0,
        clip_norm=1.0,
        local_epochs=40,
        batch_size=8,
        **{f"{model}.{key}": value for key, value in LSTM.items()},
        **{"2nn.hidden": 200},
    )
    (tmp_path / "begin.txt").write_text("one two thr" if unit == "characters" else "one two\n")
    ((found, _),) = said(folder, tmp_path / "begin.txt", length=12 if unit == "characters" else 3)
    assert found == ("ee four five" if unit == "characters" else "three four five")
    if unit == "words":
        (data / "train.parquet").unlink()
        spoken(data, "other words")
        with pytest.raises(DataError, match=r"its words are not those of the model"):
            said(folder, tmp_path / "begin.txt")


def test_a_text_of_several_lines_is_read_as_the_lines_of_the_training_text(monkeypatch):
    """And so is a line that the model begins."""
    windows = []

    def outputs(_: object, window: np.ndarray) -> torch.Tensor:
        windows.append(window[0].tolist())
        return torch.eye(258)[257].reshape(1, 258, 1)  # the end of a line

    monkeypatch.setattr(predictions, "_outputs", outputs)
    model: Any = SimpleNamespace(task=SimpleNamespace(input_shape=(80,)))
    assert predictions.continuation(model, Characters(), "ab\ncd", 2) == "\n\n"
    assert windows[0] == [256, 97, 98, 257, 256, 99, 100]
    assert windows[1] == [*windows[0], 257, 256]


def test_a_labelled_text_gets_a_class(tmp_path):
    data = spoken(tmp_path / "set", "good", "bad", "good", "bad", label=[1, 0, 1, 0])
    settings = {"char-lstm.hidden": 8, "2nn.hidden": 200}
    folder = digits_run(
        tmp_path / "run",
        dataset=str(data),
        model="char-lstm",
        text_unroll=6,
        num_clients=2,
        **settings,
    )
    (tmp_path / "new.txt").write_text("good")
    ((name, probability),) = said(folder, tmp_path / "new.txt")
    assert name in ("0", "1")
    assert 0.5 <= probability <= 1


def test_a_run_that_has_not_ended_and_one_without_files_of_inputs(tmp_path):
    folder = run(tmp_path / "run", dataset=str(clusters(tmp_path / "set")), num_server_rounds=1)
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"the run has not ended. Resume it"):
        load_model(folder)
    settings = {"dataset": "quadratic", "partitioner": "natural", "model": "quadratic"}
    plain = digits_run(tmp_path / "quadratic", **settings, **{"2nn.hidden": 200})
    with pytest.raises(ConfigError, match=r"takes quadratic inputs of a data set of its own"):
        said(plain, tmp_path / "set" / "train.csv")


def test_a_model_needs_the_task_of_its_run(tmp_path):
    folder = digits_run(tmp_path / "run", num_server_rounds=1)
    (folder / "task.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"task.json cannot be read"):
        load_model(folder)
    (folder / "task.json").unlink()
    with pytest.raises(CheckpointError, match=r"task.json cannot be read"):
        load_model(folder)


# ---------------------------------------------------------------------- export

NETWORKS = {
    "linear": ({}, True),
    "2nn": ({}, True),
    "mnist-cnn": ({"mnist-cnn.hidden": 8}, True),
    "resnet18-gn": ({}, False),
}


@pytest.mark.parametrize(
    "name", slow_but({"linear", "2nn", "mnist-cnn"}, NETWORKS, NETWORKS.keys() - {"resnet18-gn"})
)
def test_the_script_of_an_export_runs_and_builds_the_network(tmp_path, name):
    settings, plain = NETWORKS[name]
    settings = {"2nn.hidden": 200, **settings} if name != "2nn" else {}
    folder = digits_run(
        tmp_path / "run", model=name, num_server_rounds=1, num_clients=2, **settings
    )
    model = load_model(folder)
    assert is_plain(model.module) == plain
    script = export(model, tmp_path / "out", onnx=False)
    assert script == (tmp_path / "out" / "load_model.py").read_text()
    assert ("fedapp.training" in script) != plain
    found: dict[str, object] = {"__file__": str(tmp_path / "out" / "load_model.py")}
    exec(script, found)
    inputs = torch.randn(example_inputs(model.config, model.task).shape)
    assert torch.equal(found["model"](inputs), model.module(inputs))  # type: ignore[operator]
    weights = safetensors.torch.load_file(tmp_path / "out" / "weights.safetensors")
    assert weights.keys() == model.module.state_dict().keys()


def test_an_exported_script_has_labels_without_control_characters(tmp_path):
    """C1 controls and a right-to-left override, which a node may have put into a name."""
    model = load_model(digits_run(tmp_path / "run", num_server_rounds=1, num_clients=2))
    labels = ('"""\\', "a\x9b31m\x1b", "b\u202e", "größer")
    script = script_of(replace(model, task=replace(model.task, labels=labels)))
    assert all(line.isprintable() for line in script.splitlines())
    assert ast.get_docstring(ast.parse(script), clean=False).endswith(f"{', '.join(labels)}.")
    assert "größer" in script


SHARED = """
from typing import ClassVar
from torch import nn
from fedapp.models.model import Model

class Shared(Model):
    \"\"\"One activation after two layers, which PyTorch names once.\"\"\"

    name: ClassVar[str] = "shared"

    def build(self, task):
        act = nn.Tanh()
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), act, nn.Linear(8, 8), act, nn.Linear(8, 10))
"""


def test_the_script_of_a_chain_of_ones_own_builds_the_same_network(tmp_path, monkeypatch):
    """With its code: a text of its layers lacks the second use of one, and what texts leave out."""
    write(tmp_path / "app", {"shared.py": SHARED})
    monkeypatch.setenv("FEDAPP_APP", str(tmp_path / "app"))
    with app_in(tmp_path / "app"):
        folder = digits_run(
            tmp_path / "run", model="./shared.py", num_server_rounds=1, **{"2nn.hidden": 200}
        )
        model = load_model(folder)
        script = export(model, tmp_path / "out", onnx=False)
        reload(tmp_path / "app")
        found: dict[str, Any] = {"__file__": str(tmp_path / "out" / "load_model.py")}
        exec(script, found)
    inputs = torch.randn(2, 1, 8, 8)
    assert torch.equal(found["model"](inputs), model.module(inputs))


@pytest.mark.slow
def test_an_exported_table_runs_in_another_process(tmp_path):
    data, _, _ = line(tmp_path / "set")
    folder = run(tmp_path / "run", dataset=str(data), label_key="y", num_server_rounds=1)
    result = CliRunner().invoke(app, ["export", str(folder)])
    assert result.exit_code == 0
    assert "nn.Linear(in_features=2, out_features=1, bias=True)" in result.stdout
    out = folder / "export"
    assert (out / "table.json").read_text() == (folder / "table.json").read_text()
    done = subprocess.run(
        [sys.executable, str(out / "load_model.py")], capture_output=True, text=True, check=True
    )
    assert done.stdout == "torch.Size([2, 1])\n"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["2nn", "mnist-cnn"])
def test_an_onnx_file_computes_what_the_network_does_for_any_number_of_examples(tmp_path, name):
    from onnx.reference import ReferenceEvaluator

    width = {"2nn.hidden": 16} if name == "2nn" else {"2nn.hidden": 200, **NETWORKS[name][0]}
    model = load_model(digits_run(tmp_path / "run", model=name, num_server_rounds=1, **width))
    export(model, tmp_path / "out", onnx=True)
    session = ReferenceEvaluator(str(tmp_path / "out" / "model.onnx"))
    for examples in (1, 5):
        inputs = torch.randn(examples, *model.task.input_shape)
        (outputs,) = session.run(None, {"inputs": inputs.numpy()})
        torch.testing.assert_close(torch.from_numpy(outputs), model.module(inputs).detach())


def test_without_onnx_nothing_is_written(tmp_path, monkeypatch):
    folder = digits_run(tmp_path / "run", num_server_rounds=1)
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ModuleNotFoundError) as error:
        export(load_model(folder), tmp_path / "out", onnx=True)
    assert error.value.name == "onnx"
    assert not (tmp_path / "out").exists()


def test_an_image_has_the_height_and_the_width_of_the_model(tmp_path):
    Image.new("L", (4, 2)).save(tmp_path / "a.png")
    assert read_image(tmp_path / "a.png", (1, 2, 4)).shape == (1, 1, 2, 4)
    with pytest.raises(DataError, match="is 4x2, and the model takes 2x4"):
        read_image(tmp_path / "a.png", (1, 4, 2))
