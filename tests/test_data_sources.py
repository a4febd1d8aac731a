"""Sources and the cache: what is read is what was written, once, and mapped afterwards."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
from PIL import Image

from fedapp.config.read import read_config
from fedapp.data.columns import hold_out_random
from fedapp.data.dataset import Dataset
from fedapp.data.load import build_dataset, load_dataset, load_node_data
from fedapp.data.readers.source import Source, Split
from fedapp.data.transforms.normalise import Normalise
from fedapp.errors import ConfigError, DataError
from tests.data_files import (
    PIXELS,
    image_features,
    image_splits,
    png,
    write_image_folder,
    write_parquet,
)

CHANNELS_FIRST = PIXELS.transpose(0, 3, 1, 2)


def load(folder: Path, **keys: object) -> Dataset:
    keys = {name.replace("_", "-"): value for name, value in keys.items()}
    cache = str(folder.parent / "cache")
    return load_dataset(read_config({"dataset": str(folder), "data-cache": cache, **keys}))


def without_test(folder: Path, train: int = 4) -> Path:
    return write_parquet(folder, {"train": image_splits(train)["train"]}, image_features())


def test_parquet_images_are_exact(tmp_path):
    folder = write_parquet(tmp_path / "set", image_splits(), image_features())
    data = load(folder)
    assert data.task.kind == "image"
    assert data.task.input_shape == (3, 5, 4)
    assert data.task.num_classes == 2
    assert data.task.labels == ("cat", "dog")
    assert data.train.inputs.dtype == np.uint8
    np.testing.assert_array_equal(data.train.inputs, CHANNELS_FIRST[:4])
    np.testing.assert_array_equal(data.test.inputs, CHANNELS_FIRST[4:])
    assert data.train.targets.dtype == np.int64
    assert data.train.targets.tolist() == [0, 1, 1, 0]


def test_hidden_files_and_folders_are_not_read(tmp_path):
    """Such as macOS and caches write."""
    folder = write_parquet(tmp_path / "set", image_splits(), image_features())
    (folder / ".cache").mkdir()
    for name in ("._train.parquet", ".cache/x.parquet"):
        (folder / name).write_bytes(b"not Parquet")
    assert len(load(folder).train) == 4


def test_grey_images_have_one_channel_and_other_columns_become_groups(tmp_path):
    columns = {
        "image": [png(pixels[..., 0]) for pixels in PIXELS],
        "label": [0, 2, 1, 0, 1, 0],
        "writer": ["b", "a", "b", "c", "a", "b"],
        "age": [30, 4, 30, 4, 5, 30],
    }
    train = {name: values[:4] for name, values in columns.items()}
    test = {name: values[4:] for name, values in columns.items()}
    features = {
        "image": datasets.Image(),
        "label": datasets.Value("int64"),
        "writer": datasets.Value("string"),
        "age": datasets.Value("int32"),
    }
    data = load(write_parquet(tmp_path / "set", {"train": train, "test": test}, features))
    np.testing.assert_array_equal(data.train.inputs[:, 0], PIXELS[:4, ..., 0])
    assert data.task.num_classes == 3
    assert data.task.labels == ()
    assert data.train.groups["writer"].tolist() == [1, 0, 1, 2]
    assert data.test.groups["writer"].tolist() == [0, 1]
    assert data.test.group_names == {"writer": ("a", "b", "c"), "age": ("4", "5", "30")}
    assert data.train.groups["age"].tolist() == [2, 0, 2, 0]


def test_image_folder(tmp_path):
    data = load(write_image_folder(tmp_path / "set"))
    assert data.task.labels == ("cat", "dog")
    np.testing.assert_array_equal(data.train.inputs, CHANNELS_FIRST[:2])
    np.testing.assert_array_equal(data.test.inputs, CHANNELS_FIRST[2:4])
    assert data.train.targets.tolist() == [0, 1]


def test_only_the_folders_of_the_two_splits_are_classes(tmp_path):
    folder = write_image_folder(tmp_path / "set")
    for other in (".git/objects", "train/.thumbnails", "annotations/boxes", "extra/bird"):
        (folder / other).mkdir(parents=True)
    (folder / "train" / "cat" / ".DS_Store").write_bytes(b"not an image")
    (folder / "test" / "owl").mkdir()
    data = load(folder)
    assert data.task.labels == ("cat", "dog", "owl")
    np.testing.assert_array_equal(data.train.inputs, CHANNELS_FIRST[:2])


@pytest.mark.parametrize(
    "stray",
    ["train/cat/Thumbs.db", "train/desktop.ini", "train/notes.txt", "train/cat/list.csv"],
)
def test_a_stray_file_changes_nothing(tmp_path, stray):
    folder = write_image_folder(tmp_path / "set", ("cat", "dog"))
    (folder / "train" / "owl").mkdir()
    (folder / stray).write_text("no image")
    data = load(folder)
    assert data.task.labels == ("cat", "dog", "owl")
    np.testing.assert_array_equal(data.train.inputs, CHANNELS_FIRST[:2])
    nested = folder / "train" / "cat" / "more" / "0.jfif"
    nested.parent.mkdir()
    Image.fromarray(PIXELS[5]).save(nested, format="PNG")
    assert load(folder).train.targets.tolist() == [0, 0, 1]
    shutil.copy(nested, folder / "train" / "loose.png")
    with pytest.raises(DataError, match=r"train/loose\.png: is beside the class folders"):
        load(folder)


def test_labels_in_a_metadata_file_are_not_those_of_folders(tmp_path):
    lines = {"train": "a/0.png,1\na/1.png,0\n", "test": "a/0.png,0\n"}
    for split, rows in lines.items():
        images = tmp_path / "set" / split / "a"
        images.mkdir(parents=True)
        for number, pixels in enumerate(PIXELS[:2]):
            Image.fromarray(pixels).save(images / f"{number}.png")
        (tmp_path / "set" / split / "metadata.csv").write_text("file_name,label\n" + rows)
    assert load(tmp_path / "set").train.targets.tolist() == [1, 0]


def test_an_image_beside_the_class_folders_is_not_left_out(tmp_path):
    folder = write_image_folder(tmp_path / "set")
    (folder / "test" / "notes.txt").write_text("no image")
    load(folder)
    shutil.copy(folder / "test" / "cat" / "0.png", folder / "test" / "loose.png")
    with pytest.raises(
        DataError, match=r"test/loose\.png: is beside the class folders of split 'test'"
    ):
        load(folder)


def test_a_key_that_class_folders_have_no_use_for_is_refused(tmp_path):
    """But not of a node's own folder: the keys are the server's, whose data may be in Parquet."""
    folder = write_image_folder(tmp_path / "set")
    with pytest.raises(
        ConfigError, match=r"dataset-subset = 'small': has no effect, because .* holds"
    ):
        load(folder, dataset_subset="small")
    settings = {"dataset-subset": "small", "data-cache": str(tmp_path / "cache")}
    assert len(load_node_data(read_config(settings | {"dataset": "x/y"}), str(folder)).train) == 2


def test_an_empty_class_folder_made_later_counts(tmp_path):
    folder = write_image_folder(tmp_path / "set")
    before = load(folder)
    (folder / "train" / "owl").mkdir()
    after = load(folder)
    assert after.task.labels == ("cat", "dog", "owl")
    assert after.fingerprint != before.fingerprint


@pytest.mark.parametrize("linked", [("train", "test"), ("train/cat", "train/dog", "test/cat")])
def test_what_links_lead_to_is_read_and_counts(tmp_path, linked):
    """Two folders of links to other images are two data sets."""
    seen = []
    for number in (0, 3):
        store = tmp_path / f"store{number}"
        for split in ("train", "test"):
            for name in ("cat", "dog"):
                (store / split / name).mkdir(parents=True)
                image = Image.fromarray(PIXELS[number + (name == "dog")])
                image.save(store / split / name / "0.png")
        folder = tmp_path / f"set{number}"
        for name in linked:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).symlink_to(store / name)
        (folder / "again").symlink_to(folder)
        data = load(folder)
        np.testing.assert_array_equal(data.train.inputs, CHANNELS_FIRST[number : number + 2])
        seen.append(data.fingerprint)
    assert seen[0] != seen[1]


@pytest.mark.process
def test_second_start_maps_and_reads_nothing_else(tmp_path):
    folder = write_parquet(tmp_path / "set", image_splits(), image_features())
    first = load(folder)
    assert isinstance(first.train.inputs.base, np.memmap)
    code = f"""
