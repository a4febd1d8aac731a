"""The pages and pictures of results: published and measured side by side, what was not run, bands."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from fedapp.analysis.curves import rounds_to_target
from fedapp.studies.papers.cells import line_name
from fedapp.studies.papers.claims import Claims
from fedapp.studies.papers.figures.curves import draw_figure, points
from fedapp.studies.papers.labels import RunLabels
from fedapp.studies.papers.pages.figure_tables import comparison_section, lines_section
from fedapp.studies.papers.pages.index import summary, totals
from fedapp.studies.papers.pages.markdown import span, table, wrapped
from fedapp.studies.papers.pages.page import page
from fedapp.studies.papers.pages.tables import (
    Entry,
    _not_given,
    entries,
    standings,
    table_section,
)
from fedapp.studies.papers.results import CellResult, Results
from fedapp.studies.papers.schema import Comparison, Figure, ScaleName
from fedapp.studies.papers.stored import with_curves
from fedapp.studies.sweep.record import RunRecord
from tests.paper_results import (
    EXPERIMENTS,
    TABLES,
    cell,
    curve,
    recorded,
    run_result,
    table_results,
)


def figure_not_run(name: str) -> tuple[Figure, dict[str, CellResult]]:
    """Return a figure, and its lines without a run."""
    experiment = EXPERIMENTS[name]
    assert isinstance(experiment, Figure)
    lines = [line_name(p, line) for p in experiment.panels for line in experiment.lines[p.lines]]
    return experiment, {line: CellResult() for line in lines}


def test_a_table_shows_published_and_measured_side_by_side() -> None:
    experiment = TABLES["mcmahan-table4"]
    results = table_results(
        {
            "E = 1, B = ∞ | IID": cell(run_result(900), run_result(1100, seed=1)),
            "E = 1, B = 10 | IID": cell(run_result(50.0)),
            "E = 20, B = 10 | IID": cell(run_result(None), inside=False),
        }
    )
    found = {f"{e.row.label} | {e.column.label}": e for e in entries(experiment, results)}
    one = found["E = 1, B = 10 | IID"]
    assert (one.ratio, one.speedup, one.published_speedup) == (50 / 92, 18.0, 16.0)  # seed 0
    text = table_section(experiment, results)
    assert "92 (16.0×) → **50 (18.0×)**" in text
    assert "1468 → **1000**" in text
    assert "45 (32.6×) → **not run**" in text
    assert "32 (45.9×) → **not in 100 rounds (best 50.00 %)**" in text
    assert (
        "0 of 3 cells within 25 % of the published rounds, 2 faster, 0 slower, 1 not reached, 15 not run;"
        " over the row E = 1, B = ∞ 1 of 1 speed-ups within 25 %. Faster: E = 1, B = ∞, IID; "
        "E = 1, B = 10, IID. Not reached: E = 20, B = 10, IID." in text
    )
    assert "2 of 3: 900 - 1100" in text
    assert "1 MB" in text  # 50 rounds, 10 clients, 1,000 bytes each way


def test_a_cell_of_a_table_whose_runs_all_failed_says_why() -> None:
    failed = CellResult(failed={0: "OSError: no space left on device"})
    other = cell(run_result(50.0))
    results = table_results({"E = 1, B = ∞ | IID": failed, "E = 1, B = 10 | IID": other})
    text = table_section(TABLES["mcmahan-table4"], results)
    assert text.count("OSError: no space left on device") == 2  # in the table and its details
    assert text.count("**not run**") == 16


def test_columns_run_again_are_shown_and_counted_after_the_table() -> None:
    experiment = TABLES["mcmahan-table4"]
    results = table_results(
        {
            "E = 1, B = ∞ | IID": cell(run_result(500)),
            "E = 1, B = 10 | IID": cell(run_result(50.0)),
            "E = 1, B = ∞ | IID, tutorial": cell(run_result(2000)),
            "E = 1, B = 10 | IID, tutorial": cell(run_result(100.0)),
        }
    )
    own, varied = table_section(experiment, results).split(
        "The same with images in [-0.5, 0.5] and "
    )
    assert "92 (16.0×) → **50 (10.0×)**" in own
    assert "0 of 2 cells within 25 % of the published rounds, 2 faster, 0 slower, 16 not run" in own
    assert "0 of 1 speed-ups within 25 %, 1 smaller. Faster: all." in own
    assert "| E = 1, B = 10 | 1 | 10 | 60 | 92 (16.0×) → **100 (20.0×)** | 831" in varied
    assert "1 of 2 cells within 25 % of the published rounds, 0 faster, 1 slower" in varied
    assert "1 of 1 speed-ups within 25 %." in varied
    assert "Slower: E = 1, B = ∞, IID." in varied
    short = summary(experiment, [results])
    assert short.startswith("0 of 2 cells within 25 % of the published rounds, 2 faster, 0 slower")
    assert "; with images in [-0.5, 0.5] and initial weights" in short
    assert "1 of 2 cells within 25 % of the published rounds, 0 faster, 1 slower" in short


@pytest.mark.parametrize(
    ("ratio", "standing"),
    [
        (0.79, "faster"),
        (0.8, "within 25 %"),
        (1.25, "within 25 %"),
        (1.26, "slower"),
        (None, "not reached"),
    ],
)
def test_a_cell_too_fast_is_no_nearer_than_one_too_slow(ratio, standing: str) -> None:
    needed = ratio and 100 * ratio
    experiment, published = TABLES["mcmahan-table4"], {"IID": 100.0}
    row = experiment.rows[1].model_copy(update={"published": published, "speedup": {"IID": 2.0}})
    result = cell(run_result(needed))
    entry = Entry(
        row, experiment.columns[0], published["IID"], result, baseline=cell(run_result(200.0))
    )
    assert entry.standing == standing
    gains = {"faster": "greater", "slower": "smaller", "not reached": None}
    assert entry.gain == gains.get(standing, standing)  # of 200 / needed to the published 2


def reached(*needed: float | None) -> CellResult:
    return cell(*(run_result(each, seed=seed) for seed, each in enumerate(needed)))


@pytest.mark.parametrize(
    ("needed", "mean"), [((90.0, 110.0), 100.0), ((90.0, None, 110.0), None), ((None,), None)]
)
def test_a_cell_of_which_one_seed_did_not_reach_the_target_has_no_rounds(needed, mean) -> None:
    """The mean of those that did would be of the lucky ones."""
    assert reached(*needed).needed == mean


@pytest.mark.parametrize(
    ("third", "standing"), [((), "within 25 %"), ((None,), "not reached")], ids=["two", "three"]
)
def test_a_cell_of_which_one_seed_did_not_reach_the_target_is_not_reached(third, standing) -> None:
    """Published are 1,468 rounds, of which 1,400 and 1,500 are within 25 %."""
    results = table_results({"E = 1, B = ∞ | IID": reached(1400.0, 1500.0, *third)})
    counts = standings(entries(TABLES["mcmahan-table4"], results))
    assert {kind: n for kind, n in counts.items() if kind != "not run"} == {standing: 1}
    text = table_section(TABLES["mcmahan-table4"], results)
    assert ("not in 100 rounds (1 of 3 seeds, best 50.00 %)" in text) == bool(third)


@pytest.mark.parametrize(("final", "collapsed"), [(0.42, True), (0.449, True), (0.45, False)])
def test_a_run_collapsed_at_less_than_half_of_its_best(final: float, collapsed: bool) -> None:
    """Also of one seed of several."""
    runs = (run_result(final=0.8, best=0.9), run_result(final=final, best=0.9, seed=1))
    assert cell(*runs).collapsed == collapsed


def test_a_cell_as_fast_as_the_baseline_needs_no_fewer_rounds() -> None:
    experiment, base = SimpleNamespace(baseline="FedSGD"), reached(100.0)
    cells = [
        Entry(None, None, "not given", own, base)  # type: ignore[arg-type]
        for own in (base, reached(100.0), reached(99.0), reached(None))
    ]
    text = _not_given(experiment, cells)  # type: ignore[arg-type]
    assert text.startswith("1 of 3 cells without published rounds need fewer rounds than the row")


@pytest.mark.parametrize(
    ("base", "quicker"),
    [
        (run_result(None, rounds=100), False),  # may be above 100, or 101
        (run_result(None, rounds=130), True),
        (run_result(None, rounds=4, problem="diverged"), True),
    ],
)
def test_a_baseline_that_did_not_reach_the_target_needs_more_than_its_rounds(base, quicker) -> None:
    """Unless it diverged, which it would have in any number of rounds."""
    entry = Entry(None, None, "not given", reached(120.0), cell(base))  # type: ignore[arg-type]
    text = _not_given(SimpleNamespace(baseline="FedSGD"), [entry])  # type: ignore[arg-type]
    assert text.startswith(f"{int(quicker)} of 1 cells")


def test_the_best_of_seeds_that_did_not_reach_the_target_is_theirs() -> None:
    runs = [run_result(900.0, best=0.98, rounds=900)]
    runs += [
        run_result(None, best=b, rounds=r, seed=s) for s, b, r in ((1, 0.96, 950), (2, 0.95, 940))
    ]
    results = table_results({"E = 1, B = ∞ | IID": cell(*runs)})
    text = table_section(TABLES["mcmahan-table4"], results)
    assert "not in 950 rounds (2 of 3 seeds, best 96.00 %)" in text


def test_cells_are_compared_with_the_baseline_at_the_seeds_that_both_have() -> None:
    """With seed 0 alone 90 rounds are more than the baseline's 80, and fewer than its mean of 100."""
    base = cell(run_result(80.0), run_result(120.0, seed=1))
    own = [cell(run_result(90.0)), cell(run_result(110.0, seed=1))]
    pairs = [*((each, base) for each in own), (reached(90.0), reached(None))]
    cells = [Entry(None, None, "not given", *pair) for pair in pairs]  # type: ignore[arg-type]
    text = _not_given(SimpleNamespace(baseline="FedSGD"), cells)  # type: ignore[arg-type]
    assert text.startswith("2 of 3 cells without published rounds need fewer rounds")


