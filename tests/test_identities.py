"""Identities of the papers: what must be equal to what, whatever the numbers are."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from fedapp.config.read import read_config
from fedapp.data.dataset import IGNORE, Examples, Task
from fedapp.data.load import load_dataset, load_transform
from fedapp.data.node_data import read_node_data
from fedapp.data.transforms.transform import Scale
from fedapp.models.lstm import CharLSTM
from fedapp.models.model import initialise
from fedapp.seeds import generator, torch_seed
from fedapp.training.build import (
    initial_parameters,
    make_evaluator,
    make_module,
    make_score,
    make_trainer,
)
from fedapp.training.client import TrainRequest, train_cohort
from fedapp.training.evaluation import Evaluator, sample_examples
from fedapp.training.round_plan import RoundPlan, client_generator
from fedapp.training.tensors import WeightedMean, weighted_mean
from strategies.fedavg import FedAvg
from tests.conftest import Run, largest_difference, slow_but, small_config
from tests.in_process import metrics, model

EXACT = 1e-12
"""float64 rounding of sums that are taken in another order."""


def test_full_batch_fedavg_is_one_gradient_step_on_the_union(run: Run) -> None:
    """E = 1, B = infinity, C = 1: FedAvg = FedSGD = gradient descent (McMahan, section 2).

    Every client steps once on its mean loss; weighted by n_k / n, the mean of the steps is a step
    on the mean loss over the union of all data.
    """
    folder = run(num_server_rounds=2, fraction_train=1.0, batch_size=0, learning_rate=0.5)
    config = small_config()
    train = load_dataset(config).train
    module = make_module(config, load_dataset(config).task)
    inputs, targets = torch.from_numpy(train.inputs).double(), torch.from_numpy(train.targets)
    for _ in range(2):
        module.zero_grad()
        F.cross_entropy(module(inputs), targets).backward()
        with torch.no_grad():
            for parameter in module.parameters():
                parameter -= 0.5 * parameter.grad
    assert largest_difference(model(folder), dict(module.named_parameters())) < EXACT


def test_option_one_with_server_rate_one_is_option_two(run: Run) -> None:
    """theta + mean(theta_k - theta) = mean(theta_k) (Seo, Algorithm 3, line 12)."""
    one = run("one", update="delta", server_learning_rate=1.0)
    two = run("two", update="model")
    assert largest_difference(model(one), model(two)) < EXACT


def test_server_rate_scales_the_first_step(run: Run) -> None:
    """After one round, theta_1 - theta_0 is proportional to eta_g (Option I)."""
    start = initial_parameters(small_config(), load_dataset(small_config()).task)
    full = model(run("full", num_server_rounds=1))
    half = model(run("half", num_server_rounds=1, server_learning_rate=0.5))
    for name, theta in start.items():
        torch.testing.assert_close(half[name] - theta, (full[name] - theta) / 2, rtol=0, atol=EXACT)


@pytest.mark.parametrize("algorithm", ["feddyn", "fedsmoo"])
def test_a_server_rate_counts_with_option_two_where_the_server_moves_by_it(
    algorithm: str, run: Run
) -> None:
    """Also with alpha = 0, without a regulariser."""
    given = {"algorithm": algorithm, f"{algorithm}.alpha": 0.0, "server_learning_rate": 0.5}
    one, two = run("one", update="delta", **given), run("two", update="model", **given)
    assert largest_difference(model(one), model(two)) < EXACT


def test_one_client_is_plain_sgd(run: Run) -> None:
    """K = 1: the rounds are epochs of centralised SGD over the same batches."""
    folder = run(num_clients=1, num_server_rounds=2, local_epochs=2, learning_rate=0.2)
    config = small_config(num_clients=1)
    node_data = read_node_data(config, None)
    train = node_data.train(0)
    module = make_module(config, node_data.dataset.task)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.2)
    inputs, targets = torch.from_numpy(train.inputs).double(), torch.from_numpy(train.targets)
    for round_ in (1, 2):
        rng = client_generator(0, round_, 0)
        for _ in range(2):
            for index in np.split(order := rng.permutation(len(train)), range(32, len(order), 32)):
                optimizer.zero_grad()
                F.cross_entropy(module(inputs[index]), targets[index]).backward()
                optimizer.step()
    assert largest_difference(model(folder), dict(module.named_parameters())) < EXACT


@pytest.mark.parametrize("nodes", [2, 3, 5])
def test_the_mean_of_cohort_means_is_the_mean(run: Run, nodes: int) -> None:
    """How the clients are spread over nodes does not matter."""
    one = run("one", nodes=1, fraction_train=1.0)
    many = run("many", nodes=nodes, fraction_train=1.0)
    assert largest_difference(model(one), model(many)) < EXACT
    drawn = [[r.get("clients") for r in metrics(folder)] for folder in (one, many)]
    assert drawn[0] == drawn[1]


def test_weighting_by_examples_and_uniform(run: Run) -> None:
    """The mean of the clients' models is weighted by n_k, or not at all (Seo, section 4.2.2)."""
    skewed = {"partitioner": "dirichlet", "dirichlet.alpha": 0.3, "fraction_train": 1.0}
    config = small_config(**skewed)
    node_data = read_node_data(config, None)
    task = node_data.dataset.task
    theta, trainer = initial_parameters(config, task), make_trainer(config, task)
    sizes = node_data.partition.sizes.tolist()
    assert len(set(sizes)) == len(sizes)
    models = []
    for k in range(config.num_clients):
        order = TrainRequest(RoundPlan.of(config), (k,))
        reply = train_cohort(trainer, order, theta, {}, node_data.train)
        models.append({name: theta[name] + reply.mean[name] for name in theta})
    for weighting, weights in (("examples", sizes), ("uniform", [1] * len(sizes))):
        folder = run(weighting, num_server_rounds=1, weighting=weighting, **skewed)
        expected = {
            name: sum(w * m[name] for w, m in zip(weights, models, strict=True)) / sum(weights)
            for name in theta
        }
        assert largest_difference(model(folder), expected) < EXACT


