"""Text: symbols, unrolling by hand, clients, windows, words and the real Shakespeare's counts."""

from __future__ import annotations

from pathlib import Path

import datasets
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedapp.config.read import read_config
from fedapp.data.dataset import IGNORE
from fedapp.data.load import load_dataset, load_node_data
from fedapp.data.text.clients import hold_out_last
from fedapp.data.text.symbols import (
    BEGIN,
    END,
    UNKNOWN,
    Characters,
    most_frequent,
    truncate_and_pad,
    unroll,
    words_of,
)
from fedapp.errors import DataError
from tests.data_files import write_parquet
from tests.test_data_sources import load

LINES = {
    "client_id": ["b", "a", "b", "a", "c"],
    "role": ["B", "A", "B", "A", "C"],
    "line_no": [0, 0, 1, 1, 0],
    "text": ["to be", "or", "not", "to", ""],
}
TEST = {"client_id": ["a", "c"], "role": ["A", "C"], "line_no": [2, 1], "text": ["end", "x"]}


def write_lines(folder: Path, test: dict[str, list] | None = TEST) -> Path:
    return write_parquet(folder, {"train": LINES} | ({"test": test} if test else {}))


def spoken(inputs: np.ndarray, targets: np.ndarray) -> str:
    """Return a sequence's counted targets as text, with | for the end of a line."""
    counted = targets[targets != IGNORE]
    return "".join("|" if symbol == END else chr(symbol) for symbol in counted)


def test_characters_by_hand():
    symbols, lengths = Characters().encode(["ab", "", "é"])
    assert symbols.tolist() == [BEGIN, 97, 98, END, BEGIN, END, BEGIN, 0xC3, 0xA9, END]
    assert lengths.tolist() == [4, 2, 4]
    assert Characters().count == 258


def test_unroll_by_hand():
    stream, lengths = Characters().encode(["abc", "d"])
    one = unroll(stream, np.array([len(stream)]), 3, Characters())
    assert one.inputs.tolist() == [[BEGIN, 97, 98], [99, END, BEGIN], [100, END, END]]
    assert one.targets.tolist() == [[97, 98, 99], [END, IGNORE, 100], [END, IGNORE, IGNORE]]
    two = unroll(stream, lengths, 3, Characters())
    assert two.owners.tolist() == [0, 0, 1]
    assert two.targets.tolist() == [[97, 98, 99], [END] + 2 * [IGNORE], [100, END, IGNORE]]
    assert two.inputs.dtype == two.targets.dtype == np.int16


@given(
    st.lists(st.lists(st.text(max_size=12), max_size=4), min_size=1, max_size=5), st.integers(1, 9)
)
def test_unrolling_counts_every_character_once_and_never_crosses_clients(clients, steps):
    encoded = [Characters().encode(lines) for lines in clients]
    stream = np.concatenate([symbols for symbols, _ in encoded])
    unrolled = unroll(
        stream, np.array([len(symbols) for symbols, _ in encoded]), steps, Characters()
    )
    assert unrolled.inputs.shape == unrolled.targets.shape == (len(unrolled.owners), steps)
    for client, lines in enumerate(clients):
        targets = unrolled.targets[unrolled.owners == client]
        expected = [symbol for line in lines for symbol in (*line.encode(), END)]
        assert targets[targets != IGNORE].tolist() == expected


def test_character_task_of_clients(tmp_path):
    data = load(write_lines(tmp_path / "plays"), text_unroll=4)
    assert (data.task.kind, data.task.input_shape, data.task.num_classes) == ("tokens", (4,), 258)
    assert not data.task.one_label
    said: dict[str, str] = {}
    for row, code in enumerate(data.train.groups["client_id"]):
        name = data.train.group_names["client_id"][code]
        said[name] = said.get(name, "") + spoken(data.train.inputs[row], data.train.targets[row])
    assert said == {"a": "or|to|", "b": "to be|not|", "c": "|"}
    assert "line_no" not in data.train.groups
    assert data.test.group_names["role"] == ("A", "B", "C")
    assert data.test.groups["role"].tolist() == data.test.groups["client_id"].tolist() == [0, 2]
    assert spoken(data.test.inputs[0], data.test.targets[0]) == "end|"


