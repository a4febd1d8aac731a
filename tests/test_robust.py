"""Robust rules as algorithms: by hand, against a client that lies, and with too few clients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, Message

from fedapp.client_app import app as client_app
from fedapp.config.read import read_config
from fedapp.data.embedded.quadratic import OPTIMUM
from fedapp.errors import ConfigError
from fedapp.training.algorithm import Algorithm, algorithm_of
from strategies.fedavg import FedAvg
from strategies.fedmedian import FedMedian
from tests.conftest import largest_difference
from tests.in_process import metrics, model, run
from tests.one_parameter import CLIENTS, Federation, examples

pytestmark = pytest.mark.usefixtures("server_identity")

RULES = ("bulyan", "fedmedian", "fedtrimmedavg", "krum", "multikrum")
EVERY = pytest.mark.parametrize("name", RULES)
SEVEN: dict[str, Any] = {
    "dataset": "quadratic",
    "model": "quadratic",
    "partitioner": "natural",
    "quadratic.clients": 7,
    "quadratic.heterogeneity": 0.1,
    "num_clients": 7,
    "fraction_train": 1.0,
    "batch_size": 0,
    "local_epochs": 5,
    "learning_rate": 0.2,
    "num_server_rounds": 4,
    "precision": "float64",
    "pictures": False,
    "2nn.hidden": 200,
}


def algorithm(name: str, **options: Any) -> Algorithm:
    given = {f"{name}.{key.replace('_', '-')}": value for key, value in options.items()}
    return algorithm_of(
        read_config({"algorithm": name, "num-clients": 100, "fraction-train": 1.0, **given})
    )


LINE = (0.0, 1.0, 2.0, 3.0, 4.0, 9.0, 100.0)
"""Updates of one number. Sums of squares to the 4 nearest (f = 1): 30, 15, 10, 15, 30, 174, huge."""


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("fedmedian", {}, 3.0),
        # floor(0.2 * 7) = 1 dropped at either end: (1 + 2 + 3 + 4 + 9) / 5.
        ("fedtrimmedavg", {"beta": 0.2}, 3.8),
        ("krum", {}, 2.0),
        ("krum", {"num_malicious": 0}, 3.0),
        # 2, and 1 and 3 that tie: weighted 3, 2, 4 (the weights are 1 .. 7 in order).
        ("multikrum", {"num_selected": 3}, (2 * 1 + 3 * 2 + 4 * 3) / 9),
        ("multikrum", {"num_selected": 1}, 2.0),
        ("multikrum", {"num_malicious": 0}, (4 * 3 + 5 * 4 + 3 * 2) / 12),
        # Selected 0 .. 4, their median is 2; the 7 - 4 nearest values to it are 1, 2, 3.
        ("bulyan", {}, 2.0),
    ],
)
def test_by_hand(name: str, options: dict[str, Any], expected: float) -> None:
    updates = [{"w": torch.tensor([x])} for x in LINE]
    found = algorithm(name, **options).aggregate(updates, [1, 2, 3, 4, 5, 6, 7])
    assert found["w"].tolist() == pytest.approx([expected], rel=1e-6)


def test_updates_that_differ_little_beside_their_length_are_told_apart() -> None:
    """Sums of squares to the 2 nearest: 5 / 16, 1 / 8, 5 / 16 and more.

    x^2 is 2^24, where float32 has steps of 2.
    """
    updates = [{"w": torch.tensor([4096 + x])} for x in (0.0, 0.25, 0.5, 1.0, 9.0)]
    assert algorithm("krum").aggregate(updates, [1] * 5)["w"].tolist() == [4096.25]
    assert algorithm("krum").aggregate(updates[::-1], [1] * 5)["w"].tolist() == [4096.25]


@EVERY
def test_clients_without_examples_have_no_say(name: str) -> None:
    updates = [{"w": torch.tensor([x])} for x in LINE]
    empty = [{"w": torch.zeros(1)}] * 3
    rule = algorithm(name)
    with_them = rule.aggregate(updates + empty, [1.0] * 7 + [0.0] * 3)
    assert with_them["w"] == rule.aggregate(updates, [1.0] * 7)["w"]


@pytest.mark.parametrize("weighting", ["examples", "uniform"])
def test_clients_without_examples_have_no_say_whatever_the_weighting(
    weighting: str, tmp_path: Path
) -> None:
    """Clients 0 and 1 of ``one_parameter`` go to 0.4375 and 2.25; a third stays where it is."""
    clients = (*CLIENTS, examples(1, 1, count=0))
    federation = Federation(FedMedian(), tmp_path, clients, weighting=weighting)
    assert federation.play() == 1.34375


def test_a_naive_mean_counts_clients_without_examples(tmp_path: Path) -> None:
    """As DP-FedAvg's noise and SCAFFOLD's share of all clients take for granted."""
    clients = (*CLIENTS, examples(1, 1, count=0))
    assert Federation(FedAvg(), tmp_path, clients).play() == pytest.approx(2 * 1.34375 / 3)


def test_the_trimmed_mean_drops_the_floor_of_beta_m() -> None:
    """0.29 * 100 is 28.999... in floats; 29 of 100 at either end leave 29 .. 70, here squared."""
    updates = [{"w": torch.tensor([float(x * x)], dtype=torch.float64)} for x in range(100)]
    found = algorithm("fedtrimmedavg", beta=0.29).aggregate(updates, [1.0] * 100)
    assert float(found["w"]) == pytest.approx(sum(x * x for x in range(29, 71)) / 42, rel=1e-12)


@pytest.mark.parametrize(
    ("name", "fedavg_equivalent"),
    [("bulyan", {"bulyan.num-malicious": 0}), ("fedtrimmedavg", {"fedtrimmedavg.beta": 0.0})],
)
def test_without_liars_to_withstand_it_is_the_naive_mean(
    name: str, fedavg_equivalent: dict[str, Any], tmp_path: Path
) -> None:
    """Of clients of other sizes, whatever the weighting: FedAvg with weighting='uniform'."""
    values = {**SEVEN, "quadratic.size-ratio": 3}
    naive = model(run(tmp_path / "naive", weighting="uniform", **values))
    weighted = model(run(tmp_path / "weighted", **values))
    for weighting in ("uniform", "examples"):
        own = {"algorithm": name, "weighting": weighting, **fedavg_equivalent}
        found = model(run(tmp_path / weighting, **values, **own))
        assert largest_difference(found, naive) < 1e-12
        assert largest_difference(found, weighted) > 1e-3


def lying(message: Message, context: Any) -> Message:
    """Answer as clients do, but client 3 sends its update plus 1000."""
    reply = client_app(message, context)
    record = reply.content.array_records.get("arrays.3")
    for name in record or ():
        record[name] = Array(record[name].numpy() + 1000)
    return reply


def play(folder: Path, name: str, nodes: int = 2, **settings: Any) -> dict[str, torch.Tensor]:
    values = {**SEVEN, "algorithm": name, **settings}
    return model(run(folder, nodes, lying, **values))


@EVERY
def test_one_liar_of_seven_does_no_harm(name: str, tmp_path: Path) -> None:
    """Over two nodes; the honest clients' optima are some 0.1 around the optimum of all."""
    optimum = {"x": torch.from_numpy(OPTIMUM)}
    assert largest_difference(play(tmp_path / "rule", name), optimum) < 0.25


