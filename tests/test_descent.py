"""The line of descent: methods as settings, and the identities between them; rates on the quadratic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedapp.analysis.rates import accelerated, bound, gradient_descent, heavy_ball
from fedapp.cli.generate import ROOT
from fedapp.config.read import parse_settings, read_config
from fedapp.config.settings import Scalar
from fedapp.data.embedded.quadratic import MATRIX, SMOOTHNESS, STRONG_CONVEXITY
from fedapp.studies.papers.quadratic_rates import METHODS, measured, on_the_server, promised, trace
from fedapp.training.round_plan import RoundPlan
from tests.conftest import largest_difference
from tests.in_process import metrics
from tests.test_algorithms import run_to

DIGITS: dict[str, Any] = {
    "model": "linear",
    "num-clients": 4,
    "num-server-rounds": 2,
    "learning-rate": 0.5,
    "precision": "float64",
    "pictures": False,
    "eval-every": 0,
}
ONE_STEP: Mapping[str, Scalar] = {"local-epochs": 1, "batch-size": 0}
ALL_CLIENTS: Mapping[str, Scalar] = {"fraction-train": 1.0}
CENTRAL: Mapping[str, Scalar] = {"num-clients": 1, **ALL_CLIENTS}
RANDOM_BATCHES: Mapping[str, Scalar] = {
    **ALL_CLIENTS,
    "batch-sampling": "uniform",
    "weighting": "uniform",
}
METHODS_AS_SETTINGS: Mapping[str, Mapping[str, Scalar]] = {
    "Gradient descent": {**CENTRAL, **ONE_STEP},
    "SGD": {**CENTRAL, "local-epochs": 1, "batch-size": 1},
    "Mini-batch SGD": {**CENTRAL, "local-epochs": 1, "batch-size": 50},
    "Centralised SGD, a round an update": {
        **CENTRAL,
        "local-steps": 1,
        "batch-size": 100,
        "batch-sampling": "uniform",
    },
    "Parallel SGD": {**RANDOM_BATCHES, "local-steps": 1, "batch-size": 50},
    "Local SGD": {**RANDOM_BATCHES, "local-steps": 10, "batch-size": 50, "update": "model"},
    "SGD, applied naively": {
        "fraction-train": 0.0,
        "local-steps": 1,
        "batch-size": 10,
        "batch-sampling": "uniform",
    },
    "FedSGD": {"algorithm": "fedsgd", **ONE_STEP},
    "FedSGD with C = 1: gradient descent": {**ONE_STEP, **ALL_CLIENTS},
    "FedAvg, Option I": {"update": "delta"},
    "FedAvg, Option II": {"update": "model"},
    "Naive averaging": {"weighting": "uniform"},
    "One-shot averaging": {**ALL_CLIENTS, "num-server-rounds": 1, "local-epochs": 20},
    "Heavy ball on the clients": {"momentum": 0.9},
    "Nesterov on the clients": {"momentum": 0.9, "nesterov": True},
    "Heavy ball on the server": {"algorithm": "fedavgm", "fedavgm.momentum": 0.9},
    "Nesterov's accelerated gradient, federated": {
        "algorithm": "fedavgm",
        "fedavgm.momentum": 0.9,
        "fedavgm.nesterov": True,
        **ONE_STEP,
        **ALL_CLIENTS,
    },
}
"""Methods from gradient descent to FedAvg; eta and the number of rounds are free."""
EXACT = 1e-12


def play(folder: Path, name: str, **more: Any) -> dict[str, torch.Tensor]:
    more = {key.replace("_", "-"): value for key, value in more.items()}
    return run_to(folder / name, {**DIGITS, **METHODS_AS_SETTINGS[name], **more})


@pytest.mark.parametrize("method", METHODS_AS_SETTINGS)
def test_every_method_is_a_configuration(method: str) -> None:
    settings = METHODS_AS_SETTINGS[method]
    config = read_config(settings)
    assert {key: config.to_run_config()[key] for key in settings} == settings


def test_the_page_has_these_settings() -> None:
    """The table of the line of descent in docs/algorithms.md: name, source, settings, what it is."""
    page = (ROOT / "docs" / "algorithms.md").read_text()
    section = page.split("## The line of descent, as settings")[1].split("\n## ")[0]
    rows = [line.split(" | ") for line in section.splitlines() if " | `" in line][1:]
    found = {name.removeprefix("| "): settings.strip("`") for name, _, settings, _ in rows}
    assert {k: parse_settings(v.split()) for k, v in found.items()} == METHODS_AS_SETTINGS


def test_gradient_descent_large_batches_and_fedsgd_are_one(tmp_path: Path) -> None:
    """A step on all data, whether one client has it, or four send models, or four send gradients."""
    descent = play(tmp_path, "Gradient descent")
    together = play(tmp_path, "FedSGD with C = 1: gradient descent", partitioner="dirichlet")
    gradients = play(tmp_path, "FedSGD", partitioner="dirichlet", fraction_train=1.0)
    assert largest_difference(descent, together) < EXACT
    assert largest_difference(descent, gradients) < EXACT


def test_fedsgd_divides_its_work_as_it_likes(tmp_path: Path) -> None:
    """Batches of 100 give the full-batch gradient at theta too, in one pass whatever E is elsewhere."""
    whole = play(tmp_path, "FedSGD")
    parts = run_to(tmp_path / "parts", {**DIGITS, "algorithm": "fedsgd", "batch-size": 100})
    assert largest_difference(whole, parts) < EXACT


def test_naive_sgd_is_a_step_of_one_client_and_of_one_client_sgd(tmp_path: Path) -> None:
    naive = "SGD, applied naively"
    play(tmp_path / "four", naive)
    assert [len(r["clients"]) for r in metrics(tmp_path / "four" / naive)[1:]] == [1, 1]
    central = play(tmp_path, "Centralised SGD, a round an update", batch_size=10)
    assert largest_difference(central, play(tmp_path, naive, num_clients=1)) == 0.0


def test_parallel_sgd_is_local_sgd_with_one_step(tmp_path: Path) -> None:
    """Seo's Algorithm 2 with I = 1 is Algorithm 1: the mean of steps is a step on the mean."""
    parallel = play(tmp_path, "Parallel SGD")
    local = play(tmp_path, "Local SGD", local_steps=1)
    assert largest_difference(parallel, local) < EXACT


