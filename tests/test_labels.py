"""Names of lines and claims say the values that ran."""

from __future__ import annotations

import re

import pytest

from fedapp.config.read import defaults
from fedapp.config.settings import Scalar
from fedapp.studies.papers.cells import cells_of
from fedapp.studies.papers.claims import Claims
from fedapp.studies.papers.figures.curves import draw_figure
from fedapp.studies.papers.labels import KEYS, VALUE, RunLabels
from fedapp.studies.papers.pages.claims import claims_section
from fedapp.studies.papers.pages.page import page
from fedapp.studies.papers.results import CellResult, Results
from fedapp.studies.papers.schema import Figure, Sharpness, Table
from fedapp.studies.sweep.record import RunRecord
from tests.paper_results import EXPERIMENTS, PUBLISHED, RECORDS, cell, curve, run_result


def as_run(name: str, scale, command: str = "fedapp reproduce") -> RunLabels:
    return RunLabels.of(
        EXPERIMENTS[name], Results(experiment=name, scale=scale, command=command, cells={})
    )


@pytest.mark.parametrize(
    ("scale", "name", "said"),
    [
        ("cpu", "B | B = 5", "B = 1 (full scale: 5)"),
        ("cpu", "eta | η = 0.05", "η = 0.2 (full scale: 0.05)"),
        ("cpu", "E | E = 10", "E = 10"),
        ("narrow", "B | B = 5", "B = 5"),
        ("full", "eta | η = 0.05", "η = 0.05"),
        ("smoke", "B | B = 10", "B = 10"),  # not run there
    ],
)
def test_a_name_says_the_values_that_ran(scale: str, name: str, said: str) -> None:
    assert as_run("seo-fig4", scale).text(name.partition(" | ")[2], name) == said


def test_what_the_command_set_ran() -> None:
    found = as_run("seo-fig4", "cpu", "fedapp reproduce seo-fig4 --scale cpu --set batch-size=7")
    assert found.text("B = 5", "B | B = 5") == "B = 7 (full scale: 5)"


def test_values_that_are_not_the_cells_stay() -> None:
    found = as_run("seo-fig4", "cpu")
    assert found.text("B = 6, E = 1, B = ∞, K = 10", "B | B = 5") == "B = 6, E = 1, B = ∞, K = 10"


def figure_of(scale) -> tuple[Figure, Results]:
    experiment = EXPERIMENTS["seo-fig3"]
    assert isinstance(experiment, Figure)
    ran = cell(run_result(curve=curve([0.1, 0.2, 0.3]), rounds=80))
    cells = dict.fromkeys(as_run("seo-fig3", "full").full, ran)
    return experiment, Results(experiment="seo-fig3", scale=scale, command="c", cells=cells)


def test_legends_say_the_values_that_ran() -> None:
    figure = draw_figure(*figure_of("cpu"))
    said = [[line.get_label() for line in axes.lines] for axes in figure.axes]
    assert said[0][:2] == ["K = 1, B = 100 (full scale: 500)", "K = 2, B = 50 (full scale: 250)"]
    assert said[1][1] == "K = 2, E = 2"
    assert said[2][1] == "K = 2, η = 0.04 (full scale: 0.01)"
    full = draw_figure(*figure_of("full"))
    assert not any("full scale" in str(line.get_label()) for a in full.axes for line in a.lines)


def test_a_page_says_of_a_line_how_many_rounds_of_the_full_scale_were_run() -> None:
    experiment, results = figure_of("cpu")
    said = page(experiment, [results])
    assert "| B: K = 50, B = 2 (full scale: 10) | 0.1 | 1 | 80 of 200 |" in said


def test_a_page_says_how_many_of_the_planned_seeds_were_run() -> None:
    """Three are planned of Figure 5's lines at cpu scale."""
    lines = ["PP | 1 of 10 clients", "PP | 2 of 10 clients"]
    cells = dict(zip(lines, (cell(run_result()), cell(*[run_result()] * 3)), strict=True))
    found = Results(experiment="seo-fig5", scale="cpu", command="fedapp reproduce", cells=cells)
    text = page(EXPERIMENTS["seo-fig5"], [found])
    assert "| PP: 1 of 10 clients | 0.1 | 1 of 3 |" in text
    assert "| PP: 2 of 10 clients | 0.1 | 3 |" in text
    named = {f"seo-fig5: {name}": each for name, each in cells.items()}
    claims = found.model_copy(update={"experiment": "seo-claims", "cells": named})
    said = claims_section(EXPERIMENTS["seo-claims"], claims)
    assert "planned: seo-fig5: PP | 1 of 10 clients (1 of 3).\n" in said


