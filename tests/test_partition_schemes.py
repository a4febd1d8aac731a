"""Every partitioner: properties, golden hashes, a million clients; and the other schemes."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedapp.config.read import defaults, read_config
from fedapp.config.registry import FAMILIES
from fedapp.data.dataset import Dataset, Examples, Partition, Task
from fedapp.data.load import load_partition
from fedapp.data.partition.dirichlet import Dirichlet
from fedapp.data.partition.iid import Iid
from fedapp.data.partition.label_quantity import LabelQuantity
from fedapp.data.partition.natural import Natural
from fedapp.data.partition.partitioning import by_label, by_owner
from fedapp.data.partition.sgm import Sgm
from fedapp.data.partition.shards import Shards
from fedapp.data.partition.sizes import Sizes
from fedapp.errors import ConfigError
from tests.partitions import assert_each_at_most_once, cycle, digest, labelled, split_test

FAMILY = next(family for family in FAMILIES if family.key == "partitioner")

VARIANTS = [
    *(component() for component in FAMILY.components().values()),
    Shards(per_client=3, drop_remainder=True),
    Shards(sigma=0.9),
    Dirichlet(alpha=0.05, min_size=0),
    Dirichlet(alpha=1.0, sigma=0.9),
    Dirichlet(alpha=0.2, self_balancing=True),
    LabelQuantity(labels=1),
    Sgm(sigma=2.0),
    Sizes(growth="square"),
    Sizes(growth="exponential"),
]
USE_ALL = (Iid, Shards, Dirichlet, Sgm, Sizes)
"""Schemes that leave out no example, unless told to drop a remainder."""


def ids(partitioner) -> str:
    return f"{partitioner.name} {partitioner}"


def with_roles(examples: Examples, roles: int) -> Examples:
    column = np.array([f"role-{i % roles}" for i in range(len(examples))])
    return Examples(examples.inputs, examples.targets, {"role": column})


@pytest.mark.parametrize("partitioner", VARIANTS, ids=ids)
@given(
    targets=st.lists(st.integers(0, 5), min_size=60, max_size=120),
    num_clients=st.integers(1, 12),
    seed=st.integers(0, 2**40),
)
def test_properties(partitioner, targets, num_clients, seed):
    examples = with_roles(labelled(targets), 8)
    try:
        partition = partitioner.split(examples, num_clients, seed)
    except ConfigError as error:
        refusal = str(error)
    else:
        refusal = ""
    if refusal:
        assert f"num-clients = {num_clients}" in refusal or f"{partitioner.name}." in refusal
        return
    assert partition.num_clients == num_clients
    assert_each_at_most_once(partition, len(targets))
    if isinstance(partitioner, USE_ALL) and not getattr(partitioner, "drop_remainder", False):
        assert len(partition.indices) == len(targets)
    if getattr(partitioner, "min_size", 1):
        assert partition.sizes.min() >= 1
    again = partitioner.split(examples, num_clients, seed)
    assert digest(again) == digest(partition)
    tests = split_test(partitioner, with_roles(cycle(60, 6), 8), examples, num_clients, seed)
    if tests is not None:
        assert tests.num_clients == num_clients
        assert_each_at_most_once(tests, 60)


@pytest.mark.parametrize("partitioner", VARIANTS, ids=ids)
def test_more_clients_than_examples_is_an_error_or_leaves_clients_empty(partitioner):
    if getattr(partitioner, "min_size", 1) == 0:
        assert (partitioner.split(cycle(10), 50, 0).sizes == 0).sum() >= 40
        return
    with pytest.raises(ConfigError, match="num-clients = 50"):
        partitioner.split(with_roles(cycle(10), 5), 50, 0)


@pytest.mark.parametrize(
    "partitioner", [Iid(), Shards(per_client=1), Sgm(), LabelQuantity(labels=1)]
)
def test_as_many_clients_as_examples_have_one_each(partitioner):
    partition = partitioner.split(cycle(5, 5), 5, 0)
    assert partition.sizes.tolist() == [1] * 5
    assert_each_at_most_once(partition, 5)


def test_the_label_of_a_token_sequence_is_its_first_target():
    targets = np.array([[0, 1], [0, 0], [1, 1], [1, 0]])
    partition = Shards(per_client=1).split(Examples(np.zeros(4), targets), 2, 0)
    assert {tuple(partition.client(k)) for k in range(2)} == {(0, 1), (2, 3)}


@pytest.mark.parametrize("partitioner", [Iid(), Dirichlet(), LabelQuantity(), Sgm()])
def test_fewer_test_examples_than_clients_make_no_test_sets(partitioner):
    train = cycle(1_000)
    assert split_test(partitioner, cycle(9), train, 10, 0) is None
    assert split_test(partitioner, cycle(10), train, 10, 0).num_clients == 10


def test_fewer_test_examples_than_shards_make_no_test_sets():
    """Two clients of two shards: a shard without a test example would be a label that is not tested."""
    train = cycle(8, 4)
    assert split_test(Shards(), cycle(3, 4), train, 2, 0) is None
    assert split_test(Shards(), cycle(4, 4), train, 2, 0).sizes.tolist() == [2, 2]


@pytest.mark.parametrize("partitioner", [Iid(), Sgm(sigma=0.0), Sizes(), Shards(), Dirichlet()])
def test_test_sets_are_of_the_seed(partitioner):
    train, test = cycle(1_000), cycle(200)
    first, again, other = (
        digest(split_test(partitioner, test, train, 5, seed)) for seed in (1, 1, 2)
    )
    assert first == again != other


def test_test_examples_follow_the_training_examples_label_by_label():
    """Label 0: 3 and 1 of 4 training examples, so 6 and 2 of 8; label 1: 0 and 2, so 0 and 1."""
    train = np.array([0, 0, 0, 0, 1, 1, 2])
    partition = Partition(np.array([0, 2, 1, 3, 5, 4]), np.array([0, 3, 6]))
    tests = by_label(np.array([1, 0, 0, 0, 0, 0, 2, 0, 0, 0]), train, partition)
    # Nobody has the training example with label 2, and so nobody the test example.
    assert [tests.client(k).tolist() for k in range(2)] == [[1, 2, 3, 4, 5, 7], [0, 8, 9]]


@given(
    owners=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), min_size=1, max_size=60),
    labels=st.lists(st.integers(0, 3), max_size=80),
)
def test_a_clients_share_of_a_labels_test_examples_is_right_to_one(owners, labels):
    train, owner = np.array(owners).T
    partition = by_owner(owner, 5)
    tests = by_label(np.array(labels, dtype=np.int64), train, partition)
    assert_each_at_most_once(tests, len(labels))
    for label in range(4):
        n, m = (train == label).sum(), labels.count(label)
        for k in range(5):
            own = (np.array(labels)[tests.client(k)] == label).sum()
            exact = m * (train[partition.client(k)] == label).sum() / n if n else 0
            assert abs(own - exact) < 1


GOLDEN = [
    (Iid(), "1cc6490f18744e89"),
    (Shards(), "57912f727ee22143"),
    (Shards(sigma=0.9), "961b2c17ac82f9ab"),
    (Dirichlet(alpha=0.1), "a367bc9bfc28b4ea"),
    (Dirichlet(alpha=1.0, sigma=0.9), "6e66b66272154ad5"),
    (Dirichlet(alpha=0.2, self_balancing=True), "06431a0ce50df960"),
    (LabelQuantity(), "aec6dd04e67b2819"),
    (Sgm(), "440344ba41a447a4"),
    (Sizes(), "462010b31fa39adb"),
    (Sizes(growth="square"), "b0ba4b6517dc5206"),
    (Sizes(growth="exponential"), "ee2bc641b6267363"),
    (Natural(), "8a049255686911f3"),
]


@pytest.mark.parametrize(("partitioner", "expected"), GOLDEN, ids=str)
def test_golden_hash(partitioner, expected):
    """The same indices in every process, on every machine, Python and NumPy version."""
    examples = with_roles(cycle(6_000), 10)
    assert digest(partitioner.split(examples, 8, 42)) == expected


@pytest.mark.parametrize(
    "partitioner",
    [
        Iid(),
        Shards(sigma=0.5),
        Dirichlet(alpha=1.0, min_size=0, self_balancing=True),
        Dirichlet(alpha=1.0, sigma=0.5, min_size=0, self_balancing=True),
        Sgm(),
    ],
    ids=ids,
)
@pytest.mark.slow
def test_a_million_clients_in_bounded_memory(partitioner):
    """Of the schemes that are split here; those of flwr-datasets take a gigabyte, and a minute."""
    clients, n = 1_000_000, 2_000_000
    labels = np.arange(n) % 10
    examples = Examples(labels, labels, {"author": np.arange(n) // 2})
    tracemalloc.start()
    partition = partitioner.split(examples, clients, 0)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert partition.num_clients == clients
    assert partition.sizes.sum() == n
    # At most a dozen arrays of 8 bytes a client and example; lists of integers take far more.
    assert peak < 12 * 8 * (clients + n)


def test_sgm_zero_is_balanced_and_sizes_are_its_log_normal_shares():
    assert (Sgm(sigma=0.0).split(cycle(50_000), 10, 0).sizes == 5_000).all()
    sizes = [Sgm(sigma=s).split(cycle(50_000), 10, 0).sizes for s in (0.3, 0.9)]
    # The same standard normals: log ratios of sizes are proportional to sigma.
    logs = [np.log(each / each[0]) for each in sizes]
    assert np.allclose(logs[1], 3 * logs[0], atol=0.01)


def test_sgm_test_sets_have_the_same_proportions():
    train, test = cycle(50_000), cycle(10_000)
    own, tests = Sgm().split(train, 10, 0), split_test(Sgm(), test, train, 10, 0)
    assert np.allclose(own.sizes / 5, tests.sizes, atol=2)


def test_small_clients_of_sgm_may_be_without_test_examples():
    """20 test examples of 20 clients are shared out in their proportions, not one to each."""
    sizes = split_test(Sgm(sigma=2.0), cycle(20), cycle(1_000), 20, 0).sizes
    assert sizes.sum() == 20
    assert sizes.min() == 0


def test_dirichlet_with_sigma_is_unbalanced_even_at_a_huge_alpha():
    sizes = Dirichlet(alpha=1e5, sigma=0.9).split(cycle(50_000), 10, 0).sizes
    assert sizes.max() > 3 * sizes.min()
    assert np.ptp(Dirichlet(alpha=1e5).split(cycle(50_000), 10, 0).sizes) < 500


def test_shards_with_sigma_are_unbalanced_with_few_labels():
    partition = Shards(sigma=0.9).split(cycle(60_000), 100, 0)
    assert partition.sizes.sum() == 60_000
    assert partition.sizes.max() > 10 * partition.sizes.min()
    counts = [len(np.unique(partition.client(k) % 10)) for k in range(100)]
    assert np.mean(counts) < 3


def test_shards_with_sigma_need_not_divide_the_data():
    assert Shards(sigma=0.9).split(cycle(61), 3, 0).sizes.sum() == 61


@pytest.mark.parametrize(
    ("num_clients", "per_client", "said"),
    [
        (1, 2000, r"shards\.per-client to 40"),
        (3, 50, r"shards\.per-client to 13"),
        (50, 50, r"shards\.per-client to 1"),
        (30, 2, "num-clients to 20"),
    ],
)
def test_too_many_shards_say_how_many_are_possible(num_clients, per_client, said):
    examples = labelled(np.arange(40) % 10)
    with pytest.raises(
        ConfigError, match=rf"training examples\. Set {said} or less, and shards\.drop-remainder"
    ):
        Shards(per_client=per_client).split(examples, num_clients, 0)


def test_growing_sizes():
    assert Sizes().split(cycle(60), 3, 0).sizes.tolist() == [10, 20, 30]
    assert Sizes(growth="square").split(cycle(140), 3, 0).sizes.tolist() == [10, 40, 90]
    # e : e^2 : e^3 of 100 are 9.003, 24.47, 66.52; the last takes the rest.
    assert Sizes(growth="exponential").split(cycle(100), 3, 0).sizes.tolist() == [9, 24, 67]


def test_exponential_sizes_say_how_many_clients_are_possible():
    with pytest.raises(ConfigError, match="Set num-clients to 11 or less") as error:
        Sizes(growth="exponential").split(cycle(60_000), 1_000, 0)
    assert "sizes.growth = 'exponential'" in str(error.value)
    assert Sizes(growth="exponential").split(cycle(60_000), 11, 0).sizes[0] >= 1


def test_label_quantity_gives_exactly_so_many_labels_and_the_same_in_the_test_set():
    train, test = cycle(6_000), cycle(1_000)
    own = LabelQuantity(labels=3).split(train, 20, 0)
    tests = split_test(LabelQuantity(labels=3), test, train, 20, 0)
    assert len(own.indices) == 6_000
    for k in range(20):
        assert len(np.unique(own.client(k) % 10)) == 3
        assert set(own.client(k) % 10) == set(tests.client(k) % 10)
        assert k % 10 in own.client(k) % 10


def test_label_quantity_takes_a_label_of_which_there_is_just_enough():
    """Clients 0 and 1 need one of the two examples of their label each."""
    assert LabelQuantity(labels=1).split(labelled([0, 1]), 2, 0).sizes.tolist() == [1, 1]


def test_label_quantity_knows_labels_that_have_no_test_examples():
    """Labels 0, 1, 2 for clients 0, 1, 2; no test example has label 1."""
    train, test = labelled([0, 1, 2]), labelled([2, 0, 2])
    tests = split_test(LabelQuantity(labels=1), test, train, 3, 0)
    assert [tests.client(k).tolist() for k in range(3)] == [[1], [], [0, 2]]


def test_label_quantity_errors():
    with pytest.raises(ConfigError, match=r"label-quantity\.labels = 11: .* Set it to 10 or less"):
        LabelQuantity(labels=11).split(cycle(100), 5, 0)
    with pytest.raises(
        ConfigError, match=r"more clients need a label than .*Label: 1 .*\(3\).*\(1\)\)"
    ):
        LabelQuantity(labels=2).split(labelled([0, 0, 0, 0, 1]), 3, 0)


def natural_examples() -> tuple[Examples, Examples]:
    train, test = np.array(["b", "a", "c", "a"]), np.array(["c", "a", "z", "c"])
    return (
        Examples(np.zeros(4), np.zeros(4, dtype=np.int64), {"role": train}),
        Examples(np.zeros(4), np.zeros(4, dtype=np.int64), {"role": test}),
    )


def test_natural_clients_are_the_sorted_ids_in_training_and_test_data():
    train, test = natural_examples()
    own, tests = Natural().split(train, 3, 0), split_test(Natural(), test, train, 3, 0)
    assert [own.client(k).tolist() for k in range(3)] == [[1, 3], [0], [2]]
    # "b" has no test example, and "z" is nobody's.
    assert [tests.client(k).tolist() for k in range(3)] == [[1], [], [0, 3]]


def test_natural_clients_are_those_of_client_id_where_there_are_further_columns():
    train, _ = natural_examples()
    columns = {**train.groups, "client_id": np.array([1, 0, 0, 1])}
    own = Natural().split(Examples(train.inputs, train.targets, columns), 2, 0)
    assert [own.client(k).tolist() for k in range(2)] == [[1, 2], [0, 3]]


def test_fewer_clients_than_ids_are_whole_ids():
    train, test = natural_examples()
    own = Natural().split(train, 2, 0)
    tests = split_test(Natural(), test, train, 2, 0)
    for k in range(2):
        roles = set(train.groups["role"][own.client(k)])
        assert len(roles) == 1
        assert set(test.groups["role"][tests.client(k)]) <= roles


def test_natural_errors():
    train, _ = natural_examples()
    with pytest.raises(ConfigError, match=r"num-clients = 4: .* only 3 natural clients"):
        Natural().split(train, 4, 0)
    with pytest.raises(ConfigError, match=r"natural\.column = 'author': must be one of .* role"):
        Natural(column="author").split(train, 3, 0)
    with pytest.raises(ConfigError, match=r"partitioner = 'natural'.*no column of client ids"):
        Natural().split(cycle(10), 3, 0)
    two = Examples(train.inputs, train.targets, {**train.groups, "play": train.groups["role"]})
    with pytest.raises(ConfigError, match=r"natural\.column = ''.* play, role"):
        Natural().split(two, 3, 0)


def test_every_partitioner_works_from_the_configuration():
    train, test = (with_roles(cycle(n), 10) for n in (600, 100))
    dataset = Dataset("test", Task("vector", (1,), 10), train, test, "test")
    for name in FAMILY.components():
        config = read_config({**defaults(), "partitioner": name, "num-clients": 10})
        partition = load_partition(config, dataset, 10)
        assert partition.num_clients == 10
        assert partition.test.num_clients == 10
