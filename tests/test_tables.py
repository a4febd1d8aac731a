"""Tables of numbers and categories: read, coded by hand-derived numbers, trained, pooled over nodes."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from flwr.app import Context, Message, MessageType, RecordDict

from fedapp.client_app import app as client_app
from fedapp.config.read import read_config
from fedapp.config.settings import Scalar
from fedapp.data.coding import coded, own_statistics, summary_of
from fedapp.data.load import load_node_data, load_partition, load_uncoded
from fedapp.data.table import Numbers, Statistics, Summary, Table, unknown_labels
from fedapp.engines.grid import RUN_ID, run_client_app
from fedapp.engines.in_process import InlineGrid
from fedapp.errors import ConfigError, DataError, RunError
from fedapp.federation.table_statistics import TableStatistics
from fedapp.runs.status import status
from fedapp.server import run as run_server
from tests.data_files import write_parquet
from tests.in_process import SMALL, metrics, model
from tests.test_data_sources import load


def csv(folder: Path, train: str, test: str = "") -> Path:
    """Write the splits' lines, with spaces for line ends; the test split has the first line, too."""
    folder.mkdir(parents=True, exist_ok=True)
    head, *rows = train.split()
    (folder / "train.csv").write_text("\n".join([head, *rows]) + "\n")
    (folder / "test.csv").write_text("\n".join([head, *(test.split() or rows)]) + "\n")
    return folder


def run(
    folder: Path, nodes: int = 1, configs: list[dict[str, Any]] | None = None, **settings: Scalar
) -> Path:
    values: dict[str, Scalar] = {**SMALL, "run-dir": str(folder), "model": "linear"}
    del values["2nn.hidden"]
    values |= {key.replace("_", "-"): value for key, value in settings.items()}
    run_server(InlineGrid(client_app, values, configs or [{}] * nodes), read_config(values))
    return folder


# ---------------------------------------------------------------------- reading


def test_numbers_are_standardised_by_the_training_part(tmp_path):
    """Of 1, 3: mean 2 and deviation 1. Of 10, 10: constant, also for a test example of 20."""
    data = load(csv(tmp_path / "set", "x,y,label 1,10,0 3,10,1", "6,20,1"))
    assert data.task.kind == "vector"
    assert data.task.columns == ("x", "y")
    assert data.train.inputs.tolist() == [[-1.0, 0.0], [1.0, 0.0]]
    assert data.test.inputs.tolist() == [[4.0, 0.0]]
    assert data.train.targets.tolist() == [0, 1]


def test_a_constant_column_whose_mean_is_rounded_is_constant(tmp_path):
    data = load(csv(tmp_path / "set", "x,y,label " + "0.1,1,0 " * 7 + "0.1,3,1"))
    assert not data.train.inputs[:, 0].any()


@pytest.mark.filterwarnings("error")
def test_the_largest_numbers_have_statistics_that_a_node_may_send(tmp_path):
    folder = csv(tmp_path / "set", "x,label -1e90,0 1e90,1")
    data = load_uncoded(
        read_config({"dataset": str(folder), "data-cache": str(tmp_path / "cache")})
    )
    summary = summary_of(data)
    assert Summary.read(data.table, summary.to_json()) == summary
    assert summary.columns["x"].deviation == pytest.approx(1e90)
    with pytest.raises(
        DataError, match=r"split 'test', column 'x': row 0 is 1e\+91, .*larger unit"
    ):
        load(csv(tmp_path / "larger", "x,label 1,0 2,1", "1e91,0"))


def test_the_index_that_pandas_wrote_are_no_client_ids(tmp_path):
    folder = csv(tmp_path / "set", ",x,site,label 0,5,1,0 1,6,1,0 2,5,2,1 3,6,2,1")
    keys = {"dataset": str(folder), **NATURAL, "data-cache": str(tmp_path / "cache")}
    with pytest.raises(
        ConfigError, match=r"no column of client ids\. Set client-key to the column"
    ):
        load_partition(read_config(keys), load(folder), 2)
    named = read_config({**keys, "client-key": "site"})
    assert load_partition(named, load(folder, client_key="site"), 2).sizes.tolist() == [2, 2]


def test_the_index_that_pandas_or_r_wrote_is_no_input(tmp_path):
    """Of rows sorted by label it would be the label; named, it is an input like another."""
    rows = ",x,label 0,5,0 1,6,0 2,5,1 3,6,1"
    assert load(csv(tmp_path / "pandas", rows)).task.columns == ("x",)
    assert load(csv(tmp_path / "r", '"","x","label" "a",5,0 "b",6,1')).task.columns == ("x",)
    twice = csv(tmp_path / "twice", ",Unnamed: 0,x,label 0,0,5,0 1,1,6,1".replace("d: ", "d:_"))
    for split in ("train", "test"):
        file = twice / f"{split}.csv"
        file.write_text(file.read_text().replace("_", " "))
    assert load(twice).task.columns == ("x",)
    assert load(csv(tmp_path / "levels", ",,x,label 0,0,5,0 1,1,6,1")).task.columns == ("x",)
    named = load(csv(tmp_path / "named", rows), input_keys="Unnamed: 0,x")
    assert named.task.columns == ("Unnamed: 0", "x")
    table = pd.DataFrame({"x": [5, 6, 5], "label": [0, 0, 1]}, index=[7, 0, 3])
    (tmp_path / "parquet").mkdir()
    for split in ("train", "test"):
        table.to_parquet(tmp_path / "parquet" / f"{split}.parquet")
    assert "__index_level_0__" in pq.read_schema(tmp_path / "parquet" / "test.parquet").names
    assert load(tmp_path / "parquet").task.columns == ("x",)
    levels = table.set_index([[0, 0, 1], [0, 1, 0]])
    (tmp_path / "levels-parquet").mkdir()
    for split in ("train", "test"):
        levels.to_parquet(tmp_path / "levels-parquet" / f"{split}.parquet")
    assert load(tmp_path / "levels-parquet").task.columns == ("x",)


