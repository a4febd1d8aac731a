"""IDX files, CIFAR's files, CSV and hub names: the formats beside Parquet and image folders."""

from __future__ import annotations

import gzip
import pickle
import shutil
import struct
import zipfile
from pathlib import Path
from types import SimpleNamespace

import datasets
import huggingface_hub.constants
import numpy as np
import pytest
from PIL import Image

from fedapp.config.read import read_config
from fedapp.data.load import load_dataset, load_node_data, load_uncoded
from fedapp.data.readers.idx import read_idx
from fedapp.data.readers.tables import open_image
from fedapp.errors import ConfigError, DataError
from tests.data_files import image_features, image_splits
from tests.test_data_sources import load

RECORDS = np.random.default_rng(1).integers(0, 256, (4, 3072), dtype=np.uint8)
LABELS = [3, 0, 9, 3]
TEN = [f"class{number}" for number in range(10)]


def idx(array: np.ndarray) -> bytes:
    return (
        bytes([0, 0, 8, array.ndim])
        + struct.pack(f">{array.ndim}i", *array.shape)
        + array.tobytes()
    )


@pytest.mark.parametrize("packed", [False, True])
def test_mnist_idx_files(tmp_path, packed):
    folder = tmp_path / "mnist"
    folder.mkdir()
    pixels = RECORDS[:, : 28 * 28].reshape(4, 28, 28)
    for prefix, part in (("train", slice(0, 3)), ("t10k", slice(3, 4))):
        for kind, array in (("images-idx3", pixels), ("labels-idx1", np.array(LABELS, np.uint8))):
            data = idx(array[part])
            name = f"{prefix}-{kind}-ubyte"
            path = folder / (f"{name}.gz" if packed else name)
            path.write_bytes(gzip.compress(data) if packed else data)
    data = load(folder)
    np.testing.assert_array_equal(data.train.inputs[:, 0], pixels[:3])
    np.testing.assert_array_equal(data.test.inputs[:, 0], pixels[3:])
    assert data.train.targets.tolist() == [3, 0, 9]
    assert data.task.num_classes == 10


def write_idx(folder: Path, prefix: str, *labels: int) -> None:
    """Write black images with these labels."""
    folder.mkdir(parents=True, exist_ok=True)
    images = np.zeros((len(labels), 2, 2), np.uint8)
    (folder / f"{prefix}-images-idx3-ubyte").write_bytes(idx(images))
    (folder / f"{prefix}-labels-idx1-ubyte").write_bytes(idx(np.array(labels, np.uint8)))


@pytest.mark.parametrize(
    ("subset", "labels"),
    [("MNIST", [3, 4]), ("MNIST/raw", [3, 4]), ("Fashion", [1, 2]), ("FashionMNIST", [1, 2])],
)
def test_sets_in_folders_of_their_own_are_chosen_by_name(tmp_path, subset, labels):
    """torchvision's layout: the files of all sets have the same names."""
    for name, first in (("FashionMNIST", 1), ("MNIST", 3)):
        write_idx(tmp_path / "data" / name / "raw", "train", first, first + 1)
        write_idx(tmp_path / "data" / name / "raw", "t10k", first)
    data = load(tmp_path / "data", dataset_subset=subset)
    assert data.train.targets.tolist() == labels
    assert data.test.targets.tolist() == labels[:1]
    with pytest.raises(DataError, match=r"several sets: FashionMNIST/raw/train-, MNIST/raw/train-"):
        load(tmp_path / "data")
    with pytest.raises(DataError, match=r"dataset-subset = 'KMNIST'.*holds: Fashion"):
        load(tmp_path / "data", dataset_subset="KMNIST")
    for key in ("input_key", "label_key"):
        with pytest.raises(ConfigError, match="holds IDX files"):
            load(tmp_path / "data", dataset_subset="KMNIST", **{key: "image"})


def test_sets_in_one_folder_are_chosen_by_a_word_of_their_names(tmp_path):
    for name, label in (("mnist", 1), ("letters", 2)):
        for split in ("train", "test"):
            write_idx(tmp_path / "emnist", f"emnist-{name}-{split}", label)
    assert load(tmp_path / "emnist", dataset_subset="mnist").train.targets.tolist() == [1]
    assert load(tmp_path / "emnist", dataset_subset="lett").test.targets.tolist() == [2]
    (tmp_path / "emnist" / "emnist-letters-test-labels-idx1-ubyte").unlink()
    with pytest.raises(DataError, match=r"letters-test-images.*beside it is missing"):
        load(tmp_path / "emnist", dataset_subset="letters")


