"""Samplers: who takes part in a round."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from safetensors.torch import load_file

from fedapp.client_app import app as client_app
from fedapp.config.read import read_config
from fedapp.data.node_data import read_node_data
from fedapp.engines.in_process import InlineGrid
from fedapp.errors import ConfigError
from fedapp.federation.callback import Callback
from fedapp.federation.samplers.availability import Availability
from fedapp.federation.samplers.by_size import BySize
from fedapp.federation.samplers.poisson import Poisson
from fedapp.federation.samplers.power_of_choice import PowerOfChoice
from fedapp.federation.samplers.sampler import Candidates, prepared_sampler
from fedapp.federation.samplers.uniform import Uniform
from fedapp.runs import participation
from fedapp.seeds import generator
from fedapp.server import run as run_server
from fedapp.studies.sweep.identity import Request
from fedapp.training.build import initial_parameters, make_evaluator
from tests.conftest import SMALL, Run
from tests.in_process import metrics
from tests.sampling import uniform_sample

SIZES = {0: 10, 1: 30, 2: 0, 3: 60}


def candidates(round_: int = 1, number: int = 1, **changes: Any) -> Candidates:
    values: dict[str, Any] = {
        "seed": 5,
        "round": round_,
        "clients": range(4),
        "fraction": 0.25,
        "number": number,
        "rng": lambda: generator(5, "sample", round_),
        "sizes": lambda clients: {client: SIZES[client] for client in clients},
        "losses": lambda clients: dict.fromkeys(clients, 1.0),
    }
    return Candidates(**values | changes)


def test_uniform_is_the_sample_of_before() -> None:
    for round_ in range(1, 30):
        found = Uniform().sample(candidates(round_, 3, clients=range(20)))
        expected = generator(5, "sample", round_).choice(20, 3, replace=False, shuffle=False)
        assert found == sorted(expected.tolist()) == uniform_sample(5, round_, range(20), 0.15)
    assert Uniform().sample(candidates(number=9)) == [0, 1, 2, 3]


def test_by_size_draws_in_proportion_to_n_k() -> None:
    """One of clients with 10, 30, 0 and 60 examples; a client without examples never."""
    drawn = Counter(BySize().sample(candidates(t))[0] for t in range(4000))
    shares = np.array([drawn[k] for k in range(4)]) / 4000
    # Three standard deviations of a share of 4,000 draws are at most 0.024.
    np.testing.assert_allclose(shares, [0.1, 0.3, 0.0, 0.6], atol=0.024)
    assert BySize().sample(candidates(number=4)) == [0, 1, 3]
    assert BySize().sample(candidates(clients=[2])) == []


def test_poisson_draws_each_client_with_probability_c() -> None:
    samples = [Poisson().sample(candidates(t, fraction=0.3)) for t in range(2000)]
    assert np.mean([len(s) for s in samples]) == pytest.approx(1.2, abs=0.07)
    assert min(map(len, samples)) == 0


def test_power_of_choice_takes_the_largest_losses_of_its_candidates() -> None:
    losses, asked = {0: 1.0, 1: 3.0, 3: 2.0}, []

    def answer(clients: list[int]) -> dict[int, float]:
        asked.append(clients)
        return {client: losses[client] for client in clients}

    assert PowerOfChoice(candidates=3).sample(candidates(number=2, losses=answer)) == [1, 3]
    assert asked == [[0, 1, 3]]
    # Two candidates by default; one of them does not answer.
    [pair] = [BySize().sample(candidates(7, 2))]
    assert PowerOfChoice().sample(candidates(7, losses=lambda _: {pair[0]: 0.0})) == [pair[0]]


def test_a_client_is_available_for_its_share_of_every_day() -> None:
    sampler = Availability(period=8, share=0.25)
    days = [[set(sampler.available(1, d * 8 + h, range(50))) for h in range(8)] for d in range(2)]
    assert days[0] == days[1]
    assert Counter(k for hour in days[0] for k in hour) == dict.fromkeys(range(50), 2)
    assert len({frozenset(hour) for hour in days[0]}) == 8
    for round_ in range(1, 9):
        available = set(sampler.available(5, round_, range(50)))
        chosen = sampler.sample(candidates(round_, 4, clients=range(50)))
        assert set(chosen) <= available
        assert len(chosen) == min(4, len(available))


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def test_a_share_of_less_than_a_round_is_refused() -> None:
    given = {"sampler": "availability", "availability.period": 24, "availability.share": 0.01}
    with pytest.raises(ConfigError, match=r"availability\.share = 0\.01: .* Set it to 0\.042 or"):
        read_config(given)


@pytest.mark.parametrize("period", range(2, 200))
def test_the_least_share_that_an_error_names_is_taken_and_so_is_a_round(period: int) -> None:
    given: dict[str, Any] = {"sampler": "availability", "availability.period": period}
    with pytest.raises(ConfigError) as error:
        read_config({**given, "availability.share": 1e-3})
    least = re.search(r"Set it to (\S+) or more", str(error.value))
    assert least
    for share in (float(least[1]), 1 / period):
        assert read_config({**given, "availability.share": share})


@pytest.mark.parametrize("sampler", ["by-size", "power-of-choice"])
@pytest.mark.parametrize("algorithm", ["scaffold", "feddyn", "fedsmoo"])
def test_means_over_clients_do_not_go_with_samples_by_size(sampler: str, algorithm: str) -> None:
    given = {"algorithm": algorithm, "sampler": sampler, "weighting": "uniform"}
    with pytest.raises(ConfigError, match=r"keeps a mean over clients.*sampler='uniform'"):
        read_config(given)


def test_poisson_without_a_fraction_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"fraction-train = 0: with sampler = 'poisson'"):
        read_config({"sampler": "poisson", "fraction-train": 0.0})


def test_a_trace_says_who_is_available(run: Run, tmp_path: Path) -> None:
    trace = write(tmp_path / "trace.csv", "1,0\n0,1\n1,0\n0,1\n1,0\n0,0\n")
    settings = {"sampler": "availability", "availability.trace": trace, "num_server_rounds": 4}
    rows = metrics(run(fraction_train=0.4, **settings))[1:]
    assert [len(row["clients"]) for row in rows] == [2, 2, 2, 2]
    for row in rows:
        assert set(row["clients"]) < ({0, 2, 4} if row["round"] % 2 else {1, 3, 5})
    none = write(tmp_path / "none.csv", "0,1\n" * 6)
    rows = metrics(run("none", **settings | {"availability.trace": none}))
    assert [row.get("clients") for row in rows[1:4:2]] == [[], []]
    assert not rows[1]["model_changed"]
    assert rows[2]["model_changed"]


def test_an_empty_trace_is_named_as_such(tmp_path: Path) -> None:
    """And not as one whose rows differ in length."""
    trace = write(tmp_path / "trace.csv", "\n")
    with pytest.raises(ConfigError, match=r"is empty\. It needs a row of 0 and 1 for each client"):
        prepared_sampler(read_config({"sampler": "availability", "availability.trace": trace}))


class Thetas(Callback):
    def __init__(self) -> None:
        self.thetas: list[dict[str, Any]] = []

    def on_round(self, result: Any, state: Any) -> bool:
        self.thetas.append(dict(state.theta))
        return False


@pytest.mark.parametrize("nodes", [1, 3])
def test_power_of_choice_asks_its_candidates_for_their_training_loss(
    nodes: int, tmp_path: Path
) -> None:
    """The sample of every round is recomputed from theta before it, on the clients' data."""
    values = SMALL | {
        "sampler": "power-of-choice",
        "power-of-choice.candidates": 5,
        "weighting": "uniform",
        "partitioner": "shards",
        "num-clients": 8,
        "fraction-train": 0.25,
        "run-dir": str(tmp_path / "run"),
    }
    config, thetas = read_config(values), Thetas()
    run_server(InlineGrid(client_app, values, [{}] * nodes), config, [thetas])
    data = read_node_data(config, None)
    rows = metrics(tmp_path / "run")
    for row, theta in zip(rows[1:], thetas.thetas, strict=False):
        rng = generator(0, "sample", row["round"])
        weights = np.array([len(data.train(k)) for k in range(8)], dtype=float)
        asked = rng.choice(8, 5, replace=False, p=weights / weights.sum(), shuffle=False)
        losses = {
            int(k): make_evaluator(config, data.dataset.task, data.train(int(k))).score(theta).loss
            for k in asked
        }
        assert row["clients"] == sorted(sorted(losses, key=lambda k: -losses[k])[:2])
    theta = initial_parameters(config, data.dataset.task)
    size = sum(tensor.numel() * tensor.element_size() for tensor in theta.values())
    for row in rows[1:]:  # theta once a node, and the headers of its arrays
        assert nodes * size < row["bytes_asked"] < nodes * size + nodes * 200 * len(theta)
        assert row["bytes_asked"] + size < row["bytes_down"] < 2 * row["bytes_asked"] + size


