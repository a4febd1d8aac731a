"""What an attacker finds out about one client from many short private runs, against the bound.

Client 0, the canary, sends an update of length S along the first coordinate in one world and none (or
with local noise the opposite one) in the other. The attacker knows all but that: what the others
sent, who of them took part, and every model. From the share of runs that it tells apart follows, at
99 %, a lower bound on epsilon: above what the run reports, the report is wrong.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.stats import beta

from fedapp.client_app import app as client_app
from fedapp.config.read import read_config
from fedapp.engines.in_process import InlineGrid
from fedapp.federation.callback import Callback, ServerState
from fedapp.federation.round_result import RoundResult
from fedapp.server import run as run_server
from fedapp.training.algorithm import ClientContext
from strategies._noise import Private
from strategies.dp_fedavg import DPFedAvg
from strategies.local_dp import LocalDP
from tests.in_process import metrics

RUNS, ROUNDS, DELTA = 500, 30, 0.01
SETTINGS: dict[str, Any] = {
    "dataset": "quadratic",
    "model": "quadratic",
    "partitioner": "natural",
    "local-epochs": 1,
    "batch-size": 0,
    "precision": "float64",
    "weighting": "uniform",
    "pictures": False,
    "eval-every": 0,
    "checkpoint-every": 0,
    "num-server-rounds": ROUNDS,
    "max-update-norm": 0.0,
}
CENTRAL: dict[str, Any] = {
    "algorithm": "dp-fedavg",
    "num-clients": 20,
    "quadratic.clients": 20,
    "fraction-train": 0.05,
    "dp-fedavg.noise": 1.0,
    "dp-fedavg.delta": DELTA,
    "dp-fedavg.entropy": "seed",
}
LOCAL: dict[str, Any] = {
    "algorithm": "local-dp",
    "num-clients": 1,
    "quadratic.clients": 1,
    "fraction-train": 1.0,
    "local-dp.noise": 8.0,
    "local-dp.delta": DELTA,
    "local-dp.entropy": "seed",
}


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logger = logging.getLogger("flwr")
    level = logger.level
    logger.setLevel("ERROR")
    yield
    logger.setLevel(level)


class Watch(Callback):
    """Notes how far the first coordinate moves in each round, and who took part."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, list[int]]] = []
        self._at = 0.0

    def on_round(self, result: RoundResult, state: ServerState) -> bool:
        at = float(state.theta["x"][0])
        if result.round:
            self.seen.append((at - self._at, result.metrics["clients"]))
        self._at = at
        return False


def releases(settings: dict[str, Any], folder: Path, seed: int) -> list[tuple[float, list[int]]]:
    values = {**SETTINGS, **settings, "seed": seed, "run-dir": str(folder / str(seed))}
    watch = Watch()
    run_server(InlineGrid(client_app, values, [{}]), read_config(values), [watch])
    return watch.seen


def send(monkeypatch: pytest.MonkeyPatch, canary: float, draw: Any = None) -> None:
    """Let client 0 descend along ``canary`` times the first coordinate, the others against it."""
    own = Private.round_randomness

    def drawn(
        self: Private, context: ClientContext, seed: int, client: int
    ) -> dict[str, torch.Tensor]:
        noise = (
            own(self, context, seed, client) if draw is None else draw(self, context, seed, client)
        )
        path = torch.zeros(2, dtype=torch.float64)
        path[0] = canary if client == 0 else -1.0
        return {**noise, "path": path}

    for kind in Private.__subclasses__():
        monkeypatch.setattr(kind, "round_randomness", drawn)
        monkeypatch.setattr(
            kind,
            "gradient",
            lambda self, differentiate, params, batch, context: (
                {"x": -100 * context.round_randomness["path"]},
                differentiate(params, batch)[1],
            ),
        )


