"""The papers' items: what their TOMLs say, what is measured, and what the pages show."""

from __future__ import annotations

import io
import itertools
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from pydantic import ValidationError
from rich.console import Console
from typer.testing import CliRunner

from fedapp.analysis.curves import (
    band,
    communication,
    fluctuation,
    least,
    relative_spread,
    speed_up,
)
from fedapp.analysis.interpolation import interpolate
from fedapp.cli import app
from fedapp.config import read_config
from fedapp.data import load_dataset
from fedapp.errors import ConfigError
from fedapp.papers import costs
from fedapp.papers.catalogue import all_items, choose
from fedapp.papers.catalogue import read_item as read
from fedapp.papers.cells import Maker, is_among, line_name, make_cells
from fedapp.papers.costs import cost_of
from fedapp.papers.data import locate
from fedapp.papers.pictures.curves import draw_figure, points
from fedapp.papers.pictures.landscapes import (
    CURVATURES,
    OPTIMA,
    OPTIMUM,
    descent,
    least_squares,
    local_path,
)
from fedapp.papers.report.claims import Noise, check, claims_section
from fedapp.papers.report.comparisons import comparison_section
from fedapp.papers.report.page import page
from fedapp.papers.report.tables import entries, table_section
from fedapp.papers.reproduce import Order, cells_with_curves, reproduce
from fedapp.papers.results import (
    CellResult,
    Curve,
    Results,
    RunResult,
    collect,
    read_results,
    thin,
)
from fedapp.papers.schema import (
    SCALES,
    Claim,
    Claims,
    Comparison,
    Cut,
    Figure,
    Scale,
    ScaleName,
    Table,
)
from fedapp.sweeps.record import RunRecord
from fedapp.sweeps.schedule import Effort, Schedule

ITEMS = all_items()
TABLES = {name: item for name, item in ITEMS.items() if isinstance(item, Table)}


def maker(item, scale) -> Maker:
    return Maker(item, scale, item.scales.get(scale) or Scale(), {}, lambda name, cut: name)


# ---------------------------------------------------------------- the TOMLs


def test_every_table_and_figure_is_there() -> None:
    wanted = {f"mcmahan-fig{n}" for n in range(1, 11)} | {f"seo-fig{n}" for n in range(1, 14)}
    wanted |= {f"mcmahan-table{n}" for n in ("1-2nn", "1-cnn", "2-cnn", "2-lstm", "3", "4")}
    wanted |= {"notes-quadratic", "mcmahan-claims", "mcmahan-unbalanced"}
    wanted |= {"seo-claims", "seo-sweeps", "seo-sharpness"}
    assert wanted <= set(ITEMS)
    assert list(ITEMS).index("seo-fig2") < list(ITEMS).index("seo-fig10")


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", ITEMS)
def test_every_cell_is_a_sensible_run_at_every_scale(name: str, scale) -> None:
    for cell in make_cells(ITEMS[name], maker(ITEMS[name], scale)).values():
        if cell is not None:
            for values in itertools.product(*cell.options.values()):
                read_config({**cell.settings, **dict(zip(cell.options, values, strict=True))})


@pytest.mark.parametrize("name", ITEMS)
def test_what_a_scale_runs_alone_is_there(name: str) -> None:
    """A name with a typing error in it would run nothing, and nobody would notice."""
    for scale_name, scale in ITEMS[name].scales.items():
        everything = Maker(ITEMS[name], scale_name, Scale(), {}, lambda name, cut: name)
        cells = make_cells(ITEMS[name], everything)
        for each in scale.only or ():
            assert any(is_among(cell, (each,)) for cell in cells), each


@pytest.mark.parametrize("name", TABLES)
def test_published_speed_ups_follow_from_the_published_rounds(name: str) -> None:
    """The papers round to one decimal; a typing error in either number would show."""
    item = TABLES[name]
    first = next(row for row in item.rows if row.label == item.baseline).published
    for row in item.rows:
        for column, speedup in row.speedup.items():
            assert first[column] / row.published[column] == pytest.approx(speedup, abs=0.0501)


@pytest.mark.parametrize("name", ["mcmahan-table2-cnn", "mcmahan-table4"])
def test_published_u_follows_from_e_and_b(name: str) -> None:
    for row in TABLES[name].rows:
        epochs, batch = row.settings["local-epochs"], row.settings["batch-size"]
        assert float(row.shown["u"]) == epochs * (600 / batch if batch else 1)


def test_the_2nn_cells_have_the_grid_that_is_stated() -> None:
    cells = make_cells(ITEMS["mcmahan-table4"], maker(ITEMS["mcmahan-table4"], "full"))
    assert len(cells) == 18
    cell = cells["E = 20, B = 10 | Non-IID"]
    assert [cell.rates.rate(place) for place in (-1, 0, 1)] == [0.0464159, 0.1, 0.215443]
    assert (cell.target, cell.rounds, cell.seeds) == (0.97, 1107, (0, 1, 2))  # 1.5 times 738
    assert {"partitioner": "shards", "local-epochs": 20}.items() <= cell.settings.items()


@pytest.mark.parametrize(
    ("only", "run"),
    [
        ("C = 0.1", {"C = 0.1 | IID, B = ∞", "C = 0.1 | IID, B = 10"}),
        ("IID, B = 10", {"C = 0.0 | IID, B = 10", "C = 0.1 | IID, B = 10"}),
        ("C = 0.0 | IID, B = ∞", {"C = 0.0 | IID, B = ∞"}),
    ],
)
def test_rows_columns_and_cells_that_a_scale_leaves_out_are_not_run(only: str, run: set) -> None:
    item = ITEMS["mcmahan-table1-cnn"]
    small = item.model_copy(update={"rows": item.rows[:2], "columns": item.columns[:2]})
    cells = make_cells(small, Maker(small, "cpu", Scale(only=(only,)), {}, lambda name, cut: name))
    assert len(cells) == 4
    assert {name for name, cell in cells.items() if cell} == run


def test_a_row_tries_decays_unless_the_scale_sets_it() -> None:
    item, decay = TABLES["mcmahan-table3"], "learning-rate-decay"
    full, smoke = (make_cells(item, maker(item, scale)) for scale in ("full", "smoke"))
    assert full["FedAvg | 80 %"].options == {decay: (0.99, 0.998, 1.0)}
    assert decay not in full["FedAvg | 80 %"].settings
    assert (smoke["FedAvg | 80 %"].options, smoke["FedAvg | 80 %"].settings[decay]) == ({}, 1.0)


