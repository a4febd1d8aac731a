"""DP-FedAvg and local DP: clipping, noise and accounting against numbers worked out or published."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, pld, rdp
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, chisquare, norm

from fedapp.analysis.privacy import CLIENT, Privacy, default_delta, epsilon
from fedapp.client_app import app as client_app
from fedapp.config.read import read_config
from fedapp.engines.in_process import InlineGrid
from fedapp.errors import CheckpointError, ConfigError, RunError
from fedapp.federation.callback import Callback, ServerState
from fedapp.federation.round_result import RoundResult
from fedapp.federation.sampling import poisson_sample
from fedapp.runs.checkpoint import drop_checkpoints
from fedapp.runs.privacy import PrivacyLedger
from fedapp.seeds import generator
from fedapp.server import run as run_server
from fedapp.studies.sweep.execute import execute_run
from fedapp.studies.sweep.identity import Request
from fedapp.studies.sweep.store import Store
from fedapp.training.algorithm import ClientContext, ClientExtras, ServerStep
from fedapp.training.round_plan import RoundPlan
from fedapp.training.tensors import scaled
from strategies._noise import clipped, noise_generator, norm_of
from strategies.dp_fedavg import DPFedAvg
from strategies.local_dp import LocalDP
from tests.conftest import SMALL, Run, largest_difference
from tests.in_process import metrics, model
from tests.sampling import uniform_sample

STEP = ServerStep(
    plan=RoundPlan(learning_rate=0.1),
    server_learning_rate=1.0,
    num_clients=100,
    participants=10,
    share=0.1,
    fraction=0.1,
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
def test_epsilon_is_tighter_than_the_published_bounds(
    noise: float, rate: float, rounds: int, published: float
) -> None:
    """Theirs are of Rényi divergences; so is that of the same package, which is between them."""
    by_renyi = rdp.RdpAccountant()
    by_renyi.compose(PoissonSampledDpEvent(rate, GaussianDpEvent(noise)), rounds)
    assert 0.6 * published < epsilon(noise, rate, rounds, 1e-5) < by_renyi.get_epsilon(1e-5)
    assert by_renyi.get_epsilon(1e-5) < published


@pytest.mark.parametrize("noise", [0.5, 2.0])
@pytest.mark.parametrize("rounds", [1, 9])
def test_without_sampling_epsilon_is_the_gaussians(noise: float, rounds: int) -> None:
    """Balle and Wang 2018, Theorem 8: delta = Phi(m/2 - e/m) - exp(e) Phi(-m/2 - e/m), m = sqrt n / z."""
    found, m = epsilon(noise, 1.0, rounds, 1e-4), math.sqrt(rounds) / noise
    tail = math.exp(found) * norm.cdf(-m / 2 - found / m)
    assert norm.cdf(m / 2 - found / m) - tail == pytest.approx(1e-4, rel=1e-6)


def test_a_coarse_grid_is_an_upper_bound() -> None:
    """Below z = 0.2 the grid of losses is coarser; between two clients there is still no less."""
    fine = pld.PLDAccountant(value_discretization_interval=1e-3)
    fine.compose(PoissonSampledDpEvent(0.3, GaussianDpEvent(0.15)), 5)
    assert fine.get_epsilon(1e-3) <= epsilon(0.15, 0.3, 5, 1e-3) < 1.01 * fine.get_epsilon(1e-3)
    assert epsilon(1e-4, 0.3, 2, 1e-3) > epsilon(1e-2, 0.3, 2, 1e-3) > 1000


def test_without_noise_there_is_no_bound_and_without_a_round_nothing_is_spent() -> None:
    assert epsilon(0.0, 0.1, 1, 1e-5) == math.inf
    assert epsilon(0.0, 0.1, 0, 1e-5) == 0


@pytest.mark.parametrize("noise", [1e-101, 1e-160, 1e-310])
@pytest.mark.parametrize("rate", [0.1, 1.0])
def test_almost_no_noise_is_none(noise: float, rate: float) -> None:
    """The accountant's search does not converge there, or gives 0."""
    assert epsilon(noise, rate, 1, 1e-5) == math.inf
    assert 1e36 < epsilon(1e-20, rate, 1, 1e-5) < math.inf


@pytest.mark.parametrize("name", ["dp-fedavg", "local-dp"])
def test_a_clip_that_training_takes_for_zero_is_refused(run: Run, name: str) -> None:
    with pytest.raises(ConfigError, match=rf"{name}\.clip = 1e-310: .* Raise it"):
        run(algorithm=name, **UNIFORM, **{f"{name}.clip": 1e-310})


def test_default_delta_is_below_one_over_k() -> None:
    assert default_delta(1000) == pytest.approx(10**-3.3)
    assert default_delta(1) == 0.5


# ---------------------------------------------------------------------- coins


def test_coins_are_each_clients_own() -> None:
    """Sizes follow Binomial(K, q), and so does each client's number of rounds."""
    drawn = [poisson_sample(generator(0, "sample", t), range(40), 0.3) for t in range(2000)]
    assert all(clients == sorted(set(clients)) for clients in drawn)
    sizes = np.bincount([len(clients) for clients in drawn], minlength=41)
    expected = 2000 * binom.pmf(np.arange(41), 40, 0.3)
    often = expected > 5
    expected *= sizes[often].sum() / expected[often].sum()
    assert chisquare(sizes[often], expected[often]).pvalue > 0.01
    rounds = np.bincount(np.concatenate(drawn), minlength=40)
    assert abs(rounds - 600).max() < 4 * math.sqrt(2000 * 0.3 * 0.7)


