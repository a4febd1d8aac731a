"""Partitions in the data cache: found again, made again when damaged or when anything differs."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedapp.config.read import defaults, read_config
from fedapp.data.dataset import Partition
from fedapp.data.load import load_dataset, load_partition
from fedapp.data.partition.iid import Iid
from fedapp.data.partition.partitioning import Partitioning
from fedapp.data.partition.shards import Shards
from tests.partitions import digest

DATASET = load_dataset(read_config(defaults()))


def config(**settings):
    named = {key.replace("__", ".").replace("_", "-"): value for key, value in settings.items()}
    return read_config({**defaults(), "partitioner": "shards", "num-clients": 10, **named})


def entries(cache: Path) -> list[Path]:
    return [path for path in cache.glob("partitions/*") if path.suffix != ".lock"]


@pytest.fixture
def cache_folder(tmp_path: Path) -> Path:
    """Each test begins with an empty cache."""
    return tmp_path / "cache"


@pytest.fixture
def splits(monkeypatch) -> list[int]:
    """The number of clients of every split that shards really make."""
    made: list[int] = []
    original = Shards.split

    def split(self, examples, num_clients, seed):
        made.append(num_clients)
        return original(self, examples, num_clients, seed)

    monkeypatch.setattr(Shards, "split", split)
    return made


def same(first: Partition, second: Partition) -> bool:
    return digest(first) == digest(second) and digest(first.test) == digest(second.test)


def test_the_second_time_it_is_read(splits, tmp_path):
    first, second = (load_partition(config(), DATASET, 10) for _ in range(2))
    assert splits == [10]
    assert same(first, second)
    assert len(entries(tmp_path / "cache")) == 1
    own = Shards().split(DATASET.train, 10, 0)
    assert digest(second) == digest(own)


def test_whatever_the_sets_depend_on_makes_another_entry(splits, monkeypatch):
    """K, a parameter, the seed, the data, the version of flwr-datasets."""
    load_partition(config(), DATASET, 10)
    load_partition(config(), DATASET, 5)
    load_partition(config(shards__per_client=3), DATASET, 10)
    load_partition(config(seed=1), DATASET, 10)
    train = DATASET.train
    turned = dataclasses.replace(train, targets=train.targets[::-1].copy())
    load_partition(config(), dataclasses.replace(DATASET, train=turned), 10)
    monkeypatch.setattr("fedapp.data.cache.version", lambda name: f"{name} of tomorrow")
    load_partition(config(), DATASET, 10)
    assert splits == [10, 5, 10, 10, 10, 10]


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-100],
        lambda content: content[:1_000] + bytes([content[1_000] ^ 1]) + content[1_001:],
        lambda content: b"",
    ],
    ids=["cut off", "one bit", "empty"],
)
def test_a_damaged_entry_is_made_again_with_a_warning(splits, tmp_path, damage, caplog):
    first = load_partition(config(), DATASET, 10)
    (entry,) = entries(tmp_path / "cache")
    whole = entry.read_bytes()
    entry.write_bytes(damage(whole))
    assert same(load_partition(config(), DATASET, 10), first)
    assert splits == [10, 10]
    assert "is damaged: it is made again" in caplog.text
    assert entry.read_bytes() == whole


def test_a_cache_that_cannot_be_written_is_done_without(splits, tmp_path, caplog):
    (tmp_path / "blocked").write_text("a file")
    blocked = config(data_cache=str(tmp_path / "blocked" / "cache"))
    first, second = (load_partition(blocked, DATASET, 10) for _ in range(2))
    assert same(first, second)
    assert splits == [10, 10]
    assert caplog.text.count("the partition cannot be stored") == 2
    assert "FEDAPP_CACHE" in caplog.text


def test_a_full_disk_is_done_without(splits, tmp_path, monkeypatch, caplog):
    def full(path, content):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fedapp.data.cache.write_atomically", full)
    assert load_partition(config(), DATASET, 10).num_clients == 10
    assert "No space left on device" in caplog.text
    assert entries(tmp_path / "cache") == []


def test_what_is_split_in_no_time_is_not_kept(tmp_path):
    assert not Iid.cached
    assert not Partitioning.cached
    load_partition(config(partitioner="iid"), DATASET, 10)
    assert not (tmp_path / "cache").exists()


def test_a_scheme_without_test_sets_comes_back_without():
    few = dataclasses.replace(
        DATASET.test, **{name: getattr(DATASET.test, name)[:5] for name in ("inputs", "targets")}
    )
    dataset = dataclasses.replace(DATASET, test=few)
    assert [load_partition(config(), dataset, 10).test for _ in range(2)] == [None, None]


RUN = """
import json, sys
from fedapp.client_app import app as client_app
from fedapp.engines.in_process import run_inline
from fedapp.server_app import app as server_app
run_inline(server_app, client_app, json.loads(sys.argv[1]), 2)
print(json.dumps(sorted({"flwr_datasets", "datasets", "pyarrow"} & set(sys.modules))))
"""


def imported_by_a_run(folder: Path, partitioner: str) -> list[str]:
    settings = {"num-server-rounds": 1, "num-clients": 10, "pictures": False}
    run = {**settings, "partitioner": partitioner, "run-dir": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", RUN, json.dumps(run)], check=True, capture_output=True, text=True
    )
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.process
def test_a_run_on_a_kept_partition_imports_neither_flwr_datasets_nor_datasets(tmp_path):
    load_partition(config(partitioner="dirichlet"), DATASET, 10)
    assert imported_by_a_run(tmp_path / "run", "dirichlet") == []


@pytest.mark.process
def test_two_processes_split_the_same(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    assert "flwr_datasets" in imported_by_a_run(first, "shards")
    assert imported_by_a_run(second, "shards") == []
    assert (first / "partition.json").read_text() == (second / "partition.json").read_text()


def test_natural_ids_of_strings_are_a_key_too():
    ids = np.array(["b", "a"] * (len(DATASET.train) // 2), dtype=object)
    train = dataclasses.replace(DATASET.train, groups={"role": ids})
    test = dataclasses.replace(DATASET.test, groups={"role": np.array(["a"] * len(DATASET.test))})
    dataset = dataclasses.replace(DATASET, train=train, test=test)
    first, second = (load_partition(config(partitioner="natural"), dataset, 2) for _ in range(2))
    assert same(first, second)
    assert first.client(0).tolist() == list(range(1, len(ids), 2))
    turned = dataclasses.replace(
        dataset, train=dataclasses.replace(train, groups={"role": ids[::-1]})
    )
    assert load_partition(config(partitioner="natural"), turned, 2).client(0)[0] == 0


def test_other_test_examples_are_another_entry():
    test = DATASET.test
    turned = dataclasses.replace(test, targets=test.targets[::-1].copy())
    one, other = (
        load_partition(config(), dataclasses.replace(DATASET, test=each), 10).test
        for each in (test, turned)
    )
    assert one.indices.tolist() != other.indices.tolist()
