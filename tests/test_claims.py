"""Statements about rounds, rates and training losses, checked on the cells of tables and figures."""

from __future__ import annotations

import dataclasses

import pytest

from fedapp.analysis.curves import beyond_plateau
from fedapp.errors import ConfigError
from fedapp.studies.papers.catalogue import all_experiments, read_experiment
from fedapp.studies.papers.cells import Setup, cells_of, make_cells, repeats_of
from fedapp.studies.papers.claims import Claim, Claims, similarity
from fedapp.studies.papers.labels import RunLabels
from fedapp.studies.papers.pages.claims import claims_section
from fedapp.studies.papers.pages.index import summary
from fedapp.studies.papers.results import CellResult, Results, RunResult, cell_result
from fedapp.studies.papers.schema import Scale, ScaleName
from fedapp.studies.papers.verdicts import (
    Checked,
    Verdict,
    check,
    check_all,
    largest_judged,
)
from fedapp.studies.sweep.record import RunRecord
from fedapp.studies.sweep.search import Cell, SearchResult
from tests.paper_results import EXPERIMENTS, cell, run_result

RESOLUTION = 0.001
TUTORIAL = "images in [-0.5, 0.5] and initial weights of σ = 0.1, as in TensorFlow's MNIST tutorial"


def result(needed: float | None = None, rate: float = 0.1, **more: float | None) -> CellResult:
    """Return a cell of three seeds, which all needed so many rounds at this rate."""
    numbers = {"final": 0.9, "best": 0.9, "least_loss": 1.0, "least_loss_round": 5, **more}
    run = RunResult(
        **{"run": "r", "seed": 0, "rounds": 100, "needed": needed, "updates": 1.0, **numbers},
        bytes_down=1,
        bytes_up=1,
        seconds=1.0,
        problem="",
    )
    runs = [run.model_copy(update={"seed": seed}) for seed in range(3)]
    return CellResult(target=0.97, chosen={"learning-rate": rate}, runs=runs)


def apart(low: float, middle: float, high: float) -> CellResult:
    """Return a cell whose three seeds needed so many rounds."""
    one = result(middle)
    runs = [
        run.model_copy(update={"needed": n})
        for run, n in zip(one.runs, (low, middle, high), strict=True)
    ]
    return one.model_copy(update={"runs": runs})


def measured(measure: str, *cells: CellResult, of: str = "needed", **bounds: float) -> Checked:
    """Return a claim about these cells, checked."""
    named = {f"c{number}": each for number, each in enumerate(cells)}
    claim = Claim(text="s", where="w", measure=measure, of=of, cells=tuple(named), **bounds)
    return check(claim, named, RESOLUTION)


def test_a_speed_up_is_the_ratio_of_the_rounds() -> None:
    """Table 4: 1,468 rounds of FedSGD over 32 of FedAvg."""
    found = measured("ratio", result(1468), result(32), low=30.6, high=61.2)
    assert (found.measured, found.verdict) == (pytest.approx(1468 / 32), "holds")
    wide = apart(32 / 1.25, 32, 32 * 1.25)  # 4.303 / sqrt(3) * log 1.25: a factor of 1.74 both ways
    assert measured("ratio", result(1468), wide, low=30.6).verdict == "open"
    assert measured("ratio", result(1468), wide, low=20.0).verdict == "holds"
    assert measured("ratio", result(640), result(32), low=30.6).verdict == "fails"


@pytest.mark.parametrize(
    ("full", "narrow", "cpu", "taken"),
    [
        ("not run", "open", "holds", 1),
        ("one seed", "holds", "fails", 1),
        ("one seed", "full scale only", "full scale only", 0),
        ("open", "holds", "holds", 0),
        ("not run", "not run", "not run", 0),
    ],
)
def test_a_claim_is_taken_from_the_largest_scale_that_judged_it(
    full: Verdict, narrow: Verdict, cpu: Verdict, taken: int
) -> None:
    claim = Claim(text="s", where="w", measure="value", cells=("c",), low=0.5)
    own = [
        Checked(claim, None if verdict == "not run" else 0.9, None, verdict)
        for verdict in (full, narrow, cpu)
    ]
    scales: list[ScaleName] = ["full", "narrow", "cpu"]
    assert largest_judged({s: [each] for s, each in zip(scales, own, strict=True)})[0] is own[taken]