def test_all_tables_count_each_published_number_once() -> None:
    """Not the 86 % of the text beside Table 3, nor what footnote 5 takes from Table 1."""
    found = {
        "mcmahan-table4": (
            TABLES["mcmahan-table4"],
            [
                table_results(
                    {
                        "E = 1, B = ∞ | IID": cell(run_result(500, run="a")),
                        "E = 1, B = 10 | IID": cell(run_result(50.0, run="b")),
                        "E = 1, B = 10 | IID, tutorial": cell(run_result(100.0, run="c")),
                    }
                )
            ],
        ),
        "mcmahan-table3": (TABLES["mcmahan-table3"], []),
        "mcmahan-unbalanced": (TABLES["mcmahan-unbalanced"], []),
    }
    said = totals(found)
    assert "The tables publish 26 numbers" in said  # 18 and 8
    every, own, cifar, tutorial, its_own = said.splitlines()[-5:]
    assert every.startswith(
        "| the paper's settings, as read here | all | 2 | 0 | 2 | 0 | 0 | 24 | 0 |"
    )
    assert own.startswith("|  | 2NN | 2 | 0 | 2 | 0 | 0 |")
    assert cifar.startswith("|  | CIFAR network | 0 | 0 | 0 | 0 | 0 | 8 |")
    assert tutorial.startswith("| with images in ")
    assert "| all | 1 | 1 | 0 | 0 | 0 | 17 | 0 |" in tutorial
    assert its_own.startswith("|  | 2NN | 1 | 1 | 0 | 0 | 0 | 17 |")