def lower_bound(inside: NDArray[np.float64], outside: NDArray[np.float64], epsilon: float) -> float:
    """Return what epsilon is at least, at 99 %: log((true positives - delta) / false positives).

    Scores are logarithms of likelihood ratios, and those above ``epsilon`` are the best test of it
    (Neyman and Pearson). The intervals are Clopper and Pearson's; whichever world is the positive one.
    """

    def bound(first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
        num_correct, alarms, n = (
            int((first > epsilon).sum()),
            int((second > epsilon).sum()),
            len(first),
        )
        least = beta.ppf(0.0025, num_correct, n - num_correct + 1) if num_correct else 0.0
        most = beta.ppf(0.9975, alarms + 1, n - alarms) if alarms < n else 1.0
        return math.log(max(least - DELTA, 1e-300) / most)

    return max(bound(inside, outside), bound(-outside, -inside))


def central_score(seen: list[tuple[float, list[int]]], fixed: int | None = None) -> float:
    """Return the log of how likelier it is that the canary was there, for z = S = q K = 1.

    Of a ``fixed`` number of clients, the others say whether it took part; by coins, they do not.
    """
    score = 0.0
    for moved, clients in seen:
        others = len([client for client in clients if client != 0])
        joined = 0.05 if fixed is None else float(others < fixed)
        score += math.log1p(joined * math.expm1(min(moved + others - 0.5, 500.0)))
    return score


def noiseless_score(seen: list[tuple[float, list[int]]]) -> float:
    """Return a large number if the model moved by exactly S more than the others move it, else 0."""
    moves = [moved + len([k for k in clients if k != 0]) for moved, clients in seen]
    return 1000.0 if any(abs(move - 1.0) < 1e-9 for move in moves) else 0.0


def local_score(seen: list[tuple[float, list[int]]]) -> float:
    """Return the same of local noise with z = 8: the update is S or -S, S = 1."""
    return sum(2 * moved for moved, _ in seen) / 64


def scores(
    settings: dict[str, Any], folder: Path, first: int, score: Any, runs: int
) -> NDArray[np.float64]:
    return np.array([score(releases(settings, folder, first + i)) for i in range(runs)])


def attack(monkeypatch: pytest.MonkeyPatch, folder: Path, score: Any = central_score) -> float:
    """Return the lower bound that the attacker finds on DP-FedAvg."""
    worlds = []
    for canary, first in ((1.0, 0), (0.0, RUNS)):
        send(monkeypatch, canary, draw=lambda *_: {})
        worlds.append(scores(CENTRAL, folder, first, score, RUNS))
    return lower_bound(*worlds, reported(folder))


def reported(folder: Path) -> float:
    return float(metrics(folder / "0")[-1]["epsilon"])


@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_coins_and_noise_leave_no_more_than_epsilon(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = attack(monkeypatch, tmp_path)
    assert reported(tmp_path) == pytest.approx(0.698, abs=0.001)
    assert found <= reported(tmp_path)


@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_a_fixed_number_of_clients_is_found_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The negative control: m = q K of K clients, drawn without replacement, and the same report."""
    monkeypatch.setattr(DPFedAvg, "default_sampler", "uniform")
    monkeypatch.setattr(DPFedAvg, "config_errors", lambda *_: ())
    found = attack(monkeypatch, tmp_path, lambda seen: central_score(seen, fixed=1))
    assert found > reported(tmp_path)


@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_missing_noise_is_found_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The other negative control: a run that reports z = 1 and adds nothing."""
    monkeypatch.setattr(
        "strategies.dp_fedavg.gaussian",
        lambda like, *_: {name: torch.zeros_like(tensor) for name, tensor in like.items()},
    )
    assert attack(monkeypatch, tmp_path, noiseless_score) > 1.5 * reported(tmp_path)


@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_local_noise_leaves_no_more_than_epsilon(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """z = 8, thirty orders: two worlds 2 S apart."""
    own, worlds = LocalDP.round_randomness, []
    for canary, first in ((1.0, 0), (-1.0, RUNS)):
        send(monkeypatch, canary, draw=own)
        worlds.append(scores(LOCAL, tmp_path, first, local_score, RUNS))
    assert lower_bound(*worlds, reported(tmp_path)) <= reported(tmp_path)
    assert np.mean(worlds[0]) == pytest.approx(ROUNDS * 2 / 64, rel=0.3)
