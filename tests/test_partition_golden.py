"""The index sets of every scheme on real labels, in their order inside each client, as hashes.

The order inside a client is part of the numbers: batches are drawn by position. Who moves a set or an
order changes every run on it, and changes the hash here in a commit that says so.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from fedapp.config.read import defaults, read_config
from fedapp.data.dataset import Examples, Partition
from fedapp.data.load import load_dataset
from fedapp.data.partition.dirichlet import Dirichlet
from fedapp.data.partition.iid import Iid
from fedapp.data.partition.label_quantity import LabelQuantity
from fedapp.data.partition.natural import Natural
from fedapp.data.partition.partitioning import Partitioning
from fedapp.data.partition.sgm import Sgm
from fedapp.data.partition.shards import Shards
from fedapp.data.partition.sizes import Sizes

ROLES = 40
"""Different ids of the column that the natural scheme splits by, more than some have clients."""

DIGITS: list[tuple[Partitioning, int, int, str, str]] = [
    (Dirichlet(alpha=0.1), 10, 0, "4e2a7435c4f8c7ca", "3c84e4236104847b"),
    (Dirichlet(alpha=0.1), 24, 3, "a8c7efa20c8bbdf8", "ef2fe48dde65e8f5"),
    (Dirichlet(alpha=0.5), 10, 0, "c8cd7508dcc77135", "c65958c4fc61dd83"),
    (Dirichlet(alpha=0.5), 24, 3, "feadae35cce3f5bc", "e0faae65c3588bac"),
    (Dirichlet(alpha=1.0), 10, 0, "45bbf05c6ba6676b", "baa5bc885dabd6d6"),
    (Dirichlet(alpha=1.0), 24, 3, "00f9b77140532256", "6486943daad404c0"),
    (Dirichlet(alpha=10.0), 10, 0, "48b97036d1012e19", "2f72733e00159320"),
    (Dirichlet(alpha=10.0), 24, 3, "04283111a50c83cb", "1406be198596a138"),
    (Dirichlet(alpha=100.0), 10, 0, "5609dbe5cc042f1b", "33699a57e0780997"),
    (Dirichlet(alpha=100.0), 24, 3, "cb55935270eb9281", "67f03b05b3570816"),
    (Dirichlet(alpha=0.05, min_size=0), 10, 0, "cc5e83e814d3fc25", "5a7610dac242f9de"),
    (Dirichlet(alpha=0.05, min_size=0), 24, 3, "22cfc32b63a4c646", "47c21810730aae19"),
    (Dirichlet(alpha=0.3, min_size=20), 10, 0, "1080cc5c6f16c813", "954a34063f6a2907"),
    (Dirichlet(alpha=0.3, min_size=20), 24, 3, "4486968caa8bb312", "c8a8a8456b81fc1d"),
    # After more than 22 draws.
    (Dirichlet(alpha=0.5, min_size=29), 24, 2, "15e4822958df3fa3", "12088e5b2cd4e642"),
    (Dirichlet(alpha=0.5, self_balancing=True), 10, 0, "196b780f0952440d", "0080a1183f7305a6"),
    (Dirichlet(alpha=0.5, self_balancing=True), 24, 3, "2940b98cc15b75a2", "98c54ab5fe1f7682"),
    (
        Dirichlet(alpha=0.1, self_balancing=True, min_size=5),
        10,
        0,
        "9f7b8ed3d6b40fc9",
        "2ce00e09386cd61d",
    ),
    (
        Dirichlet(alpha=0.1, self_balancing=True, min_size=5),
        24,
        3,
        "d6e88f729c2cfa6a",
        "997e353d0b6c868a",
    ),
    (Dirichlet(alpha=1.0, sigma=0.9), 10, 0, "e457b2fb2dde2943", "ddcd16e79e8ea165"),
    (Dirichlet(alpha=1.0, sigma=0.9), 24, 3, "d79f7885ef4a3f7a", "fca173c90af942d5"),
    (
        Dirichlet(alpha=1.0, sigma=0.9, self_balancing=True),
        10,
        0,
        "87a3509732a2231e",
        "10b5d3c4c777f56f",
    ),
    (
        Dirichlet(alpha=1.0, sigma=0.9, self_balancing=True),
        24,
        3,
        "be14aac6b0fff126",
        "e8d88538843f7c81",
    ),
    (Shards(), 10, 0, "58bf20c537e508a3", "26a28057fb6ebdab"),
    (Shards(), 24, 3, "40ea6a2db531fe2a", "59bb7c3e993764bb"),
    (Shards(per_client=1), 10, 0, "5186a5a6185737b0", "30e87cccb805d66f"),
    (Shards(per_client=1), 24, 3, "433ebd0853efffba", "4717901531713964"),
    (Shards(per_client=3, drop_remainder=True), 10, 0, "934927d2fd7f5376", "8d4dbc29707b90fd"),
    (Shards(per_client=3, drop_remainder=True), 24, 3, "122d3f64396abeed", "bd0504e3aa80e966"),
    (Shards(per_client=7, drop_remainder=True), 10, 0, "765802d8315360bd", "78d09ad9fb24d225"),
    (Shards(per_client=7, drop_remainder=True), 24, 3, "0db2354cf7a8c100", "05173d5c5fdebeb4"),
    (Shards(sigma=0.9), 10, 0, "119fe37cf5913e93", "524ac14ae579075e"),
    (Shards(sigma=0.9), 24, 3, "906466bc73dddc54", "2347ab516f5e517b"),
    (LabelQuantity(labels=1), 10, 0, "32a07bf4c0d02537", "91eb13d9149bb5c0"),
    (LabelQuantity(labels=1), 24, 3, "ddb0e41d243f0077", "c36091d719b8726d"),
    (LabelQuantity(), 10, 0, "c5d89b1e810aa1c0", "b5322322bfff2ed6"),
    (LabelQuantity(), 24, 3, "deabad54805fd571", "055cb42e0ad12b9d"),
    (LabelQuantity(labels=3), 10, 0, "2f72ac55ca296ea0", "41856c92144691b7"),
    (LabelQuantity(labels=3), 24, 3, "e6e167961245b8f6", "cadc95f95a564e03"),
    (Natural(), 10, 0, "aae0cea2eb1f8840", "e57db41f5eb9ad13"),
    (Natural(), 24, 3, "e0bc1c99dbfc37b3", "dae55b6093a06e81"),
    (Iid(), 10, 0, "bf7df4ed3e6f585a", "5b64d22ab1451437"),
    (Iid(), 24, 3, "1dfc2d52c431b169", "5bb90d8ba113c30f"),
    (Sgm(), 10, 0, "d8b263de0d4528c7", "b39a5e1376e394f0"),
    (Sgm(), 24, 3, "d597e87f164e7789", "ad2bd4077cd313f1"),
    (Sgm(sigma=0.0), 10, 0, "bf7df4ed3e6f585a", "5b64d22ab1451437"),
    (Sgm(sigma=0.0), 24, 3, "1dfc2d52c431b169", "5bb90d8ba113c30f"),
    (Sgm(sigma=1.5), 10, 0, "21e584d6db395979", "2bd3d426615b4ff1"),
    (Sgm(sigma=1.5), 24, 3, "0b9a081b270be500", "26fe79e5a93272c3"),
    (Sizes(), 10, 0, "1323c4927a302a52", "7f33626a77e7b044"),
    (Sizes(), 24, 3, "54929bb4c3cff7f5", "e4aed9180b99ed5f"),
    (Sizes(growth="square"), 10, 0, "81ceb6982598d291", "5438ce6f24113285"),
    (Sizes(growth="exponential"), 6, 0, "598cd56c5dccdde0", "6f63b98efd3211cc"),
    (Sizes(growth="exponential"), 6, 3, "5a1259d97af7c06f", "3c22d8c95400f52c"),
]
"""Scheme, K, seed, hash of the training and of the test sets."""

MNIST: list[tuple[Partitioning, int, int, str, str]] = [
    (Dirichlet(alpha=0.1), 100, 0, "9ef09cd4d4f9c119", "fb41479515c4c97d"),
    (Dirichlet(alpha=0.5), 100, 0, "c770a20e313acf5c", "12c13f8ebccea338"),
    (Dirichlet(alpha=1.0), 100, 0, "31ed1721d453a995", "d0f865925eda8c4b"),
    (Dirichlet(alpha=10.0), 100, 0, "ef73d3d016af9225", "8e7d3f15662c01ba"),
    (Dirichlet(alpha=100.0), 100, 0, "6b63d41d90a82f71", "0592d609b2739f68"),
    (Dirichlet(alpha=0.05, min_size=0), 100, 0, "cb278ee754b77efe", "a7a64e9bde762db4"),
    (Dirichlet(alpha=0.3, min_size=20), 100, 0, "09c9e251ce046431", "6c14a5ec8f0d7016"),
    (Dirichlet(alpha=0.5, self_balancing=True), 100, 0, "3504064868bb1a2c", "1ae06783825d6ece"),
    (
        Dirichlet(alpha=0.1, self_balancing=True, min_size=5),
        100,
        0,
        "318d23a0861f9fbd",
        "85865d21b0833316",
    ),
    (Dirichlet(alpha=1.0, sigma=0.9), 100, 0, "0315f2c9fe2bff4c", "705e244292612655"),
    (
        Dirichlet(alpha=1.0, sigma=0.9, self_balancing=True),
        100,
        0,
        "373725e1676c6a0f",
        "02e60e32b4e2f04b",
    ),
    (Shards(), 100, 0, "92a69f93336a1794", "149180aeefb791f5"),
    (Shards(per_client=1), 100, 0, "c270803e09f6001d", "cfdc7a54e7e606f0"),
    (Shards(per_client=3, drop_remainder=True), 100, 0, "a0155612c5c2e066", "170cd15dc9f8875c"),
    (Shards(per_client=7, drop_remainder=True), 100, 0, "84c54cf3f90d43a0", "a257c03db6a3247a"),
    (Shards(sigma=0.9), 100, 0, "313948092c5aff83", "85c8f03201a5dbdf"),
    (LabelQuantity(labels=1), 100, 0, "07b7742953aca16c", "b97597990dfdf949"),
    (LabelQuantity(), 100, 0, "7a7b0038711bbb1b", "c81f25ae0ec34122"),
    (LabelQuantity(labels=3), 100, 0, "4b9a78128cf41dfb", "3ae1548256addf69"),
    (Natural(), 40, 0, "cc3cc60441294cff", "f9f35176c03bab86"),
    (Iid(), 100, 0, "3e08c62f7d313fe6", "96a2d1ade3f9d18f"),
    (Sgm(), 100, 0, "eae54627f3b30497", "97a2d94fd49055a0"),
    (Sgm(sigma=0.0), 100, 0, "3e08c62f7d313fe6", "96a2d1ade3f9d18f"),
    (Sgm(sigma=1.5), 100, 0, "8af5189402b14c07", "964f73ef3c699607"),
    (Sizes(), 100, 0, "a915127174b85245", "1a6bab68fb44400a"),
    (Sizes(growth="exponential"), 6, 0, "a6fd3221fbbc6fad", "087300a9f62b409b"),
]


def digest(partition: Partition | None) -> str:
    """Return the SHA-256 of the sizes and of all clients' indices one after the other, as int64."""
    if partition is None:
        return "none"
    clients = [partition.client(k) for k in range(partition.num_clients)]
    parts = [np.concatenate(clients), partition.sizes]
    return hashlib.sha256(b"".join(part.astype("<i8").tobytes() for part in parts)).hexdigest()[:16]


