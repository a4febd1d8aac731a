"""Partitions by flwr-datasets: its sets, in our order, and the private map that they are taken from."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from fedapp.config.read import defaults, read_config
from fedapp.data.dataset import Examples, Partition
from fedapp.data.load import load_dataset
from fedapp.data.partition.dirichlet import Dirichlet
from fedapp.data.partition.iid import Iid
from fedapp.data.partition.label_quantity import LabelQuantity
from fedapp.data.partition.natural import Natural
from fedapp.data.partition.partitioning import BY, PURPOSE, index_sets
from fedapp.data.partition.sgm import Sgm
from fedapp.data.partition.shards import Shards
from fedapp.data.partition.sizes import Sizes
from fedapp.errors import ConfigError
from fedapp.seeds import generator

partitioners = pytest.importorskip("flwr_datasets.partitioner")
datasets = pytest.importorskip("datasets")

N, K, SEED = 1_200, 12, 7
LABELS = generator(0, "test-labels").integers(0, 10, N)
ROLES = np.array([f"role-{i % K:02d}" for i in range(N)])
EXAMPLES = Examples(LABELS, LABELS, {"role": ROLES})


def rng() -> np.random.Generator:
    """The generator from which our partition is drawn; flwr-datasets takes it as its seed."""
    return generator(SEED, PURPOSE)


def flower_sets(partitioner, order=None) -> list[list[int]]:
    order = np.arange(N) if order is None else order
    partitioner.dataset = datasets.Dataset.from_dict(
        {"index": order, "label": LABELS[order], "role": ROLES[order]}
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [sorted(partitioner.load_partition(k)["index"]) for k in range(K)]


def our_sets(partition: Partition, clients: int = K) -> list[list[int]]:
    return [sorted(partition.client(k).tolist()) for k in range(clients)]


@pytest.mark.parametrize(
    ("ours", "flower"),
    [
        (
            Shards(drop_remainder=True),
            lambda: partitioners.ShardPartitioner(
                K, "label", num_shards_per_partition=2, seed=rng()
            ),
        ),
        (
            Shards(per_client=7, drop_remainder=True),
            lambda: partitioners.ShardPartitioner(
                K, "label", num_shards_per_partition=7, seed=rng()
            ),
        ),
        (
            Dirichlet(alpha=0.2, min_size=20),
            lambda: partitioners.DirichletPartitioner(
                K, "label", alpha=0.2, min_partition_size=20, shuffle=False, seed=rng()
            ),
        ),
        (
            Dirichlet(alpha=0.2, self_balancing=True),
            lambda: partitioners.DirichletPartitioner(
                K,
                "label",
                alpha=0.2,
                min_partition_size=1,
                self_balancing=True,
                shuffle=False,
                seed=rng(),
            ),
        ),
        (
            LabelQuantity(labels=3),
            lambda: partitioners.PathologicalPartitioner(
                K,
                "label",
                num_classes_per_partition=3,
                class_assignment_mode="first-deterministic",
                shuffle=False,
                seed=rng(),
            ),
        ),
        (Natural(), lambda: partitioners.NaturalIdPartitioner("role")),
    ],
    ids=["shards-2", "shards-7", "dirichlet", "dirichlet-balanced", "label-quantity", "natural"],
)
def test_label_schemes_equal_flower(ours, flower):
    assert our_sets(ours.split(EXAMPLES, K, SEED)) == flower_sets(flower())


MAKERS = {
    "shards": lambda: partitioners.ShardPartitioner(
        K, BY, num_shards_per_partition=7, shuffle=False, seed=rng()
    ),
    "dirichlet": lambda: partitioners.DirichletPartitioner(
        K, BY, alpha=0.2, min_partition_size=20, shuffle=False, seed=rng()
    ),
    "label-quantity": lambda: partitioners.PathologicalPartitioner(
        K, BY, num_classes_per_partition=3, shuffle=False, seed=rng()
    ),
    "natural": lambda: partitioners.NaturalIdPartitioner(BY),
}


@pytest.mark.parametrize("name", MAKERS)
def test_the_private_map_is_what_load_partition_gives(name, capfd):
    """If this fails, flwr-datasets has changed the map that ``index_sets`` reads."""
    values = ROLES if name == "natural" else LABELS
    partitioner = MAKERS[name]()
    sets = index_sets(partitioner, values)
    assert len(sets) == K
    for client, indices in enumerate(sets):
        assert indices.tolist() == list(partitioner.load_partition(client)["index"])
        assert values[indices].tolist() == list(partitioner.load_partition(client)[BY])
    assert capfd.readouterr() == ("", "")


def test_a_draw_beyond_flowers_eleven_is_the_one_that_it_makes_when_it_is_called_again():
    ours, seed, clients = Dirichlet(alpha=0.5, min_size=29), 2, 24
    labels = load_dataset(read_config(defaults())).train.targets
    source, calls = generator(seed, PURPOSE), 0
    while True:
        calls += 1
        flower = partitioners.DirichletPartitioner(
            clients, BY, alpha=0.5, min_partition_size=29, shuffle=False, seed=source
        )
        try:
            sets = index_sets(flower, labels)
        except ValueError:
            continue
        break
    assert calls == 3
    partition = ours.split(Examples(labels, labels), clients, seed)
    assert our_sets(partition, clients) == [sorted(each.tolist()) for each in sets]
    with pytest.raises(ConfigError, match=r"none of 22 draws"):
        Dirichlet(alpha=0.5, min_size=29, max_tries=22).split(
            Examples(labels, labels), clients, seed
        )


def test_self_balancing_is_flowers_rule_with_sums_that_round_otherwise():
    """Why it is split here: Flower adds a label's shares one by one, and NumPy in blocks."""
    moved, ours = [], Dirichlet(alpha=0.1, min_size=0, self_balancing=True)
    for seed in range(8):
        flower = partitioners.DirichletPartitioner(
            50, BY, 0.1, 0, self_balancing=True, shuffle=False, seed=generator(seed, PURPOSE)
        )
        sets, partition = index_sets(flower, LABELS), ours.split(EXAMPLES, 50, seed)
        moved += [sum(len(set(partition.client(k)) - set(sets[k].tolist())) for k in range(50))]
    assert 0 < max(moved) <= 10  # at most one example of each label