def test_runs_that_are_cells_of_two_tables_are_said_to_be() -> None:
    """E = 1, B = 10 of the 2NN is in Tables 1 and 4."""
    first, second = TABLES["mcmahan-table1-2nn"], TABLES["mcmahan-table4"]
    same, other = cell(run_result(50.0, run="a")), cell(run_result(500.0, run="b"))
    rows = {"E = 1, B = 10 | IID": same, "E = 1, B = ∞ | IID": other}
    found = {
        "mcmahan-table1-2nn": (
            first,
            [table_results({"C = 0.1 | IID, B = 10": same}, "mcmahan-table1-2nn")],
        ),
        "mcmahan-table4": (second, [table_results(rows)]),
    }
    assert totals(found).endswith(
        "Some cells of two tables are the same runs: 3 are 2 different ones."
    )


def test_the_tables_of_the_paper_publish_91_numbers_of_rounds() -> None:
    assert "The tables publish 91 numbers" in totals(
        {n: (experiment, []) for n, experiment in TABLES.items()}
    )


def test_columns_run_again_are_not_run_in_one_line() -> None:
    text = page(TABLES["mcmahan-table4"], [table_results({})])
    assert "tutorial: not run at this scale." in text


def test_a_cell_that_was_not_run_is_never_filled_in() -> None:
    text = page(TABLES["mcmahan-table4"], [table_results({})])
    assert text.count("→ **not run**") == 18
    assert "Nothing was run at this scale" in text