def test_a_smaller_scale_keeps_the_updates_of_a_round() -> None:
    item = ITEMS["seo-fig4"]
    for label in ("B | B = 50", "B | B = 5"):
        full, cpu = (make_cells(item, maker(item, scale))[label] for scale in ("full", "cpu"))
        cut = item.scales["cpu"].cut
        assert cut.train / cpu.settings["batch-size"] == 50_000 / full.settings["batch-size"]


def test_fluctuation_is_the_mean_change_over_the_last_half() -> None:
    assert fluctuation([0.0, 0.9, 0.5, 0.6, 0.4]) == pytest.approx((0.1 + 0.2) / 2)
    assert fluctuation([0.0, 0.1, None, 0.5, 0.6]) == pytest.approx(0.1)
    assert fluctuation([0.5]) == fluctuation([]) == 0.0


def test_a_gain_is_the_difference_of_two_differences() -> None:
    claim = Claim(says="", where="", measure="gain", cells=("a", "b", "c", "d"), low=0.0)
    finals = {"a": 0.6, "b": 0.5, "c": 0.7, "d": 0.68}
    cells = {
        name: cell(run_result(1.0).model_copy(update={"final": final}))
        for name, final in finals.items()
    }
    checked = check(claim, cells, Noise(0.02))
    assert checked.measured == pytest.approx(0.1 - 0.02)
    assert checked.verdict == "holds"
    assert check(claim, cells, Noise(0.1)).verdict == "inconclusive"


def test_claims_are_about_cells_of_other_items() -> None:
    item = ITEMS["seo-claims"]
    cells = make_cells(item, maker(item, "full"))
    seo = ITEMS["seo-fig10"]
    wanted = make_cells(seo, maker(seo, "full"))["eta | η = 0.05"]
    assert cells["seo-fig10: eta | η = 0.05"] == wanted


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ('kind = "tabel"', "tag 'tabel'"),
        ('kind = "table"\ntarget = "x"', "target"),
        ("kind = ", "one.toml"),
        ('kind = "table"\nspeed = 1', "speed: Extra inputs are not permitted"),
    ],
)
def test_a_wrong_toml_is_named(change: str, said: str) -> None:
    with pytest.raises(ConfigError, match=r"one\.toml") as error:
        read("one", change)
    assert said in str(error.value)


def test_items_are_chosen_by_name_or_by_its_start() -> None:
    assert [name for name, _ in choose(["mcmahan-table1"])] == [
        "mcmahan-table1-2nn",
        "mcmahan-table1-cnn",
    ]
    assert [name for name, _ in choose(["seo-fig1"])] == ["seo-fig1"]
    assert len(list(choose(["all"]))) == len(ITEMS)
    with pytest.raises(ConfigError, match="there is no such table or figure"):
        list(choose(["mcmahan-table9"]))


def test_data_is_local_where_there_is_a_copy_and_else_from_the_hub(tmp_path: Path) -> None:
    (tmp_path / "mnist").mkdir()
    assert locate("mnist", tmp_path, None, tmp_path) == str(tmp_path / "mnist")
    assert locate("cifar10", tmp_path, None, tmp_path) == "uoft-cs/cifar10"
    assert locate("digits", None, Cut(train=1, test=1), tmp_path) == "digits"
    with pytest.raises(ConfigError, match=r"needs a local copy.*--data"):
        locate("cifar10", None, Cut(train=1, test=1), tmp_path)


# ---------------------------------------------------------------- measures


def write_split(folder: Path, values: list[int], *, shards: int = 0) -> Path:
    """Write the values as `train.parquet` or its shards, and the first as `test.parquet`."""
    folder.mkdir(parents=True)
    parts = np.array_split(np.asarray(values), max(shards, 1))
    for i, part in enumerate(parts):
        name = f"train-{i:05d}-of-{shards:05d}" if shards else "train"
        pq.write_table(pa.table({"label": part}), folder / f"{name}.parquet")
    pq.write_table(pa.table({"label": values[:1]}), folder / "test.parquet")
    return folder


def test_other_data_of_the_same_name_have_a_cut_of_their_own(tmp_path: Path) -> None:
    cut, cuts = Cut(train=3, test=1), tmp_path / "cuts"
    write_split(tmp_path / "a" / "mnist", [1, 2, 3, 4])
    write_split(tmp_path / "b" / "mnist", [5, 6, 7, 8], shards=2)
    shutil.copytree(tmp_path / "a", tmp_path / "moved")
    where = {name: locate("mnist", tmp_path / name, cut, cuts) for name in ("a", "b", "moved")}
    train = {k: pq.read_table(f"{v}/train.parquet")["label"].to_pylist() for k, v in where.items()}
    assert train == {"a": [1, 2, 3], "b": [5, 6, 7], "moved": [1, 2, 3]}
    assert where["a"] == where["moved"]
    # The folder's name is part of the identity of recorded runs.
    assert {Path(each).name for each in where.values()} == {"mnist-3-1"}


def test_a_cut_of_data_without_parquet_files_is_refused(tmp_path: Path) -> None:
    folder = write_split(tmp_path / "mnist", [1, 2])
    (folder / "train.parquet").rename(folder / "train-images-idx3-ubyte")
    with pytest.raises(ConfigError, match=r"no Parquet files of the train split .*--scale full"):
        locate("mnist", tmp_path, Cut(train=1, test=1), tmp_path / "cuts")


def test_the_least_loss_is_the_first_of_its_kind() -> None:
    assert least([0, 5, 10, 15], [3.0, None, 1.0, float("nan")]) == (10, 1.0)
    assert least([0], [None]) is None
    assert least([0, 5, 10], [2.0, 1.0, 1.0]) == (5, 1.0)  # of equals the first
    assert least([0, 5], [float("nan"), 2.0]) == (5, 2.0)
    assert least([0, 5], [float("nan"), float("inf")]) is None


def test_speed_ups_are_over_the_baseline() -> None:
    assert speed_up(1468, 32) == pytest.approx(45.875)
    assert speed_up(None, 32) is None
    assert speed_up(1468, None) is None


def test_a_band_is_mean_least_and_greatest_where_all_have_a_point() -> None:
    curves = [([0, 1, 2], [1.0, 2.0, 3.0]), ([0, 2, 3], [3.0, 6.0, 9.0])]
    assert band(curves) == ([0, 2], [2.0, 4.5], [1.0, 3.0], [3.0, 6.0])
    assert band([([0, 1], [1.0, float("nan")])])[0] == [0]