def test_one_speed_up_is_compared_with_another() -> None:
    """Table 2: 95.3 times by role, 13 times for IID."""
    rounds = [result(3906), result(41), result(2488), result(192)]
    found = measured("ratio-gain", *rounds, low=1.0)
    assert found.measured == pytest.approx((3906 / 41) / (2488 / 192))
    assert found.verdict == "holds"
    assert measured("ratio-gain", *rounds[2:], *rounds[:2], low=1.0).verdict == "fails"


def test_rates_are_selected_once_whatever_the_seeds() -> None:
    found = measured("factor", result(1, rate=0.4), result(1, rate=0.1), of="rate", high=10.0)
    assert (found.measured, found.verdict) == (pytest.approx(4.0), "one search")


def test_a_collapsed_cell_says_nothing_of_the_noise_of_others() -> None:
    """Of "f: wild" one seed ends at less than half of its best accuracy."""

    def ending(*final: float, best: float) -> CellResult:
        return cell(*(run_result(final=f, seed=s, best=best) for s, f in enumerate(final)))

    cells = {"f: one": ending(0.5, best=0.5), "f: calm": ending(0.4, 0.41, 0.42, best=0.5)}
    claim = Claim(text="s", where="w", measure="value", of="final", cells=("f: one",), low=0.4)
    alone = check(claim, cells, RESOLUTION)
    assert alone.interval is not None
    assert alone.interval.low == pytest.approx(0.5 - 4.302653 * 0.01, abs=1e-5)
    wild = ending(0.05, 0.4, 0.35, best=0.42)
    assert wild.collapsed
    assert check(claim, {**cells, "f: wild": wild}, RESOLUTION) == alone


def test_cells_whose_runs_go_to_the_end_say_how_final_accuracies_scatter() -> None:
    """One that compares by accuracy has a target, too, which does not end its runs."""
    calm = cell(*(run_result(final=f, seed=s) for s, f in enumerate((0.4, 0.41, 0.42))))
    cells = {"f: one": cell(run_result(final=0.5)), "f: calm": calm}
    claim = Claim(text="s", where="w", measure="value", of="final", cells=("f: one",), low=0.4)
    by_accuracy = Cell({}, 100, target=0.3, measure="accuracy")
    by_rounds = dataclasses.replace(by_accuracy, measure="rounds")
    for ran, verdict in ((by_accuracy, "holds"), (by_rounds, "one seed")):
        assert check(claim, cells, 0.0, ran={"f: calm": ran}).verdict == verdict


def test_a_loss_that_still_falls_says_nothing_of_the_noise_of_its_minimum() -> None:
    """All seeds have it in the last round, 100, where training stops."""

    def least_in(*rounds: int) -> CellResult:
        return cell(*(run_result(seed=s, least_loss_round=r) for s, r in enumerate(rounds)))

    cells = {"f: one": least_in(30), "f: ends": least_in(40, 41, 42)}
    claim = Claim(
        text="s", where="w", measure="value", of="least_loss_round", cells=("f: one",), high=90.0
    )
    alone = check(claim, cells, RESOLUTION)
    assert alone.interval is not None
    assert alone.interval.high == pytest.approx(30 + 4.302653, abs=1e-5)
    assert check(claim, {**cells, "f: falls": least_in(100, 100, 96)}, RESOLUTION) == alone
    assert check(claim, {**cells, "f: turns": least_in(95, 95, 95)}, RESOLUTION) != alone


def test_consistency_is_the_share_of_rounds_in_the_layer_where_it_is_least() -> None:
    def updates(**layers: list[float]) -> CellResult:
        rows = [
            {"round": t, "similarity": {name: own[t] for name, own in layers.items()}}
            for t in range(4)
        ]
        return cell(*(run_result(seed=seed, agreement=rows) for seed in range(3)))

    iid = updates(conv=[0.9, 0.9, 0.9, 0.9], fc=[0.5, 0.5, 0.5, 0.5])
    skewed = updates(conv=[0.1, 0.1, 0.1, 0.1], fc=[0.4, 0.4, 0.6, 0.4])
    found = measured("consistency", iid, skewed, of="final", low=0.95)
    assert (found.measured, found.verdict) == (0.75, "fails")
    assert measured("consistency", iid, iid, of="final", low=0.95).measured == 0.0


