"""The best of all rates that were tried, at each round: McMahan et al. 2017, Figures 2, 6 and 7."""

from __future__ import annotations

from collections.abc import Sequence
from math import nan

import pytest
from matplotlib.axes import Axes

from fedapp.analysis.curves import envelope
from fedapp.errors import ConfigError
from fedapp.studies.papers.catalogue import all_experiments, read_experiment
from fedapp.studies.papers.cells import line_name
from fedapp.studies.papers.figures.curves import draw_figure
from fedapp.studies.papers.results import CellResult, Results, cell_result, curve_of
from fedapp.studies.papers.schema import Figure
from fedapp.studies.sweep.record import RunRecord
from fedapp.studies.sweep.search import Candidate, Cell, RateGrid, SearchResult


def record(
    accuracy: Sequence[float | None], losses: Sequence[float] = (), every: int = 1
) -> RunRecord:
    """Return a run of these test accuracies, and losses on the training set, from round 0."""
    rounds = [every * i for i in range(len(accuracy))]
    nothing = [None] * len(rounds)
    return RunRecord(
        run="r",
        settings={},
        status="complete",
        rounds=rounds,
        loss=nothing,
        train_loss=nothing,
        accuracy=list(accuracy),
        training_set_loss=list(losses),
        gradients=[0] * len(rounds),
    )


def candidate(rate: float, *records: RunRecord) -> Candidate:
    return Candidate((("learning-rate", rate),), records, (0.0, 0.0))


def kept(
    *candidates: Candidate, runs: Sequence[RunRecord], seeds: tuple[int, ...] = (0,)
) -> CellResult:
    cell = Cell({}, 2, seeds=seeds, rates=RateGrid(start=0.1, seeds=seeds), draw=4)
    result = cell_result(cell, SearchResult(runs, candidates[0], candidates), envelopes=True)
    pairs = zip(result.runs, runs, strict=True)
    drawn = [run.model_copy(update={"curve": curve_of(record)}) for run, record in pairs]
    return result.model_copy(update={"runs": drawn})


def test_an_envelope_is_the_best_of_any_curve_so_far() -> None:
    fast, slow = ([0, 1, 2], [0.1, 0.7, 0.6]), ([0, 1, 2, 3, 4], [0.1, 0.3, nan, 0.65, 0.9])
    assert envelope([fast, slow]) == ([0, 1, 2, 3, 4], [0.1, 0.7, 0.7, 0.7, 0.9])
    assert envelope([([0, 5], [nan, 0.2]), ([2], [0.5])]) == ([2, 5], [0.5, 0.5])
    assert envelope([]) == ([], [])


def test_a_rate_that_was_given_up_counts_up_to_where_it_was() -> None:
    """The high rate is first at round 1; the chosen one goes on alone from round 2, to round 4."""
    chosen = record([0.1, 0.2, 0.6], [2.0, 1.5, 1.0])
    high = record([0.1, 0.4, 0.3], [2.0, 1.2, 4.0])
    drawn = record([0.1, 0.2, 0.6, 0.5, 0.9], [2.0, 1.5, 1.0, 1.1, 0.5])
    found = kept(candidate(0.1, chosen), candidate(1.0, high), runs=[drawn]).envelopes
    assert found["accuracy"].rounds == found["training_set_loss"].rounds == [0, 1, 2, 3, 4]
    assert found["accuracy"].values == [0.1, 0.4, 0.6, 0.6, 0.9]
    assert found["training_set_loss"].values == [2.0, 1.2, 1.0, 1.0, 0.5]


def test_one_rate_alone_has_no_envelope() -> None:
    only = record([0.1, 0.2])
    assert kept(candidate(0.1, only), runs=[only]).envelopes == {}
    tables = Cell({}, 2, rates=RateGrid(start=0.1))
    both = (candidate(0.1, only), candidate(0.2, only))
    assert cell_result(tables, SearchResult([only], both[0], both), envelopes=False).envelopes == {}


def test_candidates_that_several_seeds_judge_count_by_their_mean() -> None:
    first = candidate(0.1, record([0.1, 0.2]), record([0.1, 0.6]))
    second = candidate(0.2, record([0.1, 0.5]), record([0.1, None]))
    runs = [record([0.1, 0.2]), record([0.1, 0.6])]
    found = kept(first, second, runs=runs, seeds=(0, 1)).envelopes
    assert found["accuracy"].values == pytest.approx([0.1, 0.4])
    assert "training_set_loss" not in found


