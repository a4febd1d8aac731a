"""The papers' items: what they hold, their cells at every scale, their data and measures."""

from __future__ import annotations

import itertools
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from fedapp.analysis.curves import band, communication, least
from fedapp.analysis.loss_landscape import interpolate
from fedapp.config.read import read_config
from fedapp.errors import ConfigError
from fedapp.studies.papers import catalogue
from fedapp.studies.papers.catalogue import read_experiment as read
from fedapp.studies.papers.cells import Cells, Setup, make_cells
from fedapp.studies.papers.data import locate
from fedapp.studies.papers.figures.landscapes import (
    CURVATURES,
    OPTIMA,
    OPTIMUM,
    descent,
    least_squares,
    local_path,
)
from fedapp.studies.papers.results import CellResult, speed_up
from fedapp.studies.papers.schema import SCALES, Cut, Scale, Table
from fedapp.studies.sweep.identity import Request
from tests.paper_results import EXPERIMENTS, TABLES, run_result, setup


def test_every_table_and_figure_is_there() -> None:
    wanted = {f"mcmahan-fig{n}" for n in range(1, 11)} | {f"seo-fig{n}" for n in range(1, 14)}
    wanted |= {f"mcmahan-table{n}" for n in ("1-2nn", "1-cnn", "2-cnn", "2-lstm", "3", "4")}
    wanted |= {"notes-quadratic", "mcmahan-claims", "mcmahan-unbalanced"}
    wanted |= {"seo-claims", "seo-sweeps", "seo-sharpness"}
    assert wanted <= set(EXPERIMENTS)
    assert list(EXPERIMENTS).index("seo-fig2") < list(EXPERIMENTS).index("seo-fig10")


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_cell_is_a_sensible_run_at_every_scale(name: str) -> None:
    experiment = EXPERIMENTS[name]
    at_scales = (make_cells(experiment, setup(experiment, scale)) for scale in SCALES)
    for cell in itertools.chain.from_iterable(cells.values() for cells in at_scales):
        if cell is not None:
            for values in itertools.product(*cell.options.values()):
                read_config({**cell.settings, **dict(zip(cell.options, values, strict=True))})


@pytest.mark.parametrize("name", TABLES)
def test_published_speed_ups_follow_from_the_published_rounds(name: str) -> None:
    """The papers round to one decimal; a typing error in either number would show."""
    experiment = TABLES[name]
    first = next(row for row in experiment.rows if row.label == experiment.baseline).published
    for row in experiment.rows:
        for column, speedup in row.speedup.items():
            assert first[column] / row.published[column] == pytest.approx(speedup, abs=0.0501)


@pytest.mark.parametrize("name", ["mcmahan-table2-cnn", "mcmahan-table4"])
def test_published_u_follows_from_e_and_b(name: str) -> None:
    for row in TABLES[name].rows:
        epochs, batch = row.settings["local-epochs"], row.settings["batch-size"]
        assert float(row.shown["u"]) == epochs * (600 / batch if batch else 1)


def test_the_2nn_cells_have_the_grid_that_is_stated() -> None:
    cells = make_cells(EXPERIMENTS["mcmahan-table4"], setup(EXPERIMENTS["mcmahan-table4"], "full"))
    assert len(cells) == 36  # each as it is, and with the tutorial's images and weights
    cell = cells["E = 20, B = 10 | Non-IID"]
    assert [cell.rates.rate(place) for place in (-1, 0, 1)] == [0.0464159, 0.1, 0.215443]
    assert (cell.target, cell.rounds, cell.seeds) == (0.97, 1107, (0, 1, 2))  # 1.5 times 738
    assert {"partitioner": "shards", "local-epochs": 20}.items() <= cell.settings.items()