SAMPLERS: tuple[dict[str, Any], ...] = (
    {"sampler": "by-size", "weighting": "uniform", "partitioner": "dirichlet"},
    {"sampler": "poisson"},
    {"sampler": "power-of-choice", "weighting": "uniform", "partitioner": "dirichlet"},
    {"sampler": "availability", "availability.period": 3, "over_selection": 0.5},
)


@pytest.mark.parametrize("settings", SAMPLERS, ids=lambda s: s["sampler"])
def test_a_resumed_run_samples_as_if_it_had_not_stopped(
    settings: dict[str, Any], run: Run, tmp_path: Path
) -> None:
    whole = run("whole", num_server_rounds=4, nodes=2, **settings)
    run("parts", num_server_rounds=2, nodes=2, **settings)
    parts = run("parts", num_server_rounds=4, nodes=2, resume=True, **settings)
    found, expected = (metrics(folder) for folder in (parts, whole))
    assert [row.get("clients") for row in found] == [row.get("clients") for row in expected]
    one, two = (load_file(folder / "model.safetensors") for folder in (parts, whole))
    assert all(float((one[name] - two[name]).abs().max()) < 1e-12 for name in one)


def test_runs_of_before_keep_their_names() -> None:
    """The key came later; the algorithm's own sampler is not part of a run's name."""
    for algorithm in ("fedavg", "dp-fedavg"):
        plain = Request.of({"algorithm": algorithm}, 1)
        assert "sampler" not in plain.canonical
    assert Request.of({"sampler": "uniform"}, 1).run == Request.of({}, 1).run
    assert Request.of({"sampler": "poisson"}, 1).canonical["sampler"] == "poisson"


