"""Everything a user can do wrong with data: one clear message that names the key or the file."""

from __future__ import annotations

import re
import struct
import zlib
from pathlib import Path

import datasets
import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from fedapp.cli.main import app
from fedapp.config.read import read_config
from fedapp.data.dataset import Task
from fedapp.data.load import load_dataset, load_node_data, load_partition
from fedapp.data.node_data import task_problem
from fedapp.errors import ConfigError, DataError
from fedapp.runs.directory import create
from tests.data_files import (
    PIXELS,
    image_features,
    image_splits,
    png,
    write_image_folder,
    write_parquet,
)
from tests.test_data_sources import load

INTEGERS = {"image": datasets.Image(), "label": datasets.Value("int64")}
PICTURES = [png(pixels) for pixels in PIXELS]


def pets(folder: Path) -> Path:
    return write_parquet(folder, image_splits(), image_features())


def truncated(folder: Path) -> Path:
    path = pets(folder) / "train.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    return folder


def overwritten(folder: Path) -> Path:
    """Damage a file's values, but not its footer."""
    path = pets(folder) / "train.parquet"
    content = path.read_bytes()
    path.write_bytes(content[:4] + b"\xff" * 40 + content[44:])
    return folder


def transparent(alpha: int) -> np.ndarray:
    """Return an image of four channels, of which one pixel has this opacity."""
    opacity = np.full((*PIXELS[1].shape[:2], 1), 255, np.uint8)
    opacity[2, 1] = alpha
    return np.concatenate([PIXELS[1], opacity], axis=2)


def test_an_opaque_image_may_have_a_channel_of_opacity(tmp_path):
    folder = pictures(tmp_path / "set", [png(transparent(255))] * 2, PICTURES[:1])
    assert load(folder).train.inputs[0].tolist() == PIXELS[1].transpose(2, 0, 1).tolist()


def labelled(folder: Path, train: list, test: list, kind: str = "int64") -> Path:
    features = {"image": datasets.Image(), "label": datasets.Value(kind)}
    splits = {
        "train": {"image": PICTURES[: len(train)], "label": train},
        "test": {"image": PICTURES[: len(test)], "label": test},
    }
    return write_parquet(folder, splits, features)


def pictures(folder: Path, train: list, test: list) -> Path:
    splits = {
        "train": {"image": train, "label": [0] * len(train)},
        "test": {"image": test, "label": [0] * len(test)},
    }
    return write_parquet(folder, splits, INTEGERS)


def elsewhere(folder: Path) -> Path:
    """Make a table that has the path alone of its second image, outside of the folder."""
    Image.fromarray(PIXELS[1]).save(folder.parent / "other.png")
    path = str(folder / ".." / "other.png")
    return pictures(folder, [PICTURES[0], {"bytes": None, "path": path}], PICTURES[:1])


def listed_elsewhere(folder: Path) -> Path:
    """Make a list of images that names one outside of the folder."""
    for split in ("train", "test"):
        (folder / split).mkdir(parents=True)
        Image.fromarray(PIXELS[0]).save(folder / split / "0.png")
        rows = "file_name,label\n0.png,0\n../../other.png,1\n"
        (folder / split / "metadata.csv").write_text(rows)
    Image.fromarray(PIXELS[1]).save(folder.parent / "other.png")
    return folder


POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 4 5\n%%EndComments\n"
"""An image for which Pillow starts Ghostscript."""


def test_an_image_of_which_a_table_has_the_path_may_lie_in_its_folder(tmp_path):
    folder = tmp_path / "set"
    path = folder / "images" / "1.png"
    path.parent.mkdir(parents=True)
    Image.fromarray(PIXELS[1]).save(path)
    (link := tmp_path / "link").symlink_to(folder)
    for name, at in ((folder, folder), (link, folder), (link, link), (folder, link)):
        record = {"bytes": None, "path": str(at / "images" / "1.png")}
        pictures(folder, [PICTURES[0], record], PICTURES[:1])
        assert load(name).train.inputs[1].tolist() == PIXELS[1].transpose(2, 0, 1).tolist()


