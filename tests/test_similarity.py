"""How clients' updates agree: by hand, as a record of any algorithm's rounds, and as a picture."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from fedapp.analysis.similarity import (
    cosines,
    distances,
    gram,
    layer_similarity,
    layers,
    mean_pairwise,
)
from fedapp.cli.main import app as cli
from fedapp.config.read import defaults
from fedapp.errors import DataError
from fedapp.runs.figures import (
    loss_traces,
    losses_figure,
    read_runs,
    similarity_curves,
    similarity_figure,
)
from tests.conftest import Run, largest_difference, slow_but
from tests.in_process import metrics, model

DIGITS: dict[str, Any] = {
    "num_clients": 5,
    "fraction_train": 1.0,
    "model": "2nn",
    "2nn.hidden": 16,
    "num_server_rounds": 4,
    "local_epochs": 2,
    "batch_size": 16,
}


def vectors(*rows: list[float]) -> list[dict[str, torch.Tensor]]:
    """Return updates of two layers: a.weight and a.bias hold the row, b.weight is always one."""
    return [
        {
            "a.weight": torch.tensor(row[:-1]).view(1, -1),
            "a.bias": torch.tensor(row[-1]),
            "b.weight": torch.ones(2),
        }
        for row in rows
    ]


def test_a_layer_is_a_module_with_weight_and_bias() -> None:
    names = ["conv1.weight", "conv1.bias", "block.0.fc.weight", "x"]
    assert layers(names) == {
        "conv1": ["conv1.weight", "conv1.bias"],
        "block.0.fc": ["block.0.fc.weight"],
        "x": ["x"],
    }


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([[1, 0, 0], [0, 2, 0]], 0.0),  # orthogonal
        ([[1, 2, 2], [2, 4, 4]], 1.0),  # equal but for their length
        ([[1, 2, 2], [-1, -2, -2]], -1.0),  # opposite
        ([[3, 0, 4], [0, 0, 1]], 0.8),
        # Pairs: 0, 1 / sqrt 2, 1 / sqrt 2.
        ([[1, 0, 0], [0, 1, 0], [1, 1, 0]], math.sqrt(2) / 3),
        # The zero vector has no direction: of three pairs only the first two vectors' counts.
        ([[3, 0, 4], [0, 0, 1], [0, 0, 0]], 0.8),
    ],
)
def test_mean_cosine_by_hand(rows: list[list[float]], expected: float) -> None:
    found = layer_similarity(vectors(*[[float(x) for x in row] for row in rows]))
    assert found["a"] == pytest.approx(expected, abs=1e-7)
    assert found["b"] == pytest.approx(1.0)


@pytest.mark.parametrize("rows", [[[1.0, 2.0]], [[1.0, 2.0], [0.0, 0.0]]])
def test_without_a_pair_there_is_no_mean(rows: list[list[float]]) -> None:
    assert math.isnan(layer_similarity(vectors(*rows))["a"])


def test_the_pairs_of_a_zero_vector_are_nan() -> None:
    matrix = cosines(gram(vectors([1.0, 0.0], [0.0, 0.0]), ["a.weight", "a.bias"]))
    assert matrix[0, 0] == 1
    assert matrix[0, 1].isnan()
    assert matrix[1].isnan().all()


@given(st.integers(2, 7), st.integers(1, 30), st.integers(0, 10**6))
def test_mean_cosine_is_that_of_the_sum_of_directions(m: int, size: int, seed: int) -> None:
    """Of unit vectors u: sum over pairs of u_i u_j = (|sum u|^2 - m) / 2; whatever the scales."""
    rows = torch.randn(m, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    unit = rows / rows.norm(dim=1, keepdim=True)
    expected = (float(unit.sum(0).square().sum()) - m) / (m * (m - 1))
    scaled = [{"w": row * (i + 1)} for i, row in enumerate(rows)]
    assert mean_pairwise(cosines(gram(scaled, ["w"]))) == pytest.approx(expected, abs=1e-9)


def test_long_updates_are_multiplied_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    updates = [{"w": torch.arange(10.0)}, {"w": torch.ones(10)}]
    monkeypatch.setattr("fedapp.analysis.similarity.CHUNK", 3)
    assert gram(updates, ["w"]).tolist() == [[285, 45], [45, 10]]


def test_distances_from_the_weighted_mean_by_hand() -> None:
    """Mean of 0 and (6, 8), weighted 1 to 3: (4.5, 6); 0 is 7.5 away from it, (6, 8) is 2.5."""
    updates = [
        {"x": torch.zeros(1), "y": torch.zeros(1)},
        {"x": torch.tensor([6.0]), "y": torch.tensor([8.0])},
    ]
    assert distances(updates, [1, 3]) == pytest.approx([7.5, 2.5])
    assert distances(updates[:1] * 3, [1, 1, 1]) == [0, 0, 0]


@pytest.mark.parametrize("nodes", slow_but((2,), (1, 2)))
@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold", "fednova", "krum"])
def test_the_record_changes_nothing_else(run: Run, algorithm: str, nodes: int) -> None:
    """The same bits in float32 as without it on one node, also where there are two.

    SCAFFOLD's variates are still averaged by the nodes, which round their means to float32.
    """
    settings = {**DIGITS, "algorithm": algorithm, "precision": "float32", "num_server_rounds": 2}
    seen = run("seen", nodes=nodes, record_updates=True, **settings)
    plain = run("plain", nodes=1, **settings)
    rounded = 1e-6 if (algorithm, nodes) == ("scaffold", 2) else 0.0
    assert largest_difference(model(seen), model(plain)) <= rounded
    with_it, without = metrics(seen)[1:], metrics(plain)[1:]
    for ours, theirs in zip(with_it, without, strict=True):
        assert ours["train_loss"] == pytest.approx(theirs["train_loss"], rel=1e-6)
        assert set(ours) - set(theirs) == {
            "similarity",
            "distance_mean",
            "distance_max",
            "client_train_loss",
        }
        assert set(ours["similarity"]) == {"1", "3", "5"}
        assert ours["distance_max"] >= ours["distance_mean"] > 0
        assert list(ours["client_train_loss"]) == ["0", "1", "2", "3", "4"]


@pytest.mark.parametrize("algorithm", ["fedavg", "fedavgm"])
def test_the_record_is_of_updates_under_option_two_as_well(run: Run, algorithm: str) -> None:
    settings = {**DIGITS, "algorithm": algorithm, "record_updates": True, "num_server_rounds": 2}
    settings["local_epochs"] = 1
    one, two = (metrics(run(u, update=u, **settings))[2] for u in ("delta", "model"))
    assert one["similarity"] == pytest.approx(two["similarity"], abs=1e-9)
    assert one["distance_max"] == pytest.approx(two["distance_max"], rel=1e-9)


def test_updates_agree_more_where_data_is_iid(run: Run) -> None:
    """Seo et al. 2024, Figure 13: in every layer and every round."""
    iid = metrics(run("iid", record_updates=True, **DIGITS))
    skewed = {"partitioner": "dirichlet", "dirichlet.alpha": 0.1}
    other = metrics(run("dirichlet", record_updates=True, **DIGITS, **skewed))
    for ours, theirs in zip(iid[1:], other[1:], strict=True):
        for layer in ("1", "3", "5"):
            assert ours["similarity"][layer] > theirs["similarity"][layer] + 0.1


def record(round_: int, losses: dict[str, Any], similarity: dict[str, Any]) -> dict[str, Any]:
    return {"round": round_, "client_train_loss": losses, "similarity": similarity}


def test_traces_are_of_the_five_clients_that_trained_most() -> None:
    records = [
        {"round": 0},
        record(1, {str(k): 1.0 + k for k in range(12)}, {"fc": 0.5, "out": None}),
        record(2, {"10": 0.5, "3": 0.25, "4": None}, {"fc": 0.25, "out": 0.75}),
    ]
    traces = loss_traces(records)
    assert list(traces) == ["0", "1", "2", "3", "10"]
    assert traces["3"] == ([1, 2], [4.0, 0.25])
    assert similarity_curves(records) == {"fc": ([1, 2], [0.5, 0.25]), "out": ([2], [0.75])}


@pytest.mark.parametrize(("sign", "limits"), [(1, (0, 5.25)), (-1, (-5.25, 0.25))])
def test_the_panels_of_losses_show_those_of_all_runs(
    sign: int, limits: tuple[float, float]
) -> None:
    """From 0 if no loss is negative, as those of a quadratic function may be; 5 % beyond the others."""
    runs = {
        title: [record(t, {"0": sign * loss * t}, {}) for t in (0, 1)]
        for title, loss in (("one", 1.0), ("two", 5.0))
    }
    for axes in losses_figure(runs).axes:
        assert axes.get_ylim() == pytest.approx(limits)


def recorded(*folders: Path) -> list[Path]:
    """Write two rounds' records into each folder."""
    for folder in folders:
        folder.mkdir(parents=True)
        lines = [record(t, {"0": 1 / t, "7": 2 / t}, {"fc": 0.5 / t, "out": None}) for t in (1, 2)]
        (folder / "metrics.jsonl").write_text(
            "".join(json.dumps({**line, "seconds": {}}) + "\n" for line in lines)
        )
        (folder / "config.json").write_text(json.dumps({"config": defaults(), "found": {}}))
    return list(folders)