def test_options_1_and_2_are_one(tmp_path: Path) -> None:
    one, two = play(tmp_path, "FedAvg, Option I"), play(tmp_path, "FedAvg, Option II")
    assert largest_difference(one, two) < EXACT


def test_one_shot_averaging_is_the_mean_of_models_trained_alone(tmp_path: Path) -> None:
    """With one client of the four at a time the one round gives that client's model.

    The digits split evenly over IID clients but for one example: weights n_k / n.
    """
    shot = play(tmp_path, "One-shot averaging", local_epochs=2)
    config = read_config({**DIGITS, "local-epochs": 2})
    from fedapp.data.node_data import read_node_data
    from fedapp.training.build import initial_parameters, make_trainer
    from fedapp.training.client import TrainRequest, train_cohort

    node_data = read_node_data(config, None)
    task = node_data.dataset.task
    theta, trainer = initial_parameters(config, task), make_trainer(config, task)
    mean = {name: torch.zeros_like(tensor) for name, tensor in theta.items()}
    for client in range(4):
        order = TrainRequest(replace(RoundPlan.of(config), learning_rate=0.5), (client,))
        alone = train_cohort(trainer, order, theta, {}, node_data.train)
        share = len(node_data.train(client)) / len(node_data.dataset.train)
        for name in mean:
            mean[name] += share * (theta[name] + alone.mean[name])
    assert largest_difference(shot, mean) < EXACT


def test_heavy_ball_on_the_server_is_momentum_over_rounds(tmp_path: Path) -> None:
    """One full-batch step a round and FedAvgM: as many steps of one client with momentum."""
    server = play(tmp_path, "Heavy ball on the server", local_epochs=1, batch_size=0, **EVERYONE)
    client = play(
        tmp_path,
        "Heavy ball on the clients",
        num_clients=1,
        local_epochs=2,
        batch_size=0,
        num_server_rounds=1,
    )
    assert largest_difference(server, client) < EXACT


EVERYONE = {"fraction_train": 1.0}


def test_m_and_big_m_are_the_eigenvalues() -> None:
    assert np.linalg.eigvalsh(MATRIX) == pytest.approx([STRONG_CONVEXITY, SMOOTHNESS], abs=1e-14)
    assert pytest.approx(11) == STRONG_CONVEXITY * SMOOTHNESS  # det A
    assert pytest.approx(7) == STRONG_CONVEXITY + SMOOTHNESS  # trace A


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_measured_gaps_keep_the_bounds(method: Any) -> None:
    """To 1e-5 of them: the last gaps are 1e-13 and their points rounded to 1e-16."""
    found, bounds = measured(method, 12), promised(method, 12)
    assert (found <= bounds * (1 + 1e-5)).all()
    assert found[0] == pytest.approx(15 / 22)


def test_bounds_by_hand() -> None:
    """m = 1, M = 9, f(x_0) - f* = 2, ||x_0 - x*|| = 3; at t = 0 and t = 1.

    Gradient descent falls by 0.8^2; heavy ball has the rate 1 / 2, 2 ((1 + 3 / 2) / 2)^2; Nesterov's
    begins with 2 + 9 / 2 and falls by 1 - 1 / 3.
    """
    methods = [method(1.0, 9.0) for method in (gradient_descent, heavy_ball, accelerated)]
    found = [bound(method, 2.0, 3.0, 1.0, 1).tolist() for method in methods]
    assert found[0] == pytest.approx([2, 1.28])
    assert found[1] == pytest.approx([2, 3.125])
    assert found[2] == pytest.approx([6.5, 13 / 3])


def test_gradient_descent_falls_as_fast_as_its_bound() -> None:
    """Both ends of the spectrum contract by (kappa - 1) / (kappa + 1) = sqrt 5 / 7."""
    found = measured(METHODS[0], 6)
    assert found[1:] / found[:-1] == pytest.approx(5 / 49, rel=1e-8)


def test_heavy_ball_has_double_roots_at_both_ends() -> None:
    """r^2 - (1 + beta - eta lambda) r + beta has r = +- sqrt beta for lambda = m, M."""
    method = heavy_ball(STRONG_CONVEXITY, SMOOTHNESS)
    for curvature, root in ((STRONG_CONVEXITY, method.rate), (SMOOTHNESS, -method.rate)):
        middle = 1 + method.momentum - method.step * curvature
        assert middle == pytest.approx(2 * root)


def on_the_client(method: Any, steps: int) -> Any:
    """Return x_0 and x_steps [2, 2]: one client, ``steps`` local steps with momentum, one round."""
    values: dict[str, Any] = {
        "momentum": method.momentum,
        "nesterov": method.nesterov,
        "num-clients": 1,
        "quadratic.clients": 1,
        "local-epochs": steps,
        "num-server-rounds": 1,
    }
    return trace(method, values)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_momentum_on_one_client_gives_the_servers_iterates(method: Any) -> None:
    server, client = on_the_server(method, 5), on_the_client(method, 5)
    assert np.abs(server[-1] - client[-1]).max() < 1e-15