def test_a_column_s_search_may_begin_elsewhere_on_the_grid_of_the_table() -> None:
    """Below what a row says, which is below what the scale says."""
    table = TABLES["mcmahan-table1-2nn"]
    full, smoke = (make_cells(table, setup(table, scale)) for scale in ("full", "smoke"))

    def begins(cells: Cells, name: str) -> float:
        cell = cells[name]
        assert cell is not None
        assert cell.rates is not None
        return cell.rates.rate(cell.rates.middle)

    assert (
        begins(full, "C = 1.0 | IID, B = ∞") == begins(full, "C = 0.0 | Non-IID, B = ∞") == 0.464159
    )
    assert begins(full, "C = 1.0 | IID, B = 10") == begins(smoke, "C = 0.0 | IID, B = ∞") == 0.1
    row = table.rows[0].model_copy(update={"learning_rate_search": {"middle": 1}})
    own = table.model_copy(update={"rows": (row,)})
    assert begins(make_cells(own, setup(table, "full")), "C = 0.0 | IID, B = ∞") == 0.215443


def test_a_column_run_again_has_the_rounds_and_evaluations_of_the_one_it_varies() -> None:
    """Else a difference between them could be one of how long, or how often, one looks."""
    tables = [table for table in TABLES.values() if any(c.repeats for c in table.columns)]
    assert len(tables) == 5
    for table in tables:
        cells = make_cells(table, setup(table, "full"))
        for column in table.columns:
            for row in table.rows:
                varied, cell = (
                    cells[f"{row.label} | {x}"] for x in (column.published_as, column.label)
                )
                assert varied is not None
                assert cell is not None
                assert (cell.rounds, cell.target) == (varied.rounds, varied.target)
                others = dict(cell.settings.items() - varied.settings.items())
                assert set(others) == (
                    {"transform", "normalise.mean", "normalise.std", "initial-weights"}
                    if column.repeats
                    else set()
                )


@pytest.mark.parametrize("more", [{"of": ["IDD"]}, {"tuning": {"IDD": {"middle": 1}}}])
def test_a_variant_is_of_columns_of_the_table(more: dict[str, Any]) -> None:
    table = TABLES["mcmahan-table2-lstm"].model_dump(by_alias=True)
    variant = {"label": "again", "about": "a", "settings": {"momentum": 0.9}, **more}
    with pytest.raises(ValueError, match="variant 'again': there is no column 'IDD'"):
        Table.model_validate({**table, "variants": [variant]})


@pytest.mark.parametrize(
    ("only", "run"),
    [
        ("C = 0.1", {"C = 0.1 | IID, B = ∞", "C = 0.1 | IID, B = 10"}),
        ("IID, B = 10", {"C = 0.0 | IID, B = 10", "C = 0.1 | IID, B = 10"}),
        ("C = 0.0 | IID, B = ∞", {"C = 0.0 | IID, B = ∞"}),
    ],
)
def test_rows_columns_and_cells_that_a_scale_leaves_out_are_not_run(only: str, run: set) -> None:
    experiment = EXPERIMENTS["mcmahan-table1-cnn"]
    small = experiment.model_copy(
        update={"rows": experiment.rows[:2], "columns": experiment.columns[:2]}
    )
    cells = make_cells(small, Setup(small, "cpu", Scale(only=(only,)), {}, lambda name, cut: name))
    assert len(cells) == 4
    assert {name for name, cell in cells.items() if cell} == run


def test_what_a_scale_chooses_must_be_there() -> None:
    """A misspelt name would leave a cell "not run" without a word."""
    table = TABLES["mcmahan-table1-2nn"]
    setup = Setup(table, "smoke", Scale(only=("C = 0.0", "C = 0.3")), {}, lambda name, cut: name)
    with pytest.raises(
        ConfigError, match=r"scales\.smoke\.only = 'C = 0\.3': .* One of: C = 0\.0 \| IID"
    ):
        make_cells(table, setup)


def test_a_row_tries_decays_unless_the_scale_sets_it() -> None:
    experiment, decay = TABLES["mcmahan-table3"], "learning-rate-decay"
    full, smoke = (make_cells(experiment, setup(experiment, scale)) for scale in ("full", "smoke"))
    assert full["FedAvg | 80 %"].options == {decay: (0.99, 0.998, 1.0)}
    assert decay not in full["FedAvg | 80 %"].settings
    assert (smoke["FedAvg | 80 %"].options, smoke["FedAvg | 80 %"].settings[decay]) == ({}, 1.0)