@pytest.mark.parametrize(
    ("ours", "flower"),
    [
        (Iid(), lambda: partitioners.IidPartitioner(K)),
        (Sizes(growth="linear"), lambda: partitioners.LinearPartitioner(K)),
        (Sizes(growth="square"), lambda: partitioners.SquarePartitioner(K)),
    ],
    ids=["iid", "linear", "square"],
)
def test_size_schemes_equal_flower_on_shuffled_data(ours, flower):
    order = rng().permutation(N)
    assert our_sets(ours.split(EXAMPLES, K, SEED)) == flower_sets(flower(), order)


def test_exponential_sizes_equal_flower():
    partitioner = partitioners.ExponentialPartitioner(6)
    partitioner.dataset = datasets.Dataset.from_dict({"index": range(N)})
    sizes = [len(partitioner.load_partition(k)) for k in range(6)]
    assert Sizes(growth="exponential").split(EXAMPLES, 6, SEED).sizes.tolist() == sizes


@pytest.mark.parametrize("ours", [Sgm(), Dirichlet(), Natural()], ids=lambda p: p.name)
def test_every_scheme_is_a_flower_partitioner(ours):
    from fedapp.data.flower_partitioner import ComponentPartitioner

    partitioner = ComponentPartitioner(ours, K, "label", SEED, column="role")
    assert isinstance(partitioner, partitioners.Partitioner)
    assert flower_sets(partitioner) == our_sets(ours.split(EXAMPLES, K, SEED))
    assert partitioner.num_partitions == K