def test_communication_counts_every_client_of_every_round_both_ways() -> None:
    assert communication(10.5, 10, down=800, up=700) == 10.5 * 10 * 1500


def test_interpolation_is_linear_also_beyond_the_models() -> None:
    w, other = {"x": torch.tensor([1.0, 0.0])}, {"x": torch.tensor([0.0, 2.0])}
    assert torch.allclose(interpolate(w, other, 0.25)["x"], torch.tensor([0.25, 1.5]))
    assert torch.allclose(interpolate(w, other, 1.2)["x"], torch.tensor([1.2, -0.4]))


def test_gradient_descent_on_the_landscape_is_what_its_formula_says() -> None:
    inputs, targets = least_squares(50)
    path = descent(inputs, targets, 50, 0.25, 400)
    step = 0.25 * inputs.T @ (inputs @ path[0] - targets) / 50
    assert np.allclose(path[1], path[0] - step)
    assert np.allclose(path[-1], np.linalg.lstsq(inputs, targets, rcond=None)[0], atol=1e-6)
    assert np.linalg.norm(path[-1] - OPTIMUM) < 0.5


@pytest.mark.parametrize("kind", CURVATURES)
def test_clients_walk_to_their_own_optimum(kind: str) -> None:
    for curvature, optimum in zip(CURVATURES[kind], OPTIMA[kind], strict=True):
        start = optimum + np.array([1.0, -1.0])
        path = local_path(start, curvature, optimum)
        away = np.linalg.norm(path - optimum, axis=1)
        assert (np.diff(away) < 0).all()


# ---------------------------------------------------------------- pages and pictures


def run_result(needed=None, final=0.5, seed=0, **more) -> RunResult:
    values = {
        "run": "r",
        "seed": seed,
        "rounds": 100,
        "needed": needed,
        "final": final,
        "best": final,
        "least_loss": 1.0,
        "least_loss_round": 5,
        "updates": 1.0,
        "bytes_down": 1000,
        "bytes_up": 1000,
        "seconds": 1.0,
        "problem": "",
    }
    return RunResult(**{**values, **more})


def cell(*runs: RunResult, **more) -> CellResult:
    return CellResult(
        **{"target": 0.97, "participants": 10, "chosen": {"learning-rate": 0.1}, **more},
        runs=list(runs),
    )


def table_results(cells: dict[str, CellResult]) -> Results:
    item = TABLES["mcmahan-table4"]
    everything = {f"{r.label} | {c.label}": CellResult() for r in item.rows for c in item.columns}
    return Results(item="mcmahan-table4", scale="full", command="c", cells=everything | cells)


def test_a_table_shows_published_and_measured_side_by_side() -> None:
    item = TABLES["mcmahan-table4"]
    results = table_results(
        {
            "E = 1, B = ∞ | IID": cell(run_result(900), run_result(1100, seed=1)),
            "E = 1, B = 10 | IID": cell(run_result(50.0)),
            "E = 20, B = 10 | IID": cell(run_result(None), inside=False),
        }
    )
    found = {f"{e.row.label} | {e.column.label}": e for e in entries(item, results)}
    one = found["E = 1, B = 10 | IID"]
    assert (one.ratio, one.speedup, one.published_speedup) == (50 / 92, 20.0, 16.0)
    text = table_section(item, results)
    assert "92 (16.0×) → **50 (20.0×)**" in text
    assert "1468 → **1000**" in text
    assert "45 (32.6×) → **not run**" in text
    assert "32 (45.9×) → **not in 100 rounds (best 50.00 %)**" in text
    assert "2 of 3 cells reach the target within 1.25 times" in text
    assert "1 of 1 speed-ups" in text
    assert "2: 900 - 1100" in text
    assert "1 MB" in text  # 50 rounds, 10 clients, 1,000 bytes each way


def test_a_cell_that_was_not_run_is_never_filled_in() -> None:
    text = page(TABLES["mcmahan-table4"], [table_results({})])
    assert text.count("→ **not run**") == 18
    assert "Nothing was run at this scale" in text


def claim(**more) -> Claim:
    return Claim(**{"says": "s", "where": "w", "cells": ("a", "b"), **more})


@pytest.mark.parametrize(
    ("finals", "verdict"),
    [((0.5, 0.6), "fails"), ((0.6, 0.5), "holds"), ((0.505, 0.5), "inconclusive")],
)
def test_a_difference_must_exceed_the_noise(finals, verdict: str) -> None:
    cells = {name: cell(run_result(final=f)) for name, f in zip("ab", finals, strict=True)}
    checked = check(claim(measure="difference", low=0.0), cells, Noise(0.01))
    assert checked.verdict == verdict
    assert checked.measured == pytest.approx(finals[0] - finals[1])


def test_the_seeds_spread_counts_as_noise_where_it_is_greater() -> None:
    wide = cell(run_result(final=0.5), run_result(final=0.7, seed=1))
    cells = {"a": wide, "b": cell(run_result(final=0.55))}
    checked = check(claim(measure="difference", low=0.0), cells, Noise(0.01))
    assert checked.noise == pytest.approx(0.1)
    assert checked.verdict == "inconclusive"


@pytest.mark.parametrize(
    ("finals", "verdict"),
    [((0.5, 0.505), "holds"), ((0.5, 0.525), "inconclusive"), ((0.5, 0.56), "fails")],
)
def test_a_spread_must_exceed_the_noise_too(finals, verdict: str) -> None:
    cells = {name: cell(run_result(final=f)) for name, f in zip("ab", finals, strict=True)}
    assert check(claim(measure="spread", high=0.02), cells, Noise(0.01)).verdict == verdict


def test_claims_about_one_value_all_values_and_layers() -> None:
    cells = {"a": cell(run_result(final=0.68)), "b": cell(run_result(final=0.66))}
    value = claim(measure="value", cells=("a",), low=0.66, high=0.7)
    assert check(value, cells, Noise(0.01)).verdict == "holds"
    spread = check(claim(measure="spread", high=0.01), cells, Noise(0.001))
    assert (round(spread.measured, 6), spread.verdict) == (0.02, "fails")
    agreement = claim(measure="agreement", low=0.0)
    layers = check(agreement, agreeing({"x": 0.9, "y": 0.5}, {"x": 0.2, "y": 0.5}), Noise(0.01))
    assert (layers.measured, layers.verdict) == (0.0, "inconclusive")
    assert check(value, {}, Noise(0.01)).verdict == "not run"


