"""The partition's picture and summary; the papers' partitions of the real data."""

from __future__ import annotations

import dataclasses
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from fedapp.analysis.partition import label_counts, labels_per_client
from fedapp.cli.main import app
from fedapp.config.read import defaults, read_config
from fedapp.data.dataset import Examples, Partition, Subset
from fedapp.data.load import load_dataset
from fedapp.data.node_data import read_node_data
from fedapp.data.partition.dirichlet import Dirichlet
from fedapp.data.partition.iid import Iid
from fedapp.data.partition.shards import Shards
from fedapp.errors import ConfigError
from fedapp.runs import partition_figure
from fedapp.runs import partition_summary as summaries
from fedapp.runs.figures import new_figure
from fedapp.runs.partition import _table
from fedapp.runs.partition_figure import draw_comparison, draw_partition
from fedapp.runs.partition_summary import (
    count_labels,
    empty_classes,
    labels_and_names,
    partition_summary,
    single_class,
    write_partition,
)
from tests.conftest import slow_but, small_config
from tests.in_process import metrics, run
from tests.partitions import cycle, split_test

LABELS = tuple("0123456789")


def size_of_png(path: Path) -> tuple[int, int]:
    head = path.read_bytes()[:24]
    assert head.startswith(b"\x89PNG")
    return int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big")


@pytest.mark.parametrize("num_clients", slow_but((1, 10), (1, 10, 400)))
def test_pictures_for_few_and_many_clients(tmp_path, num_clients, recwarn):
    partition = Dirichlet(alpha=0.3, min_size=0).split(cycle(4_000), num_clients, 0)
    png, svg = draw_partition(partition, cycle(4_000).targets, LABELS, tmp_path / "p", "a title")
    width, height = size_of_png(png)
    assert width > 1_000
    assert height > 700
    text = svg.read_text()
    assert "</svg>" in text
    assert len(text) < 500_000
    assert not [w for w in recwarn if issubclass(w.category, (UserWarning, RuntimeWarning))]


def test_a_picture_is_the_same_file_each_time(tmp_path):
    partition = Iid().split(cycle(100), 5, 0)
    files = [
        draw_partition(partition, cycle(100).targets, LABELS, tmp_path / name, endings=(".svg",))[0]
        for name in ("one", "two")
    ]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_many_labels_and_empty_clients_can_be_drawn(tmp_path):
    targets = np.arange(1_000) % 300
    partition = Partition(np.arange(1_000), np.array([0, 0, 400, 1_000]))
    names = tuple(f"word {i}" for i in range(300))
    assert all(p.exists() for p in draw_partition(partition, targets, names, tmp_path / "p"))


@pytest.mark.slow
def test_comparison_is_as_wide_as_its_partitions(tmp_path):
    examples = cycle(1_000)
    parts = {f"alpha {a:g}": Dirichlet(alpha=a).split(examples, 10, 0) for a in (0.5, 1.0, 10.0)}
    widths = [
        size_of_png(draw_comparison(some, examples.targets, LABELS, tmp_path / "c")[0])[0]
        for some in (dict(list(parts.items())[:1]), parts)
    ]
    assert widths[1] > 2 * widths[0]


def test_summary_of_a_partition_by_hand():
    partition = Partition(
        np.array([0, 2, 1]), np.array([0, 2, 3]), test=Partition(np.array([0]), np.array([0, 1, 1]))
    )
    targets = np.array([0, 1, 0])
    summary = partition_summary(partition, targets, 2, {"partitioner": "iid"}, seed=7)
    assert json.loads(json.dumps(summary)) == {
        "scheme": {"partitioner": "iid"},
        "seed": 7,
        "num_clients": 2,
        "num_examples": 3,
        "sizes": {"min": 1, "median": 1.5, "mean": 1.5, "max": 2, "empty": 0},
        "size_ratio": 2.0,
        # (4 + 1) / 3 over 3 / 2.
        "update_multiplier": pytest.approx(10 / 9),
        # Globally 2/3 and 1/3: the first client is 1/3 away, the second 2/3.
        "mean_total_variation": pytest.approx(1 / 2),
        "clients_measured": 2,
        "clients_by_number_of_labels": {"1": 2},
        "test_sizes": {"min": 0, "median": 0.5, "mean": 0.5, "max": 1, "empty": 1},
        "label_counts": [[2, 0], [0, 1]],
    }


def test_summary_of_many_clients_lists_no_counts_and_may_have_no_ratio():
    partition = Partition(np.arange(10), np.array([0] * 1_001 + [10]))
    summary = partition_summary(partition, np.zeros(10, dtype=np.int64), 1, {}, 0)
    assert "label_counts" not in summary
    assert summary["size_ratio"] is None
    assert summary["sizes"]["empty"] == 1_000


def test_very_many_clients_are_measured_by_a_sample(monkeypatch):
    monkeypatch.setattr(summaries, "MAX_CELLS", 40)
    examples = cycle(100)
    matrix = count_labels(Iid().split(examples, 20, 0), examples.targets, 10)
    assert matrix.clients.tolist() == [0, 5, 10, 15]
    assert matrix.counts.sum(axis=1).tolist() == [5, 5, 5, 5]


