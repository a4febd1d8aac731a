"""The item on sharpness: what is measured of which runs, and what its page and picture say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedapp.errors import ConfigError
from fedapp.studies.papers.catalogue import all_experiments, read_experiment
from fedapp.studies.papers.cells import Setup, make_cells
from fedapp.studies.papers.figures.sharpness import draw_sharpness, measure_sharpness, points
from fedapp.studies.papers.pages.page import page
from fedapp.studies.papers.results import CellResult, Results, RunResult
from fedapp.studies.papers.schema import Scale, Sharpness
from tests.conftest import Run

CELLS = ("seo-fig4: eta | η = 0.001", "seo-fig4: eta | η = 0.005", "seo-fig4: eta | η = 0.05")
TOML = f"""
kind = "sharpness"
title = "t"
source = "s"
about = "a"
examples = 50
[[panels]]
title = "rates"
key = "learning-rate"
[[panels.lines]]
label = "IID"
cells = {list(CELLS)}
[[panels]]
title = "batches"
key = "batch-size"
[[panels.lines]]
label = "IID"
cells = {list(CELLS)}
[scales.full]
"""


@pytest.fixture
def experiment() -> Sharpness:
    found = read_experiment("one", TOML)
    assert isinstance(found, Sharpness)
    return found


def cell(name: str, rounds: int = 3, final: float = 0.5, best: float = 0.6) -> CellResult:
    numbers: dict[str, Any] = {"needed": None, "least_loss": 1.0, "least_loss_round": 1}
    numbers |= {"updates": 1.0, "bytes_down": 1, "bytes_up": 1, "seconds": 1.0, "problem": ""}
    run = RunResult(run=name, seed=0, rounds=rounds, final=final, best=best, **numbers)
    return CellResult(runs=[run])


def test_cells_are_those_of_other_items(experiment: Sharpness) -> None:
    items = all_experiments()
    setup = Setup(experiment, "full", Scale(), {}, lambda name, cut: name)
    of_figure = Setup(items["seo-fig4"], "full", Scale(), {}, lambda name, cut: name)
    assert list(make_cells(experiment, setup)) == list(CELLS)
    wanted = make_cells(items["seo-fig4"], of_figure)["eta | η = 0.05"]
    assert make_cells(experiment, setup)[CELLS[2]] == wanted


def test_a_line_of_one_cell_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least 2 items"):
        read_experiment("one", TOML.replace(str(list(CELLS)), '["a: b"]'))


def test_models_that_are_there_are_measured_and_others_left_out(
    experiment: Sharpness, run: Run, tmp_path: Path
) -> None:
    run("one", model="2nn", learning_rate=0.2, batch_size=16)
    run("two", model="2nn")
    (tmp_path / "two" / "model.safetensors").unlink()
    found = {"a": cell("one"), "b": cell("two"), "c": cell("three"), "d": cell("one", rounds=2)}
    places = {"a": "digits"}
    numbers = measure_sharpness(experiment, {**found, "e": CellResult()}, places, tmp_path, [])
    assert {name: len(own) for name, own in numbers.items()} == {
        "a": 1,
        "b": 0,
        "c": 0,
        "d": 0,
        "e": 0,
    }
    [entry] = numbers["a"]
    assert (entry["run"], entry["round"], entry["examples"]) == ("one", 3, 50)
    assert (entry["learning-rate"], entry["batch-size"]) == (0.2, 16)
    assert entry["eigenvalue"] > 0
    # What was measured before is not measured again, unless it was in another way.
    known = {"x": [{**entry, "eigenvalue": 7.0}]}
    gone = tmp_path / "no"
    assert measure_sharpness(experiment, found, {}, gone, [known])["a"][0]["eigenvalue"] == 7
    more = experiment.model_copy(update={"examples": 60})
    assert measure_sharpness(more, found, {}, gone, [known])["a"] == []
    assert measure_sharpness(more, found, {}, tmp_path, [known])["a"][0]["examples"] == 60
    with pytest.raises(ConfigError, match="not the data of the run"):
        measure_sharpness(more, found, {"a": "quadratic"}, tmp_path, [])


def entry(rate: float, size: int, eigenvalue: float) -> list[dict[str, Any]]:
    own = {"learning-rate": rate, "batch-size": size, "round": 3, "run": "r"}
    return [
        {**own, "eigenvalue": eigenvalue, "error": 0.01, "length": 2.0, "loss": 0.5, "rise": 0.1}
    ]


def results(*eigenvalues: float, finals: tuple[float, ...] = (0.5, 0.5, 0.5)) -> Results:
    """Return results over η = 0.1, 0.2, 0.3 and at once over B = 10, 20, 30."""
    numbers = {
        name: entry(0.1 * (n + 1), 10 * (n + 1), value)
        for n, (name, value) in enumerate(zip(CELLS, eigenvalues, strict=False))
    }
    cells = {name: cell("r", final=f) for name, f in zip(CELLS, finals, strict=True)}
    return Results(experiment="one", scale="full", command="c", cells=cells, numbers=numbers)


def test_a_page_counts_the_steps_to_flatter_minima(experiment: Sharpness) -> None:
    """30, 20, 25: with η flatter, then sharper; towards smaller B flatter, then sharper."""
    said = page(experiment, [results(30.0, 20.0, 25.0)])
    listed = "30 (η = 0.1), 20 (η = 0.2), 25 (η = 0.3)"
    assert f"| rates | IID | {listed} | 1 of 2 steps |" in said
    assert "30 (B = 10), 20 (B = 20), 25 (B = 30) | 1 of 2 steps |" in said
    assert "30 (B = 10), 20 (B = 20), 10 (B = 30) | 0 of 2 steps |" in page(
        experiment, [results(30.0, 20.0, 10.0)]
    )
    smoke = results(30.0, 20.0, 25.0).model_copy(update={"scale": "smoke"})
    assert f"| rates | IID | {listed} |\n" in page(experiment, [smoke])
    row = f"| {CELLS[0]} | 0.1 | 10 | 3 | 50.00 % | 0.5 | 30 | 0.01 | 3 | 120 | 0.1 |"
    assert said.count(row.replace(" | η", " \\| η")) == 1


def test_a_run_that_fell_apart_is_marked_and_not_counted(experiment: Sharpness) -> None:
    said = page(experiment, [results(30.0, 20.0, 0.1, finals=(0.5, 0.5, 0.1))])
    assert "20 (η = 0.2), 0.1 (η = 0.3) † | 1 of 1 steps |" in said
    assert "10.00 % †" in said


def test_what_was_not_measured_is_named(experiment: Sharpness) -> None:
    found = results(30.0)
    found.cells[CELLS[2]] = CellResult()
    said = page(experiment, [found])
    assert "| seo-fig4: eta \\| η = 0.005 | no model |" in said
    assert "| seo-fig4: eta \\| η = 0.05 | not run |" in said
    assert "| rates | IID | 30 (η = 0.1) |\n" in said
    assert "not measured |\n" in page(experiment, [results()])


def test_the_picture_joins_the_runs_that_did_not_fall_apart(experiment: Sharpness) -> None:
    found = results(30.0, 20.0, 0.1, finals=(0.5, 0.5, 0.1))
    assert [point.x for point in points(experiment.panels[0], found)["IID"].values()] == [
        0.1,
        0.2,
        pytest.approx(0.3),
    ]
    figure = draw_sharpness(experiment, found)
    rates, batches = figure.axes[:2]
    every, sound, hollow, bound = rates.lines
    assert [list(line.get_ydata()) for line in (every, sound)] == [[30, 20, 0.1], [30, 20]]
    assert (hollow.get_label(), hollow.get_markerfacecolor()) == ("collapsed", "none")
    assert list(bound.get_ydata()) == pytest.approx([20, 10, 2 / 0.3])
    assert len(batches.lines) == 3  # all, those that did not fall apart, and the mark of the others
    nothing = draw_sharpness(experiment, results()).axes[0]
    assert [text.get_text() for text in nothing.texts] == ["not measured"]