def test_a_similarity_of_nothing_counts_in_the_mean() -> None:
    """Orthogonal updates have a cosine of 0, which is not a round without one."""
    rows = [
        {"round": n, "similarity": {"fc": value}} for n, value in enumerate((0.0, 0.5, None), 1)
    ]
    assert similarity([run_result(agreement=rows)]) == {"fc": 0.25}


def test_a_difference_of_rounds_has_the_interval_of_both() -> None:
    """Deviations of 10 and of nothing: 4.303 * 10 / sqrt(3) = 24.8 either way."""
    found = measured("difference", apart(40, 50, 60), result(90), high=0.0)
    assert (found.measured, found.verdict) == (-40.0, "holds")
    assert found.interval is not None
    assert found.interval.high == pytest.approx(-40 + 43.02653 / 3**0.5)


def test_a_ratio_without_known_noise_is_not_judged_by_one_seed() -> None:
    cells = [result(training_loss=loss) for loss in (0.01, 0.04)]
    one = [each.model_copy(update={"runs": each.runs[:1]}) for each in cells]
    found = measured("ratio", *one, of="training_loss", high=1.0)
    assert (found.measured, found.verdict) == (pytest.approx(0.25), "one seed")
    assert measured("ratio", *cells, of="training_loss", high=1.0).verdict == "holds"


def test_a_ratio_of_accuracies_has_their_resolution() -> None:
    found = measured("ratio", result(final=0.9), result(final=0.5), of="final", low=1.0)
    assert found.interval is not None
    assert found.interval.high == pytest.approx(1.8 * 1.002)  # 0.001 of 0.5
    assert found.verdict == "holds"


def test_a_target_that_is_not_reached_gives_no_number() -> None:
    found = measured("ratio", result(None), result(20), low=2.0)
    assert (found.measured, found.verdict) == (None, "no number")
    assert measured("factor", result(5), CellResult(), low=2.0).verdict == "not run"
    assert (
        measured("ratio", result(training_loss=None), result(), of="training_loss", low=0).measured
        is None
    )


def test_the_training_loss_beyond_the_plateau() -> None:
    """The best is 0.99, within 0.1 points of it from the third value on."""
    assert beyond_plateau([0.5, 0.98, 0.9895, 0.99, None], [1, 0.5, 0.4, 0.3, 0.1]) == 0.25
    assert beyond_plateau([0.5, 0.6], []) is None
    assert beyond_plateau([0.5, 0.6], [1.0, None]) is None
    assert beyond_plateau([None, None], [1.0, 1.0]) is None
    assert beyond_plateau([], []) is None


def test_the_last_training_loss_is_kept_of_a_run() -> None:
    record = RunRecord(
        run="r",
        settings={},
        status="complete",
        rounds=[0, 1, 2],
        accuracy=[0.1, 0.9, 0.9],
        loss=[2.0, 1.0, 1.0],
        training_set_loss=[2.0, 0.5, 0.125],
    )
    kept = [
        cell_result(Cell({}, 2), SearchResult([each]), envelopes=False).runs[0]
        for each in (record, record.model_copy(update={"training_set_loss": []}))
    ]
    assert (kept[0].training_loss, kept[0].beyond_plateau) == (0.125, 0.25)
    assert (kept[1].training_loss, kept[1].beyond_plateau) == (None, None)


def test_a_failed_seed_is_no_measurement() -> None:
    """A full disk says nothing of the accuracy; a diverged run does."""
    curves = {"rounds": [0, 1], "accuracy": [0.1, 0.8], "loss": [2.0, 1.0]}
    good = RunRecord(run="r", settings={}, status="complete", **curves)
    ends = {"status": "failed", "problem": "OSError: no space left on device"}
    records = [good, good.model_copy(update=ends), good.model_copy(update={"status": "diverged"})]
    own = Cell({}, 1, seeds=(0, 1, 2))
    found = cell_result(own, SearchResult(records), envelopes=False)
    assert [(run.seed, run.final) for run in found.runs] == [(0, 0.8), (2, 0.0)]
    assert found.problems == ["OSError: no space left on device"]
    labels = RunLabels(full={}, ran={"c": own})
    assert labels.seeds("c", found) == "2 of 3, 1 failed"
    alone = cell_result(own, SearchResult([records[1]] * 3), envelopes=False)
    assert labels.seeds("c", alone) == "0 of 3, 3 failed"
    claim = {"measure": "value", "of": "final", "cells": ("c",), "low": 0.5}
    checked = check(Claim(text="s", where="w", **claim), {"c": alone}, RESOLUTION)
    assert checked.verdict == "not run"