def test_the_column_that_is_asked_for_is_the_clients(tmp_path):
    """Not "client_id", which is taken where nothing is asked for."""
    data = load(write_lines(tmp_path / "plays"), text_unroll=8, client_key="line_no")
    names = data.train.group_names["client_id"]
    whose = [names[code] for code in data.train.groups["client_id"]]
    said = [spoken(*pair) for pair in zip(data.train.inputs, data.train.targets, strict=True)]
    assert list(zip(whose, said, strict=True)) == [("0", "to be|o"), ("0", "r||"), ("1", "not|to|")]


def test_the_column_of_clients_is_not_taken_for_the_text(tmp_path):
    lines = {"speaker": ["ann", "bob"], "line": ["hello", "bye"]}
    folder = write_parquet(tmp_path / "plays", {"train": lines, "test": lines})
    data = load(folder, text_unroll=8, client_key="speaker")
    said = [spoken(*pair) for pair in zip(data.train.inputs, data.train.targets, strict=True)]
    assert said == ["hello|", "bye|"]
    assert data.train.group_names["client_id"] == ("ann", "bob")


def test_clients_are_limited_in_words_and_not_in_characters(tmp_path):
    lines = {"client_id": ["a"] * 2, "text": ["x" * 6_000] * 2}
    data = load(write_parquet(tmp_path / "plays", {"train": lines, "test": lines}))
    assert (data.train.targets != IGNORE).sum() == 2 * 6_001


def test_lines_by_themselves(tmp_path):
    """A line is an example, in the order of the clients; a longer one than a sequence is two."""
    data = load(write_lines(tmp_path / "plays"), text_unroll=4, text_example="line")
    said = [spoken(*pair) for pair in zip(data.train.inputs, data.train.targets, strict=True)]
    assert said == ["or|", "to|", "to b", "e|", "not|", "|"]
    names = data.train.group_names["client_id"]
    whose = [names[code] for code in data.train.groups["client_id"]]
    assert whose == ["a", "a", "b", "b", "b", "c"]
    assert data.train.inputs[:, 0].tolist() == [BEGIN, BEGIN, BEGIN, ord("b"), BEGIN, BEGIN]
    lines = data.train.group_names["line_no"]
    assert [lines[code] for code in data.train.groups["line_no"]] == ["0", "1", "0", "0", "1", "0"]


def test_words_by_hand(tmp_path):
    assert words_of("Don't stop -- 'tis WELL-met, O") == ["don't", "stop", "tis", "well-met", "o"]
    assert words_of("हिन्दी भाषा") == ["हिन्दी", "भाषा"]  # with marks that are no letters
    assert words_of("nai\u0308ve") == words_of("na\u00efve") == ["na\u00efve"]
    words = most_frequent(["b", "a", "c", "b", "c", "d"], 4)
    assert words.numbers == {"b": 1, "c": 2, "a": 3}
    assert words.count == 4
    symbols, lengths = words.encode(["a zebra", "", "c"])
    assert (symbols.tolist(), lengths.tolist()) == ([3, UNKNOWN, 2], [2, 0, 1])
    unknown_is_not_predicted = unroll(np.array([1, 0, 2], np.int32), np.array([3]), 2, words)
    assert unknown_is_not_predicted.targets.tolist() == [[IGNORE, 2]]


