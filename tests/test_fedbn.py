"""FedBN with batch normalisation: statistics by hand, what is sent, kept, tested, resumed, refused."""

from __future__ import annotations

import itertools
import math
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from benchmarks.normalisation import KEPT, SETTINGS, accuracies
from fedapp.client_app import app as client_app
from fedapp.config.read import read_config
from fedapp.data.load import load_dataset
from fedapp.data.node_data import read_node_data
from fedapp.engines.in_process import run_inline
from fedapp.errors import ConfigError
from fedapp.runs.directory import read_stored
from fedapp.runs.model_sharpness import Measurement, sharpness_of
from fedapp.server_app import app as server_app
from fedapp.training import build as setup
from fedapp.training.algorithm import Algorithm
from fedapp.training.build import initial_parameters, make_module, make_trainer, require_batches
from fedapp.training.client import TrainRequest, train_cohort
from fedapp.training.round_plan import RoundPlan, passes
from fedapp.training.sequential import SequentialTrainer
from tests import killed
from tests import test_tables as tables
from tests.conftest import Component, Run
from tests.in_process import metrics, model
from tests.test_algorithms import ALGORITHMS

MODEL = """
from typing import ClassVar
from torch import nn
from fedapp.models.model import Model

class Own(Model):
    \"\"\"A normalised number, and a linear layer.\"\"\"

    name: ClassVar[str] = "own"
    takes: ClassVar[frozenset[str]] = frozenset({"vector"})

    def build(self, task):
        return nn.Sequential(nn.BatchNorm1d(1), nn.Linear(1, 2))
"""
DATA = """
from typing import ClassVar
import numpy as np
from fedapp.data.dataset import Dataset, Examples, Task
from fedapp.data.embedded.embedded import Embedded

def examples(numbers, owners):
    inputs = np.array(numbers, np.float64)[:, None]
    groups = {"client": np.array(owners)}, {"client": ("0", "1")}
    return Examples(inputs, np.arange(len(numbers)) % 2, *groups)

class Numbers(Embedded):
    \"\"\"Four numbers of client 0, two of client 1; one each for testing.\"\"\"

    name: ClassVar[str] = "numbers"

    def load(self):
        train = examples([1, 3, 5, 9, 10, 20], [0, 0, 0, 0, 1, 1])
        return Dataset(self.name, Task("vector", (1,), 2), train, examples([2, 16], [0, 1]), "numbers-1")
"""
NUMBERS: dict[str, Any] = {
    "model": "own",
    "dataset": "numbers",
    "partitioner": "natural",
    "num_clients": 2,
    "fraction_train": 1.0,
    "algorithm": "fedbn",
    "evaluation": "clients",
    "batch_size": 0,
    "local_epochs": 2,
}
DIGITS: dict[str, Any] = {
    **{key: value for key, value in SETTINGS.items() if key != "trainer"},
    "cnn-bn.width": 1,
    "pictures": False,
    "learning-rate": 0.05,
}


@pytest.fixture
def numbers(component: Component) -> None:
    component("fedapp.models", "own", MODEL)
    component("fedapp.data.embedded", "own_data", DATA)


def kept_by(folder: Path, client: int) -> dict[str, torch.Tensor]:
    """Return what a client kept from its last turn."""
    return load_file(max((folder / "client-states" / str(client)).glob("*.safetensors")))


@pytest.mark.usefixtures("numbers")
def test_running_statistics_are_a_clients_own_and_go_on_in_its_next_turn(run: Run) -> None:
    """Means 4.5 and 15, unbiased variances 35/3 and 50: a tenth of them a step, from 0 and 1.

    Two steps a turn: 1 - 0.9^2 = 0.19 of the mean after round 1, 1 - 0.9^4 = 0.3439 after round 2.
    """
    for rounds, left in ((1, 0.9**2), (2, 0.9**4)):
        folder = run(f"{rounds}", num_server_rounds=rounds, **NUMBERS)
        for client, mean, variance in ((0, 4.5, 35 / 3), (1, 15.0, 50.0)):
            kept = kept_by(folder, client)
            assert kept["0.running_mean"].item() == pytest.approx((1 - left) * mean)
            expected = left + (1 - left) * variance
            assert kept["0.running_var"].item() == pytest.approx(expected)
            assert kept["0.num_batches_tracked"].item() == 2 * rounds
            assert kept["0.weight"].item() != 1