def texts(folder: Path, lines: list, **columns: list) -> Path:
    features = {"text": datasets.Value("string")}
    features |= {name: datasets.Value("string") for name in columns}
    return write_parquet(
        folder, {s: {"text": lines, **columns} for s in ("train", "test")}, features
    )


def csv(folder: Path, head: str, *splits: str) -> Path:
    folder.mkdir()
    for name, rows in zip(("train", "test"), splits, strict=False):
        (folder / f"{name}.csv").write_text(head + rows)
    return folder


def broken_image(folder: Path) -> Path:
    write_image_folder(folder)
    (folder / "train" / "dog" / "0.png").write_bytes(b"no image")
    return folder


def huge(folder: Path) -> Path:
    write_image_folder(folder)
    Image.new("1", (20000, 20000)).save(folder / "train" / "dog" / "0.png")
    return folder


def one_small_image(folder: Path) -> Path:
    write_image_folder(folder)
    Image.fromarray(PIXELS[1][:3]).save(folder / "train" / "dog" / "0.png")
    return folder


def no_test_images(folder: Path) -> Path:
    write_image_folder(folder)
    for path in (folder / "test").rglob("*.png"):
        path.unlink()
    return folder


def file_only(folder: Path) -> Path:
    folder.write_text("x")
    return folder


def empty(folder: Path) -> Path:
    folder.mkdir()
    return folder


def readme_only(folder: Path) -> Path:
    empty(folder)
    (folder / "notes.bin").write_text("nothing")
    return folder


def deep(folder: Path) -> Path:
    for split in ("train", "test"):
        (folder / split / "a").mkdir(parents=True)
        Image.fromarray(np.zeros((3, 3), np.uint16)).save(folder / split / "a" / "0.png")
    return folder