def test_a_page_says_once_with_what_its_runs_were_made() -> None:
    results = table_results({"E = 1, B = 10 | IID": cell(run_result(50.0))})
    same = {"device": "cpu", "torch": "2.15.0"}
    results.runs = 3
    results.execution = [same, {**same, "commit": "1234"}, {**same, "commit": "abcd"}]
    said = page(TABLES["mcmahan-table4"], [results])
    assert ". device cpu; torch 2.15.0; commit 1234 or abcd for some of them." in said


def test_a_page_shows_twelve_digits_of_a_commit() -> None:
    results = table_results({"E = 1, B = 10 | IID": cell(run_result(50.0))})
    results.runs = 1
    results.execution = [{"commit": commit} for commit in (40 * "a", f"{40 * 'b'}-dirty")]
    said = page(TABLES["mcmahan-table4"], [results])
    assert ". commit aaaaaaaaaaaa or bbbbbbbbbbbb-dirty." in said


def test_a_table_leaves_out_the_columns_that_no_row_fills() -> None:
    assert table(("a", "b", "c"), [["1", "", "2"], ["", "", "3"]]).splitlines() == [
        "| a | c |",
        "| --- | --- |",
        "| 1 | 2 |",
        "|  | 3 |",
    ]
    assert table(("a", "b"), []).startswith("| a | b |")
    assert [span("1", "2"), span("1", "1")] == ["1 - 2", "1"]


def test_pages_of_updates_have_their_numbers() -> None:
    """Losses 1 and 3: mean 2, deviation 1, so 50 %; with the second seed's 2 and 2: 25 %.

    Similarity is 0.5 in both lines with the one seed that they have in common.
    """
    alike = recorded(1, {"0": 2.0, "1": 2.0}, {"conv1": 0.7, "fc1": 0.2})
    apart = recorded(0, {"0": 1.0, "1": 3.0}, {"conv1": 0.5, "fc1": None})
    cells = {"IID": cell(alike, apart), "Dirichlet 0.1": cell(apart)}
    losses, similarities = (
        page(EXPERIMENTS[name], [Results(experiment=name, scale="full", command="c", cells=cells)])
        for name in ("seo-fig12", "seo-fig13")
    )
    assert "| IID | 1.5 | 2 | 2.5 | 25.0 % |" in losses
    assert "| Dirichlet 0.1 | 1 | 2 | 3 | 50.0 % |" in losses
    assert "| line | conv1 | fc1 |" in similarities
    assert "| IID | 0.6 | 0.2 |" in similarities
    assert "| Dirichlet 0.1 | 0.5 |  |" in similarities
    assert "| IID less Dirichlet 0.1 | +0.1 |  |" in similarities
    assert "| rounds in which IID is higher | 0.0 % |  |" in similarities


@pytest.mark.parametrize("own", [CellResult(), cell(run_result()), cell(recorded(0, {}, {}))])
def test_pages_of_updates_that_were_not_recorded_have_no_numbers(own: CellResult) -> None:
    nothing = Results(experiment="seo-fig12", scale="full", command="c", cells={"IID": own})
    said = page(EXPERIMENTS["seo-fig12"], [nothing])
    assert ("| IID |\n" in said) == any(run.agreement for run in own.runs)


def test_curves_have_every_evaluated_round() -> None:
    """A claim counts the rounds to a level that only one round of a thousand comes to."""
    nothing: list[float | None] = [None] * 1000
    record = RunRecord(
        run="a",
        settings={},
        status="complete",
        rounds=list(range(1000)),
        accuracy=[0.9 if t == 501 else 0.1 for t in range(1000)],
        loss=nothing,
        train_loss=nothing,
        gradients=[0] * 1000,
        agreement=[{"round": t} for t in range(1, 1000)],
    )
    own = run_result(rounds=999, run="a")
    results = Results(experiment="seo-fig5", scale="cpu", command="c", cells={"own": cell(own)})
    [run] = with_curves(results, {"a": record}).cells["own"].runs
    assert run.curve is not None
    assert rounds_to_target(run.curve.rounds, run.curve.accuracy, 0.9) == 501
    assert [row["round"] for row in run.agreement] == list(range(1, 1000))