import sys
from fedapp.config.read import read_config
from fedapp.data.load import load_dataset
keys = {{"dataset": {str(folder)!r}, "data-cache": {str(tmp_path / "cache")!r}}}
data = load_dataset(read_config(keys))
assert data.fingerprint == {first.fingerprint!r}
assert not {{"datasets", "pyarrow", "PIL"}} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_who_loads_a_data_set_that_another_works_with_shares_it(tmp_path):
    """Their clients' examples are parts of one object, which lies on a GPU once."""
    folder = write_parquet(tmp_path / "set", image_splits(), image_features())
    first, second = load(folder), load(folder)
    assert second.train is first.train
    assert second.test is first.test
    assert second.test is not first.train


def test_a_stray_write_never_reaches_the_cache(tmp_path):
    folder = write_parquet(tmp_path / "set", image_splits(), image_features())
    torch.from_numpy(load(folder).train.inputs).zero_()
    np.testing.assert_array_equal(load(folder).train.inputs, CHANNELS_FIRST[:4])


@pytest.mark.parametrize("damage", ["truncate", "remove", "manifest", "no number", "older"])
def test_damaged_or_older_entry_is_made_again_with_a_warning(tmp_path, caplog, damage):
    folder = write_parquet(tmp_path / "set", image_splits(), image_features())
    fingerprint = load(folder).fingerprint
    entry = tmp_path / "cache" / fingerprint
    if damage == "truncate":
        os.truncate(entry / "train-inputs.npy", 150)
    elif damage == "remove":
        (entry / "test-targets.npy").unlink()
    elif damage == "manifest":
        (entry / "dataset.json").write_text("{")
    else:  # as an older version has read the same files
        stored = json.loads((entry / "dataset.json").read_text())
        number = stored.pop("reading")
        older = {"reading": number - 1} if damage == "older" else {}
        (entry / "dataset.json").write_text(json.dumps({**stored, **older}))
        np.save(entry / "train-inputs.npy", 0 * CHANNELS_FIRST[:4])
    data = load(folder)
    assert "made again" in caplog.text
    assert data.fingerprint == fingerprint
    np.testing.assert_array_equal(data.train.inputs, CHANNELS_FIRST[:4])
    caplog.clear()
    load(folder)
    assert not caplog.text