@pytest.mark.parametrize("odd", ["3.5\u00a0", "1_000"])
def test_what_pandas_does_not_read_as_a_number_is_none(tmp_path, odd):
    """The column would be one of categories, one for each number."""
    folder = csv(tmp_path / "set", "x,z,label 1.5,1,0 2.5,2,1 ODD,3,0 4.5,5,1")
    train = folder / "train.csv"
    train.write_text(train.read_text().replace("ODD", odd))
    for keys in ({}, {"input_keys": "x,z"}):
        with pytest.raises(DataError, match=r"split 'train', column 'x': row 2 is .* of numbers"):
            load(folder, **keys)


def test_a_column_is_one_of_numbers_by_its_training_part(tmp_path):
    folder = csv(tmp_path / "set", "x,z,label 1.5,1,0 2.5,2,1 3.5,3,0", "1.5,1,0 unknown,2,1")
    for keys in ({}, {"input_keys": "x,z"}):
        with pytest.raises(DataError, match=r"split 'test', column 'x': row 1 is 'unknown', in a"):
            load(folder, **keys)


def test_names_of_classes_may_be_numbers_for_the_greater_part(tmp_path):
    folder = csv(tmp_path / "set", "x,label 1,0 2,1 3,2 4,3+")
    with pytest.raises(
        DataError, match=r"row 3 is '3\+', in a column of numbers.*task='classification'"
    ):
        load(folder)
    assert load(folder, task="classification").task.labels == ("0", "1", "2", "3+")


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_two_columns_of_one_name_are_refused(tmp_path, kind):
    """pandas would call the second label.1, which would be an input."""
    folder = csv(tmp_path / "set", "x,label,label 1,0,0 2,1,1")
    if kind == "parquet":
        table = pa.table([[1, 2], [0, 1], [0, 1]], names=["x", "label", "label"])
        for split in ("train", "test"):
            (folder / f"{split}.csv").unlink()
            pq.write_table(table, folder / f"{split}.parquet")
    with pytest.raises(DataError, match=rf"^/.*\.{kind}: two columns are called 'label'\. Rename"):
        load(folder)
    assert load(csv(tmp_path / "other", "x,x.1,label 1,0,0 2,1,1")).task.columns == ("x", "x.1")


def test_rows_with_more_fields_than_the_header_are_refused(tmp_path):
    """By default pandas takes their first field for an index, so that labels would become x."""
    folder = csv(tmp_path / "set", "label,x,y 0,1,2,5 1,3,4,6")
    with pytest.raises(DataError, match=r"^/.*train\.csv: its rows have more fields than its head"):
        load(folder)
    data = load(csv(tmp_path / "commas", "label,x,y 0,1,2, 1,3,4,"))
    assert (data.train.targets.tolist(), data.task.columns) == ([0, 1], ("x", "y"))


def test_a_usual_client_name_is_an_input_where_another_column_has_the_clients(tmp_path):
    folder = csv(tmp_path / "set", "ward,user,x,label 1,7,5,0 2,8,6,1")
    assert load(folder, client_key="ward").task.columns == ("user", "x")
    assert load(folder).task.columns == ("ward", "x")


def test_whole_decimals_are_classes(tmp_path):
    for kind, regression in ((pa.decimal128(20, 0), False), (pa.decimal128(20, 2), True)):
        folder = tmp_path / str(kind)
        folder.mkdir()
        labels = pa.array([Decimal(0), Decimal(1), Decimal(1)], kind)
        for split in ("train", "test"):
            pq.write_table(pa.table({"x": [1, 2, 3], "label": labels}), folder / f"{split}.parquet")
        assert load(folder).task.regression == regression


def test_a_class_label_without_a_name_is_refused(tmp_path):
    features = {"a": datasets.ClassLabel(names=["u", "v"]), "label": datasets.Value("int64")}
    columns = {"a": [1, 0], "label": [0, 1]}
    folder = write_parquet(tmp_path / "set", {"train": columns, "test": columns}, features)
    metadata = pq.read_schema(folder / "train.parquet").metadata
    table = pa.table({"a": [1, 5], "label": [0, 1]}).replace_schema_metadata(metadata)
    pq.write_table(table, folder / "train.parquet")
    with pytest.raises(
        DataError, match=r"column 'a': row 1 is 5, and the column has names of 2 cl"
    ):
        load(folder, label_key="label")


@pytest.mark.parametrize(
    ("train", "test", "said"),
    [
        ([True, False], [0, 2], "'label' holds numbers, and booleans in train"),
        ([1, 2], [datetime.datetime(2026, 1, 1)] * 2, "'label' holds times, and numbers in train"),
        (["a", "b"], [1, 2], "'label' holds numbers, and texts in train"),
    ],
)
def test_a_column_has_one_kind_in_all_parquet_files(tmp_path, train, test, said):
    """The library would make 2 of true 1, and of a time a number."""
    splits = {"train": train, "test": test}
    folder = write_parquet(
        tmp_path / "set", {name: {"x": [1, 2], "label": own} for name, own in splits.items()}
    )
    with pytest.raises(DataError, match=rf"test\.parquet: column {said}\.parquet\. Save all files"):
        load(folder)


def test_a_column_has_one_kind_in_all_csv_files(tmp_path):
    """Booleans beside 0 and 1 would be four classes; where some row is a text, all are texts."""
    folder = csv(tmp_path / "set", "x,label 1,True 2,False", "1,1 2,0")
    with pytest.raises(
        DataError, match=r"/test\.csv: column 'label' holds numbers, and booleans in train\.csv\."
    ):
        load(folder)
    (folder / "train.csv").write_text("x,label\n1,True\n2,False\n3,maybe\n")
    assert load(folder).task.labels == ("0", "1", "False", "True", "maybe")


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_fractions_beside_whole_numbers_of_another_file_are_named(tmp_path, kind):
    for split, x in (("train", [1, 2]), ("test", [1.5, 2.0])):
        table = pd.DataFrame({"label": [0, 1], "x": x})
        if kind == "parquet":
            table.to_parquet(tmp_path / f"{split}.parquet")
        else:
            table.to_json(tmp_path / f"{split}.jsonl", orient="records", lines=True)
    with pytest.raises(DataError, match=r"column 'x' holds whole numbers, and fractions in test\."):
        load(tmp_path)