def test_a_run_that_diverges_does_not_hide_the_others() -> None:
    experiment, cells = figure_not_run("seo-fig5")
    for name, loss in zip(cells, ([2.0, 1.0, 0.5], [2.5, 400.0, 2.3]), strict=False):
        drawn = curve([0.1, 0.2, 0.3]).model_copy(update={"loss": loss})
        cells[name] = cell(run_result(curve=drawn))
    figure = draw_figure(
        experiment, Results(experiment="seo-fig5", scale="cpu", command="c", cells=cells)
    )
    losses = next(axes for axes in figure.axes if axes.get_ylabel() == "test loss")
    assert losses.get_ylim() == pytest.approx((0.5 - 0.05 * 7.0, 7.5))


def test_results_from_before_a_line_was_added_are_drawn_without_it() -> None:
    experiment, cells = figure_not_run("seo-fig9")
    older = {list(cells)[1]: cell(run_result(curve=curve([0.1, 0.2])))}
    figure = draw_figure(
        experiment, Results(experiment="seo-fig9", scale="full", command="c", cells=older)
    )
    assert [line.get_label() for line in figure.axes[0].lines] == ["α = 0.5 (1 of 3 seeds)"]


def test_a_figure_has_a_line_for_each_that_ran_and_a_band_over_seeds() -> None:
    experiment, cells = figure_not_run("seo-fig9")
    first = next(iter(cells))
    runs = [run_result(curve=curve([0.1, 0.2 + 0.1 * s, 0.3]), seed=s) for s in range(3)]
    cells[first] = cell(*runs)
    figure = draw_figure(
        experiment, Results(experiment="seo-fig9", scale="full", command="c", cells=cells)
    )
    accuracy, loss = figure.axes[0], figure.axes[1]
    assert [line.get_label() for line in accuracy.lines] == ["α = 0.1"]
    assert list(accuracy.lines[0].get_ydata()) == pytest.approx([0.1, 0.3, 0.3])
    assert len(accuracy.collections) == 1
    assert loss.lines[-1].get_marker() == "o"  # the least test loss is marked
    assert [t.get_text() for t in figure.axes[3].texts] == ["not run"]
    assert not len(figure.axes[3].get_xticks())


def test_a_legend_names_the_lines_of_the_panels_beside_it() -> None:
    """Also where the panel that has it, the last of its row, was not run."""
    experiment, cells = figure_not_run("mcmahan-fig2")
    cells[next(iter(cells))] = cell(run_result(curve=curve([0.1, 0.2, 0.3])))
    figure = draw_figure(
        experiment, Results(experiment="mcmahan-fig2", scale="cpu", command="c", cells=cells)
    )
    legends = [axes.get_legend() for axes in figure.axes]
    assert [[t.get_text() for t in found.get_texts()] if found else [] for found in legends] == [
        *([], ["B = ∞, E = 1"]),
        *([], []),
    ]


def test_accuracy_by_gradients_has_gradients_on_its_axis() -> None:
    panel = EXPERIMENTS["mcmahan-fig9"].panels[0]
    assert points(curve([0.1, 0.3, 0.2]), panel) == ([0, 10, 20], [0.1, 0.3, 0.2])
    best = panel.model_copy(update={"y": "best accuracy", "x": "rounds"})
    assert points(curve([0.1, 0.3, 0.2]), best) == ([0, 1, 2], [0.1, 0.3, 0.3])