def test_content_and_settings_key_the_cache(tmp_path):
    one = load(write_parquet(tmp_path / "one", image_splits(), image_features()))
    same = load(write_parquet(tmp_path / "two", image_splits(), image_features()))
    other = load(write_parquet(tmp_path / "three", image_splits(train=3), image_features()))
    swapped = load(tmp_path / "one", train_split="test", test_split="train")
    assert one.fingerprint == same.fingerprint
    assert len({one.fingerprint, other.fingerprint, swapped.fingerprint}) == 3


def test_another_part_held_out_is_another_entry(tmp_path):
    """Else a run would be tested on what an earlier one with another test-fraction held out."""
    folder = without_test(tmp_path / "set", 6)
    data = [load(folder, test_fraction=fraction) for fraction in (0.2, 0.5, 0.2)]
    assert [(len(each.train), len(each.test)) for each in data] == [(5, 1), (3, 3), (5, 1)]
    assert data[0].fingerprint == data[2].fingerprint != data[1].fingerprint


def test_starts_at_the_same_time_decode_once(tmp_path, monkeypatch):
    folder = write_parquet(tmp_path / "set", image_splits(), image_features())
    built = []

    def slowly(config, source):
        built.append(source)
        time.sleep(0.3)
        return build_dataset(config, source)

    monkeypatch.setattr("fedapp.data.load.build_dataset", slowly)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(load, [folder] * 4))
    assert len(built) == 1
    assert {int(data.train.inputs.sum()) for data in found} == {int(PIXELS[:4].sum())}
    assert len([path for path in (tmp_path / "cache").iterdir() if path.is_dir()]) == 1