@pytest.mark.parametrize("lines", [True, False])
def test_a_column_has_one_kind_in_all_json_files(tmp_path, lines, capfd):
    for split, value in (("train", True), ("test", 2)):
        rows = [{"x": value, "label": label} for label in (0, 1)]
        text = "\n".join(map(json.dumps, rows)) if lines else json.dumps(rows)
        (tmp_path / f"{split}.json").write_text(text)
    with pytest.raises(
        DataError, match=r"test\.json: column 'x' holds numbers, and booleans in train\.json\. Save"
    ):
        load(tmp_path)
    assert capfd.readouterr().err == ""


def test_categories_are_coded_by_the_sorted_values_of_the_training_part(tmp_path):
    """A value that only the test part has becomes zeros."""
    folder = csv(tmp_path / "set", "town,x,kind Rome,1,no Bern,3,yes Rome,2,no", "Oslo,2,yes")
    data = load(folder, input_keys="town, x", label_key="kind")
    assert data.task.columns == ("town=Bern", "town=Rome", "x")
    assert data.train.inputs[:, :2].tolist() == [[0, 1], [1, 0], [0, 1]]
    assert data.test.inputs.tolist() == [[0, 0, 0]]
    assert data.task.labels == ("no", "yes")
    assert data.train.targets.tolist() == [0, 1, 0]


def test_numbers_may_be_categories_and_class_labels_are(tmp_path):
    features = {
        "a": datasets.Value("int64"),
        "b": datasets.ClassLabel(names=["u", "v"]),
        "label": datasets.Value("bool"),
    }
    columns = {"a": [10, 9, 10], "b": [1, 0, 1], "label": [True, False, True]}
    folder = write_parquet(tmp_path / "set", {"train": columns, "test": columns}, features)
    data = load(folder, label_key="label", categorical_keys="a")
    assert data.task.columns == ("a=10", "a=9", "b=u", "b=v")
    assert data.train.inputs.tolist() == [[1, 0, 0, 1], [0, 1, 1, 0], [1, 0, 0, 1]]
    assert data.train.targets.tolist() == [1, 0, 1]


def test_codes_of_a_csv_file_keep_their_zeros_in_a_split_of_digits(tmp_path):
    folder = csv(tmp_path / "set", "zip,label 08001,no K1A,yes", "08001,no 08001,no")
    data = load(folder, input_keys="zip")
    assert data.task.columns == ("zip=08001", "zip=K1A")
    assert data.test.inputs.tolist() == [[1, 0], [1, 0]]


def test_codes_of_a_csv_file_keep_their_zeros_after_its_first_rows(tmp_path):
    """They are read 10,000 at a time. Of the labels, too, and of the clients."""
    rows = "7x,K1A,A " * 600 + "07,08001,01 " * 12_000
    data = load(csv(tmp_path / "set", "user,zip,label " + rows, "7x,K1A,A"), input_keys="zip")
    assert data.task.columns == ("zip=08001", "zip=K1A")
    assert data.task.labels == ("01", "A")
    assert data.train.group_names["client_id"] == ("07", "7x")
    digits_first = csv(tmp_path / "first", "zip,label 08001,0 08001,1", "K1A,1 08001,1")
    keys = {"input_keys": "zip", "categorical_keys": "zip"}
    assert load(digits_first, **keys).task.columns == ("zip=08001",)


def test_categories_of_digits_in_a_csv_file_are_codes(tmp_path):
    """Whatever the other rows are, as another node's may be: 007 is not 7, and 3.0 is 3."""
    folder = csv(tmp_path / "set", "a,b,x,label 007,3,1,0 7,3.0,2,1", "007,1.50,1,0 8,,2,1")
    data = load(folder, categorical_keys="a,b", missing="mean")
    assert data.task.columns == ("a=007", "a=7", "b=3", "x")
    assert data.test.inputs[:, :3].tolist() == [[1, 0, 0], [0, 0, 0]]


def test_categorical_keys_name_texts_without_input_keys_too(tmp_path):
    """As the error about a text among numbers says."""
    folder = csv(tmp_path / "set", "a,b,label 1,1,0 2,1,1 3,?,0")
    with pytest.raises(DataError, match=r"row 2 is '\?'.*set categorical-keys='b'"):
        load(folder)
    assert load(folder, categorical_keys="b").task.columns == ("a", "b=1", "b=?")


def test_a_csv_file_may_have_fractions_after_whole_numbers(tmp_path):
    """In another split, and after the first rows; labels stay whole numbers where they have none."""
    data = load(csv(tmp_path / "set", "x,label 1,0 3,1", "2.5,1 2,1.0"))
    assert data.train.inputs[:, 0].tolist() == [-1, 1]
    assert data.test.inputs[:, 0].tolist() == [0.5, 0]
    assert (data.task.num_classes, data.test.targets.tolist()) == (2, [1, 1])
    late = load(csv(tmp_path / "late", "x,label 1,0 3,1 " + "2,0 " * 10_000 + "4.5,1", "2,0"))
    assert late.train.inputs[-1, 0] > late.train.inputs[1, 0]


def test_a_column_that_one_file_of_a_split_lacks_has_no_values_there(tmp_path):
    folder = tmp_path / "set"
    for name, rows in (("train/0", "1,2,0\n3,4,1\n"), ("test/0", "1,2,0\n")):
        (folder / name).parent.mkdir(parents=True)
        (folder / f"{name}.csv").write_text(f"x,y,label\n{rows}")
    (folder / "train" / "1.csv").write_text("x,label\n2,0\n")
    with pytest.raises(DataError, match=r"split 'train', column 'y': row 2 has no value"):
        load(folder)
    assert load(folder, missing="mean").train.inputs[:, 1].tolist() == [-1, 1, 0]


def rows_of(kind: str, folder: Path, train: dict[str, list], test: dict[str, list]) -> Path:
    """Write tables of other columns as CSV, Parquet or JSON lines, or with save_to_disk."""
    folder.mkdir()
    for split, columns in (("train", train), ("test", test)):
        if kind == "saved":
            datasets.Dataset.from_dict(columns).save_to_disk(folder / split)
            continue
        table = datasets.Dataset.from_dict(columns)
        {"csv": table.to_csv, "parquet": table.to_parquet, "jsonl": table.to_json}[kind](
            folder / f"{split}.{kind}"
        )
    return folder