def test_a_long_envelope_is_thinned_to_its_ends() -> None:
    values = [0.001 * i for i in range(1000)]
    found = kept(
        candidate(0.1, record(values)), candidate(0.2, record(values)), runs=[record(values)]
    )
    assert len(found.envelopes["accuracy"].rounds) == 150
    assert found.envelopes["accuracy"].rounds[-1] == 999


def drawn_axes(name: str, cell: CellResult) -> Axes:
    """Return the first panel of a figure, of whose first line alone there is a result."""
    experiment = all_experiments()[name]
    assert isinstance(experiment, Figure)
    cells = {
        line_name(p, line): CellResult()
        for p in experiment.panels
        for line in experiment.lines[p.lines]
    }
    cells[next(iter(cells))] = cell
    return draw_figure(
        experiment, Results(experiment=name, scale="full", command="", cells=cells)
    ).axes[0]


@pytest.mark.parametrize("name", ["mcmahan-fig2", "mcmahan-fig6", "mcmahan-fig7"])
def test_the_envelope_is_drawn_with_the_chosen_rate_thin_beside_it(name: str) -> None:
    chosen, high = (
        record([0.1, 0.2, 0.6], [2.0, 1.5, 1.0]),
        record([0.1, 0.4, 0.3], [2.0, 1.2, 4.0]),
    )
    cell = kept(candidate(0.1, chosen), candidate(1.0, high), runs=[chosen])
    one, best = drawn_axes(name, cell).lines[:2]
    assert best.get_label() == "B = ∞, E = 1"
    assert one.get_label().startswith("_")
    assert one.get_linewidth() < best.get_linewidth()
    losses = name == "mcmahan-fig6"
    assert list(best.get_ydata()) == ([2.0, 1.2, 1.0] if losses else [0.1, 0.4, 0.6])
    assert list(one.get_ydata()) == ([2.0, 1.5, 1.0] if losses else [0.1, 0.2, 0.6])


def test_one_rate_is_drawn_as_the_line_itself() -> None:
    only = record([0.1, 0.2, 0.6])
    lines = drawn_axes("mcmahan-fig2", kept(candidate(0.1, only), runs=[only])).lines
    assert next(line.get_label() for line in lines) == "B = ∞, E = 1"


@pytest.mark.parametrize(
    "panel", ['y = "loss"', 'y = "best accuracy"\nx = "gradients"', 'y = "accuracy"']
)
def test_what_has_no_envelope_is_refused(panel: str) -> None:
    text = (
        'kind = "figure"\ntitle = ""\nsource = ""\nabout = ""\nacross = 1\nscales = {}\n'
        f'lines = {{ a = [] }}\n[[panels]]\nlines = "a"\nenvelope = true\n{panel}\n'
    )
    with pytest.raises(
        ConfigError, match=r"one\.toml: .*envelope = true: is drawn of y = 'best acc"
    ):
        read_experiment("one", text)


def test_an_envelope_is_of_the_seeds_of_the_search() -> None:
    """Rates are compared by seed 0; the chosen rate's run of seed 1 is not in the envelope."""
    first, second = candidate(0.1, record([0.1, 0.2])), candidate(0.2, record([0.1, 0.5]))
    cell = Cell({}, 2, seeds=(0, 1), rates=RateGrid(start=0.1, seeds=(0,)), draw=4)
    runs = [record([0.1, 0.2, 0.9]), record([0.1, 0.2, 0.3])]
    found = cell_result(cell, SearchResult(runs, first, [first, second]), envelopes=True)
    assert found.envelopes["accuracy"].values == [0.1, 0.5, 0.9]


def test_a_rate_needs_all_seeds_to_reach_the_target() -> None:
    """Seed 0 crosses 0.5 after 0.8 rounds, seed 1 never."""
    both = candidate(0.1, record([0.1, 0.6]), record([0.1, 0.2]))
    cell = Cell({}, 1, target=0.5, seeds=(0, 1), rates=RateGrid(start=0.1, seeds=(0, 1)))
    found = cell_result(cell, SearchResult(both.records, both, [both]), envelopes=False)
    assert [each.needed for each in found.tried] == [None]