@pytest.mark.parametrize(
    ("finals", "least", "verdict"),
    [
        ((0.6, 0.5, 0.2), 0.1, "holds"),
        ((0.6, 0.595, 0.2), 0.005, "inconclusive"),
        ((0.6, 0.2, 0.5), -0.3, "fails"),
    ],
)
def test_an_order_is_its_least_step(finals, least: float, verdict: str) -> None:
    cells = {name: cell(run_result(final=f)) for name, f in zip("abc", finals, strict=True)}
    checked = check(claim(measure="order", cells=("a", "b", "c"), low=0.0), cells, Noise(0.01))
    assert (checked.measured, checked.verdict) == (pytest.approx(least), verdict)
    assert (
        check(claim(measure="order", cells=("a", "d"), low=0.0), cells, Noise(0.01)).measured
        is None
    )


def learning(accuracy, train_loss, seed=0) -> RunResult:
    """Return a run with these numbers after rounds 0, 1, 2, ..."""
    rounds = list(range(len(accuracy)))
    drawn = Curve(
        rounds=rounds, gradients=rounds, accuracy=accuracy, loss=train_loss, train_loss=train_loss
    )
    best = max(value for value in accuracy if value is not None)
    return run_result(final=accuracy[-1], best=best, curve=drawn, seed=seed)


def test_a_window_is_of_the_papers_rounds() -> None:
    """At a pace of 4 the rounds 8 to 14 are 2 and 3."""
    one = cell(learning([0.1, 0.2, 0.6, 0.8, 0.9], [None, 2.0, 1.5, 1.0, 0.5]))
    other = cell(learning([0.1, 0.2, 0.5, 0.7, 0.9], [None, 2.0, 1.5, 1.4, 0.3]))
    cells = {"a": one, "b": other}
    accuracy = claim(measure="difference", of="accuracy", window=(8, 14), low=0.0)
    assert check(accuracy, cells, Noise(0.02), "cpu", pace=4.0).measured == pytest.approx(0.1)
    assert check(accuracy, cells, Noise(0.02), "cpu", pace=4.0).verdict == "holds"
    assert check(accuracy, cells, Noise(0.02)).verdict == "no number"  # no run has as many rounds
    loss = accuracy.model_copy(update={"of": "train_loss"})
    checked = check(loss, cells, Noise(0.02), "cpu", pace=4.0)
    assert (checked.measured, checked.verdict) == (pytest.approx(1.25 - 1.45), "one seed")
    last = claim(measure="difference", of="train_loss", low=0.0)
    assert check(last, cells, Noise(0.02)).measured == pytest.approx(0.2)
    assert check(last, cells, Noise(0.02), "cpu", pace=4.0).measured == pytest.approx(0.2)


def test_rounds_to_the_level_are_to_nine_tenths_of_what_all_reach() -> None:
    """The second comes to 0.5 at best, so the level is 0.45: after 1.5 rounds, and after 2.5."""
    cells = {
        "a": cell(learning([0.1, 0.3, 0.6, 0.8], [1.0] * 4)),
        "b": cell(learning([0.0, 0.2, 0.4, 0.5], [1.0] * 4)),
    }
    faster = claim(measure="difference", of="rounds_to_level", high=0.0)
    checked = check(faster, cells, Noise(0.01))
    assert (checked.measured, checked.verdict) == (pytest.approx(1.5 - 2.5), "one seed")
    assert check(faster, {**cells, "b": cell(run_result())}, Noise(0.01)).verdict == "no number"
    twice = {
        name: found.model_copy(update={"runs": [*found.runs, later]})
        for (name, found), later in zip(
            cells.items(),
            (
                learning([0.1, 0.1, 0.3, 0.6], [1.0] * 4, seed=1),
                learning([0.0, 0.0, 0.2, 0.7], [1.0] * 4, seed=1),
            ),
            strict=True,
        )
    }
    checked = check(faster, twice, Noise(0.01))  # (1.5 + 2.5) / 2 less (2.5 + 2.5) / 2
    assert (checked.measured, checked.noise) == (pytest.approx(-0.5), pytest.approx(0.5))
    assert checked.verdict == "inconclusive"