def test_hidden_idx_files_are_not_read(tmp_path):
    folder = tmp_path / "mnist"
    for split in ("train", "t10k"):
        write_idx(folder, split, 1, 2)
        write_idx(folder / ".old", split, 3, 4)
        (folder / f"._{split}-images-idx3-ubyte").write_bytes(b"not IDX")
    assert load(folder).train.targets.tolist() == [1, 2]


def test_cifar10_files(tmp_path):
    folder = tmp_path / "cifar" / "cifar-10-batches"
    folder.mkdir(parents=True)
    parts = {"data_batch_1": [0, 1], **{f"data_batch_{n}": [2] for n in range(2, 6)}}
    for name, part in {**parts, "test_batch": [3]}.items():
        labels = np.array(LABELS, np.uint8)[part]
        records = np.concatenate([labels[:, None], RECORDS[part]], axis=1)
        (folder / f"{name}.bin").write_bytes(records.tobytes())
    (folder / "batches.meta.txt").write_text("\n".join(TEN) + "\n\n")
    data = load(tmp_path / "cifar")
    train = RECORDS[[0, 1, 2, 2, 2, 2]].reshape(6, 3, 32, 32)
    np.testing.assert_array_equal(data.train.inputs, train)
    np.testing.assert_array_equal(data.test.inputs, RECORDS[3:].reshape(1, 3, 32, 32))
    assert data.train.targets.tolist() == [3, 0, 9, 9, 9, 9]
    assert data.task.labels == tuple(TEN)
    for key in ("input_key", "dataset_subset"):
        with pytest.raises(ConfigError, match="holds CIFAR batches"):
            load(tmp_path / "cifar", **{key: "image"})
    (folder / "data_batch_4.bin").unlink()
    with pytest.raises(DataError, match=r"data_batch_4.bin: is missing"):
        load(tmp_path / "cifar")


def test_cifar100_binary_has_two_labels(tmp_path):
    folder = tmp_path / "cifar100"
    folder.mkdir()
    two = np.array([[1, 3], [0, 2], [1, 1], [0, 0]], np.uint8)
    records = np.concatenate([two, RECORDS], axis=1)
    (folder / "train.bin").write_bytes(records[:3].tobytes())
    (folder / "test.bin").write_bytes(records[3:].tobytes())
    (folder / "coarse_label_names.txt").write_text("animal\nplant\n")
    (folder / "fine_label_names.txt").write_text("ant\nbee\nfir\noak\n")
    data = load(folder)
    assert data.train.targets.tolist() == [3, 2, 1]
    assert data.task.labels == ("ant", "bee", "fir", "oak")
    assert data.train.groups["coarse_label"].tolist() == [1, 0, 1]
    assert load(folder, label_key="coarse_label").task.labels == ("animal", "plant")


def test_class_names_of_another_encoding_are_named(tmp_path):
    for name in ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5"):
        (tmp_path / f"{name}.bin").write_bytes(bytes(1 + 3072))
    (tmp_path / "batches.meta.txt").write_text("caf\u00e9", encoding="latin-1")
    with pytest.raises(DataError, match=r"batches\.meta\.txt: is not UTF-8: .*Save it as UTF-8"):
        load(tmp_path, test_fraction=0.5)


def test_cifar_10_beside_cifar_100_is_refused(tmp_path):
    for name in ("cifar-10-bin/data_batch_1.bin", "cifar-10-bin/batches.meta.txt"):
        (tmp_path / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "data" / name).write_text("a")
    for name in ("cifar-100-bin/train.bin", "cifar-100-bin/coarse_label_names.txt"):
        (tmp_path / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "data" / name).write_text("a")
    with pytest.raises(
        DataError, match=r"several data sets: cifar-10 in .*, cifar-100 in .*only\.$"
    ):
        load(tmp_path / "data")