# ---------------------------------------------------------------- what claims name


def claim(cells: list[str], measure: str = "factor") -> Claim:
    return Claim(text="s", where="w", measure=measure, cells=tuple(cells), low=0.0)


def test_a_column_is_all_of_its_cells() -> None:
    names = cells_of(claim(["mcmahan-table4: Non-IID"]))
    assert len(names) == 9
    assert names[0] == "mcmahan-table4: E = 1, B = ∞ | Non-IID"
    assert cells_of(claim(["mcmahan-table4: E = 20, B = 10"])) == (
        "mcmahan-table4: E = 20, B = 10 | IID",
        "mcmahan-table4: E = 20, B = 10 | Non-IID",
    )
    varied = cells_of(claim(["mcmahan-table4: Non-IID, tutorial"]))
    assert len(varied) == 9  # where it is named, and not in a row


@pytest.mark.parametrize(
    ("cells", "measure", "said"),
    [
        (
            ["mcmahan-table9: IID"],
            "factor",
            r"no experiment 'mcmahan-table9'\. One of: .*mcmahan-table4",
        ),
        (["mcmahan-table4: E = 7"], "factor", r"has no 'E = 7' .*One of: E = 1, B = ∞ \| IID;"),
        (["mcmahan-table4: IID"] * 2, "ratio", r"'IID' that measure = 'ratio' takes"),
    ],
)
def test_cells_that_are_not_there_are_named(cells: list[str], measure: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        cells_of(claim(cells, measure))


def test_every_claim_names_cells_that_are_there() -> None:
    for experiment in all_experiments().values():
        for each in experiment.claims if isinstance(experiment, Claims) else ():
            assert cells_of(each)


HEAD = 'kind = "claims"\ntitle = ""\nsource = ""\nabout = ""\nnoise = 0.1\nscales = {}\n'
CLAIM = '[[claims]]\nsays = "x"\nwhere = ""\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('measure = "gain"\ncells = ["a"]\nlow = 0', "measure = 'gain' takes 4, not 1"),
        ('measure = "factor"\ncells = []\nlow = 0', "takes 1 or more, not 0"),
        ('measure = "ratio"\ncells = ["a", "b"]', "the claim 'x' has no bound"),
        ('measure = "rise"\ncells = ["a", "b"]\nlow = 0', "'ratio', 'ratio-gain', 'factor'"),
        (
            'measure = "ratio"\nof = "speed"\ncells = ["a", "b"]\nlow = 0',
            "'rounds_to_level' or 'rate'",
        ),
    ],
)
def test_a_claim_that_cannot_be_judged_is_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=r"one\.toml") as error:
        read_experiment("one", HEAD + CLAIM + text)
    assert said in str(error.value)


# ---------------------------------------------------------------- McMahan's


def test_the_text_s_speed_ups_are_those_of_the_tables() -> None:
    """So that they cost no run of their own."""
    experiment = all_experiments()["mcmahan-claims"]
    assert isinstance(experiment, Claims)
    cells = make_cells(experiment, Setup(experiment, "full", Scale(), {}, lambda name, cut: name))
    table = all_experiments()["mcmahan-table4"]
    own = make_cells(table, Setup(table, "full", Scale(), {}, lambda name, cut: name))
    assert (
        own.items()
        >= {
            name.removeprefix("mcmahan-table4: "): each
            for name, each in cells.items()
            if name.startswith("mcmahan-table4: ")
        }.items()
    )
    for each in experiment.claims:
        if each.measure == "ratio" and each.of == "needed" and each.low and each.high:
            outside = each.text in CONTRADICTED
            assert (each.low < each.published < each.high) is not outside