def test_two_clients_coins_are_independent() -> None:
    """Of a fixed number of clients, two would be drawn together less often."""
    pairs = [
        {0, 1} <= set(poisson_sample(generator(0, "sample", t), range(4), 0.5)) for t in range(4000)
    ]
    assert sum(pairs) == pytest.approx(1000, abs=4 * math.sqrt(4000 * 3 / 16))


def test_coins_of_few_clients_may_leave_nobody_or_take_all() -> None:
    sizes = {len(poisson_sample(generator(0, "sample", t), [5, 9], 0.5)) for t in range(50)}
    assert sizes == {0, 1, 2}
    assert poisson_sample(generator(0, "sample", 1), [5, 9], 1.0) == [5, 9]


# ---------------------------------------------------------------------- DP-FedAvg


SEED: dict[str, Any] = {"dp-fedavg.entropy": "seed"}


def seeded(**fields: Any) -> DPFedAvg:
    return DPFedAvg(entropy="seed", **fields)


def released(
    algorithm: DPFedAvg, seed: int, size: int = 50, round_: int = 1, **changes: Any
) -> torch.Tensor:
    """Return what round ``round_`` adds to theta = 0 if the mean update is 0."""
    theta = {"w": torch.zeros(size, dtype=torch.float64)}
    upload = {"within": torch.tensor(0.5)}
    step = replace(STEP, plan=replace(STEP.plan, seed=seed, round=round_), **changes)
    return algorithm.apply(theta, theta, upload, algorithm.start(theta), step)[0]["w"]


@pytest.mark.parametrize(
    ("algorithm", "deviation"),
    [
        (seeded(clip=3.0, noise=0.5), 0.5 * 3 / 10),
        # sigma_b = 1: z_Delta = (1 - 1/4)^(-1/2) = 2 / sqrt 3.
        (
            seeded(initial_clip=3.0, noise=1.0, adaptive=True, count_noise=1.0),
            2 / math.sqrt(3) * 3 / 10,
        ),
    ],
)
def test_noise_has_the_deviation_that_it_should(algorithm: DPFedAvg, deviation: float) -> None:
    """z S / (q K), q K = 10: over 400 seeds of 50 numbers, within four standard errors."""
    drawn = torch.cat([released(algorithm, seed) for seed in range(400)])
    assert abs(float(drawn.mean())) < 4 * deviation / math.sqrt(len(drawn))
    assert float(drawn.std()) == pytest.approx(deviation, rel=4 / math.sqrt(2 * len(drawn)))


def test_seeded_noise_is_of_the_seed_and_the_round_alone() -> None:
    algorithm = seeded()
    first = released(algorithm, 7)
    assert torch.equal(first, released(algorithm, 7))
    assert not torch.equal(first, released(algorithm, 8))
    assert not torch.equal(first, released(algorithm, 7, round_=2))


def test_the_divisor_is_fixed_whoever_replied() -> None:
    """q K = 10. A mean of 3 over 4 clients: 12 / 10; over 16: 48 / 10; nobody: 0. Noise z S / 10."""
    algorithm, theta = seeded(noise=0.0), vector(1)
    for replied, expected in ((4, 2.2), (16, 5.8), (0, 1.0)):
        step = replace(STEP, participants=replied)
        mean = vector(3) if replied else {}
        after, _ = algorithm.apply(theta, mean, {}, algorithm.start(theta), step)
        assert float(after["w"]) == pytest.approx(expected)
    assert torch.equal(released(seeded(), 7, participants=5), released(seeded(), 7))


def test_noise_and_coins_are_the_systems_unless_told_otherwise() -> None:
    algorithm = DPFedAvg()
    assert not torch.equal(released(algorithm, 7), released(algorithm, 7))
    coins = [poisson_sample(algorithm.sampling_generator(7, 1), range(100), 0.5) for _ in range(2)]
    assert coins[0] != coins[1]
    assert LocalDP().entropy == "system"


def test_the_bound_moves_towards_the_quantile_by_hand() -> None:
    """Ten of q K = 10 within S: S exp(-0.2 (1 - 0.5)). None of ten: S exp(0.1). Nobody: b = 1/2.

    Four of four within S: b = 1/2 + 4 (1 - 1/2) / 10 = 0.7, as those that are missing count for half.
    """
    algorithm = seeded(initial_clip=2.0, noise=0.0, adaptive=True)
    state = algorithm.start(vector(0))
    for replied, share, expected in (
        (10, 1.0, 2 * math.exp(-0.1)),
        (10, 0.0, 2 * math.exp(0.1)),
        (4, 1.0, 2 * math.exp(-0.2 * 0.2)),
        (0, None, 2.0),
    ):
        upload = {} if share is None else {"within": torch.tensor(share)}
        step = replace(STEP, participants=replied)
        _, found = algorithm.apply(vector(0), vector(0), upload, state, step)
        assert float(found["clip"]) == pytest.approx(expected)