def test_a_cell_without_a_published_number_is_compared_with_the_baseline() -> None:
    experiment = TABLES["mcmahan-unbalanced"]
    cells = {
        f"{r.label} | {c.label}": CellResult() for r in experiment.rows for c in experiment.columns
    }
    cells |= {
        "balanced | 2NN, IID": cell(run_result(90.0)),
        "σ = 0.5 | 2NN, IID": cell(run_result(100.0)),
        "σ = 1 | 2NN, IID": cell(run_result(60.0)),
        "σ = 1 | 2NN, non-IID": cell(run_result(60.0)),
    }
    said = table_section(
        experiment, Results(experiment="mcmahan-unbalanced", scale="full", command="c", cells=cells)
    )
    assert "not given → **60 (1.5×)**" in said
    assert (
        "1 of 1 cells within 25 % of the published rounds, 0 faster, 0 slower, 3 not run;" in said
    )
    assert (
        "1 of 2 cells without published rounds need fewer rounds than the row balanced, by" in said
    )


def test_a_page_says_which_cells_are_evaluated_less_often() -> None:
    often, seldom = cell(run_result(50.0)), cell(run_result(50.0))
    results = table_results({"a": often, "b": seldom.model_copy(update={"every": 4})})
    text = page(TABLES["mcmahan-table4"], [results])
    assert "| b | 4 |" in text
    assert "about 500 times" in text
    assert "about 500 times" not in page(TABLES["mcmahan-table4"], [table_results({"a": often})])


def test_smoke_scale_is_shown_only_where_it_stands_alone() -> None:
    experiment = TABLES["mcmahan-table4"]
    full = table_results({"E = 1, B = 10 | IID": cell(run_result(62.4))})
    smoke = full.model_copy(update={"scale": "smoke", "command": "fedapp reproduce --scale smoke"})

    together, alone = page(experiment, [full, smoke]), page(experiment, [smoke])

    assert together.count("**62.4") == alone.count("**62.4") == 1
    assert smoke.command in alone
    assert smoke.command not in together


def test_a_line_is_in_numbers_the_mean_over_its_seeds() -> None:
    """Also its least test loss, from which round to which; and any seed's problem."""
    experiment, cells = figure_not_run("seo-fig4")
    first, second = run_result(final=0.5), run_result(final=0.6, seed=1, seconds=3.0)
    other = second.model_copy(update={"least_loss": 2.0, "least_loss_round": 9})
    failed = second.model_copy(update={"problem": "diverged", "least_loss": None})
    failed = failed.model_copy(update={"least_loss_round": None})
    cells |= {"E | E = 1": cell(first, other), "E | E = 2": cell(first, second)}
    cells |= {"E | E = 5": cell(first, failed)}
    said = page(
        experiment, [Results(experiment="seo-fig4", scale="full", command="c", cells=cells)]
    )
    assert "| 2 | 100 of 200 | 68.75 % | 55.00 % | 55.00 % | 1.5 (rounds 5 to 9) | 2 s |" in said
    assert "| 2 | 100 of 200 |  | 55.00 % | 55.00 % | 1 (round 5) | 2 s |" in said
    assert "| 2 | 100 of 200 |  | 55.00 % | 55.00 % |  | diverged |" in said
    assert "| E: E = 10 |  | not run |  | 67.2 % |  |  |  |  |" in said
    assert "published best" not in said
    assert "last training loss" not in said


def test_a_line_has_its_last_training_loss_where_it_was_measured() -> None:
    experiment, cells = figure_not_run("mcmahan-fig6")
    first, second = run_result(training_loss=0.02), run_result(training_loss=0.04, seed=1)
    fedsgd, larger, fedavg, *_ = cells
    cells |= {fedsgd: cell(run_result()), fedavg: cell(first, second)}
    said = page(
        experiment, [Results(experiment="mcmahan-fig6", scale="full", command="c", cells=cells)]
    )
    assert "| least test loss | last training loss | wall time |" in said
    assert "| 1 (round 5) | 0.03 |" in said
    assert "| 1 (round 5) |  |" in said
    assert (
        f"| {larger.replace(' | ', ': ', 1).replace(' | ', ', ')} |  | not run |  |  |  |  |  |  |"
        in said
    )


def test_an_option_that_is_text_is_shown_as_it_is() -> None:
    experiment = EXPERIMENTS["algorithms-mnist-shards"]
    assert isinstance(experiment, Comparison)
    cells = {"scaffold": cell(run_result(), chosen={"scaffold.option": "II", "mu": 0.10})}
    assert "| scaffold.option=II, mu=0.1 |" in comparison_section(experiment, table_results(cells))


def test_the_tuned_rate_is_shown() -> None:
    assert cell(run_result(50.0)).rate == 0.1


