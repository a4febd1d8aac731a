"""DP-FedAvg and local DP: clipping, noise and accounting against numbers worked out or published."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedapp.analysis.privacy import ORDERS, default_delta, epsilon, round_cost
from fedapp.config import read_config
from fedapp.errors import ConfigError, RunError
from fedapp.training.algorithm import ServerStep, Turn
from strategies.dp_fedavg import DPFedAvg
from strategies.local_dp import LocalDP
from strategies.noise import clipped, norm_of
from tests.conftest import Run, largest_difference, metrics_of, model_of

STEP = ServerStep(
    round=1,
    learning_rate=0.1,
    server_learning_rate=1.0,
    update="delta",
    num_clients=100,
    participants=10,
    share=0.1,
    sampled=10,
)
UNIFORM: dict[str, Any] = {"weighting": "uniform", "model": "linear"}


def vector(*values: float) -> dict[str, torch.Tensor]:
    return {"w": torch.tensor(values, dtype=torch.float64)}


# ---------------------------------------------------------------------- clipping


def test_clipping_by_hand() -> None:
    """(3, 4) has norm 5."""
    assert clipped(vector(3, 4), 1.0)["w"].tolist() == pytest.approx([0.6, 0.8])
    assert clipped(vector(3, 4), 5.0)["w"].tolist() == [3, 4]
    assert clipped(vector(0, 0), 1.0)["w"].tolist() == [0, 0]
    both = clipped({"w": torch.tensor([3.0]), "b": torch.tensor(4.0)}, torch.tensor(2.5))
    assert [float(t) for t in both.values()] == pytest.approx([1.5, 2.0])


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=9), st.floats(1e-3, 1e3))
def test_no_update_is_longer_than_the_bound(values: list[float], bound: float) -> None:
    update = {"w": torch.tensor(values, dtype=torch.float32)}
    assert float(norm_of(clipped(update, bound))) <= bound * (1 + 1e-6)


# ---------------------------------------------------------------------- accounting


@pytest.mark.parametrize(
    ("noise", "rate", "rounds", "published"),
    [
        # Abadi et al. 2016: q = 0.01, sigma = 4, 10,000 steps.
        (4.0, 0.01, 10000, 1.26),
        # The table of TensorFlow Privacy's tutorials (January 2019): batches of 256 out of 60,000.
        (1.12, 256 / 60000, 60 * 234, 2.92),
        (0.6, 256 / 60000, 30 * 234, 9.74),
        (1.2, 256 / 60000, 10 * 234, 1.20),
    ],
)
def test_costs_give_the_published_epsilon(
    noise: float, rate: float, rounds: int, published: float
) -> None:
    """By the conversion of their time, epsilon = cost + log(1 / delta) / (alpha - 1); now less."""
    delta = 1e-5
    cost = [rounds * value for value in round_cost(noise, rate)]
    then = min(c - math.log(delta) / (a - 1) for a, c in zip(ORDERS, cost, strict=True))
    assert then == pytest.approx(published, abs=0.01)
    assert 0.75 * published < epsilon(cost, delta) < published


def test_the_cost_of_all_clients_is_that_of_the_gaussian() -> None:
    """q = 1: alpha / (2 z^2)."""
    assert round_cost(2.0, 1.0) == pytest.approx([alpha / 8 for alpha in ORDERS])


def test_without_noise_there_is_no_bound() -> None:
    assert epsilon(round_cost(0.0, 0.1), 1e-5) == math.inf


def test_orders_without_a_bound_do_not_count() -> None:
    """alpha / (2 z^2) with z = 2: the least epsilon at delta = 1e-5 comes from an order below 64."""
    cost = [alpha / 8 for alpha in ORDERS]
    some = [c if alpha < 64 else math.inf for alpha, c in zip(ORDERS, cost, strict=True)]
    assert epsilon(some, 1e-5) == epsilon(cost, 1e-5) < math.inf


def test_default_delta_is_below_one_over_k() -> None:
    assert default_delta(1000) == pytest.approx(10**-3.3)
    assert default_delta(1) == 0.5


# ---------------------------------------------------------------------- DP-FedAvg


def released(algorithm: DPFedAvg, seed: int, size: int = 50, **changes: Any) -> torch.Tensor:
    """Return what round 1 adds to theta = 0 if the mean update is 0."""
    theta = {"w": torch.zeros(size, dtype=torch.float64)}
    upload = {"within": torch.tensor(0.5)}
    step = replace(STEP, seed=seed, **changes)
    return algorithm.apply(theta, theta, upload, algorithm.start(theta), step)[0]["w"]


@pytest.mark.parametrize(
    ("algorithm", "deviation"),
    [
        (DPFedAvg(clip=3.0, noise=0.5), 0.5 * 3 / 10),
        # sigma_b = 1: z_Delta = (1 - 1/4)^(-1/2) = 2 / sqrt 3.
        (DPFedAvg(clip=3.0, noise=1.0, adaptive=True, count_noise=1.0), 2 / math.sqrt(3) * 3 / 10),
    ],
)
def test_noise_has_the_deviation_that_it_should(algorithm: DPFedAvg, deviation: float) -> None:
    """z S / m: over 400 seeds of 50 numbers, within four standard errors."""
    drawn = torch.cat([released(algorithm, seed) for seed in range(400)])
    assert abs(float(drawn.mean())) < 4 * deviation / math.sqrt(len(drawn))
    assert float(drawn.std()) == pytest.approx(deviation, rel=4 / math.sqrt(2 * len(drawn)))


def test_noise_is_of_the_seed_and_the_round_alone() -> None:
    algorithm = DPFedAvg()
    first = released(algorithm, 7)
    assert torch.equal(first, released(algorithm, 7))
    assert not torch.equal(first, released(algorithm, 8))
    assert not torch.equal(first, released(algorithm, 7, round=2))


def test_fewer_replies_raise_the_noise_of_the_mean_and_leave_the_cost() -> None:
    """The noise is that of the sum over those that replied; all m that were drawn are charged."""
    algorithm, theta = DPFedAvg(), vector(0)
    assert torch.equal(released(algorithm, 7, participants=5), 2 * released(algorithm, 7))
    step = replace(STEP, participants=5)
    _, state = algorithm.apply(theta, theta, {}, algorithm.start(theta), step)
    assert state["cost"].tolist() == list(round_cost(1.0, 10 / 100))


def test_noise_of_the_system_is_never_the_same() -> None:
    algorithm = DPFedAvg(entropy="system")
    assert not torch.equal(released(algorithm, 7), released(algorithm, 7))


def test_the_bound_moves_towards_the_quantile_by_hand() -> None:
    """All within S: S exp(-0.2 (1 - 0.5)). None: S exp(0.1)."""
    algorithm = DPFedAvg(clip=2.0, noise=0.0, adaptive=True)
    state = algorithm.start(vector(0))
    for within, expected in ((1.0, 2 * math.exp(-0.1)), (0.0, 2 * math.exp(0.1))):
        upload = {"within": torch.tensor(within)}
        _, found = algorithm.apply(vector(0), vector(0), upload, state, STEP)
        assert float(found["clip"]) == pytest.approx(expected)


def test_an_update_as_long_as_the_bound_is_within_it() -> None:
    algorithm = DPFedAvg(clip=5.0, noise=0.0, adaptive=True)
    turn = Turn(vector(0, 0), algorithm.broadcast(algorithm.start(vector(0, 0))))
    found = [algorithm.finish(vector(3, y), turn, 1).upload["within"] for y in (4.0, 4.001)]
    assert [float(each) for each in found] == [1.0, 0.0]


def test_a_count_that_cannot_be_is_taken_for_the_nearest_that_can() -> None:
    """A client may say anything; all are within S at most, and none at least."""
    algorithm = DPFedAvg(noise=0.0, adaptive=True)
    theta = vector(1.0)
    state = algorithm.start(theta)
    for said, taken in ((-1e9, 0.0), (1e9, 1.0)):
        after = [
            algorithm.apply(theta, theta, {"within": torch.tensor(each)}, state, STEP)[1]["clip"]
            for each in (said, taken)
        ]
        assert after[0] == after[1]


def test_the_noise_of_the_count_is_a_share_of_those_that_replied() -> None:
    """log(S / S') = 0.2 (b + n / m - gamma), and b = gamma: half as many clients, twice the noise."""
    algorithm, theta = DPFedAvg(adaptive=True, count_noise=1.0), vector(0)
    upload, moved = {"within": torch.tensor(0.5)}, []
    for clients in (10, 5):
        step = replace(STEP, participants=clients)
        _, state = algorithm.apply(theta, theta, upload, algorithm.start(theta), step)
        moved.append(math.log(float(state["clip"])))
    assert moved[1] == pytest.approx(2 * moved[0])
    assert moved[0] != 0


@pytest.mark.parametrize(
    ("quantile", "noise", "near"), [(0.25, 0.0, 1.0), (0.9, 0.0, 1.0), (0.5, 0.8, 5.0)]
)
def test_the_bound_converges_to_the_quantile(quantile: float, noise: float, near: float) -> None:
    """100 clients whose updates have norms 1 to 100; from S = 10."""
    algorithm = DPFedAvg(clip=10.0, noise=noise, adaptive=True, quantile=quantile)
    step = replace(STEP, participants=100, sampled=100)
    theta = vector(0)
    state = algorithm.start(theta)
    bounds = []
    for round_ in range(1, 81):
        turn = Turn(theta, algorithm.broadcast(state))
        bits = [algorithm.finish(vector(k), turn, 1).upload["within"] for k in range(1, 101)]
        upload = {"within": torch.stack(bits).mean()}
        _, state = algorithm.apply(theta, theta, upload, state, replace(step, round=round_))
        bounds.append(float(state["clip"]))
    mean = sum(bounds[-20:]) / 20
    assert mean == pytest.approx(100 * quantile, abs=near)


@pytest.mark.parametrize("clip", [0.0, 1e9])
@pytest.mark.parametrize("update", ["delta", "model"])
@pytest.mark.parametrize("name", ["dp-fedavg", "local-dp"])
def test_without_noise_and_clipping_it_is_uniform_fedavg(
    run: Run, name: str, update: str, clip: float
) -> None:
    """Bit for bit with Option I; Option II adds theta and takes it away again."""
    settings = {**UNIFORM, "update": update, "num_server_rounds": 2}
    off = {f"{name}.noise": 0.0, f"{name}.clip": clip}
    found = run("private", algorithm=name, **settings, **off)
    difference = largest_difference(model_of(found), model_of(run("fedavg", **settings)))
    assert difference <= (0.0 if update == "delta" else 1e-12)
    assert metrics_of(found)[1]["epsilon"] is None


ADAPTIVE: dict[str, Any] = {
    **UNIFORM,
    "algorithm": "dp-fedavg",
    "dp-fedavg.noise": 0.5,
    "dp-fedavg.adaptive": True,
    "dp-fedavg.count-noise": 0.5,
    "checkpoint_every": 2,
    "num_server_rounds": 4,
}


@pytest.mark.parametrize("settings", [ADAPTIVE, {**UNIFORM, "algorithm": "local-dp"}])
def test_resumes_exactly_with_noise_bound_and_spending(run: Run, settings: dict[str, Any]) -> None:
    whole = run("whole", nodes=2, **{**settings, "num_server_rounds": 4})
    run("parts", nodes=2, **{**settings, "num_server_rounds": 2})
    parts = run("parts", nodes=2, **{**settings, "num_server_rounds": 4, "resume": True})
    assert largest_difference(model_of(whole), model_of(parts)) == 0.0
    assert metrics_of(whole)[1:] == metrics_of(parts)[1:]


@pytest.mark.parametrize("settings", [ADAPTIVE, {**UNIFORM, "algorithm": "local-dp"}])
def test_nodes_make_no_difference(run: Run, settings: dict[str, Any]) -> None:
    one = run("one", nodes=1, **{**settings, "num_server_rounds": 2})
    three = run("three", nodes=3, **{**settings, "num_server_rounds": 2})
    assert largest_difference(model_of(one), model_of(three)) < 1e-12


def test_epsilon_stands_in_every_round_and_in_the_summary(run: Run) -> None:
    """m = 3 of K = 6, z = 2: t rounds cost t times what one costs; delta is 6^-1.1."""
    folder = run(algorithm="dp-fedavg", **UNIFORM, **{"dp-fedavg.noise": 2.0})
    cost = round_cost(2.0, 0.5)
    for t, record in enumerate(metrics_of(folder)[1:], start=1):
        assert record["delta"] == pytest.approx(6**-1.1)
        assert record["epsilon"] == pytest.approx(epsilon([t * c for c in cost], 6**-1.1))
        assert record["clip"] == 1.0
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["epsilon"] == metrics_of(folder)[-1]["epsilon"]
    assert summary["delta"] == pytest.approx(6**-1.1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"weighting": "examples"}, "weighting = 'examples': with algorithm = 'dp-fedavg'"),
        ({"dp-fedavg.clip": 0.0}, "dp-fedavg.clip = 0: without clipping"),
        # m = 10: 2 sigma_b = 2 * 10 / 20.
        ({"dp-fedavg.adaptive": True}, "dp-fedavg.noise = 1.0: .* below 2 sigma_b = 1. Set"),
        (
            {"algorithm": "local-dp", "dp-fedavg.noise": 1.0, "local-dp.clip": 0.0},
            "local-dp.clip = 0: without clipping",
        ),
    ],
)
def test_what_breaks_the_guarantee_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_config({"algorithm": "dp-fedavg", "weighting": "uniform", **settings})