def test_what_an_order_sets_is_neither_scaled_nor_tuned() -> None:
    overrides = {
        "batch-size": 50,
        "learning-rate": 0.1,
        "fedprox.mu": 0.5,
        "partitioner": "natural",
    }
    for name, scale, label in (
        ("seo-fig4", "cpu", "B | B = 100"),
        ("algorithms-mnist-shards", "cpu", "fedprox"),
        ("mcmahan-fig3", "smoke", "E | E = 1 | partitioner=natural"),
    ):
        experiment = EXPERIMENTS[name]
        cell = make_cells(experiment, replace(setup(experiment, scale), overrides=overrides))[label]
        own = {key: value for key, value in overrides.items() if key in cell.settings}
        assert {key: cell.settings[key] for key in own} == own
        assert {"batch-size", "learning-rate", "partitioner"} <= set(own)
        assert (cell.rates, cell.options) == (None, {})


def test_a_smaller_scale_keeps_the_updates_of_a_round() -> None:
    experiment = EXPERIMENTS["seo-fig4"]
    for label in ("B | B = 50", "B | B = 5"):
        full, cpu = (
            make_cells(experiment, setup(experiment, scale))[label] for scale in ("full", "cpu")
        )
        cut = experiment.scales["cpu"].cut
        assert cut.train / cpu.settings["batch-size"] == 50_000 / full.settings["batch-size"]


SEO = [
    name
    for name, experiment in EXPERIMENTS.items()
    if name.startswith("seo-") and "narrow" in experiment.scales
]
"""The items of Seo et al. that train networks."""


NARROW = {"seo-cnn.channels": 8, "seo-cnn.hidden": 64, "trainer": "batched"}
OTHERS = {
    "narrow": NARROW,
    "normalised": {**NARROW, "transform": "normalise", "normalise.preset": "cifar10"},
}
"""What of the settings of Seo et al. is another at scales with all of the data."""


@pytest.mark.parametrize(
    ("name", "scale"),
    [(name, scale) for name in SEO for scale in OTHERS if scale in EXPERIMENTS[name].scales],
)
def test_at_the_narrow_scales_only_network_and_images_are_others(name: str, scale: str) -> None:
    """K, E, B, η, the partition and the data are the full scale's, in every cell that runs."""
    experiment = EXPERIMENTS[name]
    full, narrow = (make_cells(experiment, setup(experiment, each)) for each in ("full", scale))
    for label, cell in narrow.items():
        if cell is None:
            assert "E = 50" in label or "η = 0.25" in label
            continue
        as_in_full = full[label]
        assert as_in_full is not None
        assert cell.settings == {**as_in_full.settings, **OTHERS[scale]}
        assert cell.rounds == EXPERIMENTS["seo-base"].at(scale).rounds
    at = experiment.at(scale)
    assert (at.cut, at.batch_divisor, at.rate_factor, at.pace) == (None, 1, 1.0, 1.0)


def test_the_base_runs_of_the_narrow_scale_are_those_of_the_figures() -> None:
    """One run each: with the seed that all have they are not trained again."""

    def runs(name: str, *labels: str) -> list[tuple]:
        cells = make_cells(EXPERIMENTS[name], setup(EXPERIMENTS[name], "narrow"))
        found = [cells[label] for label in labels]
        return [(Request.of(c.settings, c.rounds), c.seeds[0]) for c in found if c is not None]

    base, centralised = runs("seo-base", "base | K = 10, B = 50", "base | K = 1, B = 500")
    iid = [
        *runs("seo-fig3", "B | K = 10, B = 50"),
        *runs("seo-fig4", "E | E = 1", "B | B = 50", "eta | η = 0.005"),
        *runs("seo-fig5", "PP | 10 of 10 clients"),
        *runs("seo-sweeps", "iid | B = 50, η = 0.005"),
    ]
    assert [*iid, base] == [base] * 7
    one = runs("seo-fig3", "B | K = 1, B = 500", "E | K = 1, E = 1", "eta | K = 1, η = 0.005")
    assert [*one, *runs("seo-fig2", "K | K = 1")] == [centralised] * 4
    apart = [
        *runs("seo-fig9", "alpha | α = 0.1", "PP | 10 of 10 clients"),
        *runs("seo-fig10", "E | E = 1", "B | B = 50", "eta | η = 0.005"),
        *runs("seo-sweeps", "dirichlet | B = 50, η = 0.005"),
    ]
    assert apart == apart[:1] * 6


