"""IID, shards and Dirichlet: hand-derived numbers, errors, hopeless settings."""

from __future__ import annotations

import numpy as np
import pytest

from fedapp.config.read import defaults, read_config
from fedapp.data.dataset import Examples
from fedapp.data.load import load_dataset, load_partition
from fedapp.data.partition.dirichlet import Dirichlet
from fedapp.data.partition.iid import Iid
from fedapp.data.partition.label_quantity import LabelQuantity
from fedapp.data.partition.shards import Shards
from fedapp.errors import ConfigError
from tests.partitions import assert_each_at_most_once, cycle, digest, labelled, split_test


def test_shards_of_mnist_shape():
    partition = Shards().split(cycle(60_000), 100, 0)
    labels = np.arange(60_000) % 10
    assert_each_at_most_once(partition, 60_000)
    assert (partition.sizes == 600).all()
    counts = [len(set(labels[partition.client(k)])) for k in range(100)]
    # 6,000 examples a label are exactly 20 shards of 300: no shard has two labels.
    assert set(counts) <= {1, 2}
    assert counts.count(2) > 80


def test_a_shard_is_consecutive_in_label_order():
    partition = Shards(per_client=1).split(labelled([2, 0, 1, 0, 2, 1]), 3, 5)
    assert {tuple(partition.client(k)) for k in range(3)} == {(1, 3), (2, 5), (0, 4)}


def test_shards_that_do_not_divide_name_the_keys_and_what_divides():
    with pytest.raises(ConfigError) as error:
        Shards().split(cycle(60_000), 7, 0)
    message = str(error.value)
    for part in ("num-clients = 7", "shards.per-client = 2", "14 shards", "60000", "6 or 8"):
        assert part in message
    assert "shards.drop-remainder=true, which leaves out 10 of them" in message


def test_shards_of_a_prime_number_of_examples_advise_to_drop():
    with pytest.raises(ConfigError, match=r"fix it, set shards\.drop-remainder=true"):
        Shards().split(cycle(1433), 20, 0)


def test_dropping_the_remainder_keeps_sizes_equal():
    partition = Shards(drop_remainder=True).split(cycle(1433), 20, 0)
    assert_each_at_most_once(partition, 1433)
    assert (partition.sizes == 70).all()


def test_more_shards_than_examples():
    with pytest.raises(ConfigError, match="Set num-clients to 5 or less"):
        Shards().split(cycle(10), 6, 0)


def test_test_shards_have_the_clients_own_labels():
    train, test = cycle(60_000), cycle(10_000)
    parts = Shards().split(train, 100, 3), split_test(Shards(), test, train, 100, 3)
    assert (parts[1].sizes == 100).all()
    assert_each_at_most_once(parts[1], 10_000)
    for k in range(100):
        assert set(parts[0].client(k) % 10) == set(parts[1].client(k) % 10)


def test_dirichlet_with_a_huge_alpha_is_even():
    partition = Dirichlet(alpha=1e6).split(cycle(1000), 10, 0)
    assert_each_at_most_once(partition, 1000)
    assert partition.sizes.sum() == 1000
    assert abs(partition.sizes - 100).max() <= 10


def test_dirichlet_with_a_small_alpha_is_skewed_and_its_test_sets_alike():
    train, test = cycle(10_000), cycle(5_000)
    partition = Dirichlet(alpha=0.1).split(train, 10, 0)
    tests = split_test(Dirichlet(alpha=0.1), test, train, 10, 0)
    assert_each_at_most_once(tests, 5_000)
    assert tests.sizes.sum() == 5_000
    for k in range(10):
        own = np.bincount(partition.client(k) % 10, minlength=10)
        assert np.allclose(own / 2, np.bincount(tests.client(k) % 10, minlength=10), atol=1)