@pytest.mark.parametrize("missing", ["refuse", "mean"])
@pytest.mark.parametrize("kind", ["csv", "parquet", "jsonl", "saved"])
def test_a_column_that_a_split_lacks_is_named(tmp_path, kind, missing):
    """It is not made up."""
    train = {"h": [1.0, 2.0], "Town": ["a", "b"], "label": [0, 1]}
    test = {"h": [1.0, 3.0], "label": [1, 0]}
    folder = rows_of(kind, tmp_path / "set", train, test)
    said = (
        r"dataset '.*set', split 'test': has no column 'Town', but h, label\. Name it there as in "
        r"split 'train', or set input-keys to what both splits have\.$"
    )
    with pytest.raises(DataError, match=said):
        load(folder, input_keys="h,Town", missing=missing)
    assert load(folder, input_keys="h").train.inputs.tolist() == [[-1], [1]]


@pytest.mark.parametrize("kind", ["csv", "parquet", "saved"])
def test_a_label_and_a_client_that_a_split_lacks_are_named(tmp_path, kind):
    train = {"h": [1.0, 2.0], "ward": ["a", "b"], "kind": [0, 1]}
    unlabelled = rows_of(kind, tmp_path / "a", train, {"h": [1.0], "ward": ["a"]})
    with pytest.raises(
        DataError, match=r"'test': has no column 'kind', but h, ward\. .* label-key"
    ):
        load(unlabelled, label_key="kind", client_key="ward")
    nobodys = rows_of(kind, tmp_path / "b", train, {"h": [1.0], "kind": [0]})
    said = r"client-key = 'ward': the test split has no such column\. Its further columns: none\."
    with pytest.raises(DataError, match=said):
        load(nobodys, label_key="kind", client_key="ward")


@pytest.mark.parametrize("kind", ["csv", "saved"])
def test_a_column_that_is_called_something_else_in_a_split_is_named(tmp_path, kind):
    train = {"h": [1.0, 2.0], "Town": ["a", "b"], "label": [0, 1]}
    test = {"h": [1.0], "City": ["a"], "label": [1]}
    folder = rows_of(kind, tmp_path / "set", train, test)
    with pytest.raises(DataError, match=r"'test': has no column 'Town', but h, City, label\."):
        load(folder, input_keys="h,Town", missing="mean")
    with pytest.raises(DataError, match=r"no column 'City'.*its columns: h, Town, label\."):
        load(folder, input_keys="h,City", missing="mean")


def test_a_parquet_file_of_other_columns_is_refused_with_both_lists(tmp_path):
    """The library casts a file to the columns of the first one."""
    train = {"h": [1.0, 2.0], "Town": ["a", "b"], "label": [0, 1]}
    test = {"h": [1.0], "City": ["a"], "label": [1]}
    folder = rows_of("parquet", tmp_path / "set", train, test)
    said = r"set': a file: has no column 'Town', but h, City, label\. The first file has h, Town, "
    with pytest.raises(DataError, match=said):
        load(folder, input_keys="h,Town", missing="mean")


def test_a_column_without_a_value_is_no_column_that_is_lacking(tmp_path):
    """With missing=mean it counts as the mean of the training part."""
    train = {"h": [1.0, 3.0], "x": [1.0, 2.0], "label": [0, 1]}
    test = {"h": [1.0], "x": [None], "label": [1]}
    features = {"h": "float64", "x": "float64", "label": "int64"}
    folder = write_parquet(
        tmp_path / "set",
        {"train": train, "test": test},
        {name: datasets.Value(kind) for name, kind in features.items()},
    )
    assert load(folder, missing="mean").test.inputs.tolist() == [[-1, 0]]


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_a_column_without_a_value_is_not_read_again(tmp_path, monkeypatch, kind):
    """To see whether a file has the column, its schema is enough, or its first rows."""
    prepared = []
    prepare = datasets.DatasetBuilder.download_and_prepare

    def counted(builder, *args, **options):
        prepared.append(builder.name)
        return prepare(builder, *args, **options)

    monkeypatch.setattr(datasets.DatasetBuilder, "download_and_prepare", counted)
    columns = {"h": [1.0, 3.0], "gap": [None, None], "label": [0, 1]}
    folder = rows_of(kind, tmp_path / "set", columns, columns)
    assert load(folder, input_keys="h").train.inputs.tolist() == [[-1], [1]]
    assert prepared == [{"jsonl": "json"}.get(kind, kind)]


@pytest.mark.parametrize("keys", [{}, {"input_keys": "a,b"}])
def test_categorical_keys_are_columns(tmp_path, keys):
    folder = csv(tmp_path / "set", "a,b,label 1,2,0 3,4,1")
    said = r"categorical-keys = 'a, c': dataset .* has no column 'c'\. Set .*: a, b, label\.$"
    with pytest.raises(DataError, match=said):
        load(folder, categorical_keys="a,c", **keys)


@pytest.mark.parametrize(
    ("keys", "name", "said"),
    [
        ({}, "label", r"some of the inputs: a, b\."),
        ({"input_keys": "a"}, "b", r"some of the inputs: a, or add 'b' to input-keys\."),
        ({"client_key": "b"}, "b", r"some of the inputs: a\."),
    ],
)
def test_categorical_keys_are_inputs(tmp_path, keys, name, said):
    folder = csv(tmp_path / "set", "a,b,label 1,2,0 3,4,1")
    where = (
        f"categorical-keys = '{name}': column '{name}' of dataset .* is no input. Set .* to {said}"
    )
    with pytest.raises(DataError, match=where):
        load(folder, categorical_keys=name, **keys)