def test_the_adaptive_bound_begins_at_a_tenth() -> None:
    """Andrew et al. 2021, section 3.1."""
    assert float(DPFedAvg(adaptive=True).start(vector(0))["clip"]) == 0.1
    assert float(DPFedAvg().start(vector(0))["clip"]) == 1.0


def test_an_update_as_long_as_the_bound_is_within_it() -> None:
    algorithm = seeded(initial_clip=5.0, noise=0.0, adaptive=True)
    context = ClientContext(vector(0, 0), algorithm.broadcast(algorithm.start(vector(0, 0))))
    found = [algorithm.finalize(vector(3, y), context, 1).upload["within"] for y in (4.0, 4.001)]
    assert [float(each) for each in found] == [1.0, 0.0]


def test_a_count_that_cannot_be_is_taken_for_the_nearest_that_can() -> None:
    """A client may say anything; all are within S at most, and none at least."""
    algorithm = seeded(noise=0.0, adaptive=True)
    theta = vector(1.0)
    state = algorithm.start(theta)
    for said, taken in ((-1e9, 0.0), (1e9, 1.0)):
        after = [
            algorithm.apply(theta, theta, {"within": torch.tensor(each)}, state, STEP)[1]["clip"]
            for each in (said, taken)
        ]
        assert after[0] == after[1]


def test_one_client_moves_sum_and_count_by_what_their_noise_is_for() -> None:
    """By S and by 1/2, over q K: from nobody to one client that is within S, and to one that is not."""
    algorithm, theta = seeded(noise=0.0, adaptive=True, initial_clip=1.0), vector(0)
    state = algorithm.start(theta)
    nobody = algorithm.apply(theta, {}, {}, state, replace(STEP, participants=0))
    for within in (0.0, 1.0):
        upload = {"within": torch.tensor(within)}
        one = algorithm.apply(theta, vector(1), upload, state, replace(STEP, participants=1))
        assert float(one[0]["w"] - nobody[0]["w"]) == pytest.approx(1 / 10)
        moved = math.log(float(one[1]["clip"]) / float(nobody[1]["clip"]))
        assert abs(moved) == pytest.approx(0.2 * 0.5 / 10)


@pytest.mark.parametrize(
    ("quantile", "noise", "near"), [(0.25, 0.0, 1.0), (0.9, 0.0, 1.0), (0.5, 0.8, 5.0)]
)
def test_the_bound_converges_to_the_quantile(quantile: float, noise: float, near: float) -> None:
    """100 clients whose updates have norms 1 to 100; from S = 10."""
    algorithm = seeded(initial_clip=10.0, noise=noise, adaptive=True, quantile=quantile)
    step = replace(STEP, participants=100, fraction=1.0)
    theta = vector(0)
    state = algorithm.start(theta)
    bounds = []
    for round_ in range(1, 81):
        context = ClientContext(theta, algorithm.broadcast(state))
        bits = [algorithm.finalize(vector(k), context, 1).upload["within"] for k in range(1, 101)]
        upload = {"within": torch.stack(bits).mean()}
        _, state = algorithm.apply(
            theta, theta, upload, state, replace(step, plan=replace(step.plan, round=round_))
        )
        bounds.append(float(state["clip"]))
    mean = sum(bounds[-20:]) / 20
    assert mean == pytest.approx(100 * quantile, abs=near)


@pytest.mark.parametrize("clip", [0.0, 1e9])
@pytest.mark.parametrize("name", ["dp-fedavg", "local-dp"])
def test_without_noise_and_clipping_it_is_uniform_fedavg(run: Run, name: str, clip: float) -> None:
    """With all clients, bit for bit."""
    settings = {**UNIFORM, "num_server_rounds": 2, "fraction_train": 1.0}
    off = {f"{name}.noise": 0.0, f"{name}.clip": clip}
    found = run("private", algorithm=name, **settings, **off)
    assert largest_difference(model(found), model(run("fedavg", **settings))) == 0.0
    assert metrics(found)[1]["epsilon"] is None


ADAPTIVE: dict[str, Any] = {
    **UNIFORM,
    **SEED,
    "algorithm": "dp-fedavg",
    "dp-fedavg.noise": 0.5,
    "dp-fedavg.adaptive": True,
    "dp-fedavg.count-noise": 0.5,
    "checkpoint_every": 2,
    "num_server_rounds": 4,
}
LOCAL: dict[str, Any] = {**UNIFORM, "algorithm": "local-dp", "local-dp.entropy": "seed"}


@pytest.mark.parametrize("settings", [ADAPTIVE, LOCAL])
def test_resumes_exactly_with_noise_bound_and_spending(run: Run, settings: dict[str, Any]) -> None:
    whole = run("whole", nodes=2, **{**settings, "num_server_rounds": 4})
    run("parts", nodes=2, **{**settings, "num_server_rounds": 2})
    parts = run("parts", nodes=2, **{**settings, "num_server_rounds": 4, "resume": True})
    assert largest_difference(model(whole), model(parts)) == 0.0
    assert metrics(whole)[1:] == metrics(parts)[1:]


@pytest.mark.parametrize("settings", [ADAPTIVE, LOCAL])
def test_nodes_make_no_difference(run: Run, settings: dict[str, Any]) -> None:
    one = run("one", nodes=1, **{**settings, "num_server_rounds": 2})
    three = run("three", nodes=3, **{**settings, "num_server_rounds": 2})
    assert largest_difference(model(one), model(three)) < 1e-12