def test_word_task_limits_each_client(tmp_path):
    train = {"author": ["x"] * 3 + ["y"], "text": ["a b c", "d e f", "g", "a b"]}
    folder = write_parquet(tmp_path / "posts", {"train": train, "test": train})
    data = load(folder, text_unit="words", text_client_words=5, text_unroll=10)
    counted = (data.train.targets != IGNORE).sum(axis=1)
    assert counted.tolist() == [4, 1]
    assert data.task.num_classes == 6  # the words a b c d e, and the unknown one
    assert (data.test.targets != IGNORE).sum(axis=1).tolist() == [4, 1]  # f and g are unknown
    by_line = load(
        folder, text_unit="words", text_client_words=5, text_unroll=10, text_example="line"
    )
    assert (by_line.train.targets != IGNORE).sum(axis=1).tolist() == [2, 1, 1]
    small = load(folder, text_unit="words", text_vocabulary=3)
    assert small.task.num_classes == 3
    assert small.task.vocabulary != data.task.vocabulary


def test_the_limit_of_words_is_exact_and_not_of_the_test_split(tmp_path):
    """All words are known, since y says f and g: x trains on a to e, four to be predicted."""
    lines = {"author": ["x"] * 3 + ["y"], "text": ["a b c", "d e f", "g", "f g"]}
    folder = write_parquet(tmp_path / "posts", {"train": lines, "test": lines})
    data = load(folder, text_unit="words", text_client_words=5)
    assert (data.train.targets != IGNORE).sum(axis=1).tolist() == [4, 1]
    assert (data.test.targets != IGNORE).sum(axis=1).tolist() == [6, 1]


def test_the_vocabulary_is_of_the_training_texts(tmp_path):
    """Of the test words b and z only b is known: a model could not have learned z."""
    texts = {"train": {"text": ["a b b"]}, "test": {"text": ["a b z z"]}}
    data = load(write_parquet(tmp_path / "posts", texts), text_unit="words", text_unroll=3)
    assert data.task.num_classes == 3
    assert data.test.targets.tolist() == [[1, IGNORE, IGNORE]]


def test_texts_of_one_word_have_nothing_to_predict(tmp_path):
    lines = {"author": ["x", "y"], "text": ["one", "two"]}
    folder = write_parquet(tmp_path / "posts", {"train": lines, "test": lines})
    with pytest.raises(DataError, match=r"no client has a symbol to predict\.$"):
        load(folder, text_unit="words")
    with pytest.raises(DataError, match=r"to predict; raise text-client-words\.$"):
        load(folder, text_unit="words", text_client_words=1)


def windows(client: str, text: str, width: int) -> list[dict[str, str]]:
    return [
        {"character_id": client, "x": text[start : start + width], "y": text[start + width]}
        for start in range(len(text) - width)
    ]


def test_leaf_windows_are_joined_to_the_same_kind_of_task(tmp_path):
    rows = windows("romeo", "but soft what light", 3) + windows("juliet", "ay me", 3)
    rows += windows("romeo", "she speaks", 3)
    columns = {name: [row[name] for row in rows] for name in ("character_id", "x", "y")}
    data = load(write_parquet(tmp_path / "leaf", {"train": columns}), test_fraction=0.2)
    assert (data.task.kind, data.task.input_shape, data.task.num_classes) == ("tokens", (80,), 258)
    names = data.train.group_names["client_id"]
    said = {
        names[code]: spoken(*pair)
        for code, *pair in zip(
            data.train.groups["client_id"], data.train.inputs, data.train.targets, strict=True
        )
    }
    assert said == {"romeo": "but soft what li|she spea|", "juliet": "ay m|"}
    heard = [spoken(*pair) for pair in zip(data.test.inputs, data.test.targets, strict=True)]
    assert sorted(heard) == ["e|", "ght|ks|"]


@pytest.mark.parametrize("lacking", ["character_id", "y"])
def test_a_column_of_leaf_windows_that_the_test_split_lacks_is_named(tmp_path, lacking):
    rows = windows("romeo", "but soft", 3)
    train = {name: [row[name] for row in rows] for name in ("character_id", "x", "y")}
    test = {name: values for name, values in train.items() if name != lacking}
    folder = write_parquet(tmp_path / "leaf", {"train": train, "test": test})
    with pytest.raises(DataError, match=f"split 'test': has no column '{lacking}', but "):
        load(folder)