@given(
    st.lists(st.tuples(st.floats(-5, 5), st.floats(0.1, 9)), min_size=1, max_size=9),
    st.data(),
)
def test_weighted_mean_of_weighted_means(
    terms: list[tuple[float, float]], data: st.DataObject
) -> None:
    """sum w_i x_i / sum w_i does not depend on how the terms are grouped."""
    values = [{"x": torch.tensor([x], dtype=torch.float64)} for x, _ in terms]
    weights = [w for _, w in terms]
    cut = data.draw(st.integers(0, len(terms)))
    outer = WeightedMean()
    for part in (slice(0, cut), slice(cut, None)):
        if values[part]:
            outer.add(weighted_mean(values[part], weights[part]), sum(weights[part]))
    expected = sum(w * x for x, w in terms) / sum(weights)
    assert float(outer.mean()["x"]) == pytest.approx(expected, abs=1e-12)


def test_a_mean_is_folded_in_double_precision() -> None:
    """In single precision 2^24 + 1 + 1 stays 2^24."""
    terms = [{"x": torch.tensor(value)} for value in (2.0**24, 1.0, 1.0)]
    mean = weighted_mean(terms, [1, 1, 1])["x"]
    assert (float(mean), mean.dtype) == ((2**24 + 2) / 3, torch.float32)


def test_a_rule_that_gives_every_client_the_weight_0_has_no_mean() -> None:
    """Else theta would be empty from then on."""
    with pytest.raises(ZeroDivisionError, match="the mean of nothing"):
        FedAvg().aggregate([{"x": torch.ones(2)}] * 2, [0.0, 0.0])


def test_every_purpose_round_and_client_has_a_seed_of_its_own() -> None:
    keys = list(itertools.product((0, 1), ("a", "b"), (0, 1), (0, 1)))
    assert len({torch_seed(*key) for key in keys}) == len(keys)
    assert len({float(generator(*key).random()) for key in keys}) == len(keys)
    assert all(0 <= torch_seed(*key) < 2**63 for key in keys)
    assert torch_seed(1, "a", 1, 1) == torch_seed(1, "a", 1, 1)


# ---------------------------------------------------------------------- evaluation and own data


def test_evaluation_on_the_clients_is_evaluation_on_the_union(run: Run) -> None:
    """IID clients' own test sets are a partition of the test set: the means over both are equal."""
    for record in metrics(run(nodes=2, evaluation="both")):
        assert record["client_accuracy"] == pytest.approx(record["test_accuracy"], abs=1e-12)
        assert record["client_loss"] == pytest.approx(record["test_loss"], abs=1e-12)
        assert record["client_worst_accuracy"] <= record["test_accuracy"]