CONTRADICTED = {
    "2NN, non-IID, C = 0: B = 10 is dramatically faster than B = ∞",
    "CNN, non-IID, C = 0: B = 10 is dramatically faster than B = ∞",
    "2NN, non-IID, B = ∞: only a small advantage in increasing C from 0 to 0.1",
    "2NN, non-IID, B = 10: increasing u by E is effective: E = 10 over E = 20",
    "CNN, IID, B = ∞: only a small advantage in increasing C from 0.1 to 1",
    "CNN, non-IID, B = ∞: increasing u by E is effective: E = 1 over E = 5",
    "CNN, non-IID, E = 1: increasing u by B is effective: B = ∞ over B = 50",
}
"""Sentences that the paper's own tables do not bear out."""


def test_the_published_rounds_hold_in_every_claim_about_rounds() -> None:
    """What is claimed is what the tables' published numbers say: a bound the wrong way would show."""
    experiment = all_experiments()["mcmahan-claims"]
    assert isinstance(experiment, Claims)
    published = {
        f"{name}: {row.label} | {column}": number
        for name, table in all_experiments().items()
        if table.kind == "table"
        for row in table.rows
        for column, number in row.published.items()
    }
    about = [each for each in experiment.claims if each.of == "needed" and each.published]
    assert len(about) >= 20
    for each in about:
        cells = {name: result(published[name]) for name in cells_of(each)}
        found = check(each, cells, 0.001)
        expected = "fails" if each.text in CONTRADICTED else "holds"
        assert found.verdict == expected, each.text
        assert found.measured == pytest.approx(each.published, rel=0.03, abs=0.051), each.text


def test_a_claim_of_cells_that_were_not_run_has_no_number() -> None:
    experiment = all_experiments()["mcmahan-claims"]
    assert isinstance(experiment, Claims)
    text = claims_section(
        experiment, Results(experiment="mcmahan-claims", scale="full", command="", cells={})
    )
    assert text.count("| not run |") == text.count("**not run**") == len(experiment.claims)
    reached = {name: result(None) for name in cells_of(experiment.claims[0])}
    results = Results(experiment="mcmahan-claims", scale="full", command="", cells=reached)
    said = claims_section(experiment, results)
    assert "| no number |" in said
    assert "its target was not reached" in said


def test_speed_ups_are_shown_as_factors() -> None:
    experiment = all_experiments()["mcmahan-claims"]
    assert isinstance(experiment, Claims)
    first = experiment.claims[0]
    cells = dict(zip(cells_of(first), (result(620), result(18.4)), strict=True))
    row = claims_section(
        experiment, Results(experiment="x", scale="full", command="", cells=cells)
    ).splitlines()[2]
    assert row.endswith("| 34.8× | 33.7× | 3 | ≥ 27.8× and ≤ 43.5× | **holds** |")


def of_two_claims(
    as_read: tuple[CellResult, CellResult], repeated: tuple[CellResult, CellResult]
) -> tuple[Claims, Results]:
    """Return the cells of two claims: 46 times fewer rounds, and 10 to 100 times fewer."""
    experiment = EXPERIMENTS["mcmahan-claims"]
    assert isinstance(experiment, Claims)
    names = ("mcmahan-table4: E = 1, B = ∞ | IID", "mcmahan-table4: E = 20, B = 10 | IID")
    repeats = tuple(f"{name}, tutorial" for name in names)
    assert sum(claim.cells == names for claim in experiment.claims) == 2
    assert repeats_of(next(claim for claim in experiment.claims if claim.cells == names)) == {
        TUTORIAL: repeats
    }
    cells = dict(zip((*names, *repeats), (*as_read, *repeated), strict=True))
    return experiment, Results(experiment="mcmahan-claims", scale="cpu", command="", cells=cells)


def test_a_claim_is_judged_of_a_variant_of_its_cells_too() -> None:
    experiment, results = of_two_claims((result(400), result(20)), (result(1468), result(32)))
    section = claims_section(experiment, results)
    _, same, rest = section.partition(f"The same with {TUTORIAL}. ")
    assert same
    assert rest.startswith(
        "2 claims were run; 2 are judged here and above, 1 of them differently (in bold):"
    )
    rows = [row for row in rest.splitlines() if row.startswith("| 2NN")]
    assert rows[0].endswith(
        "| 45.9× | 20×, **fails** | 45.9× | 3 | ≥ 36.7× and ≤ 57.4× | **holds** |"
    )
    assert rows[1].endswith("| 45.9× | 20×, holds | 45.9× | 3 | ≥ 10× and ≤ 100× | holds |")
    assert "2 holds." in rest
    assert f"with {TUTORIAL}: 2 hold, 0 fail" in summary(experiment, [results])
    one_of_two = {
        name: own for name, own in results.cells.items() if "20, B = 10 | IID, t" not in name
    }
    assert "The same" not in claims_section(
        experiment, results.model_copy(update={"cells": one_of_two})
    )