@pytest.mark.slow
def test_the_report_shows_who_was_available_and_who_trained(run: Run) -> None:
    folder = run(sampler="availability", pictures=True, **{"availability.period": 4})
    assert "Who took part" in (folder / "report.html").read_text()
    assert (folder / "participation.png").stat().st_size > 5000
    assert not (run("uniform", pictures=True) / "participation.png").exists()


@pytest.mark.parametrize(
    ("num_clients", "label"), [(6, "client"), (600, "client (the first 400 of 600)")]
)
def test_the_picture_shows_who_was_available_in_each_round(
    monkeypatch: pytest.MonkeyPatch, num_clients: int, label: str
) -> None:
    figures: list[Figure] = []
    monkeypatch.setattr(participation, "save", lambda figure, *_, **__: figures.append(figure))
    given = {"sampler": "availability", "availability.period": 4, "num-clients": num_clients}
    records = [{"round": t, "clients": [], "model_changed": False} for t in range(4)]
    participation.draw_participation(records, read_config(given), Path("participation"))
    (axes,) = figures[0].axes
    cells = np.asarray(axes.images[0].get_array())
    for t in (1, 2, 3):
        available = Availability(period=4).available(0, t, range(len(cells)))
        assert np.flatnonzero(cells[:, t - 1]).tolist() == available
    assert axes.get_ylabel() == label


def test_power_of_choice_asks_twice_as_many_as_it_samples() -> None:
    """One of two, though three clients have examples."""
    asked: list[list[int]] = []

    def answer(clients: list[int]) -> dict[int, float]:
        asked.append(clients)
        return dict.fromkeys(clients, 1.0)

    assert len(PowerOfChoice().sample(candidates(number=1, losses=answer))) == 1
    assert len(asked[0]) == 2


def test_power_of_choice_needs_as_many_candidates_as_clients() -> None:
    given = {"sampler": "power-of-choice", "weighting": "uniform", "num-clients": 10}
    given |= {"fraction-train": 0.5}
    with pytest.raises(ConfigError, match=r"power-of-choice\.candidates = 4: 5 clients are chosen"):
        read_config({**given, "power-of-choice.candidates": 4})
    assert read_config({**given, "power-of-choice.candidates": 5})


def test_a_trace_has_a_row_a_client(tmp_path: Path) -> None:
    """Clients 2 and 3 of the trace would be sampled of two."""
    trace = write(tmp_path / "trace.csv", "0\n0\n1\n1\n")
    given = {"sampler": "availability", "availability.trace": trace, "num-clients": 2}
    with pytest.raises(ConfigError, match=r"has 4 rows, one a client, and num-clients = 2"):
        prepared_sampler(read_config(given))


def test_seeds_have_days_of_their_own(run: Run) -> None:
    away = {"sampler": "availability", "fraction_train": 1.0, "weighting": "uniform"}
    one, two = (metrics(run(str(seed), seed=seed, **away)) for seed in (0, 1))
    assert [row["clients"] for row in one[1:]] != [row["clients"] for row in two[1:]]


def test_who_is_available_is_drawn_for_that_alone() -> None:
    assert Availability(period=8, share=0.25).available(1, 1, range(12)) == [0, 1, 4]