@pytest.mark.parametrize(
    ("data", "files"),
    [
        ("cifar-10", ["batches.meta", "data_batch_1"]),
        ("cifar-10", ["cifar-10-batches-py/batches.meta", "cifar-10-batches-py/data_batch_1"]),
        ("cifar-100", ["meta", "train"]),
    ],
)
def test_the_pickled_version_of_cifar_is_refused(tmp_path, data, files):
    """Nothing in it is read; the binary version beside it is."""
    folder = tmp_path / "data"
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(pickle.dumps({"data": RECORDS}))
    with pytest.raises(ConfigError, match=rf"{folder}.*Python version.*{data}-binary.tar.gz"):
        load(folder)
    with pytest.raises(ConfigError, match=rf"data-path = '{folder}'.*{data}-binary.tar.gz"):
        load_node_data(read_config({"data-cache": str(tmp_path / "cache")}), str(folder))
    (folder / "data_batch_1.bin").write_bytes(bytes([3]) + RECORDS[0].tobytes())
    (folder / "batches.meta.txt").write_text("\n".join(TEN))
    keys = {"data-cache": str(tmp_path / "cache"), "num-clients": 0}
    with pytest.raises(DataError, match=r"data_batch_2.bin: is missing"):
        load_node_data(read_config(keys), str(folder))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "not an IDX"),
        (b"\x00\x00\x0d\x01\x00\x00\x00\x00", "not an IDX"),
        (b"\x00\x00\x08\x02" + b"\xff" * 8 + b"\x00", "truncated: 13 bytes instead of"),
        (None, "truncated"),
    ],
)
def test_damaged_idx_files(tmp_path, content, said):
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(idx(np.zeros((2, 3, 3), np.uint8))[:-1] if content is None else content)
    with pytest.raises(DataError, match=rf"train-images.*{said}"):
        read_idx(path)


def test_hub_name_reads_what_the_builder_gives(tmp_path, monkeypatch):
    splits = {
        name: datasets.Dataset.from_dict(columns, datasets.Features(image_features()))
        for name, columns in image_splits().items()
    }
    builder = SimpleNamespace(
        config=SimpleNamespace(name="default"),
        hash="revision-1",
        download_and_prepare=lambda: None,
        as_dataset=lambda: datasets.DatasetDict(splits),
    )
    monkeypatch.setattr(datasets, "load_dataset_builder", lambda name, subset: builder)
    keys = {"dataset": "someone/pets", "data-cache": str(tmp_path)}
    first = load_dataset(read_config(keys))
    assert (len(first.train), len(first.test)) == (4, 2)
    assert load_dataset(read_config(keys)).fingerprint == first.fingerprint
    builder.hash = "revision-2"
    assert load_dataset(read_config(keys)).fingerprint != first.fingerprint


@pytest.mark.parametrize("prepared", [False, True])
def test_codes_keep_their_zeros_in_csv_files_from_the_hub(tmp_path, monkeypatch, prepared):
    """As in a folder; the local files stand for those that the builder downloads.

    Also if the library has prepared them before, with types of its own. Without a network they are in
    the data cache, for the same settings.
    """
    (tmp_path / "set").mkdir()
    for split in ("train", "test"):
        rows = "zip,age,label\n08001,4,0\n00501,5,1\n"
        (tmp_path / "set" / f"{split}.csv").write_text(rows)
    builder_of = datasets.load_dataset_builder
    hub = tmp_path / "hub"

    def online_builder(name, subset, cache_dir=str(hub)):
        return builder_of(str(tmp_path / "set"), subset, cache_dir=cache_dir)

    if prepared:
        builder = online_builder("someone/codes", None)
        builder.download_and_prepare()
        version = Path(builder.cache_dir).relative_to(hub).parts[2:]
        shutil.copytree(builder.cache_dir, hub.joinpath("someone___codes", "default", *version))
        monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", hub)
    monkeypatch.setattr(datasets, "load_dataset_builder", online_builder)
    keys = {"dataset": "someone/codes", "data-cache": str(tmp_path), "categorical-keys": "zip"}
    online = load_uncoded(read_config(keys))
    assert online.table.names == ("zip", "age")
    assert online.table.values == (("00501", "08001"), None)
    monkeypatch.setattr(datasets, "load_dataset_builder", builder_of)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    offline = load_uncoded(read_config(keys))
    assert offline.fingerprint == online.fingerprint
    for other in ({"categorical-keys": ""}, {"data-cache": str(tmp_path / "other")}):
        with pytest.raises(DataError, match=r"dataset = 'someone/codes'.*in its data-cache"):
            load_uncoded(read_config(keys | other))