def test_a_target_that_only_the_variant_misses_is_explained() -> None:
    experiment, results = of_two_claims((result(400), result(20)), (result(1468), result(None)))
    section = claims_section(experiment, results)
    assert section.count("| no number |") == 4  # the number and the verdict
    assert "*no number*: the cells were run" in section


def test_the_cells_of_a_variant_say_nothing_of_the_noise_of_others() -> None:
    """Each has one seed as read, and three with the tutorial's images and weights."""
    one = (result(400), result(20))
    single = tuple(own.model_copy(update={"runs": own.runs[:1]}) for own in one)
    assert len(single) == 2
    three = (apart(1400, 1468, 1500), result(32))
    for as_read, repeated in ((single, three), (three, single)):
        experiment, results = of_two_claims(as_read, repeated)
        for variant, cells in (("", as_read), (TUTORIAL, repeated)):
            verdicts = [
                each.verdict
                for each in check_all(experiment, results, variant)
                if each.measured is not None
            ]
            assert ("one seed" in verdicts) is (cells is single)
        section = claims_section(experiment, results)
        assert "*one seed*: the claim is open" in section
        tutorial = "mcmahan-table4: E = 1, B = ∞ | IID, tutorial (1 of 3)"
        assert (tutorial in section) is (repeated is single)
        assert section.count("So far with fewer seeds than planned") == 1


def test_evidence_is_missing_of_the_cells_that_are_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunLabels, "is_untuned", lambda _, name: "tutorial" in name)
    both = (result(400), result(20))
    experiment, results = of_two_claims(both, both)
    for variant, verdicts in (("", {"fails", "holds"}), (TUTORIAL, {"one rate"})):
        checked = check_all(experiment, results, variant)
        assert {each.verdict for each in checked if each.measured is not None} == verdicts


def test_the_index_says_how_many_fail_with_fewer_than_three_seeds() -> None:
    """20 and 20.3 times fewer rounds: by two seeds 18 to 22 or so, for 36.7 and more."""
    two = [
        own.model_copy(update={"runs": own.runs[:2]})
        for own in (apart(400, 410, 0), apart(20, 20.2, 0))
    ]
    none = (CellResult(), CellResult())
    experiment, results = of_two_claims((two[0], two[1]), none)
    few = "with fewer than three seeds"
    assert summary(experiment, [results]).startswith(f"1 hold (1 {few}), 1 fail (1 {few}), 0 open")


def test_claims_of_figures_have_no_variant() -> None:
    experiment = EXPERIMENTS["mcmahan-claims"]
    assert isinstance(experiment, Claims)
    assert all(
        not repeats_of(claim)
        for claim in experiment.claims
        if any("-fig" in name for name in claim.cells)
    )


def verdict_of(text: str, scale: ScaleName, rounds: int) -> str:
    """Return the verdict of a claim of which the first cell ends at 0.6 and the second at 0.5."""
    experiment = EXPERIMENTS["mcmahan-claims"]
    assert isinstance(experiment, Claims)
    claim = next(claim for claim in experiment.claims if claim.text == text)
    runs = zip(claim.cells, (0.6, 0.5), strict=True)
    cells = {
        name: cell(*(run_result(final=final, rounds=rounds, seed=seed) for seed in range(3)))
        for name, final in runs
    }
    found = Results(experiment="mcmahan-claims", scale=scale, command="c", cells=cells)
    return next(each.verdict for each in check_all(experiment, found) if each.claim is claim)


@pytest.mark.parametrize(("rounds", "verdict"), [(300, "cut short"), (1200, "holds")])
def test_where_curves_end_is_not_judged_of_shorter_ones(rounds: int, verdict: str) -> None:
    text = "2NN, IID: FedAvg, B = 10 and E = 1, comes higher than FedSGD"
    assert verdict_of(text, "cpu", rounds) == verdict
    same = "Word LSTM (stand-in data): in the same rounds FedAvg comes higher than FedSGD"
    assert verdict_of(same, "cpu", rounds) == "holds"