def test_one_liar_of_seven_ruins_the_mean(tmp_path: Path) -> None:
    """With record-updates FedAvg's clients too are seen one by one, so that one can lie."""
    optimum = {"x": torch.from_numpy(OPTIMUM)}
    found = play(tmp_path / "mean", "fedavg", record_updates=True)
    assert largest_difference(found, optimum) > 100


@EVERY
def test_nodes_and_options_make_no_difference(name: str, tmp_path: Path) -> None:
    one = play(tmp_path / "one", name, nodes=1)
    assert largest_difference(one, play(tmp_path / "three", name, nodes=3)) == 0.0
    models = play(tmp_path / "models", name, update="model")
    assert largest_difference(one, models) < 1e-12


def test_an_update_that_is_too_large_is_one_clients(tmp_path: Path) -> None:
    """Whatever the division over nodes: the others of its node count, and the fault names its kind."""

    def huge(message: Message, context: Any) -> Message:
        reply = client_app(message, context)
        if record := reply.content.array_records.get("arrays.3"):
            record["x"] = Array(record["x"].numpy() + 1e12)
        return reply

    values = {**SEVEN, "algorithm": "fedmedian"}
    folders = [run(tmp_path / f"{nodes}", nodes, huge, **values) for nodes in (1, 3, 7)]
    records = [metrics(folder)[1:] for folder in folders]
    for record in (each for own in records for each in own):
        assert (record["replied"], record["faults"]) == (6, {"norm": 1})
        assert list(record["failures"]) == ["3"]
    one, *others = map(model, folders)
    assert [largest_difference(one, other) for other in others] == [0.0, 0.0]


def test_of_a_node_with_averaged_uploads_all_is_rejected_with_one_client(tmp_path: Path) -> None:
    """Its variate is in the node's mean."""

    def broken(message: Message, context: Any) -> Message:
        reply = client_app(message, context)
        if record := reply.content.array_records.get("arrays.3"):
            record["x"] = Array(np.full(2, np.nan))
        return reply

    settings = {"algorithm": "scaffold", "record_updates": True, "num_server_rounds": 1}
    record = metrics(run(tmp_path / "run", 2, broken, **{**SEVEN, **settings}))[1]
    assert 0 < record["replied"] < 6
    assert "3" in record["failures"]
    assert record["replied"] + len(record["failures"]) == 7


@pytest.mark.parametrize(
    ("name", "options", "needed"),
    [
        ("krum", {"krum.num-malicious": 2}, 7),
        ("multikrum", {"multikrum.num-selected": 4}, 7),
        ("multikrum", {"multikrum.num-malicious": 2}, 7),
        ("multikrum", {"multikrum.num-malicious": 2, "multikrum.num-selected": 1}, 7),
        ("bulyan", {"bulyan.num-malicious": 1}, 7),
    ],
)
def test_too_few_clients_are_refused_before_the_start(
    name: str, options: dict[str, Any], needed: int
) -> None:
    values = {"algorithm": name, "num-clients": 12, "fraction-train": 0.5, **options}
    pattern = (
        rf"algorithm = '{name}': needs updates from {needed} clients a round, and only 6 train"
    )
    with pytest.raises(ConfigError, match=pattern) as error:
        read_config(values)
    for key, value in options.items():
        assert f"{key} (now {value})" in str(error.value)
    assert read_config({**values, "num-clients": 14}).num_clients == 14


def test_a_round_with_too_few_good_replies_leaves_the_model(tmp_path: Path) -> None:
    """Bulyan needs seven; client 3's update is not finite in any round."""

    def broken(message: Message, context: Any) -> Message:
        reply = client_app(message, context)
        for name, record in reply.content.array_records.items():
            if name == "arrays.3":
                record["x"] = Array(np.full(2, np.nan))
        return reply

    values = {**SEVEN, "algorithm": "bulyan", "num_server_rounds": 2}
    records = metrics(run(tmp_path / "run", 7, broken, **values))
    assert [r["model_changed"] for r in records[1:]] == [False, False]
    assert records[1]["test_loss"] == records[0]["test_loss"]
    assert list(records[1]["failures"]) == ["3"]