def test_names_of_columns_may_have_spaces_around_them_but_no_commas(tmp_path):
    columns = {"a ": [10, 9], " b": [1, 3], "label": [0, 1]}
    folder = write_parquet(tmp_path / "set", {"train": columns, "test": columns})
    data = load(folder, input_keys="a, b", categorical_keys=" b")
    assert data.task.columns == ("a ", " b=1", " b=3")
    label, who = ["x", "y", "x"], ["n", "m", "n"]
    columns = {"a ": [1, 2, 3], " kind": label, "who ": who, " ward": [None, *who[:2]]}
    folder = write_parquet(tmp_path / "keys", {"train": columns, "test": columns})
    data = load(folder, input_keys="a", label_key="kind", client_key="who")
    assert (data.task.labels, data.train.targets.tolist()) == (("x", "y"), [0, 1, 0])
    assert data.train.group_names["client_id"] == ("m", "n")
    keys = {"dataset": str(folder), **NATURAL, "natural.column": "who"}
    assert load_partition(read_config(keys), data, 2).client(1).tolist() == [0, 2]
    with pytest.raises(ConfigError, match=r"natural\.column = ' ward': some row .* has no value"):
        load_partition(read_config({**keys, "natural.column": "ward"}), data, 2)
    texts = {" text": ["a", "b"], " kind": [1, 0]}
    folder = write_parquet(tmp_path / "texts", {"train": texts, "test": texts})
    assert load(folder, input_key="text", label_key="kind").train.targets.tolist() == [1, 0]
    columns = {"b, m": [1, 3], "b ": [1, 3], "b": [5, 6], "label": [0, 1]}
    folder = write_parquet(tmp_path / "other", {"train": columns, "test": columns})
    assert load(folder, input_keys="b").task.columns == ("b",)
    with pytest.raises(DataError, match=r"no column 'm'.*Rename 'b, m' to use it: commas separate"):
        load(folder, input_keys="b, m")


def test_missing_values_are_the_mean_or_a_category_of_their_own(tmp_path):
    folder = csv(tmp_path / "set", "town,x,label Rome,1,0 ,3,1 Bern,,0")
    data = load(folder, input_keys="town,x", missing="mean")
    assert data.task.columns == ("town=", "town=Bern", "town=Rome", "x")
    assert data.train.inputs.tolist() == [[0, 0, 1, -1], [1, 0, 0, 1], [0, 1, 0, 0]]


def test_labels_that_are_floats_are_a_regression(tmp_path):
    folder = csv(tmp_path / "set", "x,price 1,2.5 2,3.5")
    data = load(folder, label_key="price")
    assert (data.task.regression, data.task.num_classes) == (True, 1)
    assert data.train.targets.tolist() == [2.5, 3.5]
    whole = csv(tmp_path / "whole", "x,price 1,2 2,3")
    assert load(whole, label_key="price").task.num_classes == 4
    assert load(whole, label_key="price", task="regression").train.targets.tolist() == [2.0, 3.0]


def test_the_client_is_no_input(tmp_path):
    folder = csv(tmp_path / "set", "hospital,x,label b,1,0 a,2,1 b,3,0")
    data = load(folder, client_key="hospital")
    assert data.task.columns == ("x",)
    assert data.train.groups["client_id"].tolist() == [1, 0, 1]
    usual = load(csv(tmp_path / "usual", "user,x,label 7,1,0 8,2,1"))
    assert usual.task.columns == ("x",)


NATURAL = {"partitioner": "natural", "num-clients": 2}


@pytest.mark.parametrize(
    ("rows", "fault"),
    [
        ("user,x,label a,1,0 ,2,1 b,3,0", "some row or split has no value"),
        ("user,x,label 7,1,0 ,2,1 8,3,0", "some row or split has no value"),
        ("user,x,label 7.5,1,0 7.5,2,1 8,3,0", "this column holds double"),
    ],
)
def test_a_client_that_is_missing_is_refused_where_clients_are_wanted(tmp_path, rows, fault):
    folder = csv(tmp_path / "set", rows)
    data = load(folder)
    assert (data.task.columns, data.train.groups) == (("x",), {})
    with pytest.raises(DataError, match=f"^client-key = 'user': {fault}"):
        load(folder, client_key="user")
    for keys, said in (
        ({}, "partitioner = 'natural': column 'user'"),
        ({"natural.column": "user"}, "natural.column = 'user'"),
    ):
        config = read_config({"dataset": str(folder), **NATURAL, **keys})
        with pytest.raises(ConfigError, match=f"^{said}: {fault}"):
            load_partition(config, data, 2)


def test_a_column_client_id_beside_another_client_key_is_refused(tmp_path):
    """The natural clients would be those of client-key; another column is another grouping."""
    folder = csv(tmp_path / "set", "client_id,hospital,x,label 1,b,1,0 2,a,2,1 2,b,3,0")
    keys = {"dataset": str(folder), **NATURAL, "client-key": "hospital"}
    with pytest.raises(
        ConfigError, match=r"natural\.column = 'client_id': .*client-key = 'hospital'.*Leave"
    ):
        read_config({**keys, "natural.column": "client_id"})
    for column in ("", "hospital"):
        config = read_config({**keys, "natural.column": column})
        partition = load_partition(config, load_uncoded(config), 2)
        assert [partition.client(k).tolist() for k in range(2)] == [[1], [0, 2]]
    assert read_config({**keys, "natural.column": "client_id", "client-key": "client_id"})


def test_clients_may_be_whole_floats_and_as_many_as_rows(tmp_path):
    numbers = list(range(1500))
    columns = {"user": [float(k) for k in numbers], "x": numbers, "label": [0, 1] * 750}
    train = load(write_parquet(tmp_path / "set", {"train": columns, "test": columns})).train
    assert train.group_names["client_id"][:2] == ("0", "1")
    assert train.groups["client_id"].tolist() == numbers


def test_a_table_with_a_text_is_read_as_text(tmp_path):
    folder = csv(tmp_path / "set", "text,x,label hello,1,0 world,2,1")
    assert load(folder).task.kind == "tokens"
    assert load(folder, input_keys="x").task.kind == "vector"


def test_what_save_to_disk_wrote_of_a_table_is_read(tmp_path):
    folder = tmp_path / "saved"
    datasets.Dataset.from_dict({"x": [1.0, 3.0, 2.0], "label": [0, 1, 1]}).save_to_disk(folder)
    assert len(load(folder, test_fraction=0.4).train) == 2