@pytest.mark.parametrize(("scale", "verdict"), [("cpu", "one rate"), ("full", "holds")])
def test_a_comparison_of_best_rates_is_not_judged_by_one(scale: ScaleName, verdict: str) -> None:
    """Figure 4 has a search at full scale, and one rate for both at processor scale."""
    text = "CIFAR-10: in the same rounds FedAvg comes higher than FedSGD"
    assert verdict_of(text, scale, 3000) == verdict


def test_a_seed_that_misses_the_target_is_not_left_out_of_a_mean() -> None:
    """The mean of the two seeds that reached it, 50, would be of the fast ones alone."""
    found = measured("ratio", result(1468), apart(40, None, 60), low=2.0)
    assert (found.measured, found.verdict) == (None, "no number")


@pytest.mark.parametrize(("number", "outside"), [(0.5, True), (1.5, False), (2.5, True)])
def test_a_number_outside_of_the_bounds_speaks_against_an_open_claim(
    number: float, outside: bool
) -> None:
    claim = Claim(text="s", where="w", measure="value", cells=("c",), low=1.0, high=2.0)
    assert Checked(claim, number, None, "open").is_open_against is outside


@pytest.mark.parametrize(
    ("published", "verdict", "so_does"),
    [(2.5, "fails", True), (1.5, "fails", False), (None, "fails", False), (2.5, "open", False)],
)
def test_a_claim_may_fail_as_the_published_number_does(
    published: float | None, verdict: Verdict, so_does: bool
) -> None:
    bounds = {"low": 1.0, "high": 2.0, "published": published}
    claim = Claim(text="s", where="w", measure="value", cells=("c",), **bounds)
    assert Checked(claim, 3.0, None, verdict).fails_as_published is so_does


def test_the_seeds_of_a_claim_are_those_that_all_of_its_cells_have() -> None:
    two = result(40)
    two = two.model_copy(update={"runs": two.runs[1:]})
    assert measured("ratio", result(400), two, low=1.0).seeds == 2


def test_a_run_that_ended_early_by_itself_is_not_cut_short() -> None:
    """It ended in round 9 of 1,000, and would end as low after all of them."""
    experiment = EXPERIMENTS["mcmahan-claims"]
    assert isinstance(experiment, Claims)
    text = "2NN, IID: FedAvg, B = 10 and E = 1, comes higher than FedSGD"
    claim = next(claim for claim in experiment.claims if claim.text == text)
    cells = {
        claim.cells[0]: cell(*(run_result(final=0.6, rounds=1200, seed=s) for s in range(3))),
        claim.cells[1]: cell(
            *(run_result(final=0.1, rounds=9, problem="diverged", seed=s) for s in range(3))
        ),
    }
    found = Results(experiment="mcmahan-claims", scale="cpu", command="c", cells=cells)
    checked = next(each for each in check_all(experiment, found) if each.claim is claim)
    assert checked.verdict == "holds"


def test_a_ratio_of_nothing_is_no_number() -> None:
    """A training loss of 0 has no logarithm."""
    found = measured("ratio", result(training_loss=0.0), result(), of="training_loss", high=1.0)
    assert found.verdict == "no number"
    both = [result(training_loss=loss) for loss in (0.0, 0.1)]
    assert measured("ratio", *both, of="training_loss", high=1.0).verdict == "no number"


def test_a_share_is_at_most_all() -> None:
    """All, all and three of four rounds: 0.917, and 4.303 * 0.144 / sqrt(3) = 0.359 either way."""

    def similar(seed: int, *values: float) -> RunResult:
        rows = [{"round": t, "similarity": {"fc": value}} for t, value in enumerate(values)]
        return run_result(seed=seed, agreement=rows)

    iid = cell(*(similar(s, 0.9, 0.9, 0.9, last) for s, last in enumerate((0.9, 0.9, 0.1))))
    skewed = cell(*(similar(s, 0.5, 0.5, 0.5, 0.5) for s in range(3)))
    found = measured("consistency", iid, skewed, of="final", low=0.95).interval
    assert found is not None
    assert (found.low, found.high) == (pytest.approx(11 / 12 - 0.35855, abs=1e-4), 1.0)