def test_the_index_says_what_was_found() -> None:
    """Of 1468, 156 and 144 published rounds; 7.4 times quicker is not like 9.4, nor 5.6 like 10.2."""
    needed = {"E = 1, B = ∞": 1400.0, "E = 10, B = ∞": 190.0, "E = 1, B = 50": 250.0}
    cells = {f"{row} | IID": cell(run_result(value)) for row, value in needed.items()}
    results = table_results(cells)
    assert summary(TABLES["mcmahan-table4"], [results]) == (
        "2 of 3 cells within 25 % of the published rounds, 0 faster, 1 slower, 15 not run; "
        "0 of 2 speed-ups within 25 %, 2 smaller"
    )
    smoke = results.model_copy(update={"scale": "smoke"})
    assert summary(TABLES["mcmahan-table4"], [smoke]) == "smoke alone"
    assert summary(TABLES["mcmahan-table4"], []) == "not run"


def test_the_index_names_the_algorithms_above_federated_averaging() -> None:
    """Seed by seed: MOON's mean is the highest, and its seeds differ as much."""
    by_seed = {
        "fedprox": (0.9, 0.91, 0.9),
        "scaffold": (0.95, 0.95, 0.94),
        "fedavg": (0.8, 0.81, 0.8),
        "moon": (0.99, 0.8, 0.99),
        "feddyn": (0.1, 0.1, 0.1),
    }
    cells = {
        name: cell(*(run_result(final=value, seed=seed) for seed, value in enumerate(finals)))
        for name, finals in by_seed.items()
    }
    results = Results(experiment="algorithms-mnist-shards", scale="cpu", command="c", cells=cells)
    said = summary(EXPERIMENTS["algorithms-mnist-shards"], [results])
    assert said == "scaffold 94.67 %, fedprox 90.33 % above fedavg (80.33 %), seed by seed"


def test_the_index_counts_verdicts_and_lines() -> None:
    none = Results(experiment="seo-claims", scale="cpu", command="c", cells={})
    experiment = EXPERIMENTS["seo-claims"]
    assert isinstance(experiment, Claims)
    said = f"0 hold, 0 fail, 0 open, 0 undecidable, 0 not judged, {len(experiment.claims)} not run"
    assert summary(experiment, [none]) == said
    lines = {"K | K = 1": cell(run_result()), "K | K = 5": CellResult()}
    figure = Results(experiment="seo-fig2", scale="cpu", command="c", cells=lines)
    assert summary(EXPERIMENTS["seo-fig2"], [figure]) == "1 of 2 lines"
    more = figure.model_copy(update={"cells": dict.fromkeys(lines, lines["K | K = 1"])})
    narrow = figure.model_copy(update={"scale": "narrow"})
    said = summary(EXPERIMENTS["seo-fig2"], [narrow, more])
    assert said == "narrow: 1 of 2 lines; cpu: 2 of 2 lines"
    whole = more.model_copy(update={"scale": "narrow"})
    assert summary(EXPERIMENTS["seo-fig2"], [whole, figure]) == "2 of 2 lines"


def test_the_index_counts_each_claim_at_the_largest_scale_that_measured_it() -> None:
    experiment = EXPERIMENTS["seo-claims"]
    assert isinstance(experiment, Claims)
    names = ("seo-fig2: K | K = 50", "seo-fig2: K | K = 1", "seo-fig9: alpha | α = 0.1")
    finals = {"cpu": (0.5, 0.4, 0.3), "narrow": (0.4, 0.5, None)}

    def at(scale: ScaleName) -> Results:
        cells = {
            name: cell(*(run_result(final=final, seed=seed) for seed in range(3)))
            for name, final in zip(names, finals[scale], strict=True)
            if final is not None
        }
        return Results(experiment="seo-claims", scale=scale, command="c", cells=cells)

    others = len(experiment.claims) - 3  # two single accuracies are judged at full scale only
    rest = f"0 open, 0 undecidable, 2 not judged, {others} not run"
    assert summary(experiment, [at("cpu")]) == f"0 hold, 1 fail, {rest}"
    assert summary(experiment, [at("narrow"), at("cpu")]) == (
        f"1 hold (1 fail at another scale), 0 fail, {rest}; 1 fail at cpu scale"
    )
    section = page(experiment, [at("narrow"), at("cpu")]).partition("## Between the scales")[2]
    assert (
        "2 claims were measured at more than one scale; 1 are judged at each, 1 of them differently"
        in section
    )
    assert "-10.00, **holds** | +10.00, **fails** |" in section
    assert "α = 0.1" not in section
    assert "Between the scales" not in page(experiment, [at("cpu")])
    shown = page(experiment, [at("narrow"), at("cpu")])
    assert shown.count("| The farthest from IID (α = 0.1) ends") == 1  # not run at narrow scale
    assert shown.count("| The nearest to IID (α = 100) ends") == 2  # measured at no scale