def test_epsilon_of_every_round_is_the_accountants(run: Run) -> None:
    """q = 0.5, z = 2, K = 6: dp_accounting called by hand, also for rounds that drew nobody or few."""
    private = {"algorithm": "dp-fedavg", "dp-fedavg.noise": 2.0, "num_server_rounds": 8, **SEED}
    folder = run(**UNIFORM, **private)
    records = metrics(folder)[1:]
    accountant = pld.PLDAccountant(value_discretization_interval=1e-3)
    for record in records:
        accountant.compose(PoissonSampledDpEvent(0.5, GaussianDpEvent(2.0)))
        assert record["delta"] == pytest.approx(6**-1.1)
        by_hand = accountant.get_epsilon(record["delta"])
        assert record["epsilon"] == pytest.approx(by_hand, abs=1e-6)
        assert record["adjacency"] == "add or remove one client"
        assert record["clip"] == 1.0
        assert record["model_changed"]
    assert min(len(record["clients"]) for record in records) < 3
    summary = json.loads((folder / "summary.json").read_text())
    for key in ("epsilon", "delta", "adjacency"):
        assert summary[key] == records[-1][key]


def test_a_round_that_draws_nobody_is_noised_and_charged(run: Run, tmp_path: Path) -> None:
    """K = 2, q = 0.01: the model moves by noise alone."""
    private = {"algorithm": "dp-fedavg", "num_clients": 2, "fraction_train": 0.01, **SEED}
    folder = run(**UNIFORM, **private, **{"dp-fedavg.delta": 1e-5}, num_server_rounds=2)
    first, second = metrics(folder)[1:]
    assert [first["clients"], first["replied"], first["train_loss"]] == [[], 0, None]
    assert first["model_changed"]
    assert 0 < first["epsilon"] < second["epsilon"]
    deviation = torch.cat([t.flatten() for t in model(folder).values()]).std()
    assert float(deviation) == pytest.approx(math.sqrt(2) / 0.02, rel=0.1)


def test_a_client_that_fails_counts_as_zero(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """All clients send the same update u of length S: with one of two gone, u / 2 is added."""
    settings = {"algorithm": "dp-fedavg", "num_clients": 2, "fraction_train": 1.0, **UNIFORM}
    settings |= {"dp-fedavg.noise": 0.0, "num_server_rounds": 1}
    monkeypatch.setattr(
        DPFedAvg, "finalize", lambda _, params, *__: ClientExtras(update=all_of(params, 0.01))
    )
    both = model(run("both", **settings))
    monkeypatch.setattr(DPFedAvg, "round_randomness", fail_for_client_1)
    failing = run("one", **settings)
    monkeypatch.setattr(
        DPFedAvg, "finalize", lambda _, params, *__: ClientExtras(update=all_of(params, 0.0))
    )
    none = model(run("none", **settings))
    assert metrics(failing)[1]["faults"] == {"raised": 1}
    for name, start in none.items():
        assert both[name] - start == pytest.approx(0.01)
        assert model(failing)[name] - start == pytest.approx(0.005)


def all_of(params: Any, value: float) -> dict[str, torch.Tensor]:
    return {name: torch.full_like(tensor, value) for name, tensor in params.items()}


def fail_for_client_1(
    self: DPFedAvg, context: ClientContext, seed: int, client: int
) -> dict[str, Any]:
    if client == 1:
        raise OSError("no battery")
    return {}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"weighting": "examples"}, "weighting = 'examples': with algorithm = 'dp-fedavg'"),
        (
            {"over-selection": 0.5},
            "over-selection = 0.5: has no effect, because sampler = 'poisson'",
        ),
        (
            {"fraction-train": 0.0},
            "fraction-train = 0: with sampler = 'poisson' it is the prob",
        ),
        ({"dp-fedavg.clip": 0.0}, "dp-fedavg.clip = 0: without clipping"),
        ({"dp-fedavg.noise": 0.0, "dp-fedavg.max-epsilon": 1.0}, "max-epsilon = 1: without noise"),
        # q K = 10: 2 sigma_b = 2 * 10 / 20.
        ({"dp-fedavg.adaptive": True}, "dp-fedavg.noise = 1.0: .* below 2 sigma_b = 1. Set"),
        (
            {"dp-fedavg.adaptive": True, "dp-fedavg.noise": 0.1, "dp-fedavg.clip": 2.0},
            r"dp-fedavg.clip = 2.0: has no effect, .* Set dp-fedavg.initial-clip",
        ),
        *(
            ({key: value}, f"{key} = {value}: has no effect, .* Set dp-fedavg.adaptive=true, or")
            for key, value in (
                ("dp-fedavg.initial-clip", 3.0),
                ("dp-fedavg.quantile", 0.9),
                ("dp-fedavg.clip-rate", 0.9),
                ("dp-fedavg.count-noise", 9.0),
            )
        ),
        (
            {"dp-fedavg.adaptive": True, "dp-fedavg.noise": 0.0, "dp-fedavg.count-noise": 3.0},
            r"dp-fedavg.count-noise = 3.0: has no effect, .* Set dp-fedavg.noise=1.0, or",
        ),
        (
            {"algorithm": "local-dp", "local-dp.clip": 0.0},
            "local-dp.clip = 0: without clipping",
        ),
        ({"on-failure": "stop"}, r"on-failure = 'stop': .*without noise, when the run ends"),
        ({"max-update-norm": 0.1}, r"max-update-norm = 0\.1: .*count as zero.*dp-fedavg\.clip"),
        ({"dp-fedavg.delta": 1e-17}, r"dp-fedavg\.delta = 1e-17: .* not computed below 1e-14"),
    ],
)
def test_what_breaks_the_guarantee_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_config({"algorithm": "dp-fedavg", "weighting": "uniform", **settings})