def test_the_loss_on_the_training_set_is_the_clients_mean_loss_before_one_step(run: Run) -> None:
    """E = 1, B = infinity, C = 1: the clients of round t start from the model of round t - 1."""
    records = metrics(
        run(fraction_train=1.0, batch_size=0, learning_rate=0.5, eval_train_examples=10**6)
    )
    for before, after in itertools.pairwise(records):
        assert after["train_loss"] == pytest.approx(before["training_set_loss"], abs=1e-12)
    assert 0 < records[0]["training_set_accuracy"] < records[-1]["training_set_accuracy"] < 1


def test_a_sample_of_the_training_set_is_the_same_in_every_round_and_process() -> None:
    train = load_dataset(small_config()).train
    few = sample_examples(train, 100, seed=3)
    assert len(few) == len(set(few.indices.tolist())) == 100
    assert np.array_equal(few.indices, sample_examples(train, 100, seed=3).indices)
    assert not np.array_equal(few.indices, sample_examples(train, 100, seed=4).indices)
    assert sample_examples(train, len(train), seed=3) is train


def test_a_sample_keeps_the_order_of_the_examples() -> None:
    few = sample_examples(load_dataset(small_config()).train, 100, seed=3)
    assert (np.diff(few.indices) > 0).all()


def test_every_token_counts_once_in_an_evaluation_whatever_its_batch() -> None:
    """Batches of two texts: of 8 targets 5 count in the first, 2 in the second, none in the third."""
    task = Task("tokens", (4,), 7, num_symbols=7, vocabulary="seven")
    inputs = np.arange(24).reshape(6, 4) % 7
    targets = (inputs + 1) % 7
    targets[[0, 1, 1, 2, 2, 2, 2, 3, 3], [3, 2, 3, 0, 1, 2, 3, 0, 2]] = IGNORE
    targets[4:] = IGNORE
    model = CharLSTM(hidden=4)
    module = initialise(model, task, 0).double()
    params = {name: tensor.detach().clone() for name, tensor in module.named_parameters()}
    examples, cpu = Examples(inputs, targets), torch.device("cpu")
    evaluator = Evaluator(module, model, examples, Scale(), cpu, torch.float64, batch_size=2)
    score = evaluator.score(params)
    outputs = module(torch.from_numpy(inputs)).detach()
    counted = torch.from_numpy(targets)
    expected = F.cross_entropy(outputs, counted, ignore_index=IGNORE)
    assert score.loss == pytest.approx(float(expected), abs=1e-12)
    num_correct = (outputs.argmax(1) == counted).sum()
    assert (score.accuracy, score.count) == (float(num_correct) / 7, 7)
    nothing = evaluator.with_examples(Examples(inputs[4:], targets[4:])).score(params)
    assert math.isnan(nothing.loss)
    assert math.isnan(nothing.accuracy)
    assert nothing.count == 0