def test_self_balancing_keeps_sizes_near_the_mean():
    plain = Dirichlet(alpha=0.1).split(cycle(10_000), 10, 0).sizes
    balanced = Dirichlet(alpha=0.1, self_balancing=True).split(cycle(10_000), 10, 0).sizes
    assert balanced.sum() == 10_000
    assert balanced.max() <= 2_000 < plain.max()


def test_dirichlet_min_size_is_kept():
    assert Dirichlet(alpha=0.3, min_size=50).split(cycle(2_000), 10, 1).sizes.min() >= 50


def test_hopeless_dirichlet_ends_and_names_alpha_clients_and_minimum():
    with pytest.raises(ConfigError) as error:
        Dirichlet(alpha=1e-6, min_size=10).split(cycle(1_000), 50, 0)
    for part in ("dirichlet.alpha = 1e-06", "num-clients = 50", "dirichlet.min-size = 10", "1000"):
        assert part in str(error.value)
    # Ten labels, each with one client: at least 40 of 50 stay empty, which no further draw mends.
    assert "none of 5 draws" in str(error.value)


def test_an_unlucky_dirichlet_tries_as_often_as_it_may():
    with pytest.raises(ConfigError, match=r"none of 7 draws .* left 10 clients with fewer"):
        Dirichlet(alpha=1e-6, max_tries=7).split(cycle(1_000, labels=1), 11, 0)


def test_the_best_of_several_unlucky_draws_is_what_is_said():
    """Further draws can only leave fewer clients too small than the best of those before."""
    left = []
    for tries in range(1, 9):
        with pytest.raises(ConfigError) as error:
            Dirichlet(alpha=0.3, min_size=40, max_tries=tries).split(cycle(500), 12, 0)
        left.append(int(str(error.value).split("the best left ")[1].split()[0]))
    assert left == sorted(left, reverse=True)
    assert left[-1] < left[0]


@pytest.mark.parametrize("partitioner", [Iid(), Shards(), Dirichlet()])
def test_more_clients_than_examples(partitioner):
    with pytest.raises(ConfigError, match="num-clients = 11"):
        partitioner.split(cycle(10), 11, 0)


def test_iid_test_sets_of_cifar_shape():
    train, test = cycle(50_000), cycle(10_000)
    assert (Iid().split(train, 100, 0).sizes == 500).all()
    assert (split_test(Iid(), test, train, 100, 0).sizes == 100).all()
    assert split_test(Iid(), cycle(99), train, 100, 0) is None


def test_load_partition_fills_the_test_partition():
    config = read_config({**defaults(), "num-clients": 20})
    dataset = load_dataset(config)
    partition = load_partition(config, dataset, 20)
    assert partition.sizes.sum() == len(dataset.train)
    assert partition.test.sizes.sum() == len(dataset.test)


@pytest.mark.parametrize("partitioner", [Dirichlet(), LabelQuantity()], ids=lambda p: p.name)
def test_the_targets_of_a_regression_are_no_labels(partitioner):
    targets = np.linspace(0, 1, 60)
    with pytest.raises(
        ConfigError, match=f"partitioner = '{partitioner.name}': divides each label"
    ):
        partitioner.split(Examples(targets, targets), 3, 0)


def test_shards_of_a_regression_are_sorted_by_its_targets():
    """Test targets are others, so that each client has all of them."""
    targets = np.array([0.5, -1.5, 2.5, 0.0])
    train, test = Examples(targets, targets), Examples(targets + 0.1, targets + 0.1)
    shards = Shards(per_client=1)
    partition = shards.split(train, 2, 0)
    assert {tuple(partition.client(k)) for k in range(2)} == {(1, 3), (0, 2)}
    assert shards.split_test(test, train, partition, 0) is None


def test_seeds_have_test_sets_of_their_own():
    data = load_dataset(read_config({}))
    configs = (read_config({"seed": seed, "num-clients": 10}) for seed in (0, 1))
    one, two = (load_partition(config, data, 10).test for config in configs)
    assert digest(one) != digest(two)