def test_too_few_nodes_for_the_noise_of_the_count_are_said_before_training() -> None:
    """With nodes that are clients K shows only when they have connected."""
    config = read_config(
        {
            "algorithm": "dp-fedavg",
            "weighting": "uniform",
            "num-clients": 0,
            "dp-fedavg.adaptive": True,
        }
    )
    algorithm = DPFedAvg(noise=1.0, adaptive=True)
    with pytest.raises(ConfigError, match=r"below 2 sigma_b = 0\.4"):
        algorithm.require_clients(config, 8)
    algorithm.require_clients(config, 21)


# ---------------------------------------------------------------------- local DP


def test_local_noise_is_the_clients_own() -> None:
    """Deviation z S, by (seed, round, client); added to the clipped update."""
    algorithm = LocalDP(clip=2.0, noise=0.5, entropy="seed")
    context = ClientContext({"w": torch.zeros(20000, dtype=torch.float64)}, round=1)
    first = algorithm.round_randomness(context, seed=3, client=5)
    assert float(first["w"].std()) == pytest.approx(1.0, rel=4 / math.sqrt(2 * 20000))
    again = [
        algorithm.round_randomness(context, 3, 5),
        algorithm.round_randomness(context, 3, 6),
        algorithm.round_randomness(context, 4, 5),
    ]
    again.append(algorithm.round_randomness(replace(context, round=2), 3, 5))
    assert [torch.equal(first["w"], other["w"]) for other in again] == [True, False, False, False]


def test_local_update_by_hand() -> None:
    """theta = (1, 1), theta_k = (4, 5): Delta (3, 4), clipped to norm 2.5: (1.5, 2); plus noise."""
    context = ClientContext(vector(1, 1), round_randomness=vector(0.25, -0.25))
    found = LocalDP(clip=2.5, noise=0.5).finalize(vector(4, 5), context, 1).update
    assert found is not None
    assert found["w"].tolist() == pytest.approx([1.75, 1.75])


def test_local_epsilon_is_of_the_client_with_the_most_orders(run: Run) -> None:
    """Half the multiplier, as two clipped updates are up to 2 S apart; m = 3 of K = 6 a round."""
    folder = run(**LOCAL, **{"local-dp.noise": 3.0, "local-dp.delta": 1e-4}, num_server_rounds=5)
    orders = np.zeros(6, int)
    for record in metrics(folder)[1:]:
        orders[record["clients"]] += 1
        assert record["epsilon"] == pytest.approx(epsilon(1.5, 1.0, int(orders.max()), 1e-4))
        assert record["adjacency"] == "replace one client's data"
    assert orders.max() < 5


def test_orders_of_rounds_that_came_to_nothing_are_charged(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalDP, "gradient", lambda *_: 1 / 0)
    with pytest.raises(RunError, match="No round changed the model"):
        run(**LOCAL, num_server_rounds=2, fraction_train=1.0)
    records = metrics(tmp_path / "run")[1:]
    assert [record["model_changed"] for record in records] == [False, False]
    assert records[1]["epsilon"] == pytest.approx(epsilon(0.5, 1.0, 2, 6**-1.1))


# ---------------------------------------------------------------------- what is spent


def test_max_epsilon_ends_a_run_before_the_round_that_would_pass_it(run: Run, caplog: Any) -> None:
    """The model is that of the last round that it allows, evaluated though evaluations are sparse."""
    bound = epsilon(1.0, 0.5, 3, 6**-1.1)
    private = {"algorithm": "dp-fedavg", "dp-fedavg.max-epsilon": bound * 1.001, **SEED}
    folder = run(**UNIFORM, **private, num_server_rounds=9, eval_every=0)
    records = metrics(folder)
    assert [record["round"] for record in records] == [0, 1, 2, 3]
    assert records[-1]["epsilon"] == pytest.approx(bound)
    assert "test_accuracy" in records[-1]
    assert "max-epsilon is reached: round 4 would pass it" in caplog.text
    assert json.loads((folder / "summary.json").read_text())["rounds"] == 3
    again = run(**UNIFORM, **private, num_server_rounds=9, eval_every=0, resume=True)
    assert metrics(again) == records


def test_a_run_of_a_sweep_that_spent_its_epsilon_is_done(tmp_path: Path) -> None:
    """The second turn, which can do no round, says so; it is not tried again for ever."""
    bound = {"dp-fedavg.max-epsilon": epsilon(1.0, 0.5, 2, 6**-1.1) * 1.001}
    given = {**SMALL, **UNIFORM, **SEED, **bound, "algorithm": "dp-fedavg"}
    del given["num-server-rounds"]
    request = Request.of(given, 9)
    store = Store(tmp_path)
    assert execute_run(request, store, lambda *_: False) is None
    record = execute_run(request, store, lambda *_: False)
    assert record is not None
    assert (record.status, record.last_round) == ("complete", 2)
    assert record.problem == "max-epsilon or a callback ended it after round 2"
    assert store.find(request) == record