def test_hub_name_without_network_says_what_to_set(tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    config = read_config({"dataset": "someone/nothing-here", "data-cache": str(tmp_path)})
    with pytest.raises(
        DataError, match=r"dataset = 'someone/nothing-here'.*Set dataset to the folder"
    ):
        load_dataset(config)


@pytest.mark.parametrize("kind", ["csv.gz", "zip", "tsv", "README"])
def test_codes_keep_their_zeros_in_other_forms_of_csv_files(tmp_path, kind):
    """Packed, with tabs, or with another separator that the folder's README names."""
    folder = tmp_path / "set"
    folder.mkdir()
    for split, rows in (("train", "zip,label\n08001,0\nK1A,1\n"), ("test", "zip,label\n08001,0\n")):
        if kind == "csv.gz":
            (folder / f"{split}.csv.gz").write_bytes(gzip.compress(rows.encode()))
        elif kind == "zip":
            with zipfile.ZipFile(folder / f"{split}.zip", "w") as archive:
                archive.writestr(f"{split}.csv", rows)
        elif kind == "tsv":
            (folder / f"{split}.tsv").write_text(rows.replace(",", "\t"))
        else:
            (folder / f"{split}.csv").write_text(rows.replace(",", ";"))
            (folder / "README.md").write_text(
                "---\nconfigs:\n- config_name: default\n  sep: ';'\n  data_files:\n"
                "  - split: train\n    path: train.csv\n  - split: test\n    path: test.csv\n---\n"
            )
    data = load(folder, input_keys="zip")
    assert data.task.columns == ("zip=08001", "zip=K1A")
    assert data.test.inputs.tolist() == [[1, 0]]


def declared(folder: Path, names: tuple[str, str], rows: str) -> Path:
    """Write CSV files, and a README with the types of their columns."""
    folder.mkdir()
    for split in ("train", "test"):
        (folder / f"{split}.csv").write_text(f"zip,age,day,label\n{rows}")
    (folder / "README.md").write_text(
        "---\ndataset_info:\n  features:\n  - name: zip\n    dtype: string\n  - name: age\n"
        "    dtype: int64\n  - name: day\n    dtype: timestamp[s]\n  - name: label\n    dtype:\n"
        f"      class_label:\n        names:\n          '0': {names[0]}\n          '1': {names[1]}\n---\n"
    )
    return folder


def test_declared_texts_of_csv_files_keep_their_zeros(tmp_path):
    """Columns of other declared types may have gaps, and labels may be numbers or names."""
    keys = {"input_keys": "zip,age", "missing": "mean"}
    for rows in ("08001,4,2026-01-01,0\n08002,,,1\n", "08001,4,2026-01-01,sick\n08002,,,well\n"):
        data = load(declared(tmp_path / rows[-3:-1], ("sick", "well"), rows), **keys)
        assert data.task.columns == ("zip=08001", "zip=08002", "age")
        assert (data.task.labels, data.test.targets.tolist()) == (("sick", "well"), [0, 1])


def test_names_of_classes_that_yaml_reads_as_booleans_are_texts(tmp_path):
    folder = declared(tmp_path / "set", ("no", "yes"), "08001,4,2026-01-01,0\n08002,5,,1\n")
    assert load(folder, input_keys="zip,age").task.labels == ("False", "True")


@pytest.mark.parametrize("turn", [1, 3, 6])
def test_a_photo_is_turned_as_its_exif_data_say(tmp_path, turn):
    """As viewers show it: a black left half, whatever way the camera was held."""
    pixels = np.full((16, 16), 255, np.uint8)
    pixels[:, :8] = 0
    stored = {1: pixels, 3: np.rot90(pixels, 2), 6: np.rot90(pixels)}[turn]
    exif = Image.Exif()
    exif[0x0112] = turn
    Image.fromarray(stored).save(tmp_path / "photo.jpg", quality=95, exif=exif)
    seen = np.asarray(open_image(tmp_path / "photo.jpg", "photo"))
    assert np.abs(seen.astype(int) - pixels).max() < 40