@pytest.mark.parametrize("num_clients", [4, 120])
def test_data_without_labels_have_no_distance_of_labels(tmp_path, num_clients):
    """Next-symbol texts, functions and regressions: as the data of the run, whose targets are vectors."""
    config = small_config(
        dataset="quadratic", model="quadratic", partitioner="natural", num_clients=num_clients,
        **{"quadratic.clients": num_clients},
    )  # fmt: skip
    node_data = read_node_data(config, None)
    targets, labels = labels_and_names(node_data.dataset)
    summary = summaries.summarise_partition(config, node_data.dataset, node_data.partition)
    assert summary["mean_total_variation"] is summary["clients_by_number_of_labels"] is None
    assert "label_counts" not in summary
    (svg,) = draw_partition(node_data.partition, targets, labels, tmp_path / "p", endings=(".svg",))
    assert re.search(r"<!-- (mean )?label|share of the", svg.read_text()) is None
    shown = io.StringIO()
    Console(file=shown, width=80).print(_table(node_data.partition, targets, labels))
    assert shown.getvalue().split()[:4] == ["client", "n_k", "0", "4"]


def read_labels(folder: Path, split: str) -> Examples:
    parquet = pytest.importorskip("pyarrow.parquet")
    (file,) = folder.glob(f"{split}-*.parquet")
    labels = parquet.read_table(file, columns=["label"])["label"].to_numpy()
    return Examples(labels, labels)


@pytest.mark.data
@pytest.mark.parametrize(("name", "own", "test"), [("mnist", 600, 100), ("cifar10", 500, 100)])
def test_a_hundred_iid_clients_of_the_papers_data(name, own, test, real_data):
    train, rest = read_labels(real_data / name, "train"), read_labels(real_data / name, "test")
    assert set(Iid().split(train, 100, 0).sizes) == {own}
    assert set(split_test(Iid(), rest, train, 100, 0).sizes) == {test}


@pytest.mark.data
def test_most_clients_of_mnist_shards_have_exactly_two_digits(real_data):
    train = read_labels(real_data / "mnist", "train")
    partition = Shards().split(train, 100, 0)
    counts = label_counts(partition.indices, partition.offsets, train.targets, 10)
    assert set(partition.sizes) == {600}
    assert labels_per_client(counts) == {1: 13, 2: 79, 3: 8}


FEW = ["num-clients=4"]


NAMES = ("[red]", "[/x]", "_under", "$a_{b$", "plain")


def test_names_are_shown_as_they_stand(tmp_path):
    """Neither Rich's markup nor a formula, and no name is left out of the legend."""
    partition, targets = Iid().split(cycle(20, 5), 2, 0), cycle(20, 5).targets
    (svg,) = draw_partition(partition, targets, NAMES, tmp_path / "p", "$5_{", endings=(".svg",))
    assert svg.read_text().count("<!-- _under -->") == 2  # the legend, and an axis
    said = io.StringIO()
    Console(file=said, width=80).print(_table(partition, targets, NAMES))
    assert said.getvalue().split()[:7] == ["client", "n_k", *NAMES]


def test_many_labels_are_counted_in_the_table():
    partition, targets = Shards().split(cycle(200, 100), 2, 0), cycle(200, 100).targets
    said = io.StringIO()
    Console(file=said, width=80).print(_table(partition, targets, tuple(map(str, range(100)))))
    assert [line.split() for line in said.getvalue().splitlines()] == [
        ["client", "n_k", "labels"],
        ["0", "100", "50"],
        ["1", "100", "50"],
    ]


@pytest.mark.parametrize("name", ["run.v2", "run.v2.png", "run.v2.svg"])
def test_the_command_draws_where_it_is_told(tmp_path, name):
    picture = tmp_path / "not" / "there" / name
    found = CliRunner().invoke(app, ["partition", *FEW, "--picture", str(picture)])
    assert found.exit_code == 0, found.output
    assert sorted(path.name for path in picture.parent.iterdir()) == ["run.v2.png", "run.v2.svg"]


def test_other_pictures_and_places_are_refused_before_the_work(tmp_path):
    (tmp_path / "file").write_text("")
    for name, said in (
        ("x.pdf", r"written as \.png and \.svg.*x\.png"),
        ("file/x", "must be a folder, and .*file is a file"),
    ):
        found = CliRunner().invoke(app, ["partition", *FEW, "--picture", str(tmp_path / name)])
        assert isinstance(found.exception, ConfigError)
        assert re.search(said, str(found.exception))
        assert not found.output


def test_the_scale_of_the_heat_map_is_fixed_so_that_pictures_compare() -> None:
    for counts in ([[5, 5], [5, 5]], [[10, 0], [1, 9]]):
        axes = new_figure(2, 2).subplots()
        assert partition_figure._draw_heat_map(axes, np.array(counts), "ab").get_clim() == (0, 1)