def test_max_epsilon_of_local_noise_is_each_clients(run: Run) -> None:
    """No client is sent a third order, and every round before could have been."""
    bound = epsilon(0.5, 1.0, 2, 6**-1.1) + 1e-6
    folder = run(**LOCAL, **{"local-dp.max-epsilon": bound}, num_server_rounds=20)
    orders = np.zeros(6, int)
    for record in metrics(folder)[1:]:
        orders[record["clients"]] += 1
    assert orders.max() == 2
    last = metrics(folder)[-1]["round"]
    drawn = uniform_sample(0, last + 1, range(6), 0.5)
    assert (orders[drawn] == 2).any()


ASKING = """
from typing import ClassVar
from fedapp.federation.samplers.sampler import Sampler

class Asking(Sampler):
    \"\"\"The clients with the largest losses.\"\"\"

    name: ClassVar[str] = "asking"
    asks: ClassVar[bool] = True

    def sample(self, candidates):
        losses = candidates.losses(list(candidates.clients))
        return sorted(sorted(losses, key=losses.get)[-candidates.number :])
"""


def test_samplers_that_ask_for_losses_are_refused(tmp_path: Path, run: Run) -> None:
    path = tmp_path / "asking.py"
    path.write_text(ASKING)
    with pytest.raises(ConfigError, match=r"asking\.py'.* losses .* not private"):
        run(**LOCAL, sampler=str(path))


def test_a_target_that_the_clients_examples_decide_is_refused(run: Run) -> None:
    with pytest.raises(ConfigError, match=r"target-accuracy = 0\.9: .*evaluation='server'"):
        run(**LOCAL, target_accuracy=0.9, evaluation="clients")


@pytest.mark.parametrize("algorithm", ["dp-fedavg", "local-dp"])
def test_a_vocabulary_of_the_clients_words_is_refused(
    algorithm: str, tmp_path: Path, run: Run
) -> None:
    for name in ("train", "test"):
        rows = [f"c{k},the cat sat on the mat {k}" for k in range(6)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["who,text", *rows]))
    text = {"dataset": str(tmp_path), "client_key": "who", "partitioner": "natural"}
    with pytest.raises(ConfigError, match=r"text-unit = 'words': .*'characters'"):
        run(algorithm=algorithm, **text, model="word-lstm", text_unit="words", text_unroll=4)


def test_large_noise_on_the_count_leaves_a_finite_bound(run: Run) -> None:
    private = {"algorithm": "dp-fedavg", "dp-fedavg.adaptive": True, **SEED}
    folder = run(**UNIFORM, **private, **{"dp-fedavg.count-noise": 1e5}, num_server_rounds=5)
    clips = [record["clip"] for record in metrics(folder)[1:]]
    assert len(clips) == 5
    assert all(0 < clip < float("inf") for clip in clips)


@pytest.mark.parametrize(
    ("name", "charge", "mend"),
    [("dp-fedavg", "round", ", or lower fraction-train"), ("local-dp", "request", "")],
)
def test_max_epsilon_below_one_charge_is_refused_before_training(
    run: Run, name: str, charge: str, mend: str
) -> None:
    said = (
        f"{name}\\.max-epsilon = 0\\.1: one {charge} alone .* Raise it or {name}\\.noise{mend}\\.$"
    )
    with pytest.raises(ConfigError, match=said):
        run(algorithm=name, **UNIFORM, **{f"{name}.max-epsilon": 0.1})


class KillAfter(Callback):
    """Ends the process's run as Ctrl-C does, after a round."""

    def __init__(self, round_: int) -> None:
        self.round = round_

    def on_round(self, result: RoundResult, state: ServerState) -> bool:
        if state.round == self.round:
            raise KeyboardInterrupt
        return False


@pytest.mark.parametrize(("entropy", "charged"), [("system", 6), ("seed", 4)])
def test_a_resumed_run_charges_what_it_draws_anew(
    entropy: str, charged: int, run: Run, tmp_path: Path
) -> None:
    """Killed in round 4 after the checkpoint of round 2: rounds 3 and 4 are drawn again, or repeated."""
    private = {"algorithm": "dp-fedavg", "dp-fedavg.entropy": entropy, **UNIFORM}
    settings = {**SMALL, **{k.replace("_", "-"): v for k, v in private.items()}}
    settings |= {"num-server-rounds": 4, "checkpoint-every": 2, "run-dir": str(tmp_path / "killed")}
    with pytest.raises(KeyboardInterrupt):
        run_server(InlineGrid(client_app, settings, [{}]), read_config(settings), [KillAfter(4)])
    # The kill came after the order and before the checkpoint of round 4.
    drop_checkpoints(tmp_path / "killed" / "checkpoints", 3)
    folder = run("killed", **private, num_server_rounds=4, checkpoint_every=2, resume=True)
    assert len((folder / "privacy.jsonl").read_text().splitlines()) == charged
    last = metrics(folder)[-1]
    assert last["round"] == 4
    assert last["epsilon"] == pytest.approx(epsilon(1.0, 0.5, charged, 6**-1.1))