def test_a_legend_says_how_many_of_the_planned_seeds_were_run() -> None:
    experiment, run = EXPERIMENTS["seo-fig5"], run_result(curve=curve([0.1, 0.2, 0.3]))
    assert isinstance(experiment, Figure)
    cells = {name: cell(run, run, run) for name in as_run("seo-fig5", "full").full}
    cells["PP | 1 of 10 clients"] = cell(run, run)
    drawn = draw_figure(
        experiment, Results(experiment="seo-fig5", scale="cpu", command="c", cells=cells)
    )
    legend = {str(line.get_label()) for line in drawn.axes[0].lines}
    assert {"1 of 10 clients (2 of 3 seeds)", "2 of 10 clients"} < legend


def test_a_figure_says_what_part_of_the_rounds_was_run() -> None:
    experiment, results = figure_of("cpu")
    names = RunLabels.of(experiment, results)
    assert names.length(results) == "80 of 200 rounds"
    first = next(iter(results.cells))
    longer = cell(run_result(rounds=300))
    mixed = results.model_copy(update={"cells": {**results.cells, first: longer}})
    assert names.length(mixed) == "40 to 100 % of the rounds of full scale"
    whole = dict.fromkeys(results.cells, longer)
    assert names.length(results.model_copy(update={"cells": whole})) == ""


@pytest.mark.parametrize("scale", ["cpu", "narrow"])
def test_a_note_says_that_the_extreme_e_is_left_out(scale: str) -> None:
    found = EXPERIMENTS["seo-fig3"].scales[scale]
    assert "without the extreme E = 50" in found.note
    assert "K = 50, E = 50" not in (found.only or ())


def test_claims_say_what_is_compared() -> None:
    experiment = EXPERIMENTS["seo-claims"]
    assert isinstance(experiment, Claims)

    def said(scale) -> str:
        return claims_section(
            experiment, Results(experiment="seo-claims", scale=scale, command="c", cells={})
        )

    assert "(K = 1, B = 100 (full scale: 500), η = 0.02 (full scale: 0.005)) comes" in said("cpu")
    compared = "B = 1 (full scale: 5) against B = 20 (full scale: 100) |"
    assert f"| IID: smallest B against the largest: {compared}" in said("cpu")
    assert "full scale:" not in said("narrow")


def settings_of(run: CellResult, records: dict[str, RunRecord]) -> dict[str, Scalar] | None:
    """Return the recorded settings of a cell's first run, all keys; None without a record."""
    found = records.get(run.runs[0].run) if run.runs else None
    return {**defaults(), **found.settings} if found else None


def values_in(text: str) -> list[tuple[str, float]]:
    """Return what a text says of the papers' symbols, without what it says of the full scale."""
    own = re.sub(r" \(full scale: [^)]*\)", "", text)
    return [(KEYS[s], 0.0 if v == "∞" else float(v)) for s, v in VALUE.findall(own)]


@pytest.mark.parametrize("results", PUBLISHED, ids=lambda r: f"{r.experiment}-{r.scale}")
def test_published_names_say_no_value_that_did_not_run(results: Results) -> None:
    """Of every line, row and column beside its run's record, and of claims beside their cells'."""
    experiment = EXPERIMENTS[results.experiment]
    names = RunLabels.of(experiment, results)
    ran = {name: settings_of(cell, RECORDS) for name, cell in results.cells.items()}
    for name, settings in ran.items():
        for key, value in values_in(names.text(name, name)) if settings else []:
            assert settings is not None
            assert settings[key] == pytest.approx(value), name
    for claim in experiment.claims if isinstance(experiment, Claims) else ():
        own = [ran[name] for name in cells_of(claim)]
        for key, value in values_in(names.text(claim.text, *cells_of(claim))) if all(own) else []:
            assert any(each[key] == pytest.approx(value) for each in own if each), claim.text


def test_every_kind_of_published_result_is_looked_at() -> None:
    kinds = {type(EXPERIMENTS[results.experiment]) for results in PUBLISHED}
    assert {Table, Figure, Claims, Sharpness} <= kinds