def test_a_missing_test_split_can_be_held_out(tmp_path):
    splits = {"train": {"image": [png(pixels) for pixels in PIXELS], "label": [0, 1] * 3}}
    folder = write_parquet(tmp_path / "set", splits, image_features())
    data = load(folder, test_fraction=0.34)
    assert (len(data.train), len(data.test)) == (4, 2)
    both = np.concatenate([data.train.inputs, data.test.inputs])
    assert {image.tobytes() for image in both} == {image.tobytes() for image in CHANNELS_FIRST}


def test_a_part_is_held_out_where_the_only_split_is_also_the_test_split(tmp_path):
    folder = write_parquet(tmp_path / "set", {"test": image_splits()["train"]}, image_features())
    data = load(folder, train_split="test", test_fraction=0.25)
    assert (len(data.train), len(data.test)) == (3, 1)


def test_node_data_needs_no_test_split(tmp_path):
    """Nor is what a node has read taken for the server's data, which need one."""
    folder = without_test(tmp_path / "set")
    config = read_config({"data-cache": str(tmp_path / "cache")})
    data = load_node_data(config, str(folder))
    assert len(data.train) == 4
    assert data.test.inputs.shape == (0, 3, 5, 4)
    assert len(load_node_data(config, str(folder)).test) == 0
    with pytest.raises(DataError, match=r"It has: train\. Set test-fraction=0\.2"):
        load(folder)


def test_a_class_may_be_held_out_whole(tmp_path):
    """Plain integer labels are counted before: all but one of these eight test."""
    splits = {"train": {"image": [png(PIXELS[0])] * 8, "label": [*range(7, -1, -1)]}}
    features = {"image": datasets.Image(), "label": datasets.Value("int64")}
    data = load(write_parquet(tmp_path / "set", splits, features), test_fraction=0.9)
    assert (len(data.train), data.task.num_classes) == (1, 8)


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "shape", "sizes"),
    [
        ("mnist", (1, 28, 28), (60000, 10000)),
        pytest.param("cifar10", (3, 32, 32), (50000, 10000), marks=pytest.mark.nightly),
    ],
)
def test_real_images(name, shape, sizes, real_data):
    data = load_dataset(read_config({"dataset": str(real_data / name)}))
    assert data.task.input_shape == shape
    assert (len(data.train), len(data.test)) == sizes
    assert np.bincount(data.test.targets).sum() == 10000
    assert data.task.num_classes == 10
    sample = torch.tensor(data.train.inputs[::7])  # MNIST has a period of 10
    normal = Normalise(preset=name).test(sample, torch.float32)
    std, mean = torch.std_mean(normal, dim=(0, 2, 3), correction=0)
    torch.testing.assert_close(mean, torch.zeros(shape[0]), atol=0.02, rtol=0)
    torch.testing.assert_close(std, torch.ones(shape[0]), atol=0.02, rtol=0)


def test_only_its_owner_can_read_what_a_node_has_cached(tmp_path):
    folder = write_parquet(tmp_path / "set", image_splits(), image_features())
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o755)
    load_node_data(read_config({"data-cache": str(cache)}), str(folder))
    [own] = (path for path in cache.iterdir() if path.is_dir())
    assert stat.S_IMODE(own.stat().st_mode) == 0o700


def test_the_same_examples_are_held_out_whatever_the_seed():
    source = Source(Split(np.arange(10), np.zeros(10, np.int64)), None)
    config = read_config({"dataset": "/data", "test-fraction": 0.3, "seed": 1})
    test = hold_out_random(config, source).test
    assert test is not None
    assert test.inputs.tolist() == [2, 5, 9]


def test_images_of_several_tasks_are_in_their_rows(tmp_path, monkeypatch):
    monkeypatch.setattr("fedapp.data.readers.tables.ROWS_PER_TASK", 3)
    data = load(write_parquet(tmp_path / "set", image_splits(), image_features()))
    np.testing.assert_array_equal(data.train.inputs, CHANNELS_FIRST[:4])


def test_what_a_killed_process_left_in_the_cache_is_removed(tmp_path):
    folder = write_parquet(tmp_path / "set", image_splits(), image_features())
    entry = tmp_path / "cache" / load(folder).fingerprint
    shutil.rmtree(entry)
    (left := entry.with_name(f".new-{entry.name}-x")).mkdir()
    load(folder)
    assert not left.exists()