@pytest.mark.parametrize("model", ["2nn", "mnist-cnn", "seo-cnn"])
def test_an_evaluation_in_batches_is_that_of_the_network(model: str) -> None:
    """Whatever the batches, and however images and weights lie in memory."""
    config = small_config(model=model)
    data = load_dataset(config)
    theta, module = initial_parameters(config, data.task), make_module(config, data.task)
    inputs, targets = (
        torch.from_numpy(data.test.inputs).double(),
        torch.from_numpy(data.test.targets),
    )
    outputs = module(load_transform(config).test(inputs, torch.float64)).detach()
    evaluator = make_evaluator(config, data.task, data.test)
    assert evaluator.num_batches == (1 if model == "2nn" else -(-len(data.test) // 100))
    score = evaluator.score(theta)
    assert score.loss == pytest.approx(float(F.cross_entropy(outputs, targets)), abs=1e-12)
    assert score.accuracy == float((outputs.argmax(1) == targets).double().mean())
    assert score.count == len(data.test)


def test_nodes_that_are_clients_train_as_virtual_clients_do(run: Run) -> None:
    """num-clients = 0: node i of N holds partition i, and the run is that of K = N clients."""
    nodes = run("nodes", nodes=6, num_clients=0)
    virtual = run("virtual", nodes=1, num_clients=6)
    assert largest_difference(model(nodes), model(virtual)) < EXACT
    assert [r.get("clients") for r in metrics(nodes)] == [
        r.get("clients") for r in metrics(virtual)
    ]


def test_u_is_logged_as_both_papers_define_it(run: Run) -> None:
    """u = E n_k / B (McMahan) and eta u (Seo, Eq. 3), averaged as the updates are: n_k = 240."""
    record = metrics(run(local_epochs=2, batch_size=32, learning_rate=0.1))[1]
    assert record["updates"] == pytest.approx(2 * 240 / 32)
    assert record["effective_updates"] == pytest.approx(0.1 * 2 * 240 / 32)
    assert record["steps"] == 3 * 2 * 8
    assert record["bytes_down"] == record["bytes_up"]


def test_the_learning_rate_decays_by_round(run: Run) -> None:
    records = metrics(run(learning_rate=0.4, learning_rate_decay=0.5))[1:]
    assert [record["learning_rate"] for record in records] == [0.4, 0.2, 0.1]


@pytest.mark.parametrize("trainer", slow_but(("sequential",), ("sequential", "batched"), ()))
def test_the_local_epochs_decay_by_round(run: Run, trainer: str) -> None:
    """E = 4, 2, 1: of n_k = 240 with B = 32 an epoch is 7.5 updates and 8 steps of each of 3 clients."""
    folder = run(local_epochs=4, local_epochs_decay=0.5, trainer=trainer)
    records = metrics(folder)[1:]
    assert [record["local_epochs"] for record in records] == [4, 2, 1]
    assert [record["updates"] for record in records] == pytest.approx([30.0, 15.0, 7.5])
    assert [record["steps"] for record in records] == [3 * 8 * e for e in (4, 2, 1)]


@pytest.mark.parametrize("trainer", slow_but(("sequential",), ("sequential", "batched"), ()))
def test_batches_grow_by_round(run: Run, trainer: str) -> None:
    """B = 32, 64, 128, 256: 240 examples are 8, 4, 2 batches, and in the end one, an update in full."""
    folder = run(batch_size_growth=2.0, local_epochs=2, num_server_rounds=4, trainer=trainer)
    records = metrics(folder)[1:]
    assert [record["batch_size"] for record in records] == [32, 64, 128, 256]
    assert [record["steps"] for record in records] == [3 * 2 * b for b in (8, 4, 2, 1)]
    assert [record["updates"] for record in records] == pytest.approx([15.0, 7.5, 3.75, 2.0])


def test_the_last_round_of_falling_epochs_is_one_of_one_epoch(run: Run) -> None:
    """Two rounds with E = 2, 1 are a round with E = 2, and one with E = 1 that goes on from it."""
    falling = run("falling", num_server_rounds=2, local_epochs=2, local_epochs_decay=0.5)
    first = run("first", num_server_rounds=1, local_epochs=2)
    config = small_config()
    trainer = make_trainer(config, load_dataset(config).task)
    clients = metrics(falling)[2]["clients"]
    order = TrainRequest(replace(RoundPlan.of(config), round=2), tuple(clients))
    start = model(first)
    node_data = read_node_data(config, None)
    mean = train_cohort(trainer, order, start, {}, node_data.train).mean
    second = {name: start[name] + mean[name] for name in start}
    assert largest_difference(model(falling), second) < EXACT


def test_a_run_of_steps_has_no_epochs(run: Run) -> None:
    record = metrics(run(local_epochs=5, local_steps=2, num_server_rounds=1))[1]
    assert "local_epochs" not in record
    assert (record["updates"], record["steps"]) == (2, 3 * 2)


def test_a_run_stops_at_its_target(run: Run) -> None:
    folder = run(num_server_rounds=50, target_accuracy=0.5, fraction_train=1.0, batch_size=10)
    accuracies = [record["test_accuracy"] for record in metrics(folder)]
    assert accuracies[-1] >= 0.5 > max(accuracies[:-1])
    assert len(accuracies) < 51


def test_seeds_have_training_examples_of_their_own_to_evaluate():
    def sampled(seed: int) -> list[int]:
        config = read_config({"seed": seed, "eval-train-examples": 50})
        score = make_score(config, load_dataset(config))
        assert score is not None
        return score.evaluators["training_set"].targets[0].tolist()

    assert sampled(0) != sampled(1)