def test_a_scale_takes_from_another_item_what_it_does_not_say_itself() -> None:
    other = Scale(note="n", rounds=7, seeds=(0,), settings={"model": "2nn", "seed": 1})
    own = Scale.model_validate({"as-in": "one", "seeds": [1], "settings": {"seed": 2}})
    figure = EXPERIMENTS["seo-fig2"]
    items = {
        "one": figure.model_copy(update={"scales": {"cpu": other}}),
        "two": figure.model_copy(update={"scales": {"cpu": own}}),
    }
    found = catalogue.with_scales_of_others(items)["two"].at("cpu")
    assert (found.note, found.rounds, found.seeds) == ("n", 7, (1,))
    assert found.settings == {"model": "2nn", "seed": 2}
    with pytest.raises(
        ConfigError, match=r"two\.toml: scales\.cpu\.as-in = 'one': .* One of: three"
    ):
        catalogue.with_scales_of_others({"two": items["two"], "three": items["one"]})


def test_an_item_without_the_scale_is_left_out_and_by_itself_refused() -> None:
    assert set(catalogue.choose_at(["all"], "narrow")) == set(SEO)
    with pytest.raises(
        ConfigError, match=r"--scale narrow: mcmahan-table4 has no such scale.*: smoke, cpu, full"
    ):
        catalogue.choose_at(["mcmahan-table4"], "narrow")
    assert EXPERIMENTS["mcmahan-table4"].at("narrow").only == ()


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


@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    [
        (
            "mcmahan-table4",
            '"IID" = 1468',
            '"ID" = 1468',
            "there is no column 'ID'. One of: IID; N",
        ),
        (
            "mcmahan-table4",
            'baseline = "E = 1, ',
            'baseline = "E = 2, ',
            "baseline = 'E = 2, B = ∞'",
        ),
        ("seo-fig5", 'lines = "PP"', 'lines = "P"', "lines = 'P': a panel draws them"),
    ],
)
def test_a_name_that_an_item_does_not_have_is_named(name, old, new, said) -> None:
    text = (catalogue.EXPERIMENTS / f"{name}.toml").read_text()
    with pytest.raises(ConfigError, match=name) as error:
        read(name, text.replace(old, new, 1))
    assert said in str(error.value)


def test_data_is_local_where_there_is_a_copy_and_else_from_the_hub(tmp_path: Path) -> None:
    (tmp_path / "mnist").mkdir()
    assert locate("mnist", tmp_path, None, tmp_path) == str(tmp_path / "mnist")
    assert locate("cifar10", tmp_path, None, tmp_path) == "uoft-cs/cifar10"
    assert locate("digits", None, Cut(train=1, test=1), tmp_path) == "digits"
    with pytest.raises(ConfigError, match=r"a local copy is needed: .*uoft-cs/cifar10.*--data"):
        locate("cifar10", None, Cut(train=1, test=1), tmp_path)
    with pytest.raises(ConfigError, match=r"the hub does not have it.*papers\.shakespeare DIR"):
        locate("shakespeare", tmp_path, None, tmp_path)


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
    def of(*needed: float | None, first: int = 0) -> CellResult:
        runs = [run_result(n, seed=seed) for seed, n in enumerate(needed, first)]
        return CellResult(runs=runs)

    assert speed_up(of(1468), of(32)) == pytest.approx(45.875)
    assert speed_up(of(None), of(32)) is None
    assert speed_up(of(1468), of(None)) is None
    assert speed_up(of(100, 60), of(30, first=1)) == 2.0  # of seed 1 alone
    assert speed_up(of(100), of(30, first=1)) is None