@pytest.mark.usefixtures("numbers")
@pytest.mark.parametrize("update", ["delta", "model"])
def test_no_change_of_a_normalisation_layer_is_sent(update: str, run: Run, tmp_path: Path) -> None:
    settings = {key.replace("_", "-"): value for key, value in NUMBERS.items()}
    config = read_config({**settings, "update": update})
    node_data = read_node_data(config, None)
    theta = initial_parameters(config, node_data.dataset.task)
    trainer = make_trainer(config, node_data.dataset.task)
    order = TrainRequest(replace(RoundPlan.of(config), learning_rate=0.2, reply="each"), (0, 1))
    reply = train_cohort(trainer, order, theta, {}, node_data.train)
    assert set(reply.each) == {0, 1}
    for sent in reply.each.values():
        assert sent.keys() == {"0.weight", "0.bias", "1.weight", "1.bias"}
        before = theta if update == "model" else {n: torch.zeros_like(t) for n, t in theta.items()}
        assert torch.equal(sent["0.weight"], before["0.weight"])
        assert torch.equal(sent["0.bias"], before["0.bias"])
        assert not torch.equal(sent["1.weight"], before["1.weight"])
    last = model(run("run", update=update, **NUMBERS))
    assert (last["0.weight"].item(), last["0.bias"].item()) == (1, 0)


@pytest.mark.usefixtures("numbers")
def test_a_client_is_tested_with_its_own_statistics(run: Run) -> None:
    """The logits of x are W ((x - mean) / sqrt(variance + eps) gamma + beta) + b."""
    folder = run("run", nodes=2, **NUMBERS)
    theta, losses = model(folder), []
    for client, (x, label) in enumerate(((2.0, 0), (16.0, 1))):
        kept = kept_by(folder, client)
        scale = kept["0.weight"] / (kept["0.running_var"] + 1e-5).sqrt()
        seen = (x - kept["0.running_mean"]) * scale + kept["0.bias"]
        logits = theta["1.weight"] @ seen + theta["1.bias"]
        losses.append(float(-logits.log_softmax(0)[label]))
    assert metrics(folder)[-1]["client_loss"] == pytest.approx(sum(losses) / 2)
    before = metrics(folder)[0]["client_loss"]  # with mean 0 and variance 1, as they begin
    config, _ = read_stored(folder)
    start = initial_parameters(config, load_dataset(config).task)
    logits = [start["1.weight"][:, 0] * x / math.sqrt(1 + 1e-5) + start["1.bias"] for x in (2, 16)]
    first = [-logits[0].log_softmax(0)[0], -logits[1].log_softmax(0)[1]]
    assert before == pytest.approx(float(sum(first)) / 2)


def test_a_run_is_the_bare_loop(tmp_path: Path) -> None:
    """That of the benchmark, which keeps the tensors whose layer is called norm."""
    given = {**DIGITS, "num-server-rounds": 3, "precision": "float64"}
    run_inline(server_app, client_app, {**given, "run-dir": str(tmp_path)}, 2)
    found = [record["client_accuracy"] for record in metrics(tmp_path)[1:]]
    kept = KEPT["weights and statistics with the clients (FedBN)"]
    assert found == pytest.approx(list(accuracies(read_config(given), kept)))


