"""Seo et al.'s claims: each measure and verdict by hand, and what is shown without a verdict."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from fedapp.analysis.curves import fluctuation, relative_spread
from fedapp.studies.papers.cells import make_cells
from fedapp.studies.papers.claims import Claim, Claims
from fedapp.studies.papers.pages.claims import claims_section
from fedapp.studies.papers.results import CellResult, Curve, Results, RunResult
from fedapp.studies.papers.schema import ScaleName
from fedapp.studies.papers.verdicts import check
from tests.paper_results import EXPERIMENTS, cell, run_result, setup


def claim(**more) -> Claim:
    return Claim(**{"says": "s", "where": "w", "cells": ("a", "b"), **more})


def thrice(run: RunResult) -> CellResult:
    """Return a cell of three seeds that agree, so that its numbers are known to their resolution."""
    return cell(*(run.model_copy(update={"seed": seed}) for seed in range(3)))


def learning(accuracy, train_loss, seed=0) -> RunResult:
    """Return a run with these numbers after rounds 0, 1, 2, ..."""
    rounds = list(range(len(accuracy)))
    drawn = Curve(
        rounds=rounds, gradients=rounds, accuracy=accuracy, loss=train_loss, train_loss=train_loss
    )
    best = max(value for value in accuracy if value is not None)
    return run_result(final=accuracy[-1], best=best, curve=drawn, seed=seed)


def agreeing(first: dict[str, float], second: dict[str, float]) -> dict[str, CellResult]:
    """Return two cells of these similarities by layer, of the first 0.1 more, 0 and 0.1 less by seed."""

    def run(by: dict[str, float], seed: int, more: float) -> RunResult:
        row = {"round": 1, "similarity": {layer: value + more for layer, value in by.items()}}
        return run_result(seed=seed, agreement=[row])

    shifts = (0.1, 0.0, -0.1)
    return {
        "a": cell(*(run(first, seed, more) for seed, more in enumerate(shifts))),
        "b": cell(*(run(second, seed, 0.0) for seed in range(3))),
    }


def test_fluctuation_is_how_uneven_the_changes_over_the_last_half_are() -> None:
    """Of 0.5, 0.6, 0.4, 0.4 the changes 0.1, -0.2, 0 are 2/15, 1/6 and 1/30 from their mean, -1/30."""
    assert fluctuation([0.0, 0.9, 0.1, 0.2, 0.5, 0.6, 0.4, 0.4]) == pytest.approx(1 / 9)
    assert fluctuation([0.0, 0.9, 0.1, 0.2, 0.5, 0.6, None, 0.4, 0.4]) == pytest.approx(1 / 9)
    assert fluctuation([value / 100 for value in range(50)]) == pytest.approx(0.0, abs=1e-15)
    assert fluctuation([0.5]) == fluctuation([]) == fluctuation([0.1, 0.2, 0.4, 0.9]) == 0.0


def test_a_gain_is_the_difference_of_two_differences() -> None:
    claim = Claim(text="", where="", measure="gain", cells=("a", "b", "c", "d"), low=0.0)
    finals = {"a": 0.6, "b": 0.5, "c": 0.7, "d": 0.68}
    cells = {name: thrice(run_result(final=final)) for name, final in finals.items()}
    checked = check(claim, cells, 0.02)
    assert checked.measured == pytest.approx(0.1 - 0.02)
    assert checked.verdict == "holds"
    assert check(claim, cells, 0.1).verdict == "open"


def test_claims_are_about_cells_of_other_items() -> None:
    experiment = EXPERIMENTS["seo-claims"]
    cells = make_cells(experiment, setup(experiment, "full"))
    seo = EXPERIMENTS["seo-fig10"]
    wanted = make_cells(seo, setup(seo, "full"))["eta | η = 0.05"]
    assert cells["seo-fig10: eta | η = 0.05"] == wanted


@pytest.mark.parametrize(
    ("finals", "verdict"),
    [((0.5, 0.6), "fails"), ((0.6, 0.5), "holds"), ((0.505, 0.5), "open")],
)
def test_a_difference_must_exceed_the_noise(finals, verdict: str) -> None:
    cells = {name: thrice(run_result(final=f)) for name, f in zip("ab", finals, strict=True)}
    checked = check(claim(measure="difference", low=0.0), cells, 0.01)
    assert checked.verdict == verdict
    assert checked.measured == pytest.approx(finals[0] - finals[1])


def test_the_seeds_count_as_noise_where_they_are_wider() -> None:
    """s = 0.1 of three seeds, the others agree: 4.303 * 0.1 / sqrt(3) = 0.248 either way."""
    wide = cell(*(run_result(final=0.5 + seed / 10, seed=seed) for seed in range(3)))
    cells = {"a": wide, "b": thrice(run_result(final=0.55))}
    checked = check(claim(measure="difference", low=0.0), cells, 0.01)
    assert checked.interval is not None
    assert checked.interval.high - 0.05 == pytest.approx(0.24843, abs=1e-4)
    assert checked.verdict == "open"


@pytest.mark.parametrize(
    ("finals", "verdict"),
    [((0.5, 0.505), "holds"), ((0.5, 0.525), "open"), ((0.5, 0.56), "fails")],
)
def test_a_spread_must_exceed_the_noise_too(finals, verdict: str) -> None:
    cells = {name: thrice(run_result(final=f)) for name, f in zip("ab", finals, strict=True)}
    assert check(claim(measure="spread", high=0.02), cells, 0.01).verdict == verdict


def test_claims_about_one_value_all_values_and_layers() -> None:
    cells = {"a": thrice(run_result(final=0.68)), "b": thrice(run_result(final=0.66))}
    value = claim(measure="value", cells=("a",), low=0.66, high=0.7)
    assert check(value, cells, 0.01).verdict == "holds"
    spread = check(claim(measure="spread", high=0.01), cells, 0.001)
    assert (round(spread.measured, 6), spread.verdict) == (0.02, "fails")
    agreement = claim(measure="similarity", low=0.0)
    layers = check(agreement, agreeing({"x": 0.9, "y": 0.5}, {"x": 0.2, "y": 0.5}), 0.01)
    assert (layers.measured, layers.verdict) == (pytest.approx(0.0), "open")
    assert check(value, {}, 0.01).verdict == "not run"


@pytest.mark.parametrize(
    ("finals", "least", "verdict"),
    [
        ((0.6, 0.5, 0.2), 0.1, "holds"),
        ((0.6, 0.595, 0.2), 0.005, "open"),
        ((0.6, 0.2, 0.5), -0.3, "fails"),
    ],
)
def test_an_order_is_its_least_step(finals, least: float, verdict: str) -> None:
    cells = {name: thrice(run_result(final=f)) for name, f in zip("abc", finals, strict=True)}
    checked = check(claim(measure="order", cells=("a", "b", "c"), low=0.0), cells, 0.01)
    assert (checked.measured, checked.verdict) == (pytest.approx(least), verdict)
    assert check(claim(measure="order", cells=("a", "d"), low=0.0), cells, 0.01).measured is None


def test_a_window_is_of_the_papers_rounds() -> None:
    """At a pace of 4 the rounds 8 to 14 are 2 and 3."""
    one = thrice(learning([0.1, 0.2, 0.6, 0.8, 0.9], [None, 2.0, 1.5, 1.0, 0.5]))
    other = thrice(learning([0.1, 0.2, 0.5, 0.7, 0.9], [None, 2.0, 1.5, 1.4, 0.3]))
    cells = {"a": one, "b": other}
    accuracy = claim(measure="difference", of="accuracy", window=(8, 14), low=0.0)
    assert check(accuracy, cells, 0.02, "cpu", pace=4.0).measured == pytest.approx(0.1)
    assert check(accuracy, cells, 0.02, "cpu", pace=4.0).verdict == "holds"
    assert check(accuracy, cells, 0.02).verdict == "no number"  # no run has as many rounds
    loss = accuracy.model_copy(update={"of": "train_loss"})
    checked = check(loss, cells, 0.02, "cpu", pace=4.0)
    assert (checked.measured, checked.verdict) == (pytest.approx(1.25 - 1.45), "fails")
    last = claim(measure="difference", of="train_loss", low=0.0)
    assert check(last, cells, 0.02).measured == pytest.approx(0.2)
    assert check(last, cells, 0.02, "cpu", pace=4.0).measured == pytest.approx(0.2)


def test_rounds_to_the_level_are_to_nine_tenths_of_what_all_reach() -> None:
    """The second comes to 0.5 at best, so the level is 0.45: after 1.5 rounds, and after 2.5."""
    cells = {
        "a": cell(learning([0.1, 0.3, 0.6, 0.8], [1.0] * 4)),
        "b": cell(learning([0.0, 0.2, 0.4, 0.5], [1.0] * 4)),
    }
    faster = claim(measure="difference", of="rounds_to_level", high=0.0)
    checked = check(faster, cells, 0.01)
    assert (checked.measured, checked.verdict) == (pytest.approx(1.5 - 2.5), "one seed")
    assert check(faster, {**cells, "b": cell(run_result())}, 0.01).verdict == "no number"
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
    checked = check(faster, twice, 0.01)  # (1.5 + 2.5) / 2 less (2.5 + 2.5) / 2
    assert checked.measured == pytest.approx(-0.5)
    assert checked.verdict == "open"


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
    checked = check(further, {"a": cell(apart), "b": cell(alike)}, 0.01)
    assert (checked.measured, checked.verdict) == (0.5, "one seed")
    assert check(further, {"a": cell(apart), "b": cell(run_result())}, 0.01).verdict == "no number"


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
    experiment = EXPERIMENTS["seo-claims"]
    assert isinstance(experiment, Claims)

    def said(scale: ScaleName) -> str:
        return claims_section(
            experiment, Results(experiment="seo-claims", scale=scale, command="c", cells={})
        )

    assert "rounds 40 to 70 of the paper are here 10 to 17.5." in said("cpu")
    assert "of the paper are here" not in said("full")


@pytest.mark.parametrize(("second", "verdict"), [(0.05, "holds"), (0.46, "open"), (0.95, "fails")])
def test_similarities_differ_by_more_than_the_noise_of_the_seeds(second, verdict: str) -> None:
    """Differences 0.1 apart from seed to seed: 4.303 * 0.1 / sqrt(3) = 0.248 either way."""
    cells = agreeing({"x": 0.5}, {"x": second})
    checked = check(claim(measure="similarity", low=0.0), cells, 0.01)
    assert checked.interval is not None
    half = checked.interval.high - checked.interval.value
    assert half == pytest.approx(4.302653 * 0.1 / 3**0.5)
    assert checked.verdict == verdict


@pytest.mark.parametrize("of", ["least_loss", "least_loss_round", "updates", "fluctuation"])
def test_what_has_no_noise_of_its_own_is_not_judged_by_one_seed(of: str) -> None:
    one = {"a": cell(run_result(**{of: 9})), "b": cell(run_result(**{of: 1}))}
    differs = claim(measure="difference", of=of, low=0.0)
    assert (
        check(differs, one, 0.01).measured,
        check(differs, one, 0.01).verdict,
    ) == (
        8,
        "one seed",
    )
    three = {
        "a": cell(*(run_result(seed=seed, **{of: 10 + 3 * seed}) for seed in range(3))),
        "b": cell(*(run_result(seed=seed, **{of: 4 + seed}) for seed in range(3))),
    }
    checked = check(differs, three, 0.01)  # 6, 8 and 10: 4.303 * 2 / sqrt(3)
    assert checked.interval is not None
    assert checked.interval.high - 8 == pytest.approx(4.302653 * 2 / 3**0.5)
    assert checked.verdict == "holds"


def test_the_agreement_of_one_seed_is_shown_and_not_judged() -> None:
    one = {name: cell(c.runs[0]) for name, c in agreeing({"x": 0.9}, {"x": 0.1}).items()}
    assert check(claim(measure="similarity", low=0.0), one, 0.01).verdict == "one seed"


@pytest.mark.parametrize("measure", ["value", "difference", "spread"])
def test_the_smoke_scale_is_no_evidence(measure: str) -> None:
    cells = {"a": cell(run_result(final=0.9)), "b": cell(run_result(final=0.1))}
    said = claim(measure=measure, cells=("a",) if measure == "value" else ("a", "b"), low=0.0)
    checked = check(said, cells, 0.01, "smoke")
    assert checked.measured is not None
    assert checked.verdict == "smoke: no evidence"
    assert check(said, {}, 0.01, "smoke").verdict == "not run"


def test_a_page_says_why_a_number_is_not_judged() -> None:
    cells = {"seo-fig5: PP | 1 of 10 clients": 0.515, "seo-fig5: PP | 10 of 10 clients": 0.53}
    found = {name: cell(run_result(final=final)) for name, final in cells.items()}
    experiment = EXPERIMENTS["seo-claims"]
    assert isinstance(experiment, Claims)
    said = claims_section(
        experiment, Results(experiment="seo-claims", scale="smoke", command="c", cells=found)
    )
    run = sum(cells.keys() >= set(claim.cells) for claim in experiment.claims)
    assert f"{run} smoke: no evidence, {len(experiment.claims) - run} not run." in said
    assert "Shown, not decided: *smoke: no evidence*: other data" in said
    assert "holds:" not in said


def test_the_value_of_a_smaller_scale_is_shown_and_not_judged() -> None:
    """The paper's accuracy is that of its data; signs and sizes of differences carry over."""
    cells = {"a": thrice(run_result(final=0.55)), "b": thrice(run_result(final=0.4))}
    value = claim(measure="value", cells=("a",), low=0.66)
    checked = check(value, cells, 0.01, "cpu")
    assert (checked.measured, checked.verdict) == (0.55, "full scale only")
    assert check(claim(measure="difference", low=0.0), cells, 0.01, "cpu").verdict == "holds"


def test_claims_of_a_scale_have_its_resolution() -> None:
    cells = {"seo-fig5: PP | 1 of 10 clients": 0.515, "seo-fig5: PP | 10 of 10 clients": 0.53}
    found = {name: thrice(run_result(final=final)) for name, final in cells.items()}
    experiment = EXPERIMENTS["seo-claims"]
    assert isinstance(experiment, Claims)

    def shown(scale: ScaleName) -> str:
        results = Results(experiment="seo-claims", scale=scale, command="c", cells=found)
        return next(
            line for line in claims_section(experiment, results).splitlines() if "-1.50" in line
        )

    assert "| -2.50 to -0.50 |" in shown("full")
    assert "| -3.50 to +0.50 |" in shown("cpu")
