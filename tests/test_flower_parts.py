"""Flower's robust rules on clients' updates, against numbers worked out by hand, and Flower's loop."""

import pytest
import torch
from flwr.serverapp.strategy import (
    Bulyan,
    FedAvg,
    FedMedian,
    FedTrimmedAvg,
    Krum,
    MultiKrum,
    Strategy,
)

from fedapp import server
from fedapp.engines.in_process import InlineGrid
from fedapp.errors import RunError
from fedapp.training.tensors import weighted_mean
from strategies._flower_rules import aggregate_with
from strategies.strategy import FederatedStrategy
from tests.in_process import metrics, model, run

pytestmark = pytest.mark.usefixtures("server_identity")


def points(*rows, dtype=torch.float32):
    """Return one update a row: a vector `w` of two numbers and a scalar `b`."""
    return [
        {"w": torch.tensor([x, y], dtype=dtype), "b": torch.tensor(b, dtype=dtype)}
        for x, y, b in rows
    ]


def check(found, w, b, dtype=torch.float32):
    assert list(found) == ["w", "b"]
    assert found["w"].dtype == found["b"].dtype == dtype
    assert found["w"].tolist() == pytest.approx(w, abs=1e-6)
    assert found["b"].shape == ()
    assert found["b"].item() == pytest.approx(b, abs=1e-6)


FIVE = points((1, 50, 0), (2, 40, 1), (4, 30, 2), (8, 20, 3), (1000, 10, -900))


def test_median_is_taken_coordinate_by_coordinate_and_ignores_weights():
    check(aggregate_with(FedMedian(), FIVE, [1, 1, 1, 1, 10**6]), [4, 30], 1)


def test_median_of_an_even_number_is_the_middle_of_two():
    check(aggregate_with(FedMedian(), FIVE[:4], [1] * 4), [3, 35], 1.5)


def test_trimmed_mean_drops_a_fifth_at_either_end():
    # w0: (2 + 4 + 8) / 3, w1: (40 + 30 + 20) / 3, b: (0 + 1 + 2) / 3
    check(aggregate_with(FedTrimmedAvg(beta=0.2), FIVE, [1] * 5), [14 / 3, 30], 1)


LINE = points((0, 0, 0), (1.5, 0, 0), (2.5, 0, 0), (3.0, 0, 0), (100, 0, 0))


def test_krum_returns_the_update_nearest_to_its_neighbours():
    # n = 5, f = 1: scores are sums over the 2 nearest of squared distances:
    # 0: 2.25 + 6.25; 1.5: 1 + 2.25; 2.5: 0.25 + 1; 3: 0.25 + 2.25; 100: 97^2 + 97.5^2
    check(aggregate_with(Krum(num_malicious_nodes=1), LINE, [1] * 5), [2.5, 0], 0)


def test_multikrum_averages_the_best_by_their_examples():
    rule = MultiKrum(num_malicious_nodes=1, num_nodes_to_select=2)
    # The two least scores are those of 2.5 (1.25) and 3 (2.5), weighted 1 to 3.
    check(aggregate_with(rule, LINE, [9, 9, 1, 3, 9]), [(2.5 + 3 * 3.0) / 4, 0], 0)


def test_krum_does_not_lose_small_differences_beside_a_large_model():
    # In float32 the squares of 10^4 have a spacing of 8: the differences would drown in it.
    far = points(*((1e4 + x, 0, 0) for x in (0.0, 1.5, 2.5, 3.0, 100.0)))
    check(aggregate_with(Krum(num_malicious_nodes=1), far, [1] * 5), [10002.5, 0], 0)


def test_bulyan_averages_the_values_nearest_to_the_median_of_those_selected():
    # n = 7 = 4f + 3, f = 1: Krum selects 5, all but 100 and one end of the line; of each
    # coordinate the 3 values nearest to the median are averaged.
    seven = points(*((x, 0, 2 * x) for x in (0.0, 1.0, 2.0, 3.0, 4.0, 9.0, 100.0)))
    # Scores over the 4 nearest: 0: 1+4+9+16 = 30; 1: 1+1+4+9 = 15; 2: 1+1+4+4 = 10;
    # 3: 1+1+4+9 = 15; 4: 1+4+9+16 = 30 (9 is 25 away); 9: 25+36+49+64 = 174; 100: far.
    # Selected 0..4, median 2, the nearest three are 1, 2, 3.
    check(aggregate_with(Bulyan(num_malicious_nodes=1), seven, [1] * 7), [2, 0], 4)


def test_bulyan_says_that_it_has_too_few_updates():
    with pytest.raises(RunError, match=r"Bulyan cannot aggregate 5 updates.*fraction-train"):
        aggregate_with(Bulyan(num_malicious_nodes=1), LINE, [1] * 5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_flowers_mean_is_ours(dtype):
    updates = points((1, 2, 3), (0.5, -2, 7), (0, 0, 1), dtype=dtype)
    weights = [1.0, 2.0, 5.0]
    ours = weighted_mean(updates, weights)
    check(aggregate_with(FedAvg(), updates, weights), ours["w"].tolist(), ours["b"].item(), dtype)


def test_the_updates_are_left_as_they_were():
    updates = points((1, 2, 3), (4, 5, 6), (7, 8, 9))
    aggregate_with(FedMedian(), updates, [1, 1, 1])
    assert [update["w"].tolist() for update in updates] == [[1, 2], [4, 5], [7, 8]]


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold", "fedmedian"])
def test_flowers_own_loop_gives_the_same_rounds(algorithm, tmp_path, monkeypatch):
    settings = {"algorithm": algorithm, "evaluation": "clients", "seed": 3}
    ours = run(tmp_path / "ours", nodes=3, **settings)
    results = []

    class Twice(InlineGrid):
        """Gives every reply twice."""

        def send_and_receive(self, messages, *, timeout=None):
            return [
                r for r in super().send_and_receive(messages, timeout=timeout) for _ in range(2)
            ]

    class InFlowersLoop(FederatedStrategy):
        def start(self, grid, initial_arrays, num_rounds=3, **_):
            results.append(Strategy.start(self, grid, initial_arrays, num_rounds))

    monkeypatch.setattr(server, "FederatedStrategy", InFlowersLoop)
    run(tmp_path / "flowers", nodes=3, grid=Twice, **settings)
    (result,) = results
    arrays = result.arrays.to_torch_state_dict()
    for name, value in model(ours).items():
        torch.testing.assert_close(arrays[name], value, rtol=0, atol=0)
    records = metrics(ours)[1:]
    trained = result.train_metrics_clientapp
    assert [trained[r["round"]]["train-loss"] for r in records] == [
        r["train_loss"] for r in records
    ]
    tested = result.evaluate_metrics_clientapp
    found = [(tested[r["round"]]["loss"], tested[r["round"]]["accuracy"]) for r in records]
    assert found == [(r["test_loss"], r["test_accuracy"]) for r in records]