def test_rounds_lost_with_a_process_count_in_the_summary(run: Run, tmp_path: Path) -> None:
    """The bound is spent in round 4, whose checkpoint is lost: a resume runs no round."""
    private = {"algorithm": "dp-fedavg", **UNIFORM}
    private["dp-fedavg.max-epsilon"] = epsilon(1.0, 0.5, 4, 6**-1.1)
    rounds = {"num_server_rounds": 9, "checkpoint_every": 2}
    folder = run("run", **private, **rounds)
    assert metrics(folder)[-1]["round"] == 4
    drop_checkpoints(folder / "checkpoints", 3)
    assert run("run", **private, **rounds, resume=True) == folder
    assert metrics(folder)[-1]["round"] == 2
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["rounds"] == 2
    assert summary["epsilon"] == pytest.approx(epsilon(1.0, 0.5, 4, 6**-1.1))


def test_the_charge_is_on_disk_before_an_order_leaves(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    class Watching(InlineGrid):
        def push(self, message_id: str, message: Any) -> None:
            if message.metadata.message_type == "train":
                lines = (tmp_path / "run" / "privacy.jsonl").read_text().splitlines()
                seen.append([json.loads(line) for line in lines])
            super().push(message_id, message)

    settings = {**SMALL, "algorithm": "local-dp", "run-dir": str(tmp_path / "run")}
    settings |= {"num-server-rounds": 2, "weighting": "uniform", "model": "linear"}
    run_server(Watching(client_app, settings, [{}]), read_config(settings))
    drawn = [record["clients"] for record in metrics(tmp_path / "run")[1:]]
    charge = {"q": 1.0, "noise": 0.5}
    assert seen[0] == [{"round": 1, **charge, "clients": drawn[0]}]
    assert seen[1] == [*seen[0], {"round": 2, **charge, "clients": drawn[1]}]


def test_a_charge_outlives_a_power_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is on the disk, and not only on its way, when the requests are sent."""
    ledger = PrivacyLedger(tmp_path, Privacy(1.0, 0.5, CLIENT, 1e-3, 0.0, repeatable=False), 6)
    ledger.start("dp-fedavg")
    safe: dict[int, int] = {}

    def synced(number: int) -> None:
        status = os.fstat(number)
        safe[status.st_ino] = status.st_size

    monkeypatch.setattr(os, "fsync", synced)
    for round_ in (1, 2):
        ledger.charge(round_, [0, 1])
        status = ledger.path.stat()
        assert safe[status.st_ino] == status.st_size


def test_no_order_leaves_that_cannot_be_charged(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, text: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fedapp.runs.privacy.append_or_restore", full)
    trained = []
    monkeypatch.setattr(DPFedAvg, "gradient", lambda *_: trained.append(1))
    with pytest.raises(RunError, match=r"privacy\.jsonl cannot be written \(No space left"):
        run(algorithm="dp-fedavg", **UNIFORM, fraction_train=1.0)
    assert not trained


def test_a_private_run_of_an_earlier_version_is_refused_on_resume(run: Run) -> None:
    settings = {"algorithm": "dp-fedavg", **UNIFORM}
    folder = run(**settings, num_server_rounds=1)
    (folder / "privacy.jsonl").unlink()
    with pytest.raises(CheckpointError, match=r"run holds a private run without privacy\.jsonl"):
        run(**settings, num_server_rounds=2, resume=True)


def test_a_damaged_ledger_is_named_and_a_torn_last_line_was_no_order(run: Run) -> None:
    settings = {"algorithm": "dp-fedavg", **UNIFORM}
    folder = run(**settings, num_server_rounds=2)
    lines = (folder / "privacy.jsonl").read_text()
    (folder / "privacy.jsonl").write_text(lines + '{"round": 3, "q"')
    run(**settings, num_server_rounds=3, resume=True)
    whole = (folder / "privacy.jsonl").read_text()
    assert [json.loads(line)["round"] for line in whole.splitlines()] == [1, 2, 3]
    (folder / "privacy.jsonl").write_text("rubbish\n" + whole)
    with pytest.raises(CheckpointError, match=r"privacy\.jsonl, line 1, is damaged"):
        run(**settings, num_server_rounds=4, resume=True)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"dp-fedavg.entropy": "seed"}, "Not private: entropy is 'seed'"),
        ({"dp-fedavg.noise": 0.0}, "Not private: the noise is 0"),
        ({"fraction_train": 1.0}, "fraction-train = 1: every client takes part in every round"),
        ({}, "neighbours are runs that add or remove one client, of K = 6; delta = 0.139"),
    ],
)
def test_what_the_bound_is_for_is_said_at_the_start(
    settings: dict[str, Any], said: str, run: Run, caplog: Any
) -> None:
    run(algorithm="dp-fedavg", **UNIFORM, **settings, num_server_rounds=1)
    assert said in caplog.text
    assert ("Not private" in caplog.text) == said.startswith("Not private")


def test_k_is_that_of_the_start_where_nodes_are_clients(tmp_path: Path, caplog: Any) -> None:
    """A node that comes later is none of the K: it trains nothing, and its scores do not count."""
    settings = {**SMALL, "num-clients": 0, "fraction-train": 1.0, "model": "linear"}
    settings |= {"evaluation": "both"}
    settings |= {"algorithm": "dp-fedavg", "weighting": "uniform", "run-dir": str(tmp_path / "run")}
    nodes = [{"partition-id": i, "num-partitions": 4} for i in range(4)]

    class Late(InlineGrid):
        """The last node connects when round 1 begins."""

        sent: ClassVar[set[tuple[str, int]]] = set()

        def get_nodes(self) -> Any:
            return list(super().get_nodes())[: 4 if ("train", 1) in self.sent else 3]

        def push(self, message_id: str, message: Any) -> None:
            self.sent.add((message.metadata.message_type, message.metadata.dst_node_id))
            super().push(message_id, message)

    run_server(Late(client_app, settings, nodes), read_config(settings))
    assert [kind for kind, node in Late.sent if node == 4] == ["query"]
    assert {node for kind, node in Late.sent if kind == "evaluate"} == {1, 2, 3}
    records = metrics(tmp_path / "run")[1:]
    assert [record["clients"] for record in records] == [[0, 1, 2]] * 3
    assert records[0]["delta"] == pytest.approx(3**-1.1)
    assert "the bound is for the K = 3 clients that are connected now" in caplog.text


def test_a_million_coins_are_one_vector_of_draws() -> None:
    """Of a million clients some ten thousand take part."""
    drawn = poisson_sample(generator(0, "sample", 1), range(1_000_000), 0.01)
    assert len(drawn) == pytest.approx(10_000, abs=400)


def test_private_runs_end_by_no_accuracy_of_clients() -> None:
    """With ``both`` the run ends by the server's."""
    given = {"algorithm": "local-dp", "target-accuracy": 0.9, "weighting": "uniform"}
    with pytest.raises(ConfigError, match=r"target-accuracy = 0\.9: .*evaluation='server'"):
        read_config({**given, "evaluation": "clients"})
    assert read_config({**given, "evaluation": "both"}).target_accuracy == 0.9


def test_the_share_within_the_bound_is_bounded() -> None:
    """b_k is at most 1: a client that says 1e9 is refused by name, and moves no S."""
    assert DPFedAvg(adaptive=True).upload_bounds(ClientContext({})) == {"within": 1.0}
    assert DPFedAvg().upload_bounds(ClientContext({})) == {}


@pytest.mark.parametrize("bound", ["dp-fedavg.clip", "dp-fedavg.initial-clip"])
def test_an_update_longer_than_the_clip_is_rejected(
    run: Run, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    """An honest node's mean of clipped updates is accepted; then nodes leave the clipping out."""
    settings = {
        **UNIFORM,
        "algorithm": "dp-fedavg",
        bound: 1e-3,
        "dp-fedavg.adaptive": bound != "dp-fedavg.clip",
        "dp-fedavg.noise": 0.1,
        "trainer": "sequential",
        "num-server-rounds": 1,
        "fraction-train": 1.0,
    }
    assert "failures" not in metrics(run("honest", **settings))[-1]
    monkeypatch.setattr("strategies.dp_fedavg.clipped", lambda update, _: scaled(update, 1.1))
    last = metrics(run("other", **settings))[-1]
    assert last["replied"] == 0
    assert all("above the algorithm's bound 0.001" in why for why in last["failures"].values())
    off = {"dp-fedavg.noise": 0.0, "dp-fedavg.clip": 0.0, "dp-fedavg.adaptive": False}
    settings.pop(bound)
    assert "failures" not in metrics(run("unbounded", **{**settings, **off}))[-1]


def test_no_bound_of_updates_goes_with_dp_fedavg() -> None:
    """0 is no bound, so it leaves no reply out."""
    assert read_config({"algorithm": "dp-fedavg", "max-update-norm": 0.0}).max_update_norm == 0.0


def test_a_round_is_allowed_if_its_own_clients_can_pay(tmp_path: Path) -> None:
    """Each of clients 0 and 1 has spent its one request, whose cost is the bound itself."""
    bound = epsilon(0.5, 1.0, 1, 1e-3)
    privacy = Privacy(0.5, 1.0, CLIENT, 1e-3, bound, repeatable=True, by_client=True)
    ledger = PrivacyLedger(tmp_path, privacy, 6)
    ledger.start("dp-fedavg")
    ledger.charge(1, [0, 1])
    assert ledger.allows(lambda: [2, 3])
    assert not ledger.allows(lambda: [1, 2])


def test_a_norm_whose_square_overflows_is_clipped() -> None:
    found = clipped({"w": torch.tensor([3e30, 4e30])}, 1.0)["w"]
    assert found.tolist() == pytest.approx([0.6, 0.8])


def test_each_noise_of_each_round_and_client_has_draws_of_its_own() -> None:
    ours = ("seed", 7, "update", 3, 2)
    others = [("seed", 8, "update", 3, 2), ("seed", 7, "count", 3, 2)]
    others += [("seed", 7, "update", 4, 2), ("seed", 7, "update", 3, 1)]
    draws = [noise_generator(*each).normal(size=4).tolist() for each in (ours, ours, *others)]
    assert draws[0] == draws[1]
    assert len({tuple(each) for each in draws}) == 1 + len(others)