def test_a_page_says_from_which_code_its_runs_are() -> None:
    """One of a commit, one begun with a changed one, one that names none, and one without a record."""
    commits = {"a": "12ab", "b": "12ab-dirty, then 12ab", "c": ""}
    records = {
        run: RunRecord(
            run=run,
            settings={},
            status="complete",
            rounds=[0],
            gradients=[0],
            **{key: [0.5] for key in ("accuracy", "loss", "train_loss")},
            execution={"commit": commit} if commit else {},
        )
        for run, commit in commits.items()
    }
    runs = [run_result(50.0, seed=n, run=name) for n, name in enumerate("abcd")]
    results = table_results({"E = 1, B = 10 | IID": cell(*runs)})
    said = page(TABLES["mcmahan-table4"], [results], records)
    assert (
        "Of the 4 runs whose numbers are shown: 1 from a commit as it is, 1 from a commit with changes, "
        "1 from code that their record does not name, 1 without a record." in said
    )
    clean = table_results({"E = 1, B = 10 | IID": cell(runs[0])})
    assert "Of the 1 runs" not in page(TABLES["mcmahan-table4"], [clean], records)
    smoke = results.model_copy(update={"scale": "smoke"})
    assert "Of the 4 runs" not in page(TABLES["mcmahan-table4"], [smoke], records)


def test_prose_is_wrapped_and_what_is_not_prose_stays() -> None:
    prose = "A word and " * 20
    code = f"```bash\n{prose}\n```"
    row = f"| {prose}|"
    item = f"- {prose}- 3. # more\n  and more"
    text = wrapped("\n\n".join((prose, code, row, f"{item}\n- short")))
    assert text.split() == "\n\n".join((prose, code, row, f"{item}\n- short")).split()
    assert code in text
    assert row in text
    rest = text.replace(code, "").replace(row, "").splitlines()
    assert max(map(len, rest)) <= 120
    # Each line after the first of an item is indented, and none looks like another item.
    assert [line[:2] for line in rest if line][2:] == ["- ", "  ", "  ", "- "]
    assert wrapped("short\nlines") == "short\nlines"
    indented = wrapped(f"1. one\n\n   {prose}z > 1\n")
    assert all(line.startswith("   ") for line in indented.splitlines()[2:])
    assert "> 1" not in wrapped("w" * 118 + " > 1").splitlines()


def test_a_run_has_its_published_number_under_every_name() -> None:
    """The base run of Seo et al. has two under Dirichlet 0.1, and the page of each has its own."""

    def published(name: str, line: str) -> str:
        results = Results(
            experiment=name, scale="narrow", command="c", cells={line: cell(run_result())}
        )
        rows = lines_section(results, RunLabels.of(EXPERIMENTS[name], results)).splitlines()
        head, values = (rows[row].strip("|").split("|") for row in (0, 2))
        return dict(zip(map(str.strip, head), map(str.strip, values), strict=True)).get(
            "published final", ""
        )

    assert published("seo-fig2", "K | K = 1") == "68 %"
    assert published("seo-base", "base | K = 1, B = 500") == "68 %"
    assert published("seo-fig4", "B | B = 50") == "68.75 %"
    assert published("seo-fig9", "alpha | α = 0.1") == "55 %"
    assert published("seo-fig10", "B | B = 50") == "56.16 %"
    assert published("seo-images", "dirichlet | in [0, 1]") == "55 % or 56.16 %"
    assert published("seo-images", "dirichlet | in [-1, 1]") == ""
    assert published("seo-fig3", "B | K = 2, B = 250") == ""