def test_a_column_of_another_kind_is_named(tmp_path):
    when = [datetime.datetime(2026, 1, day) for day in (1, 2)]
    columns = {"when": when, "x": [1.0, 2.0], "label": [0, 1]}
    folder = write_parquet(tmp_path / "set", {"train": columns, "test": columns})
    with pytest.raises(
        DataError, match=r"set input-keys to the columns to use. .*when \(timestamp"
    ):
        load(folder)
    with pytest.raises(DataError, match=r"column 'when': holds timestamp.*set input-keys to the"):
        load(folder, input_keys="when,x")
    assert load(folder, input_keys="x").task.columns == ("x",)


# ---------------------------------------------------------------------- runs


def clusters(folder: Path, n: int = 300, parts: int = 0) -> Path:
    """Write three clusters of points; in ``parts`` more folders the training part's."""
    rng = np.random.default_rng(1)
    label = rng.integers(3, size=n)
    rows = [
        f"{100 + 9 * k + a:.3f},{b:.3f},{'abc'[k]}"
        for k, (a, b) in zip(label, rng.standard_normal((n, 2)), strict=True)
    ]
    half = n // 2
    head = "x,y,label "
    csv(folder, head + " ".join(rows[:half]), " ".join(rows[half:]))
    for part in range(parts):
        csv(folder.parent / f"node{part}", head + " ".join(rows[:half][part::parts]))
    return folder


def test_a_run_on_a_table_learns(tmp_path):
    data = clusters(tmp_path / "set")
    folder = run(tmp_path / "run", dataset=str(data), learning_rate=1.0, num_server_rounds=20)
    assert metrics(folder)[-1]["test_accuracy"] > 0.95
    stored = json.loads((folder / "table.json").read_text())
    x = np.loadtxt(data / "train.csv", delimiter=",", skiprows=1, usecols=0)
    assert stored["columns"]["x"]["mean"] == pytest.approx(x.mean(), rel=1e-14)
    assert stored["columns"]["x"]["deviation"] == pytest.approx(x.std(), rel=1e-12)
    assert stored["label"]["names"] == ["a", "b", "c"]