def test_clients_losses_lie_apart_by_their_deviation_over_their_mean() -> None:
    """The last half of four rounds: 1 and 3, then 2 and 6; deviation over mean is 1/2 in both."""
    assert relative_spread([[1.0, 9.0], [1.0, 9.0], [1.0, 3.0], [2.0, 6.0]]) == 0.5
    assert relative_spread([[1.0], [], [5.0]]) is None
    assert relative_spread([]) is None
    losses = ({"0": 1.0, "1": 3.0, "2": None}, {"0": 2.0, "1": 2.0})
    apart, alike = (
        run_result(agreement=[{"round": 1, "client_train_loss": own}]) for own in losses
    )
    assert (apart.loss_spread, alike.loss_spread, run_result().loss_spread) == (0.5, 0.0, None)
    further = claim(measure="difference", of="loss_spread", low=0.0)
    checked = check(further, {"a": cell(apart), "b": cell(alike)}, Noise(0.01))
    assert (checked.measured, checked.verdict) == (0.5, "one seed")
    assert (
        check(further, {"a": cell(apart), "b": cell(run_result())}, Noise(0.01)).verdict
        == "no number"
    )


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"measure": "value", "low": 0.0}, "measure = 'value' takes 1, not 2"),
        ({"measure": "gain", "low": 0.0}, "measure = 'gain' takes 4, not 2"),
        (
            {"measure": "order", "low": 0.0, "cells": ("a",)},
            "measure = 'order' takes 2 or more, not 1",
        ),
        ({"measure": "difference"}, "has no bound"),
        ({"measure": "difference", "low": 0.0, "window": (1, 2)}, "of = 'final' has none"),
        ({"measure": "difference", "low": 0, "of": "accuracy", "window": (2, 1)}, "ends before"),
    ],
)
def test_a_claim_that_cannot_be_checked_is_refused(more: dict, said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        claim(**more)


def test_a_page_says_which_rounds_a_window_is() -> None:
    item = ITEMS["seo-claims"]
    assert isinstance(item, Claims)

    def said(scale: ScaleName) -> str:
        return claims_section(item, Results(item="seo-claims", scale=scale, command="c", cells={}))

    assert "rounds 40 to 70 of the paper are here 10 to 17.5." in said("cpu")
    assert "of the paper are here" not in said("full")


def test_the_curves_of_claims_are_kept_where_they_are_read() -> None:
    item = ITEMS["seo-claims"]
    cells = make_cells(item, maker(item, "cpu"))
    kept = cells_with_curves(item, cells)
    assert "seo-fig7: weighted | SGM 0.9" in kept
    assert "seo-fig2: K | K = 1" not in kept
    assert cells_with_curves(TABLES["mcmahan-table4"], cells) == set()
    row = claim(measure="spread", of="accuracy", cells=("mcmahan-table4: IID",), high=0.1)
    assert isinstance(item, Claims)
    of_a_column = cells_with_curves(item.model_copy(update={"claims": (row,)}), cells)
    assert len(of_a_column) == 9
    assert "mcmahan-table4: E = 1, B = 50 | IID" in of_a_column
    assert cells_with_curves(ITEMS["seo-fig9"], cells) == set(cells)


def agreeing(first: dict[str, float], second: dict[str, float]) -> dict[str, CellResult]:
    """Return two cells of these similarities by layer, the second seed's 0.1 above the first's."""
    return {
        name: cell(
            *(
                run_result(
                    seed=seed,
                    agreement=[
                        {"round": 1, "similarity": {k: v + 0.1 * seed for k, v in by.items()}}
                    ],
                )
                for seed in (0, 1)
            )
        )
        for name, by in (("a", first), ("b", second))
    }


@pytest.mark.parametrize(
    ("second", "verdict"), [(0.2, "holds"), (0.46, "inconclusive"), (0.8, "fails")]
)
def test_similarities_differ_by_more_than_half_of_the_seeds_range(second, verdict: str) -> None:
    cells = agreeing({"x": 0.5}, {"x": second})
    checked = check(claim(measure="agreement", low=0.0), cells, Noise(0.01))
    assert (checked.noise, checked.verdict) == (pytest.approx(0.05), verdict)


@pytest.mark.parametrize("of", ["least_loss", "least_loss_round", "updates", "fluctuation"])
def test_what_has_no_noise_of_its_own_is_not_judged_by_one_seed(of: str) -> None:
    one = {"a": cell(run_result(**{of: 9})), "b": cell(run_result(**{of: 1}))}
    differs = claim(measure="difference", of=of, low=0.0)
    assert (
        check(differs, one, Noise(0.01)).measured,
        check(differs, one, Noise(0.01)).verdict,
    ) == (
        8,
        "one seed",
    )
    two = {
        name: cell(*(run_result(seed=seed, **{of: value + 2 * seed}) for seed in (0, 1)))
        for name, value in (("a", 9), ("b", 1))
    }
    assert (check(differs, two, Noise(0.01)).noise, check(differs, two, Noise(0.01)).verdict) == (
        1,
        "holds",
    )


def test_the_agreement_of_one_seed_is_shown_and_not_judged() -> None:
    one = {name: cell(c.runs[0]) for name, c in agreeing({"x": 0.9}, {"x": 0.1}).items()}
    assert check(claim(measure="agreement", low=0.0), one, Noise(0.01)).verdict == "one seed"


@pytest.mark.parametrize("measure", ["value", "difference", "spread"])
def test_the_smoke_scale_is_no_evidence(measure: str) -> None:
    cells = {"a": cell(run_result(final=0.9)), "b": cell(run_result(final=0.1))}
    said = claim(measure=measure, cells=("a",) if measure == "value" else ("a", "b"), low=0.0)
    checked = check(said, cells, Noise(0.01), "smoke")
    assert checked.measured is not None
    assert checked.verdict == "smoke: no evidence"
    assert check(said, {}, Noise(0.01), "smoke").verdict == "not run"


def test_a_page_says_why_a_number_is_not_judged() -> None:
    cells = {"seo-fig5: PP | 1 of 10 clients": 0.515, "seo-fig5: PP | 10 of 10 clients": 0.53}
    found = {name: cell(run_result(final=final)) for name, final in cells.items()}
    item = ITEMS["seo-claims"]
    assert isinstance(item, Claims)
    said = claims_section(item, Results(item="seo-claims", scale="smoke", command="c", cells=found))
    run = sum(cells.keys() >= set(claim.cells) for claim in item.claims)
    assert f"{run} smoke: no evidence, {len(item.claims) - run} not run." in said
    assert "Shown, not judged: *smoke: no evidence*: other data" in said
    assert "holds:" not in said


def test_the_value_of_a_smaller_scale_is_shown_and_not_judged() -> None:
    """The paper's accuracy is that of its data; signs and sizes of differences carry over."""
    cells = {"a": cell(run_result(final=0.55)), "b": cell(run_result(final=0.4))}
    value = claim(measure="value", cells=("a",), low=0.66)
    checked = check(value, cells, Noise(0.01), "cpu")
    assert (checked.measured, checked.verdict) == (0.55, "full scale only")
    assert check(claim(measure="difference", low=0.0), cells, Noise(0.01), "cpu").verdict == "holds"


def test_claims_of_a_scale_have_its_noise() -> None:
    cells = {"seo-fig5: PP | 1 of 10 clients": 0.515, "seo-fig5: PP | 10 of 10 clients": 0.53}
    found = {name: cell(run_result(final=final)) for name, final in cells.items()}
    item = ITEMS["seo-claims"]
    assert isinstance(item, Claims)

    def shown(scale: ScaleName) -> str:
        results = Results(item="seo-claims", scale=scale, command="c", cells=found)
        return next(line for line in claims_section(item, results).splitlines() if "-1.50" in line)

    assert "| 1.00 |" in shown("full")
    assert "| 2.00 |" in shown("cpu")


def recorded(seed: int, losses: dict, similarity: dict) -> RunResult:
    row = {"round": 1, "client_train_loss": losses, "similarity": similarity}
    return run_result(seed=seed, agreement=[row])


def test_pages_of_updates_have_their_numbers() -> None:
    """Losses 1 and 3: mean 2, deviation 1, so 50 %; with the second seed's 2 and 2: 25 %."""
    alike = recorded(1, {"0": 2.0, "1": 2.0}, {"conv1": 0.7, "fc1": 0.2})
    apart = recorded(0, {"0": 1.0, "1": 3.0}, {"conv1": 0.5, "fc1": None})
    cells = {"IID": cell(alike, apart), "Dirichlet 0.1": cell(apart)}
    losses, similarities = (
        page(ITEMS[name], [Results(item=name, scale="full", command="c", cells=cells)])
        for name in ("seo-fig12", "seo-fig13")
    )
    assert "| IID | 1 | 2 | 3 | 25.0 % |" in losses
    assert "| Dirichlet 0.1 | 1 | 2 | 3 | 50.0 % |" in losses
    assert "| line | conv1 | fc1 |" in similarities
    assert "| IID | 0.6 | 0.2 |" in similarities
    assert "| Dirichlet 0.1 | 0.5 |  |" in similarities
    assert "| IID less Dirichlet 0.1 | +0.1 |  |" in similarities


@pytest.mark.parametrize("own", [CellResult(), cell(run_result()), cell(recorded(0, {}, {}))])
def test_pages_of_updates_that_were_not_recorded_have_no_numbers(own: CellResult) -> None:
    nothing = Results(item="seo-fig12", scale="full", command="c", cells={"IID": own})
    said = page(ITEMS["seo-fig12"], [nothing])
    assert ("| IID |  |  |  |  |" in said) == any(run.agreement for run in own.runs)


def test_curves_are_thinned_and_keep_their_ends_and_their_best() -> None:
    accuracy = [0.001 * t for t in range(1000)]
    accuracy[500] = 1.0
    record = RunRecord(
        run="r",
        settings={},
        status="complete",
        rounds=list(range(1000)),
        accuracy=accuracy,
        loss=[None] * 1000,
        train_loss=[None] * 1000,
        gradients=[0] * 1000,
    )
    curve = thin(record, 50)
    assert len(curve.rounds) <= 51
    assert {0, 500, 999} <= set(curve.rounds)


def curve(ys) -> Curve:
    count = len(ys)
    return Curve(
        rounds=list(range(count)),
        gradients=[10 * t for t in range(count)],
        accuracy=ys,
        loss=[1 - y for y in ys],
        train_loss=[None, *([0.5] * (count - 1))],
    )


def test_a_run_that_diverges_does_not_hide_the_others() -> None:
    item = ITEMS["seo-fig5"]
    assert isinstance(item, Figure)
    cells = {line_name(p, line): CellResult() for p in item.panels for line in item.lines[p.lines]}
    for name, loss in zip(cells, ([2.0, 1.0, 0.5], [2.5, 400.0, 2.3]), strict=False):
        drawn = curve([0.1, 0.2, 0.3]).model_copy(update={"loss": loss})
        cells[name] = cell(run_result(curve=drawn))
    figure = draw_figure(item, Results(item="seo-fig5", scale="cpu", command="c", cells=cells))
    losses = next(axes for axes in figure.axes if axes.get_ylabel() == "test loss")
    assert losses.get_ylim()[1] == pytest.approx(7.5)


def test_a_figure_has_a_line_for_each_that_ran_and_a_band_over_seeds() -> None:
    item = ITEMS["seo-fig9"]
    assert isinstance(item, Figure)
    cells = {line_name(p, line): CellResult() for p in item.panels for line in item.lines[p.lines]}
    first = next(iter(cells))
    runs = [run_result(curve=curve([0.1, 0.2 + 0.1 * s, 0.3]), seed=s) for s in range(3)]
    cells[first] = cell(*runs)
    figure = draw_figure(item, Results(item="seo-fig9", scale="full", command="c", cells=cells))
    accuracy, loss = figure.axes[0], figure.axes[1]
    assert [line.get_label() for line in accuracy.lines] == ["α = 0.1"]
    assert list(accuracy.lines[0].get_ydata()) == pytest.approx([0.1, 0.3, 0.3])
    assert len(accuracy.collections) == 1
    assert loss.lines[-1].get_marker() == "o"  # the least test loss is marked
    assert [t.get_text() for t in figure.axes[3].texts] == ["not run"]


def test_accuracy_by_gradients_has_gradients_on_its_axis() -> None:
    panel = ITEMS["mcmahan-fig9"].panels[0]
    assert points(curve([0.1, 0.3, 0.2]), panel) == ([0, 10, 20], [0.1, 0.3, 0.2])
    best = panel.model_copy(update={"y": "best accuracy", "x": "rounds"})
    assert points(curve([0.1, 0.3, 0.2]), best) == ([0, 1, 2], [0.1, 0.3, 0.3])


# ---------------------------------------------------------------- long runs


def test_long_runs_of_tables_are_evaluated_about_500_times() -> None:
    """1.5 times 1,181 published rounds of Table 1 are 1,772: every third is evaluated."""
    cells = make_cells(TABLES["mcmahan-table1-2nn"], maker(TABLES["mcmahan-table1-2nn"], "full"))
    for cell in cells.values():
        assert cell.settings["eval-every"] == max(cell.rounds // 500, 1)
    assert {c.settings["eval-every"] for c in cells.values() if c.rounds < 1000} == {1}
    assert max(cell.settings["eval-every"] for cell in cells.values()) >= 3
    smoke = make_cells(TABLES["mcmahan-table3"], maker(TABLES["mcmahan-table3"], "smoke"))
    assert {cell.settings["eval-every"] for cell in smoke.values()} == {1}


def test_columns_that_differ_in_the_target_share_their_runs() -> None:
    cells = make_cells(TABLES["mcmahan-table3"], maker(TABLES["mcmahan-table3"], "full"))
    for row in ("SGD", "FedSGD", "FedAvg"):
        own = [cell for name, cell in cells.items() if name.startswith(f"{row} |")]
        assert len({tuple(sorted(cell.settings.items())) for cell in own}) == 1
    assert (
        cells["SGD | 80 %"].settings["eval-every"] == 592
    )  # of 296,250 updates, 1.5 times 197,500
    assert cells["FedAvg | 85 %"].settings["eval-every"] == 6


def test_balanced_clients_are_table_1_s_and_others_have_sizes_of_their_own() -> None:
    both = [
        make_cells(TABLES[name], maker(TABLES[name], "full"))
        for name in ("mcmahan-unbalanced", "mcmahan-table1-2nn", "mcmahan-table1-cnn")
    ]
    own, sizes = both[0], ("sgm.sigma", "shards.sigma")
    for column, other, cells in (
        ("2NN, IID", "IID", both[1]),
        ("2NN, non-IID", "Non-IID", both[1]),
        ("CNN, IID", "IID", both[2]),
        ("CNN, non-IID", "Non-IID", both[2]),
    ):
        assert own[f"balanced | {column}"].settings == cells[f"C = 0.1 | {other}, B = 10"].settings
        uneven = own[f"σ = 1 | {column}"].settings
        assert {key: uneven[key] for key in sizes if key in uneven} == {
            f"{'sgm' if other == 'IID' else 'shards'}.sigma": 1.0
        }
        assert uneven["partitioner"] == ("sgm" if other == "IID" else "shards")


def test_a_cell_without_a_published_number_is_compared_with_the_baseline() -> None:
    item = TABLES["mcmahan-unbalanced"]
    cells = {f"{r.label} | {c.label}": CellResult() for r in item.rows for c in item.columns}
    cells |= {
        "balanced | 2NN, IID": cell(run_result(90.0)),
        "σ = 0.5 | 2NN, IID": cell(run_result(100.0)),
        "σ = 1 | 2NN, IID": cell(run_result(60.0)),
        "σ = 1 | 2NN, non-IID": cell(run_result(60.0)),
    }
    said = table_section(
        item, Results(item="mcmahan-unbalanced", scale="full", command="c", cells=cells)
    )
    assert "not given → **60 (1.5×)**" in said
    assert (
        "1 of 1 cells reach the target within 1.25 times the published rounds; no speed-ups are"
        in said
    )
    assert "1 of 2 cells without published rounds need fewer rounds than the row balanced." in said


@pytest.mark.parametrize(("name", "rounds"), [("mcmahan-fig3", 100), ("mcmahan-fig8", 100)])
def test_very_many_local_epochs_are_of_the_full_scale_alone(name: str, rounds: int) -> None:
    for scale, run in (("full", True), ("cpu", False), ("smoke", False)):
        cells = make_cells(ITEMS[name], maker(ITEMS[name], scale))
        large = [cell for label, cell in cells.items() if "E = 200" in label]
        assert len(large) == 2
        for cell in large:
            assert (cell is not None) == run
            if cell is not None:
                assert (cell.settings["local-epochs"], cell.rounds) == (200, rounds)


def test_sgd_alone_has_the_text_s_86_percent() -> None:
    cells = make_cells(TABLES["mcmahan-table3"], maker(TABLES["mcmahan-table3"], "full"))
    assert [name for name in cells if name.endswith("86 %")] == ["SGD | 86 %"]
    assert (cells["SGD | 86 %"].rounds, cells["SGD | 86 %"].target) == (296_250, 0.86)
    assert cells["SGD | 85 %"].rounds == 148_500


def test_a_page_says_which_cells_are_evaluated_less_often() -> None:
    often, seldom = cell(run_result(50.0)), cell(run_result(50.0))
    results = table_results({"a": often, "b": seldom.model_copy(update={"every": 4})})
    text = page(TABLES["mcmahan-table4"], [results])
    assert "| b | 4 |" in text
    assert "about 500 times" in text
    assert "about 500 times" not in page(TABLES["mcmahan-table4"], [table_results({"a": often})])


# ---------------------------------------------------------------- from one command


def test_a_drawing_is_reproduced_with_its_page_and_the_index(tmp_path: Path) -> None:
    order = Order("smoke", None, tmp_path / "runs", tmp_path / "out", Effort(jobs=1), {})
    reproduce(["seo-fig11", "mcmahan-fig1"], order, Console(quiet=True))
    for name in ("seo-fig11", "mcmahan-fig1"):
        files = {path.name for path in (tmp_path / "out" / name).iterdir()}
        assert files == {"smoke.json", "smoke.png", "smoke.svg", "index.md", "index.html"}
        assert 'src="smoke.svg"' in (tmp_path / "out" / name / "index.html").read_text()
    numbers = read_results(tmp_path / "out", "mcmahan-fig1", "smoke").numbers
    middle = numbers["thetas"].index(min(numbers["thetas"], key=lambda t: abs(t - 0.5)))
    assert numbers["shared"][middle] < min(numbers["shared parents"])
    assert numbers["separate"][middle] > min(numbers["separate parents"])
    index = (tmp_path / "out" / "index.md").read_text()
    assert "(seo-fig11/index.md)" in index
    assert "| `seo-fig9` | not run |" in index


@pytest.mark.process
def test_a_table_is_reproduced_at_smoke_scale(tmp_path: Path) -> None:
    order = Order("smoke", None, tmp_path / "runs", tmp_path / "out", Effort(jobs=2), {})
    reproduce(["mcmahan-table1-2nn"], order, Console(quiet=True))
    results = read_results(tmp_path / "out", "mcmahan-table1-2nn", "smoke")
    ran = {name for name, found in results.cells.items() if found.runs}
    assert {name.split(" | ")[0] for name in ran} == {"C = 0.0", "C = 0.5"}
    assert all(len(results.cells[name].tried) >= 3 for name in ran)
    assert "B = 10" in (tmp_path / "out" / "mcmahan-table1-2nn" / "index.md").read_text()


@pytest.mark.process
def test_chosen_cells_are_run_and_what_is_done_already_is_shown(tmp_path: Path) -> None:
    def chosen(*only: str) -> set[str]:
        folders = tmp_path / "runs", tmp_path / "out"
        order = Order("smoke", None, *folders, Effort(jobs=1), {}, only=only)
        reproduce(["mcmahan-table1-2nn"], order, Console(quiet=True))
        results = read_results(tmp_path / "out", "mcmahan-table1-2nn", "smoke")
        return {name for name, found in results.cells.items() if found.runs}

    assert chosen("C = 0.0 | IID, B = 10") == {"C = 0.0 | IID, B = 10"}
    both = {"C = 0.0 | IID, B = 10", "C = 0.0 | IID, B = ∞"}
    assert chosen("C = 0.0 | IID, B = ∞") == both
    kept = (tmp_path / "out" / "mcmahan-table1-2nn" / "smoke.json").read_bytes()
    others = Order(
        "smoke",
        None,
        tmp_path / "other runs",
        tmp_path / "out",
        Effort(jobs=1),
        {},
        only=("C = 0.0 | IID, B = 10",),
    )
    console = Console(file=io.StringIO(), width=400)
    reproduce(["mcmahan-table1-2nn"], others, console)
    assert "has results of 1 cells whose runs are neither in" in console.file.getvalue()
    assert (tmp_path / "out" / "mcmahan-table1-2nn" / "smoke.json").read_bytes() == kept
    damaged = tmp_path / "out" / "seo-fig11" / "smoke.json"
    damaged.parent.mkdir()
    damaged.write_text("{")
    with pytest.raises(ConfigError, match=r"seo-fig11/smoke\.json: cannot be read .* Delete it"):
        reproduce(["seo-fig11"], replace(others, only=()), console)
    assert damaged.read_text() == "{"
    order = Order("cpu", None, tmp_path / "runs", tmp_path / "out", Effort(jobs=1), {}, only=("x",))
    with pytest.raises(ConfigError, match=r"--only x: .* choose another with --scale"):
        reproduce(["mcmahan-table3"], order, Console(quiet=True))
    with pytest.raises(ConfigError, match=r"--only C = 2: .* One of: C = 0\.0; IID, B = ∞; "):
        chosen("C = 2")


@pytest.mark.process
def test_when_the_time_is_up_what_is_done_is_shown_and_the_rest_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cells that cost least come first: those in which one client trains."""

    def left(_: Schedule) -> float:
        return 0.0 if len(list(tmp_path.glob("runs/*/record.json"))) >= 8 else 60.0

    monkeypatch.setattr(Schedule, "seconds_left", left)
    effort = Effort(jobs=1, hours=1.0)
    order = Order("smoke", None, tmp_path / "runs", tmp_path / "out", effort, {})
    console = Console(file=io.StringIO())
    reproduce(["algorithms-mnist-shards", "mcmahan-table1-2nn"], order, console)
    results = read_results(tmp_path / "out", "mcmahan-table1-2nn", "smoke")
    ran = {name for name, found in results.cells.items() if found.runs}
    assert ran
    assert {name.split(" | ")[0] for name in ran} == {"C = 0.0"}
    assert not (tmp_path / "out" / "algorithms-mnist-shards").exists()  # nothing of it is done
    assert "1 hours are over" in console.file.getvalue()
    row = (tmp_path / "out" / "mcmahan-table1-2nn" / "index.md").read_text()
    assert "not run" in row


def test_costs_are_of_the_digits_as_they_are() -> None:
    digits = load_dataset(read_config({}))
    assert costs.SIZES["digits"] == (len(digits.train), len(digits.test))


def test_an_option_that_is_text_is_shown_as_it_is() -> None:
    item = ITEMS["algorithms-mnist-shards"]
    assert isinstance(item, Comparison)
    cells = {"scaffold": cell(run_result(), chosen={"scaffold.option": "II", "mu": 0.10})}
    assert "| scaffold.option=II, mu=0.1 |" in comparison_section(item, table_results(cells))


def test_costs_add_up() -> None:
    item = ITEMS["seo-fig5"]
    cost = cost_of(item, "smoke", {})
    assert (cost.runs, cost.rounds) == (4, 60)
    assert 0 < cost.seconds < 600
    tuned = cost_of(TABLES["mcmahan-table1-2nn"], "smoke", {})
    assert tuned.runs == 8 * 3


@pytest.mark.parametrize("name", list(ITEMS))
def test_every_item_has_a_cost_at_every_scale(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def seconds(data: str, batch: int, *_: object) -> float:
        assert data in costs.TASKS
        assert batch > 0
        return 1e-3

    monkeypatch.setattr(costs, "_example_seconds", seconds)
    for scale in SCALES:
        cost = costs.cost_of(ITEMS[name], scale, {})
        assert (cost.runs == 0) == (cost.rounds == 0) == (cost.seconds == 0)


def test_the_list_says_what_a_part_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "_example_seconds", lambda *_: 1e-3)
    for only, runs in (
        (["C = 0.0"], 12),
        (["C = 0.0", "C = 0.5"], 24),
        (["C = 0.0 | IID, B = 10"], 3),
    ):
        chosen = [part for each in only for part in ("--only", each)]
        said = (
            CliRunner().invoke(app, ["reproduce", "mcmahan-table1-2nn", "--list", *chosen]).output
        )
        assert f" {runs} " in said
    wrong = CliRunner().invoke(
        app, ["reproduce", "mcmahan-table1-2nn", "--list", "--only", "C = 7"]
    )
    assert wrong.exit_code == 1


def test_the_list_needs_no_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "_example_seconds", lambda *_: 1e-3)
    monkeypatch.delenv("FEDAPP_DATA", raising=False)
    said = CliRunner().invoke(app, ["reproduce", "seo-fig5", "--list", "--scale", "cpu"])
    assert said.exit_code == 0, said.output
    assert "seo-fig5" in said.output


@pytest.mark.parametrize(
    ("option", "said"), [("--data", "there is no such folder"), ("--from", "no records folder")]
)
def test_folders_that_are_not_there_are_refused(option: str, said: str, tmp_path: Path) -> None:
    run = ["reproduce", "seo-fig11", option, str(tmp_path / "nosuch"), "--to", str(tmp_path)]
    found = CliRunner().invoke(app, run)
    assert (found.exit_code, said in str(found.exception or found.output)) == (1, True)


def test_the_list_names_every_item() -> None:
    said = CliRunner().invoke(app, ["reproduce", "seo-fig1", "seo-fig5", "--list"]).output
    assert "seo-fig1" in said
    assert "seo-fig5" in said
    assert "Estimated from steps measured just now" in " ".join(said.split())


def test_results_survive_a_round_trip(tmp_path: Path) -> None:
    from fedapp.papers.results import write_results

    results = table_results({"E = 1, B = 10 | IID": cell(run_result(50.0))})
    write_results(tmp_path, results)
    again = read_results(tmp_path, "mcmahan-table4", "full")
    assert again == results
    (tmp_path / "mcmahan-table4" / "full.json").write_text("{}")
    with pytest.raises(ConfigError, match="Delete it and make it again"):
        read_results(tmp_path, "mcmahan-table4", "full")


def test_the_time_of_a_run_is_counted_once_and_whole() -> None:
    """One run, of which a cell shows the start and another the whole."""
    whole = RunRecord(run="r", settings={}, status="complete", rounds=[0, 8], accuracy=[0, 1])
    cut = whole.model_copy(update={"rounds": [0], "accuracy": [0], "seconds": 1.0})
    for records in ([whole, cut], [cut, whole]):
        records[records.index(whole)] = whole.model_copy(update={"seconds": 9.0})
        assert collect("x", "cpu", "", {}, records, {}).seconds == 9.0


def test_the_tuned_rate_is_shown() -> None:
    assert cell(run_result(50.0)).rate == 0.1


def test_an_item_that_is_misspelt_is_guessed() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'mcmahan-table4'"):
        list(choose(["mcmahan-tabel4"]))