def test_too_few_nodes_for_the_noise_of_the_count_are_said() -> None:
    """With nodes that are clients m shows only in the run."""
    algorithm = DPFedAvg(noise=1.0, adaptive=True)
    with pytest.raises(RunError, match=r"below 2 sigma_b = 0\.4"):
        released(algorithm, 0, sampled=4)


# ---------------------------------------------------------------------- local DP


def test_local_noise_is_the_clients_own() -> None:
    """Deviation z S, by (seed, round, client); added to the clipped update."""
    algorithm = LocalDP(clip=2.0, noise=0.5)
    turn = Turn({"w": torch.zeros(20000, dtype=torch.float64)}, round=1)
    first = algorithm.draw(turn, seed=3, client=5)
    assert float(first["w"].std()) == pytest.approx(1.0, rel=4 / math.sqrt(2 * 20000))
    again = [algorithm.draw(turn, 3, 5), algorithm.draw(turn, 3, 6), algorithm.draw(turn, 4, 5)]
    again.append(algorithm.draw(replace(turn, round=2), 3, 5))
    assert [torch.equal(first["w"], other["w"]) for other in again] == [True, False, False, False]


def test_local_update_by_hand() -> None:
    """theta = (1, 1), theta_k = (4, 5): Delta (3, 4), clipped to norm 2.5: (1.5, 2); plus noise."""
    turn = Turn(vector(1, 1), drawn=vector(0.25, -0.25))
    found = LocalDP(clip=2.5, noise=0.5).finish(vector(4, 5), turn, 1).update
    assert found is not None
    assert found["w"].tolist() == pytest.approx([1.75, 1.75])


def test_local_epsilon_is_that_of_half_the_multiplier_each_round() -> None:
    """Two clipped updates are up to 2 S apart."""
    algorithm, theta = LocalDP(noise=3.0, delta=1e-4), vector(0)
    state = algorithm.start(theta)
    for _ in range(2):
        _, state = algorithm.apply(theta, theta, {}, state, STEP)
    expected = epsilon([2 * alpha / (2 * 1.5**2) for alpha in ORDERS], 1e-4)
    assert algorithm.report(state, STEP) == {"epsilon": pytest.approx(expected), "delta": 1e-4}


def test_delta_is_of_all_clients_and_not_of_those_that_replied() -> None:
    step = replace(STEP, num_clients=1000, participants=10)
    for algorithm in (DPFedAvg(), LocalDP()):
        state = algorithm.start(vector(0))
        assert algorithm.report(state, step)["delta"] == default_delta(1000)


def test_the_accountant_leaves_the_logging_as_it_is() -> None:
    """Opacus gives the root logger a handler, which would print every line of the run again."""
    code = (
        "import logging; from fedapp.analysis.privacy import epsilon, round_cost; "
        "epsilon(round_cost(1.0, 0.1), 1e-5); print(logging.getLogger().handlers)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