def line(folder: Path, n: int = 60) -> tuple[Path, np.ndarray, np.ndarray]:
    """Write y = 3 + 2 u - v and noise; return the folder, the inputs and y of the training part."""
    rng = np.random.default_rng(2)
    inputs = rng.normal([50, -3], [10, 0.1], (n, 2))
    target = 3 + (inputs - [50, -3]) @ [0.2, -10] + rng.standard_normal(n)
    rows = [
        f"{u!r},{v!r},{y!r}" for (u, v), y in zip(inputs.tolist(), target.tolist(), strict=True)
    ]
    csv(folder, "u,v,y " + " ".join(rows[: n // 2]), " ".join(rows[n // 2 :]))
    return folder, inputs, target


@pytest.mark.parametrize("trainer", ["sequential", "batched"])
def test_a_regression_finds_the_least_squares(tmp_path, trainer):
    data, inputs, target = line(tmp_path / "set")
    half = len(target) // 2
    folder = run(
        tmp_path / "run",
        dataset=str(data),
        label_key="y",
        num_clients=3,
        fraction_train=1.0,
        batch_size=0,
        learning_rate=0.3,
        num_server_rounds=60,
        precision="float64",
        trainer=trainer,
        program="auto" if trainer == "sequential" else "record",
        eval_every=60,
    )
    train = inputs[:half]
    scaled = (inputs - train.mean(0)) / train.std(0)
    design = np.column_stack([scaled, np.ones(len(scaled))])
    solution = np.linalg.lstsq(design[:half], target[:half], rcond=None)[0]
    weights = model(folder)
    found = [*weights["1.weight"][0].tolist(), weights["1.bias"].item()]
    np.testing.assert_allclose(found, solution, rtol=1e-9)
    errors = target[half:] - design[half:] @ solution
    last = metrics(folder)[-1]
    assert last["test_rmse"] == pytest.approx(np.sqrt(np.mean(errors**2)), rel=1e-9)
    assert last["test_loss"] == pytest.approx(np.mean(errors**2), rel=1e-9)
    spread = np.sum((target[half:] - target[half:].mean()) ** 2)
    assert last["test_r2"] == pytest.approx(1 - np.sum(errors**2) / spread, rel=1e-9)
    assert last["test_accuracy"] is None
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["test_rmse"] == last["test_rmse"]


# ---------------------------------------------------------------------- nodes


def test_statistics_pooled_over_nodes_are_the_central_ones(tmp_path):
    """To 1e-12, also far from 0; categories and labels are united."""
    rng = np.random.default_rng(3)
    x = 2000 + rng.standard_normal(90)
    town, kind = rng.choice(list("pqr"), 90), rng.choice(["no", "yes"], 90)
    head, rows = (
        "x,town,label",
        [f"{a!r},{b},{c}" for a, b, c in zip(x.tolist(), town, kind, strict=True)],
    )
    config = read_config({"dataset": "towns", "input-keys": "x,town", "num-clients": 0})
    parts = [rows[:20], [*rows[20:50]], [row for row in rows[50:] if ",p," not in row]]
    held = [row for part in parts for row in part]
    read = [
        load_node_data(config, str(csv(tmp_path / str(i), " ".join([head, *part]))))
        for i, part in enumerate([held, *parts])
    ]
    central, *nodes = read
    summaries = [summary_of(node) for node in nodes]
    sent = [Summary.read(central.table, summary.to_json()) for summary in summaries]
    assert sent == summaries
    pooled, expected = Summary.pooled(sent).statistics(), own_statistics(central)
    assert pooled.columns["town"] == expected.columns["town"] == ("p", "q", "r")
    assert pooled.columns["x"].mean == pytest.approx(expected.columns["x"].mean, rel=1e-15)
    assert pooled.columns["x"].deviation == pytest.approx(
        expected.columns["x"].deviation, rel=1e-12
    )
    whole = coded(central, expected).train
    each = [coded(node, pooled) for node in nodes]
    np.testing.assert_allclose(
        np.concatenate([d.train.inputs for d in each]), whole.inputs, atol=1e-12
    )
    np.testing.assert_array_equal(np.concatenate([d.train.targets for d in each]), whole.targets)


def own(folder: Path, parts: int) -> list[dict[str, Any]]:
    return [{"data-path": str(folder.parent / f"node{k}"), "client-id": k} for k in range(parts)]


def test_nodes_with_data_of_their_own_train_as_virtual_clients_do(tmp_path):
    """The same statistics and the same clients: theta differs by the rounding of the means alone."""
    data = clusters(tmp_path / "set", parts=3)
    natural = tmp_path / "all"
    rows = [(tmp_path / f"node{k}" / "train.csv").read_text().split()[1:] for k in range(3)]
    lines = [f"{k},{row}" for k, part in enumerate(rows) for row in part]
    csv(natural, "client_id,x,y,label " + " ".join(lines))
    settings = {"precision": "float64", "fraction_train": 1.0, "seed": 3}
    one = run(
        tmp_path / "nodes", configs=own(data, 3), dataset=str(data), num_clients=0, **settings
    )
    two = run(
        tmp_path / "virtual", dataset=str(natural), num_clients=3, partitioner="natural", **settings
    )
    for name, tensor in model(one).items():
        np.testing.assert_allclose(tensor.numpy(), model(two)[name].numpy(), atol=1e-10)
    pooled, central = (json.loads((f / "table.json").read_text()) for f in (one, two))
    assert pooled["columns"]["x"]["mean"] == pytest.approx(
        central["columns"]["x"]["mean"], rel=1e-14
    )
    assert pooled["label"] == central["label"]


def test_nodes_with_partitions_of_one_table_pool_its_statistics(tmp_path):
    data = clusters(tmp_path / "set")
    configs = [{"partition-id": k, "num-partitions": 3} for k in range(3)]
    settings = {"dataset": str(data), "num_server_rounds": 1}
    one = run(tmp_path / "nodes", configs=configs, num_clients=0, **settings)
    two = run(tmp_path / "virtual", num_clients=3, **settings)
    pooled, central = (json.loads((f / "table.json").read_text()) for f in (one, two))
    for name in ("x", "y"):
        assert pooled["columns"][name] == pytest.approx(central["columns"][name], rel=1e-12)


def test_clients_test_a_regression(tmp_path):
    """The clients' loss is over all test examples, as the server's; an accuracy of nan is no fault."""
    data, _, _ = line(tmp_path / "set")
    folder = run(
        tmp_path / "run", dataset=str(data), label_key="y", num_clients=3, evaluation="both"
    )
    last = metrics(folder)[-1]
    assert last["client_loss"] == pytest.approx(last["test_loss"], rel=1e-5)
    assert last["client_accuracy"] is None
    assert last["client_rmse"] > 0
    assert dict(status(folder))["RMSE"] == f"{last['test_rmse']:.6g}"


HUBER = """
from typing import ClassVar
import torch.nn.functional as F
from torch import nn
from fedapp.models.model import Model

class Huber(Model):
    name: ClassVar[str] = "huber"
    takes: ClassVar[frozenset[str]] = frozenset({"vector"})

    def build(self, task):
        return nn.Linear(2, 1)

    def loss(self, outputs, targets, mask=None):
        losses = F.huber_loss(outputs.squeeze(1), targets.to(outputs.dtype), reduction="none")
        return losses.mean() if mask is None else (losses * mask).sum() / mask.sum().clamp(min=1)
"""


def test_a_regression_with_a_loss_of_its_own_has_no_accuracy(tmp_path):
    data, _, _ = line(tmp_path / "set")
    (tmp_path / "huber.py").write_text(HUBER)
    settings = {"label_key": "y", "model": str(tmp_path / "huber.py"), "num_clients": 3}
    last = metrics(run(tmp_path / "run", dataset=str(data), **settings))[-1]
    assert last["test_accuracy"] is None
    assert 0 < last["test_loss"] < last["test_rmse"] ** 2 / 2
    assert last["test_r2"] < 1


def test_a_resumed_run_and_a_node_that_joins_later_use_the_runs_statistics(tmp_path):
    data = clusters(tmp_path / "set", parts=3)
    settings = {
        "dataset": str(data),
        "num_clients": 0,
        "fraction_train": 1.0,
        "num_server_rounds": 2,
    }
    folder = run(tmp_path / "run", configs=own(data, 2), **settings)
    before = (folder / "table.json").read_text()
    settings |= {"num_server_rounds": 3, "resume": True}
    run(folder, configs=own(data, 3), **settings)
    assert (folder / "table.json").read_text() == before
    assert metrics(folder)[-1]["clients"] == [0, 1, 2]
    assert metrics(folder)[-1]["replied"] == 3


def test_a_node_of_another_table_is_refused_with_the_difference(tmp_path):
    data = clusters(tmp_path / "set", parts=1)
    other = csv(tmp_path / "node1", "x,z,label 1,2,a 2,3,b")
    assert other.is_dir()
    settings = {"dataset": str(data), "num_clients": 0, "min_nodes": 2, "node_timeout": 2.0}
    with pytest.raises(RunError, match=r"columns .*'z \(number\)'.* instead of .*'y \(number\)'"):
        run(tmp_path / "run", configs=own(data, 2), **settings)


def test_malformed_statistics_are_refused(tmp_path):
    table = load_node_data(read_config({}), str(clusters(tmp_path / "set"))).table
    good = json.loads(summary_of(load_node_data(read_config({}), str(tmp_path / "set"))).to_json())
    for wrong in (
        "",
        "[]",
        json.dumps({**good, "columns": {"x": good["columns"]["x"]}}),
        json.dumps({**good, "label": {"names": ["a", "a"], "classes": 2}}),
        json.dumps({**good, "label": {"names": [], "classes": 0}}),
        json.dumps(good).replace('"mean": ', '"mean": NaN, "old": '),
        json.dumps(good).replace('"squares": ', '"squares": -'),
        json.dumps(good).replace('"mean": ', '"mean": 1e200, "old": '),
        json.dumps(good).replace('"count": ', '"count": 1' + 400 * "0"),
        json.dumps({**good, "label": {"names": [], "classes": 10**9}}),
        json.dumps({**good, "label": {"names": [], "classes": 3}}),  # those of the table are names
        json.dumps({**good, "label": {"names": ["a", "\ud800"], "classes": 2}}),  # not in UTF-8
        100_000 * "[",
    ):
        with pytest.raises(DataError, match="the statistics of its table are malformed"):
            Summary.read(table, wrong)


def test_labels_that_are_names_are_refused_where_the_servers_are_numbers(tmp_path):
    """The server's own data had none of the pooled labels, and the run ended."""
    data = load_node_data(read_config({}), str(csv(tmp_path / "set", "x,label 1,0 2,1")))
    wrong = json.loads(summary_of(data).to_json()) | {"label": {"names": ["z"], "classes": 1}}
    with pytest.raises(DataError, match="malformed: its labels are names"):
        Summary.read(data.table, json.dumps(wrong))


def test_statistics_of_more_examples_than_a_node_has_are_refused(tmp_path):
    """With 2^60 it would decide the mean of all nodes."""
    data = load_node_data(read_config({}), str(clusters(tmp_path / "set")))
    statistics, answer = TableStatistics(data.table), summary_of(data).to_json()
    assert not list(statistics.mismatches(1, {"table": answer, "examples": len(data.train)}))
    with pytest.raises(DataError, match="count more values than it has examples"):
        list(statistics.mismatches(2, {"table": answer, "examples": len(data.train) - 1}))
    assert statistics.pool([1], summary_of(data)).columns.keys() == {"x", "y"}


@pytest.mark.parametrize(
    ("settings", "sends"),
    [
        ({}, True),
        ({"algorithm": "dp-fedavg", "weighting": "uniform"}, False),
        ({"algorithm": "local-dp", "weighting": "uniform"}, False),
        ({"table-statistics": "given.json"}, False),
    ],
    ids=["needed", "dp-fedavg", "local-dp", "given"],
)
@pytest.mark.usefixtures("server_identity")
def test_a_node_sends_statistics_only_where_they_are_needed(tmp_path, settings, sends):
    """Queries leave before the server refuses a private run without statistics given by hand."""
    folder = str(csv(tmp_path / "own", "height,weight,label 1.5,61.5,0 2.5,82.5,1"))
    values = {"num-clients": 0, "dataset": folder, **settings}
    node = Context(RUN_ID, 7, {"data-path": folder, "client-id": 0}, RecordDict(), values)
    reply = run_client_app(client_app, Message(RecordDict(), 7, MessageType.QUERY), node)
    found = reply.content.config_records["node-data"]
    assert found["examples"] == 2
    assert ("table" in found) == sends
    assert ('"mean": 72.0' in str(found)) == ("72.0" in str(found)) == sends


def test_private_nodes_use_the_statistics_given(tmp_path):
    data = clusters(tmp_path / "set", parts=3)
    columns = {"x": {"mean": 100.0, "deviation": 10.0}, "y": {"mean": 0.0, "deviation": 1.0}}
    given = tmp_path / "given.json"
    given.write_text(json.dumps({"columns": columns}))
    folder = run(
        tmp_path / "run",
        configs=own(data, 3),
        dataset=str(data),
        num_clients=0,
        algorithm="dp-fedavg",
        table_statistics=str(given),
        fraction_train=0.9,
        **{"dp-fedavg.noise": 0.1},
    )
    stored = json.loads((folder / "table.json").read_text())
    assert stored["columns"] == columns
    assert stored["label"] == {"names": ["a", "b", "c"], "classes": 3}
    assert metrics(folder)[-1]["round"] == 3


@pytest.mark.parametrize(
    "label",
    [
        {"classes": -1},
        {"classes": float("inf")},
        {"names": ["a", "b", "c"], "classes": 2},
        {"names": ["a", "b", "c"], "classes": 5},
    ],
)
def test_given_statistics_with_a_wrong_label_are_refused(label, tmp_path):
    text = json.dumps({"columns": {"x": {"mean": 0.0, "deviation": 1.0}}, "label": label})
    with pytest.raises(ValueError, match=r"label has \d names and classes = "):
        Statistics.from_json(text)


def test_labels_by_name_need_their_names(tmp_path):
    """Else a node without the first class would number the others as its first ones."""
    data = load_node_data(read_config({}), str(clusters(tmp_path / "set")))
    columns = own_statistics(data).columns
    with pytest.raises(DataError, match=r"labels are names, a, b, c, .* label\.names"):
        coded(data, Statistics(columns, (), 3))


def test_nodes_with_too_many_categories_together_are_named():
    def node(first: int) -> Summary:
        return Summary({"town": tuple(f"t{i}" for i in range(first, first + 6000))}, ("a", "b"), 2)

    said = r"column 'town': the nodes have 12,000 different values together, and at most 10,000"
    with pytest.raises(DataError, match=said):
        Summary.pooled([node(0), node(6000)])
    few = Summary({"town": ("a",)}, ("a", "b"), 2)
    statistics = TableStatistics(Table(("town",), (("a",),), ("a", "b"), 2))
    statistics._summaries = {1: few, 2: node(0), 3: few, 4: node(5000)}
    assert len(statistics.pool([1, 2, 3], few).columns["town"]) == 6001
    with pytest.raises(DataError, match=r"11,001 .* allowed\. Node 4 has 6,000 of them\. Leave"):
        statistics.pool([1, 2, 3, 4], few)


def test_nodes_together_have_the_most_classes_of_any() -> None:
    """Nodes with labels 0 to 1 and 0 to 4: five outputs."""
    nodes = [Summary({}, (), classes) for classes in (2, 5)]
    assert Summary.pooled(nodes).num_classes == 5


def test_a_column_that_deviates_by_rounding_is_constant() -> None:
    """The mean of three times 0.1 is 0.10000000000000002."""
    assert Numbers.of(np.full(3, 0.1)).deviation == 0.0


def test_the_first_label_beyond_the_outputs_is_unknown() -> None:
    """Of three outputs the labels are 0 to 2."""
    assert unknown_labels(Statistics({}, (), 3), (), 3) == ""
    assert unknown_labels(Statistics({}, (), 3), (), 4) == "up to 3"