def deep_colours(folder: Path, kind: int, channels: int) -> Path:
    """Write a PNG of 16 bits a channel, which Pillow cannot write: 2 x 2 pixels of one value."""
    head = struct.pack(">IIBBBBB", 2, 2, 16, kind, 0, 0, 0)
    pixels = zlib.compress((b"\0" + b"\xff\xfe" * 2 * channels) * 2)
    chunks = [
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in ((b"IHDR", head), (b"IDAT", pixels), (b"IEND", b""))
    ]
    for split in ("train", "test"):
        (folder / split / "a").mkdir(parents=True)
        (folder / split / "a" / "0.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunks))
    return folder


def lines(folder: Path, kind: str, train: str) -> Path:
    folder.mkdir()
    for split, text in (("train", train), ("test", train or '{"text": "a"}\n')):
        (folder / f"{split}.{kind}").write_text(text)
    return folder


CASES = [
    ("missing folder", lambda folder: folder, {}, r"dataset = '.*set': there is no such folder"),
    ("a file", file_only, {}, r"dataset = '.*set': is a file"),
    ("empty folder", empty, {}, r"dataset = '.*set': cannot be read"),
    ("folder without data", readme_only, {}, r"dataset = '.*set': cannot be read"),
    ("truncated file", truncated, {}, r"train\.parquet: damaged or truncated"),
    (
        "damaged file",
        overwritten,
        {},
        r"/train\.parquet: damaged or truncated.*download it again\.$",
    ),
    ("training split", pets, {"train_split": "fit"}, r"train-split = 'fit'.*has: .*test"),
    ("test split", pets, {"test_split": "dev"}, r"has: train, test\. Set test-split to test, or"),
    (
        "no test split",
        lambda f: csv(f, "x,label\n", "1,0\n2,1\n"),
        {},
        r"test-split = 'test'.* It has: train\. Set test-fraction=0\.2 to hold out a part\.$",
    ),
    ("input column", pets, {"input_key": "img"}, r"input-key = 'img'.*image \(image\), label"),
    ("label column", pets, {"label_key": "class"}, r"label-key = 'class'.*image \(image\), label"),
    ("input type", pets, {"input_key": "label"}, r"input-key = 'label'.*neither images nor text"),
    (
        "label type",
        lambda f: labelled(f, ["a"], ["b"], "string"),
        {},
        r"label-key = 'label'.*integers",
    ),
    (
        "float label",
        lambda f: labelled(f, [0.5], [1.0], "float32"),
        {},
        r"label-key = 'label'.*float",
    ),
    ("no label", lambda f: labelled(f, [0, None], [0]), {}, r"label-key = 'label'.*1 rows without"),
    (
        "negative",
        lambda f: labelled(f, [0, -1], [0]),
        {},
        r"label-key = 'label'.*label -1 in row 1",
    ),
    (
        "out of range",
        lambda f: labelled(f, [0, 1], [0, 2]),
        {},
        r"'test'.*label 2 in row 1.*0 to 1",
    ),
    (
        "ids for labels",
        lambda f: labelled(f, [0, 10**12], [0]),
        {},
        r"label-key = 'label': the 2 training.*up to 1000000000000,.*Renumber",
    ),
    ("no examples", lambda f: labelled(f, [], [0]), {}, r"train\.parquet: has no examples"),
    ("no test examples", lambda f: labelled(f, [0], []), {}, r"test\.parquet: has no examples"),
    ("no test images", no_test_images, {}, r"test-split = 'test'.*no examples"),
    (
        "mixed sizes",
        lambda f: pictures(f, [PICTURES[0], png(PIXELS[1][:3])], PICTURES[:1]),
        {},
        r"'image': images of mixed sizes: row 1 is 4x3, row 0 is 4x5",
    ),
    (
        "mixed sizes of files",
        one_small_image,
        {},
        r"mixed sizes: row 1 \(.*/dog/0\.png\) is 4x3, row 0 \(.*/cat/0\.png\) is 4x5\. Resize",
    ),
    (
        "mixed splits",
        lambda f: pictures(f, PICTURES[:2], [png(PIXELS[1][:3])]),
        {},
        r"test-split = 'test'.*\(3, 3, 4\).*\(3, 5, 4\)",
    ),
    (
        "mixed modes",
        lambda f: pictures(f, [png(PIXELS[0][..., 0]), PICTURES[0]], PICTURES[:1]),
        {},
        r"row 1.*coloured",
    ),
    (
        "transparent pixels",
        lambda f: pictures(f, [PICTURES[0], png(transparent(254))], PICTURES[:1]),
        {},
        r"'image', row 1 \(embedded\): has transparent pixels, and opacity is no input. Draw it on a",
    ),
    (
        "missing image",
        lambda f: pictures(f, [PICTURES[0], None], PICTURES[:1]),
        {},
        r"row 1.*no image",
    ),
    ("image elsewhere", elsewhere, {}, r"row 1 \(.*other\.png\): this file lies outside of the"),
    ("image listed elsewhere", listed_elsewhere, {}, r"row 1 \(.*other\.png\): this file lies out"),
    (
        "image that is a program",
        lambda f: pictures(f, [PICTURES[0], {"bytes": POSTSCRIPT, "path": None}], PICTURES[:1]),
        {},
        r"row 1 \(embedded\): not a readable image, such as PNG or JPEG: cannot identify",
    ),
    ("broken image", broken_image, {}, r"row 1 \(.*dog/0\.png\): not a readable image"),
    ("deep image", deep, {}, r"a/0\.png\): I;16 pixels"),
    ("deep colours", lambda f: deep_colours(f, 2, 3), {}, r"a/0\.png\): RGB;16 pixels"),
    ("deep grey and opacity", lambda f: deep_colours(f, 4, 2), {}, r"0\.png\): RGBA;16 pixels"),
    ("huge image", huge, {}, r"dog/0\.png\): has too many pixels: .*Resize it, or leave it out"),
    ("empty text", lambda f: texts(f, ["", " "]), {}, r"'text': every text is empty"),
    ("missing text", lambda f: texts(f, ["a", None]), {}, r"'text': 1 rows have no text"),
    ("client column", lambda f: texts(f, ["a"]), {"client_key": "who"}, r"client-key = 'who'"),
    (
        "missing client",
        lambda f: texts(f, ["a", "b"], author=["x", None]),
        {},
        r"client-key = 'author'",
    ),
    (
        "missing number of a client",
        lambda f: csv(f, "user,text\n", "1,hello there\n,bye now\n", "1,hello\n"),
        {},
        r"client-key = 'user': some row or split has no value.*Fill the column",
    ),
    (
        "fractions for clients",
        lambda f: csv(f, "user,text\n", "1.5,hello there\n", "1,hello\n"),
        {},
        r"client-key = 'user': this column holds double.*Name another column",
    ),
    (
        "a named test split that is missing, and a part to hold out",
        pets,
        {"test_split": "tset", "test_fraction": 0.2},
        r"test-split = 'tset'.* Set test-split to test, or set test-split='train' to hold out a part\.$",
    ),
    (
        "a named test split that is missing",
        lambda f: csv(f, "x,label\n", "1,0\n2,1\n"),
        {"test_split": "dev"},
        r"It has: train\. Set test-split='train' and test-fraction=0\.2 to hold out a part\.$",
    ),
    ("hold out all", pets, {"test_split": "train", "test_fraction": 0.99}, None),
    (
        "nothing left to test",
        lambda f: write_parquet(f, {"train": image_splits(train=1)["train"]}, image_features()),
        {"test_fraction": 0.5},
        r"test-fraction = 0\.5: split 'train' .* has a single example.*Add examples, or a test split",
    ),
    (
        "gap in a CSV file's labels",
        lambda f: csv(f, "text,label\n", "a,1\nb,\n", "a,1\n"),
        {},
        r"split 'train', has 1 rows without a label",
    ),
    (
        "nothing to hold out",
        lambda f: csv(f, "user,text\n", "x,hello there\ny,bye now\n"),
        {"test_fraction": 0.5},
        r"set': its test split has no symbol to predict.*a single one",
    ),
    (
        "unknown words only",
        lambda f: csv(f, "user,text\n", "x,one two\n", "x,three\n"),
        {"text_unit": "words"},
        r"set': its test split has no symbol to predict.*Unknown words",
    ),
    (
        "empty lines",
        lambda f: lines(f, "jsonl", ""),
        {},
        r"^/.*train\.jsonl: has no examples\. Fill",
    ),
    (
        "empty text file",
        lambda f: lines(f, "txt", ""),
        {},
        r"^/.*train\.txt: has no examples\. Fill",
    ),
    (
        "times for clients",
        lambda f: lines(f, "jsonl", '{"text": "hello", "user": "2026-01-01"}\n'),
        {"client_key": "user"},
        r"client-key = 'user': this column holds timestamp\[s\], and ids are.*Save it as text",
    ),
    (
        "too long an integer",
        lambda f: csv(f, "x,label\n", f"1,0\n{10**29},1\n", "1,0\n"),
        {},
        r"^/.*train\.csv: column 'x' holds an integer of more than 64 bits",
    ),
    ("subset", pets, {"dataset_subset": "no-such"}, r"dataset = '.*set'.*no-such"),
]


@pytest.mark.parametrize(
    ("make", "keys", "said"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_data_error(tmp_path, make, keys, said):
    folder = make(tmp_path / "set")
    if said is None:
        assert len(load(folder, **keys).train) == 1
        return
    with pytest.raises(DataError, match=said):
        load(folder, **keys)


@pytest.mark.parametrize(
    "make", [pets, lambda f: csv(f, "x,label\n", "1,0\n2,1\n", "1,0\n"), write_image_folder]
)
def test_a_part_to_hold_out_beside_a_test_split_is_refused(tmp_path, make):
    """Nothing would be held out; of nodes with data of their own, some may have no test split."""
    folder = make(tmp_path / "set")
    said = (
        r"test-fraction = 0\.25: has no effect, because dataset '.*set' has a test split, 'test'\. "
        r"Set test-split='train' to test on a part of .*, or leave the key out\.$"
    )
    with pytest.raises(ConfigError, match=said):
        load(folder, test_fraction=0.25)
    whole = load(folder)
    part = load(folder, test_fraction=0.25, test_split="train")
    assert len(part.train) == len(whole.train) - 1
    cache = {"data-cache": str(tmp_path / "cache"), "test-fraction": 0.25}
    config = read_config({**cache, "dataset": "plays"})
    assert len(load_node_data(config, str(folder)).train) == len(whole.train)
    assert len(load(folder, test_fraction=0.25, num_clients=0).train) == len(whole.train)
    with pytest.raises(ConfigError, match=said):  # also when the cache has it
        load(folder, test_fraction=0.25)


@pytest.mark.parametrize("kind", ["dataset", "dictionary", "two folders"])
def test_what_save_to_disk_wrote_is_read(tmp_path, kind):
    """With the same arrays as the Parquet files of the same data."""
    folder, splits = tmp_path / "saved", image_splits()
    made = {
        name: datasets.Dataset.from_dict(columns, features=datasets.Features(image_features()))
        for name, columns in splits.items()
    }
    if kind == "dataset":
        made["train"].save_to_disk(folder)
    elif kind == "dictionary":
        datasets.DatasetDict(made).save_to_disk(folder)
    else:
        for name, split in made.items():
            split.save_to_disk(folder / name)
    data = load(folder, **({"test-fraction": 0.5} if kind == "dataset" else {}))
    assert data.task.labels == ("cat", "dog")
    if kind == "dataset":
        assert (len(data.train), len(data.test)) == (2, 2)
        return
    parquet = load(write_parquet(tmp_path / "parquet", splits, image_features()))
    for one, other in ((data.train, parquet.train), (data.test, parquet.test)):
        np.testing.assert_array_equal(one.inputs, other.inputs)
        np.testing.assert_array_equal(one.targets, other.targets)


def saved(folder: Path, **columns_of_split: dict[str, list]) -> Path:
    """Save splits whose columns of texts become class labels, as `class_encode_column` numbers them."""
    splits = {
        name: datasets.Dataset.from_dict(columns) for name, columns in columns_of_split.items()
    }
    for name, split in splits.items():
        for column in ("town", "label"):
            if isinstance(split[0].get(column), str):
                splits[name] = splits[name].class_encode_column(column)
    datasets.DatasetDict(splits).save_to_disk(folder)
    return folder


def test_each_split_has_its_own_numbers_of_classes(tmp_path):
    """They are taken by name: those of train first, then those that only test has."""
    x = [1.0, 2.0, 3.0]
    folder = saved(
        tmp_path / "saved",
        train={"x": x, "label": ["cat", "fox", "dog"]},
        test={"x": x[:2], "label": ["fox", "dog"]},
    )
    data = load(folder)
    assert data.task.labels == ("cat", "dog", "fox")
    assert data.train.targets.tolist() == [0, 2, 1]
    assert data.test.targets.tolist() == [2, 1]
    swapped = load(folder, train_split="test", test_split="train")
    assert swapped.task.labels == ("dog", "fox", "cat")
    assert swapped.train.targets.tolist() == [1, 0]
    assert swapped.test.targets.tolist() == [2, 1, 0]


def test_images_and_categories_have_the_numbers_of_their_split(tmp_path):
    pixels = [[[value] * 3] * 3 for value in (10, 20, 30)]
    splits = {"train": (pixels, ["cat", "fox", "dog"]), "test": (pixels[1:], ["fox", "dog"])}
    made = {}
    for name, (values, labels) in splits.items():
        images = [png(np.array(value, np.uint8)) for value in values]
        features = datasets.Features(image=datasets.Image(), label=datasets.Value("string"))
        split = datasets.Dataset.from_dict({"image": images, "label": labels}, features)
        made[name] = split.class_encode_column("label")
    datasets.DatasetDict(made).save_to_disk(tmp_path / "images")
    assert load(tmp_path / "images").test.targets.tolist() == [2, 1]
    folder = saved(
        tmp_path / "table",
        train={"town": ["Bern", "Rome"], "label": [0, 1]},
        test={"town": ["Rome", "Turin"], "label": [0, 1]},
    )
    data = load(folder, input_keys="town", label_key="label")
    assert data.task.columns == ("town=Bern", "town=Rome")
    assert data.test.inputs.tolist() == [[0, 1], [0, 0]]


def test_class_labels_without_a_value_have_none_by_any_numbers(tmp_path):
    names = {"train": ["a", "b"], "test": ["b", "a"]}
    for split, each in names.items():
        features = datasets.Features(
            x=datasets.Value("float32"), label=datasets.ClassLabel(names=each)
        )
        columns = {"x": [1.0, 2.0], "label": [0, -1 if split == "test" else 1]}
        datasets.Dataset.from_dict(columns, features).save_to_disk(tmp_path / "saved" / split)
    with pytest.raises(DataError, match=r"split 'test' .*has label -1 in row 1 \(1 such rows\)"):
        load(tmp_path / "saved")


@pytest.mark.parametrize("encoded", ["train", "test"])
def test_class_labels_beside_text_are_refused(tmp_path, encoded):
    made = {}
    for split in ("train", "test"):
        made[split] = datasets.Dataset.from_dict({"x": [1.0, 2.0], "label": ["a", "b"]})
    made[encoded] = made[encoded].class_encode_column("label")
    datasets.DatasetDict(made).save_to_disk(tmp_path / "saved")
    with pytest.raises(
        DataError, match=r"column 'label' has class labels in one of .*Save both as"
    ):
        load(tmp_path / "saved")


def test_of_several_saved_sets_one_is_chosen_by_its_folder(tmp_path):
    for name, labels in (("A", ["x", "y"]), ("B", ["p", "q"])):
        split = {"x": [1.0, 2.0], "label": labels}
        saved(tmp_path / "sets" / name, train=split, test=split)
    for name, labels in (("A", ("x", "y")), ("B", ("p", "q"))):
        assert load(tmp_path / "sets", dataset_subset=name).task.labels == labels
    with pytest.raises(DataError, match=r"dataset-subset = '': .* holds several sets: A, B\. Set"):
        load(tmp_path / "sets")
    with pytest.raises(DataError, match=r"dataset-subset = 'C': is no part .*which holds: A, B\.$"):
        load(tmp_path / "sets", dataset_subset="C")


def test_parquet_files_with_other_numbers_of_classes_are_refused(tmp_path):
    def write(split: str, *names: str) -> None:
        features = {"x": datasets.Value("float32"), "label": datasets.ClassLabel(names=[*names])}
        write_parquet(tmp_path / "set", {split: {"x": [1.0, 2.0], "label": [0, 1]}}, features)

    write("train", "cat", "dog")
    write("test", "dog", "fox")
    write("validation", "emu", "fox")  # is not used
    with pytest.raises(
        DataError,
        match=r"test\.parquet: class 0 of column 'label' is 'dog', and 'cat' in train\.parquet",
    ):
        load(tmp_path / "set")
    write("test", "cat", "dog", "emu")
    with pytest.raises(DataError, match="class 2 of column 'label' is 'emu', and None in train"):
        load(tmp_path / "set")
    write("test", "cat", "dog")
    assert load(tmp_path / "set").task.labels == ("cat", "dog")


def test_a_damaged_folder_of_save_to_disk_is_named(tmp_path):
    folder = tmp_path / "saved"
    datasets.Dataset.from_dict({"x": [1.0, 2.0], "label": [0, 1]}).save_to_disk(folder)
    next(folder.glob("*.arrow")).write_bytes(b"")
    with pytest.raises(DataError, match="save_to_disk of Hugging Face datasets wrote, cannot be"):
        load(folder, **{"test-fraction": 0.5})


@pytest.mark.parametrize(
    ("head", "row"),
    [("user,text\n", "x,hello there\n"), ("x,label\n", "1,0\n"), ("text,label\n", "a b,0\n")],
)
def test_a_node_may_have_one_row(tmp_path, head, row):
    """Then it has nothing to test on, and its only row to train on."""
    folder = csv(tmp_path / "set", head, row)
    cache = str(tmp_path / "cache")
    config = read_config({"dataset": "plays", "data-cache": cache, "test-fraction": 0.5})
    data = load_node_data(config, str(folder))
    assert (len(data.train), len(data.test)) == (1, 0)


def test_cache_folder_that_cannot_be_used(tmp_path):
    folder = pets(tmp_path / "set")
    (tmp_path / "blocked").write_text("a file")
    config = read_config(
        {"dataset": str(folder), "data-cache": str(tmp_path / "blocked" / "cache")}
    )
    with pytest.raises(DataError, match=r"data-cache = .*blocked.*FEDAPP_CACHE"):
        load_dataset(config)


@pytest.mark.parametrize("place", ["", "runs", "runs/first"])
def test_what_a_run_writes_must_not_lie_in_its_data(tmp_path, monkeypatch, place):
    """The server and a node would read two data sets. Hidden folders are no part of the data."""
    folder = csv(tmp_path / "set", "x,label\n", *2 * ["1,0\n2,1\n"])
    monkeypatch.chdir(folder)
    config = read_config({"dataset": ".", "run-dir": place, "model": "linear"})
    monkeypatch.setenv("FEDAPP_RUNS", "runs")
    said = r"lies in dataset = '\.', .* Move the data .*, or choose a folder outside of it\.$"
    with pytest.raises(ConfigError, match=f"^run-dir = '{folder}/runs.*': {said}"):
        create(config)
    with pytest.raises(ConfigError, match=f"^data-cache = 'decoded': {said}"):
        load_dataset(read_config({"dataset": ".", "data-cache": "decoded"}))
    assert len(list(folder.iterdir())) == 2
    hidden = {"data-cache": ".cache/fedapp", "run-dir": f"./.runs/{place}", "model": "linear"}
    assert len(load_dataset(read_config({"dataset": ".", **hidden})).train) == 2
    assert create(read_config({"dataset": ".", **hidden})).path.is_dir()
    assert create(read_config({"run-dir": place})).path.is_dir()


def test_the_runs_and_the_table_of_a_sweep_must_not_lie_in_its_data(tmp_path, monkeypatch):
    monkeypatch.chdir(csv(tmp_path / "set", "x,label\n", *2 * ["1,0\n2,1\n"]))
    for option, folders in (("--runs", []), ("--to", ["--runs", "../runs"])):
        result = CliRunner().invoke(app, ["sweep", "dataset=.", "seed=[1,2]", *folders])
        assert re.match(rf"{option} \S*: lies in dataset = '\.', ", str(result.exception))


@pytest.mark.parametrize(("make", "said"), [(lambda folder: folder, "{folder}"), (empty, "")])
def test_node_data_names_the_nodes_key_and_where_it_looked(tmp_path, monkeypatch, make, said):
    monkeypatch.chdir(tmp_path)
    folder = make(tmp_path / "set")
    with pytest.raises(DataError, match=rf"data-path = 'set'.*{said.format(folder=folder)}"):
        load_node_data(read_config({"data-cache": "cache"}), "set")


def test_a_node_with_one_class_keeps_the_label_set(tmp_path):
    folder = write_image_folder(tmp_path / "set", classes=("cat",))
    (folder / "train" / "dog").mkdir()
    data = load(folder)
    assert data.task.labels == ("cat", "dog")


MNIST = Task("image", (1, 28, 28), 10)
PETS = Task("image", (3, 5, 4), 2, ("cat", "dog"))
WORDS = Task("tokens", (10,), 100, num_symbols=100, vocabulary="words 1")


@pytest.mark.parametrize(
    ("expected", "found", "said"),
    [
        (MNIST, MNIST, ""),
        (MNIST, Task("image", (1, 28, 28), 7), "7 classes instead of 10"),
        (MNIST, Task("image", (1, 28, 28), 12), "12 classes instead of 10"),
        (
            PETS,
            Task("image", (3, 5, 4), 2, ("cat", "cow")),
            "labels (cat, cow) instead of (cat, dog)",
        ),
        (PETS, Task("image", (1, 5, 4), 2), "input shape (1, 5, 4) instead of (3, 5, 4)"),
        (
            WORDS,
            Task("tokens", (10,), 100, (), 100, "words 2"),
            "vocabulary 'words 2' instead of 'words 1'",
        ),
    ],
)
def test_the_problem_of_a_task(expected, found, said):
    ending = "; give it the server's data set and keys"
    assert task_problem(expected, found) == (said and said + ending)


def test_a_key_of_text_is_refused_where_the_data_are_images(tmp_path: Path) -> None:
    folder = str(pets(tmp_path / "pets"))
    config = read_config({"dataset": folder, "text-unroll": 20, "client-key": "owner"})
    with pytest.raises(ConfigError, match="text-unroll = 20: has no effect") as error:
        load_dataset(config)
    assert "client-key = 'owner'" in str(error.value)


@pytest.mark.parametrize(
    ("labels", "keys", "said"),
    [
        (",1", {"client-key": "who"}, "client-key = 'who': .*each text .* has a label"),
        (",1", {"text-example": "line", "text-unit": "words"}, "text-example = 'line'"),
        ("", {"text-vocabulary": 9}, "text-vocabulary = 9: .*Set text-unit='words'"),
        ("", {"text-client-words": 9}, "text-client-words = 9: .*Set text-unit='words'"),
        (",1", {"text-vocabulary": 9, "text-unit": "words"}, ""),
        ("", {"text-client-words": 9, "text-vocabulary": 9, "text-unit": "words"}, ""),
    ],
)
def test_keys_of_other_texts_are_refused(tmp_path: Path, labels: str, keys: dict, said: str):
    head = "text,label\n" if labels else "text\n"
    folder = str(csv(tmp_path / "set", head, f"a b{labels}\n", f"a b{labels}\n"))
    config = read_config({"dataset": folder, "data-cache": str(tmp_path / "cache"), **keys})
    if not said:
        assert load_dataset(config).task.kind == "tokens"
        return
    with pytest.raises(ConfigError, match=said):
        load_dataset(config)


def test_a_column_of_clients_that_is_not_there_is_named(tmp_path: Path) -> None:
    config = read_config(
        {
            "dataset": str(pets(tmp_path / "pets")),
            "partitioner": "natural",
            "natural.column": "owner",
        }
    )
    with pytest.raises(ConfigError, match=r"'owner' \(natural.column\)"):
        load_partition(config, load_dataset(config), 2)


@pytest.mark.parametrize(
    ("writers", "said"),
    [
        (["a", None, "b", "a"], "some row or split has no value of this type. Fill the column"),
        ([0.5, 1.5, 0.5, 1.5], "this column holds double, and ids are whole numbers or texts"),
        (["a", "b", "c", "d"], "this column has 4 different values, and of ids .* at most 3"),
    ],
)
def test_a_column_of_clients_that_cannot_be_used_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writers: list, said: str
) -> None:
    """Also where the data come from the cache."""
    monkeypatch.setattr("fedapp.data.columns.MAX_GROUPS", 3)
    kind = datasets.Value("float64" if isinstance(writers[0], float) else "string")
    splits = image_splits()
    splits["train"]["writer"], splits["test"]["writer"] = writers, writers[:1] * 2
    folder = write_parquet(tmp_path / "set", splits, image_features(writer=kind))
    keys = {"dataset": str(folder), "data-cache": str(tmp_path / "cache")}
    config = read_config({**keys, "partitioner": "natural", "natural.column": "writer"})
    for _ in range(2):
        with pytest.raises(ConfigError, match=f"^natural.column = 'writer': {said}"):
            load_partition(config, load_dataset(config), 2)