def test_a_band_is_mean_least_and_greatest_where_all_have_a_point() -> None:
    curves = [([0, 1, 2], [1.0, 2.0, 3.0]), ([0, 2, 3], [3.0, 6.0, 9.0])]
    assert band(curves) == ([0, 2], [2.0, 4.5], [1.0, 3.0], [3.0, 6.0])
    nan = float("nan")
    assert band([([0, 1], [1.0, nan])])[0] == [0]
    curves = [([0, 1, 2], [1.0, nan, 3.0]), ([0, 1, 2], [3.0, 5.0, 7.0])]
    assert band(curves) == ([0, 2], [2.0, 5.0], [1.0, 3.0], [3.0, 7.0])


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


def test_long_runs_of_tables_are_evaluated_about_500_times() -> None:
    """1.5 times 1,181 published rounds of Table 1 are 1,772: every third is evaluated."""
    cells = make_cells(TABLES["mcmahan-table1-2nn"], setup(TABLES["mcmahan-table1-2nn"], "full"))
    for cell in cells.values():
        assert cell.settings["eval-every"] == max(cell.rounds // 500, 1)
    assert {c.settings["eval-every"] for c in cells.values() if c.rounds < 1000} == {1}
    assert max(cell.settings["eval-every"] for cell in cells.values()) >= 3
    smoke = make_cells(TABLES["mcmahan-table3"], setup(TABLES["mcmahan-table3"], "smoke"))
    assert {cell.settings["eval-every"] for cell in smoke.values()} == {1}


def test_columns_that_differ_in_the_target_share_their_runs() -> None:
    cells = make_cells(TABLES["mcmahan-table3"], setup(TABLES["mcmahan-table3"], "full"))
    for row in ("SGD", "FedSGD", "FedAvg"):
        own = [cell for name, cell in cells.items() if name.startswith(f"{row} |")]
        assert len({tuple(sorted(cell.settings.items())) for cell in own}) == 1
    assert (
        cells["SGD | 80 %"].settings["eval-every"] == 592
    )  # of 296,250 updates, 1.5 times 197,500
    assert cells["FedAvg | 85 %"].settings["eval-every"] == 6


def test_balanced_clients_are_table_1_s_and_others_have_sizes_of_their_own() -> None:
    both = [
        make_cells(TABLES[name], setup(TABLES[name], "full"))
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


@pytest.mark.parametrize(("name", "rounds"), [("mcmahan-fig3", 100), ("mcmahan-fig8", 100)])
def test_very_many_local_epochs_are_of_the_full_scale_alone(name: str, rounds: int) -> None:
    for scale, run in (("full", True), ("cpu", False), ("smoke", False)):
        cells = make_cells(EXPERIMENTS[name], setup(EXPERIMENTS[name], scale))
        large = [cell for label, cell in cells.items() if "E = 200" in label]
        assert len(large) == 2
        for cell in large:
            assert (cell is not None) == run
            if cell is not None:
                assert (cell.settings["local-epochs"], cell.rounds) == (200, rounds)


def test_sgd_alone_has_the_text_s_86_percent() -> None:
    cells = make_cells(TABLES["mcmahan-table3"], setup(TABLES["mcmahan-table3"], "full"))
    assert [name for name in cells if name.endswith("86 %")] == ["SGD | 86 %"]
    assert (cells["SGD | 86 %"].rounds, cells["SGD | 86 %"].target) == (296_250, 0.86)
    assert cells["SGD | 85 %"].rounds == 148_500


def test_a_divided_batch_has_an_example() -> None:
    """Of B = 3 a fifth is one example, not 0, which is B = infinity."""
    experiment = EXPERIMENTS["mcmahan-table2-cnn"]
    small = Setup(experiment, "cpu", Scale(batch_divisor=5), {}, lambda name, cut: name)
    assert small.settings({"batch-size": 3})["batch-size"] == 1
    assert small.settings({"batch-size": 10})["batch-size"] == 2
    assert small.settings({"batch-size": 0})["batch-size"] == 0


def test_a_cell_may_begin_the_last_round_that_it_is_allowed() -> None:
    """1.5 times 45 published rounds are 67.5."""
    cells = make_cells(TABLES["mcmahan-table4"], setup(TABLES["mcmahan-table4"], "full"))
    cell = cells["E = 10, B = 50 | IID"]
    assert cell is not None
    assert cell.rounds == 68