@pytest.mark.slow
def test_a_report_written_later_has_the_partition_too(tmp_path: Path) -> None:
    folder = run(tmp_path / "run", num_server_rounds=1)
    assert not (folder / "partition.png").exists()
    CliRunner().invoke(app, ["report", str(folder)], catch_exceptions=False)
    assert (folder / "partition.png").exists()
    assert "<h2>Partition</h2>" in (folder / "report.html").read_text()


def test_a_report_whose_data_is_gone_says_so_and_is_written(tmp_path: Path) -> None:
    folder = run(tmp_path / "run", num_server_rounds=1)
    content = json.loads((folder / "config.json").read_text())
    content["found"]["fingerprint"] = "another"
    (folder / "config.json").write_text(json.dumps(content))
    ended = CliRunner().invoke(app, ["report", str(folder)], catch_exceptions=False)
    assert ended.exit_code == 1
    problem = "Error: no picture of the partition: dataset = 'digits': not the data"
    assert ended.output.splitlines()[-1].startswith(problem)
    assert (folder / "report.html").exists()


def left_out(folder: Path) -> dict[str, int]:
    return json.loads((folder / "partition.json").read_text())["left_out"]


@pytest.mark.parametrize("evaluation", ["server", "clients"])
def test_how_many_natural_clients_and_examples_are_left_out(tmp_path, caplog, evaluation):
    """Three of ten clients with 4 examples each. The one test example is no client's own."""
    settings = {"dataset": "quadratic", "partitioner": "natural", "evaluation": evaluation}
    config = small_config(**settings, num_clients=3, model="quadratic")
    write_partition(tmp_path, config, read_node_data(config, None))
    tests = int(evaluation == "clients")
    assert left_out(tmp_path) == {"clients": 7, "examples": 28, "test_examples": tests}
    said = "partitioner = 'natural' with num-clients = 3 leaves out 7 of the data's 10 clients"
    (line,) = [line for line in caplog.messages if "leaves out" in line]
    if tests:
        assert line == f"{said}, 28 of the 40 training examples and 1 of the test examples"
    else:
        assert line == f"{said} and 28 of the 40 training examples"


def test_a_remainder_of_shards_is_said_and_written(tmp_path, caplog):
    """1,440 digits in 21 shards of 68."""
    settings = {"partitioner": "shards", "shards.per-client": 3, "shards.drop-remainder": True}
    folder = run(tmp_path / "run", num_clients=7, num_server_rounds=2, **settings)
    assert left_out(folder) == {"clients": 0, "examples": 12, "test_examples": 0}
    said = "leaves out 12 of the 1,440 training examples"
    assert [said in line for line in caplog.messages].count(True) == 1


def test_classes_without_an_example_are_named():
    """Of ten digits, all but those of 3 and 7."""
    digits = load_dataset(read_config(defaults()))
    kept = Subset(digits.train, np.flatnonzero(~np.isin(digits.train.targets, (3, 7))))
    assert empty_classes(digits) == ""
    said = "2 of 10 classes have no training example, and no model learns them: 3, 7"
    assert empty_classes(dataclasses.replace(digits, train=kept)) == said


def test_a_single_class_is_said_of_a_classification_alone():
    digits = load_dataset(read_config(defaults()))
    one = dataclasses.replace(digits.task, num_classes=1, labels=("3",))
    said = "dataset = 'digits': has one class only, 3, so every model is right"
    assert single_class(dataclasses.replace(digits, task=one)).startswith(said)
    for task in (digits.task, dataclasses.replace(one, regression=True)):
        assert single_class(dataclasses.replace(digits, task=task)) == ""


def test_a_share_of_zero_is_one_client_a_round(tmp_path):
    folder = run(tmp_path / "run", num_server_rounds=1, fraction_train=0.0)
    assert len(metrics(folder)[-1]["clients"]) == 1


def test_a_partition_of_all_data_says_nothing(tmp_path, caplog):
    folder = run(tmp_path / "run", num_server_rounds=1)
    assert left_out(folder) == {"clients": 0, "examples": 0, "test_examples": 0}
    assert "leaves out" not in caplog.text


def test_the_command_says_what_is_left_out(tmp_path):
    keys = ["num-clients=2", "partitioner=label-quantity", "label-quantity.labels=1"]
    picture = ["--picture", str(tmp_path / "p")]
    found = CliRunner().invoke(app, ["partition", *keys, *picture])
    assert found.exit_code == 0, found.output
    # Labels 0 and 1; the digits have 142 and 146 training examples of them.
    held = int((load_dataset(read_config(defaults())).train.targets < 2).sum())
    assert f"leaves out {1_440 - held:,} of the 1,440 training examples" in found.output


def test_clients_that_evaluate_besides_the_server_leave_no_test_examples_out(tmp_path):
    """The server tests on all, whatever the clients do besides."""
    settings = {"dataset": "quadratic", "partitioner": "natural", "evaluation": "both"}
    config = small_config(**settings, num_clients=3, model="quadratic")
    write_partition(tmp_path, config, read_node_data(config, None))
    assert left_out(tmp_path)["test_examples"] == 0