@pytest.mark.process
def test_a_killed_run_resumes_to_the_same_bits(tmp_path: Path) -> None:
    given = {**DIGITS, "num-server-rounds": 4, "local-epochs": 1, "checkpoint-every": 2}
    whole, folder = tmp_path / "whole", tmp_path / "run"
    assert killed.run({**given, "run-dir": str(whole)}) == 0
    settings = {**given, "run-dir": str(folder)}
    assert killed.run(settings, kill=("while_training", 4)) == -signal.SIGKILL
    assert killed.run({}, resume=folder) == 0
    assert metrics(folder) == metrics(whole)
    assert (folder / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    for client in range(10):
        mine, theirs = kept_by(folder, client), kept_by(whole, client)
        assert all(torch.equal(mine[name], theirs[name]) for name in mine | theirs)


@pytest.mark.slow
def test_a_node_with_data_of_its_own_keeps_its_normalisation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The accuracies of virtual clients; what a client keeps is in its node's own folder."""
    given = {**DIGITS, "num-server-rounds": 2, "skewed-digits.clients": 4, "num-clients": 4}
    run_inline(server_app, client_app, {**given, "run-dir": str(tmp_path / "virtual")})
    own = [
        {"partition-id": k, "num-partitions": 4, "state-path": str(tmp_path / f"node-{k}")}
        for k in range(4)
    ]
    deployed = {**given, "num-clients": 0, "min-nodes": 4, "run-dir": str(tmp_path / "deployed")}
    run_inline(server_app, client_app, deployed, 4, own)
    found, expected = (metrics(tmp_path / name) for name in ("deployed", "virtual"))
    for key in ("client_accuracy", "client_loss", "train_loss"):
        assert [r.get(key) for r in found] == pytest.approx([r.get(key) for r in expected])
    assert not list((tmp_path / "deployed" / "client-states").glob("*/*.safetensors"))
    for k in range(4):
        (file,) = (tmp_path / f"node-{k}").glob(f"*/{k}/round-000002*.safetensors")
        kept, theirs = load_file(file), kept_by(tmp_path / "virtual", k)
        assert kept.keys() == theirs.keys()
        assert all(torch.allclose(kept[name], theirs[name]) for name in kept)


@pytest.mark.parametrize("name", sorted(set(ALGORITHMS) - {"fedbn"}))
def test_every_other_algorithm_refuses_running_statistics_by_name(name: str) -> None:
    assert not ALGORITHMS[name].own_normalisation
    more = {"weighting": "uniform"} if name == "dp-fedavg" else {}
    config = read_config({"algorithm": name, "model": "cnn-bn", **more})
    said = rf"model = 'cnn-bn': its BatchNorm2d.*algorithm = '{name}'.*algorithm='fedbn'"
    with pytest.raises(ConfigError, match=said):
        make_module(config, load_dataset(config).task)


def test_the_trainer_is_the_sequential_one(monkeypatch: pytest.MonkeyPatch) -> None:
    config = read_config(DIGITS)
    task = load_dataset(config).task
    with pytest.raises(ConfigError, match=r"trainer = 'batched'.*'cnn-bn'.*'sequential' or 'auto'"):
        make_trainer(read_config({**DIGITS, "trainer": "batched"}), task)
    monkeypatch.setattr(setup, "is_batched", lambda config: True)  # as trainer='auto' on a GPU
    assert isinstance(make_trainer(config, task), SequentialTrainer)


@pytest.mark.parametrize("evaluation", ["server", "both"])
def test_the_server_has_nothing_to_evaluate(evaluation: str, tmp_path: Path) -> None:
    given = {**DIGITS, "evaluation": evaluation, "run-dir": str(tmp_path / "run")}
    with pytest.raises(ConfigError, match=rf"evaluation = '{evaluation}'.*evaluation='clients'"):
        run_inline(server_app, client_app, given)
    assert not (tmp_path / "run").exists()


def test_sharpness_of_a_part_of_a_model_is_refused(tmp_path: Path) -> None:
    given = {**DIGITS, "num-server-rounds": 1, "local-epochs": 1, "run-dir": str(tmp_path)}
    run_inline(server_app, client_app, given)
    with pytest.raises(ConfigError, match=r"'cnn-bn' stay with the clients.*Sharpness"):
        sharpness_of(tmp_path, Measurement())


@pytest.mark.parametrize(
    ("given", "sizes", "said"),
    [
        ({"batch-size": 10}, [20, 31, 14], r"batch-size = 10: a client of 31.*'uniform'"),
        ({"batch-size": 10, "batch-sampling": "uniform"}, [20, 31, 14], ""),
        ({"batch-size": 10, "local-steps": 3, "local-epochs": 5}, [31], ""),
        ({"batch-size": 10, "local-steps": 4, "local-epochs": 5}, [31], "a client of 31"),
        ({"batch-size": 0}, [31, 2], ""),
        ({"batch-size": 0}, [31, 1, 0], "a client of 1 training .* at least 2 training examples"),
        ({"batch-size": 1}, [4], "Set a batch-size of 2 or more"),
        (
            {"batch-size": 5, "batch-size-growth": 2.0, "num-server-rounds": 2},
            [21],
            "of 21 .*single",
        ),
        ({"batch-size": 4, "batch-size-growth": 2.0, "num-server-rounds": 2}, [22], ""),
        ({"batch-size": 10, "model": "seo-cnn"}, [31], ""),
        ({"batch-size": 10, "num-server-rounds": 10**12}, [20], ""),
        ({"batch-size": 5, "batch-size-growth": 2.0, "num-server-rounds": 10**12}, [25], ""),
    ],
)
def test_a_batch_of_one_is_refused_before_training(
    given: dict[str, Any], sizes: list[int], said: str
) -> None:
    wide = {key: value for key, value in DIGITS.items() if key != "cnn-bn.width"}
    config = read_config({**wide, **given})
    task = load_dataset(config).task
    if not said:
        require_batches(config, task, sizes)
        return
    with pytest.raises(ConfigError, match=said):
        require_batches(config, task, np.array(sizes))


def test_a_run_with_a_batch_of_one_ends_before_its_first_round(tmp_path: Path) -> None:
    given = {
        **DIGITS,
        "batch-size": 11,
        "run-dir": str(tmp_path / "run"),
    }  # n_k = 144 = 13 * 11 + 1
    with pytest.raises(
        ConfigError, match="a client of 144 training examples has a batch of a single"
    ):
        run_inline(server_app, client_app, given)
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_a_node_with_a_batch_of_one_is_rejected_by_name(
    component: Component, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a table, whose outputs the network needs to know."""
    layers = "nn.BatchNorm1d(2), nn.Linear(2, {3: 3}[task.num_classes])"
    component("fedapp.models", "own", MODEL.replace("nn.BatchNorm1d(1), nn.Linear(1, 2)", layers))
    nodes = tables.own(tables.clusters(tmp_path / "set", parts=3), 3)  # of 50 examples each
    rows = (tmp_path / "node2" / "train.csv").read_text().splitlines()
    (tmp_path / "node2" / "train.csv").write_text("\n".join(rows[:22]) + "\n")
    settings = {"model": "own", "algorithm": "fedbn", "evaluation": "clients", "num_clients": 0}
    data = {"dataset": str(tmp_path / "set"), "batch_size": 10, "fraction_train": 1.0}
    folder = tables.run(tmp_path / "run", configs=nodes, num_server_rounds=1, **settings, **data)
    assert metrics(folder)[-1]["clients"] == [0, 1]
    assert "Node 3 is rejected: batch-size = 10: a client of 21 training examples" in caplog.text


@pytest.mark.parametrize("sampling", ["epoch", "uniform"])
@pytest.mark.parametrize("steps", [0, 1, 2, 3, 7])
def test_the_smallest_batch_is_that_of_the_passes(sampling: Any, steps: int) -> None:
    for batch_size, n in itertools.product((0, 1, 2, 3, 5), range(1, 12)):
        plan = RoundPlan(2, steps, batch_size, sampling, 0.1)
        size = plan.batch(n)
        orders = passes(plan, n, np.random.default_rng(0))
        cut = [len(part) for o in orders for part in np.split(o, range(size, len(o), size))]
        assert plan.smallest_batch(n) == min(cut), (batch_size, n)


def test_by_its_name_alone_it_is_federated_averaging(tmp_path: Path) -> None:
    """The default 2NN has no normalisation, and the server tests it."""
    ends = []
    for name in ("fedbn", "fedavg"):
        given = {"algorithm": name, "num-server-rounds": 2, "pictures": False, "device": "cpu"}
        run_inline(server_app, client_app, {**given, "run-dir": str(tmp_path / name)})
        ends.append([(r["test_loss"], r["test_accuracy"]) for r in metrics(tmp_path / name)])
    assert ends[0] == ends[1]
    assert Algorithm.own_normalisation is False


@pytest.mark.parametrize("skew", [0.0, 1.5])
def test_skewed_digits_are_the_digits_seen_otherwise_by_each_client(skew: float) -> None:
    """Each client's training and test images are one a x + b of the digits' own, whoever's seed it is."""
    values = {"dataset": "skewed-digits", "skewed-digits.clients": 7, "skewed-digits.skew": skew}
    plain = load_dataset(read_config({}))
    data, other = (load_dataset(read_config({**values, "seed": seed})) for seed in (0, 1))
    lines: dict[int, list[tuple[float, float]]] = {k: [] for k in range(7)}
    for split in ("train", "test"):
        mine, theirs = getattr(data, split), getattr(plain, split)
        assert np.array_equal(mine.inputs, getattr(other, split).inputs)
        assert np.array_equal(mine.targets, theirs.targets)
        counts = np.bincount(mine.groups["client"], minlength=7)
        assert counts.max() - counts.min() <= 1
        for k in range(7):
            own = mine.groups["client"] == k
            a, b = np.polyfit(theirs.inputs[own].ravel(), mine.inputs[own].ravel(), 1)
            assert np.allclose(a * theirs.inputs[own] + b, mine.inputs[own], atol=1e-5)
            lines[k].append((a, b))
    assert all(np.allclose(*pair, atol=1e-5) for pair in lines.values())
    slopes, shifts = np.array([pair[0] for pair in lines.values()]).T
    if skew == 0:
        assert np.allclose(slopes, 1, atol=1e-5)
        assert np.allclose(shifts, 0, atol=1e-5)
    else:
        assert 1 / 2.5 <= slopes.min() < 0.8 < 1.25 < slopes.max() <= 2.5
        assert -1.5 <= shifts.min() < -0.3 < 0.3 < shifts.max() <= 1.5