def test_pictures_of_two_runs(tmp_path: Path) -> None:
    runs = recorded(tmp_path / "iid", tmp_path / "skewed")
    done = CliRunner().invoke(cli, ["updates", *map(str, runs), "--to", str(tmp_path / "out")])
    assert done.exit_code == 0
    for name in ("client-losses", "similarity"):
        assert (tmp_path / "out" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert "<svg" in (tmp_path / "out" / f"{name}.svg").read_text()


def test_no_run_is_lost_by_its_name_or_for_want_of_a_colour(tmp_path: Path) -> None:
    places = ["iid", *(f"seed-{seed}/skewed" for seed in range(9))]
    runs = read_runs(recorded(*(tmp_path / place for place in places)))
    assert list(runs) == ["iid", *(str(tmp_path / place) for place in places[1:])]
    axes, _ = similarity_figure(runs).axes
    assert len(axes.get_legend_handles_labels()[1]) == 10


def test_names_of_runs_are_no_formulas_and_in_the_legend(tmp_path: Path) -> None:
    runs = recorded(tmp_path / "_u", tmp_path / "u_$_$x")
    done = CliRunner().invoke(cli, ["updates", *map(str, runs), "--to", str(tmp_path / "out")])
    assert done.exit_code == 0
    axes, _ = similarity_figure(read_runs(runs)).axes
    assert axes.get_legend_handles_labels()[1] == ["u", r"u_\$_\$x"]


def test_a_run_has_its_model_whatever_fails_while_pictures_are_drawn(
    run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The one client of the one round has no example, so there is no training loss to draw."""

    def fail(*_: Any) -> None:
        raise ValueError("no such colour")

    monkeypatch.setattr("fedapp.runs.partition.draw_missing_partition", fail)
    monkeypatch.setattr("fedapp.runs.report.draw_curves", fail)
    folder = run(
        "run",
        weighting="uniform",
        partitioner="dirichlet",
        **{"dirichlet.alpha": 0.01, "dirichlet.min-size": 0},
        num_clients=300,
        fraction_train=0.0,
        num_server_rounds=1,
        record_updates=True,
        pictures=True,
    )
    assert list(metrics(folder)[1]["client_train_loss"].values()) == [None]
    assert (folder / "model.safetensors").exists()
    assert (folder / "report.html").exists()
    assert [line.split(" (")[0] for line in caplog.messages if line.startswith("No ")] == [
        "No picture of the partition: ValueError: no such colour",
        "No picture of the curves: ValueError: no such colour",
    ]
    with pytest.raises(DataError, match=r"no client has a finite training loss in any round"):
        read_runs([folder])


def test_a_run_without_the_record_is_named(run: Run) -> None:
    folder = run("plain", num_server_rounds=1)
    with pytest.raises(DataError, match=r"plain: its metrics.*record-updates=true"):
        read_runs([folder])