def with_roles(examples: Examples) -> Examples:
    """Return the labels with a column of ids of very different frequencies, out of order."""
    number = np.arange(len(examples)) ** 2 * 7 % 1_009 % ROLES
    return Examples(examples.targets, examples.targets, {"role": number})


@cache
def digits() -> tuple[Examples, Examples]:
    dataset = load_dataset(read_config(defaults()))
    return with_roles(dataset.train), with_roles(dataset.test)


@cache
def mnist(folder: Path) -> tuple[Examples, Examples]:
    parquet = pytest.importorskip("pyarrow.parquet")
    splits = []
    for split in ("train", "test"):
        (file,) = (folder / "mnist").glob(f"{split}-*.parquet")
        labels = parquet.read_table(file, columns=["label"])["label"].to_numpy()
        splits.append(with_roles(Examples(labels, labels)))
    return splits[0], splits[1]


def hashes(
    partitioner: Partitioning, num_clients: int, seed: int, data: tuple[Examples, Examples]
) -> tuple[str, str]:
    train, test = data
    partition = partitioner.split(train, num_clients, seed)
    return digest(partition), digest(partitioner.split_test(test, train, partition, seed))


def name(value: object) -> str | None:
    return f"{value.name} {value}" if isinstance(value, Partitioning) else None


@pytest.mark.parametrize(("scheme", "num_clients", "seed", "train", "test"), DIGITS, ids=name)
def test_the_sets_of_the_digits(scheme, num_clients, seed, train, test):
    assert hashes(scheme, num_clients, seed, digits()) == (train, test)


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "num_clients", "seed", "train", "test"), MNIST, ids=name)
def test_the_sets_of_mnist(scheme, num_clients, seed, train, test, real_data):
    assert hashes(scheme, num_clients, seed, mnist(real_data)) == (train, test)


def test_hash_by_hand():
    """Clients (2, 0) and (1): another order inside a client is another hash, as is another cut."""
    same, turned, cut = (
        digest(Partition(np.array(indices), np.array(offsets)))
        for indices, offsets in (
            ([2, 0, 1], [0, 2, 3]),
            ([0, 2, 1], [0, 2, 3]),
            ([2, 0, 1], [0, 1, 3]),
        )
    )
    content = np.array([2, 0, 1, 2, 1], "<i8").tobytes()
    assert same == hashlib.sha256(content).hexdigest()[:16]
    assert len({same, turned, cut}) == 3