def test_leaf_windows_of_a_node_are_whole_where_nothing_is_held_out(tmp_path):
    rows = windows("romeo", "but soft", 3)
    columns = {name: [row[name] for row in rows] for name in ("character_id", "x", "y")}
    folder = write_parquet(tmp_path / "leaf", {"train": columns})
    config = read_config({"data-cache": str(tmp_path / "cache")})
    data = load_node_data(config, str(folder))
    assert [spoken(*pair) for pair in zip(data.train.inputs, data.train.targets, strict=True)] == [
        "but soft|"
    ]
    assert len(data.test) == 0


def test_texts_of_several_lengths_are_no_windows(tmp_path):
    """A column y of single characters beside them is a column like any other."""
    lines = {"x": ["to be", "or"], "y": ["?", "!"]}
    data = load(write_parquet(tmp_path / "lines", {"train": lines, "test": lines}))
    assert spoken(data.train.inputs[0], data.train.targets[0]) == "to be|or|"


def test_hold_out_takes_each_clients_last_lines():
    owners = np.array([0] * 10 + [1] * 2 + [2])
    train, test = hold_out_last(owners, 0.2)
    assert test.tolist() == [8, 9, 11]
    assert sorted([*train, *test]) == list(range(13))


@pytest.mark.parametrize(("lines", "held"), [(1, 0), (2, 1), (5, 1), (9, 1), (10, 2), (14, 2)])
def test_the_part_held_out_is_rounded_down_but_is_at_least_one_line(lines, held):
    assert len(hold_out_last(np.zeros(lines, np.int64), 0.2)[1]) == held


def test_lines_without_test_split_hold_out_the_last_ones(tmp_path):
    data = load(write_lines(tmp_path / "plays", test=None), test_fraction=0.5)
    heard = [spoken(*pair) for pair in zip(data.test.inputs, data.test.targets, strict=True)]
    assert heard == ["to|", "not|"]


def test_labelled_texts(tmp_path):
    features = {
        "text": datasets.Value("string"),
        "label": datasets.ClassLabel(names=["bad", "good"]),
    }
    columns = {"text": ["so good", "bad"], "label": [1, 0]}
    splits = {"train": columns, "test": columns}
    data = load(write_parquet(tmp_path / "reviews", splits, features), text_unroll=6)
    assert data.task.one_label
    assert (data.task.num_classes, data.task.num_symbols) == (2, 258)
    assert data.train.targets.tolist() == [1, 0]
    assert data.train.inputs.tolist() == [[BEGIN, *b"so go"], [END, BEGIN, *b"bad", END]]
    words = load(tmp_path / "reviews", text_unit="words", text_unroll=3)
    assert words.train.inputs.tolist() == [[0, 3, 2], [0, 0, 1]]


def test_csv_with_labels(tmp_path):
    folder = tmp_path / "csv"
    folder.mkdir()
    for split in ("train", "test"):
        (folder / f"{split}.csv").write_text("sentence,label\nfine,1\nawful,0\n")
    data = load(folder)
    assert data.task.input_shape == (256,)
    assert data.train.targets.tolist() == [1, 0]


def test_fit_pads_on_the_left():
    stream, lengths = Characters().encode(["abc", ""])
    assert truncate_and_pad(stream, lengths, 4, Characters()).tolist() == [
        [BEGIN, 97, 98, 99],
        [END, END, BEGIN, END],
    ]


@pytest.mark.data
@pytest.mark.slow
def test_real_shakespeare_counts(real_data):
    """McMahan et al.: 1,146 clients, 3,564,579 and 870,014 characters, from another edition."""
    folder = str(real_data / "shakespeare")
    data = load_dataset(read_config({"dataset": folder}))
    assert (data.train.targets != IGNORE).sum() == 3_476_387
    assert (data.test.targets != IGNORE).sum() == 838_453
    for examples in (data.train, data.test):
        assert len(np.unique(examples.groups["client_id"])) == 1_155
    words = load_dataset(read_config({"dataset": folder, "text-unit": "words"}))
    assert words.task.num_classes == 10_000
    assert words.task.input_shape == (10,)
