"""The interval of a number from its seeds, and the verdict on a claim by it, worked out by hand."""

from __future__ import annotations

import math

import pytest

from fedapp.studies.papers.claims import Claim, Resolution
from fedapp.studies.papers.noise import Estimate, Interval, contrast, estimate, half_width
from fedapp.studies.papers.pages.claims import check, judge
from fedapp.studies.papers.results import CellResult
from tests.paper_results import cell, run_result


def of(*finals: float) -> CellResult:
    """Return a cell whose seeds end at these accuracies."""
    return cell(*(run_result(final=final, seed=seed) for seed, final in enumerate(finals)))


def known(*values: float, logarithm: bool = False) -> Estimate:
    found = estimate(values, (), logarithm=logarithm)
    assert found is not None
    return found


def test_a_mean_of_three_seeds_is_known_to_t_s_over_the_root_of_three() -> None:
    """s = 1, t = 4.303 with 2 degrees of freedom."""
    assert known(1.0, 2.0, 3.0) == Estimate(2.0, pytest.approx(1 / 3), 2)
    assert half_width([known(1.0, 2.0, 3.0)]) == pytest.approx(4.302653 / math.sqrt(3))
    assert half_width([known(1.0, 3.0)]) == pytest.approx(12.706205)  # s = 1.414, t of one degree


def test_a_difference_has_welchs_interval() -> None:
    """Equal deviations have 4 degrees of freedom; of one without a deviation the other's 2 remain."""
    alike = [known(1.0, 2.0, 3.0), known(5.0, 6.0, 7.0)]
    assert half_width(alike) == pytest.approx(2.776445 * math.sqrt(2 / 3))
    assert half_width([alike[0], known(5.0, 5.0, 5.0)]) == pytest.approx(4.302653 / math.sqrt(3))
    found = contrast(alike, {0: 1, 1: -1})
    assert found.value == -4.0
    assert (found.low + found.high) / 2 == pytest.approx(-4.0)
    assert contrast(alike, {0: 1, 1: -1}, 5.0) == Interval(-9.0, -4.0, 1.0)  # the resolution


def test_one_seed_has_the_pooled_deviation_of_comparable_cells_with_three() -> None:
    """Variances 1 and 4 of 2 degrees of freedom each: 2.5 of 4; two seeds do not count."""
    comparable = [[1.0, 2.0, 3.0], [0.0, 2.0, 4.0], [0.0, 100.0], [9.0]]
    assert estimate([7.0], comparable) == Estimate(
        7.0, pytest.approx(2.5), 4, ((1.0, 2.0, 3.0), (0.0, 2.0, 4.0))
    )
    assert estimate([7.0], comparable[2:]) is None
    assert estimate([7.0], ()) is None
    assert estimate([7.0], [[5.0, 5.0, 5.0]]) is None  # equal seeds say nothing of others


def test_so_have_two_seeds_whose_own_would_have_one_degree_of_freedom() -> None:
    comparable = [[1.0, 2.0, 3.0], [0.0, 2.0, 4.0]]
    found = estimate([6.0, 8.0], comparable)
    assert found == Estimate(7.0, pytest.approx(2.5 / 2), 4, ((1.0, 2.0, 3.0), (0.0, 2.0, 4.0)))
    assert estimate([6.0, 8.0], comparable[:0]) == Estimate(7.0, pytest.approx(1.0), 1)


def test_ratios_have_the_interval_of_their_logarithms() -> None:
    e = math.e
    found = known(e, e**2, e**3, logarithm=True)
    assert found == Estimate(
        pytest.approx(math.log((e + e**2 + e**3) / 3)), pytest.approx(1 / 3), 2
    )


def test_many_degrees_of_freedom_have_nearly_the_interval_of_a_normal_distribution() -> None:
    assert half_width([Estimate(0.0, 4.0, 10**9)]) == pytest.approx(2 * 1.959964)


def claimed(measure: str = "difference", **bounds: float) -> Claim:
    return Claim(text="s", where="w", measure=measure, cells=("x: a", "x: b"), **bounds)


@pytest.mark.parametrize(
    ("interval", "bounds", "verdict"),
    [
        ((1.0, 3.0), {"low": 0.0}, "holds"),
        ((-1.0, 3.0), {"low": 0.0}, "open"),
        ((-3.0, -1.0), {"low": 0.0}, "fails"),
        ((-1.0, 0.5), {"low": -2.0, "high": 2.0}, "holds"),
        ((1.0, 2.5), {"low": -2.0, "high": 2.0}, "open"),
        (
            (-1.0, 3.0),
            {"low": -2.0, "high": 2.0},
            "undecidable",
        ),  # 2 points are as wide as the noise
        ((3.0, 7.0), {"low": -2.0, "high": 2.0}, "fails"),  # which wide intervals can show, too
    ],
)
def test_a_claim_holds_fails_or_is_open_by_its_interval(interval, bounds, verdict: str) -> None:
    low, high = interval
    assert judge(claimed(**bounds), Interval(low, (low + high) / 2, high)) == verdict


@pytest.mark.parametrize(("high", "verdict"), [(1.9, "open"), (2.5, "undecidable")])
def test_a_spread_below_the_noise_is_undecidable(high: float, verdict: str) -> None:
    """At most 2 is 2 above the least that a spread can be, 0."""
    assert judge(claimed("spread", high=2.0), Interval(0.5, 0.5, 0.5 + high)) == verdict


def test_a_ratio_is_judged_as_a_logarithm() -> None:
    """Within 25 %, 8 to 12.5: a factor of 1.25 both ways from the middle, 10."""
    rule = claimed("ratio", low=8.0, high=12.5)
    assert judge(rule, Interval(9.0, 10.0, 11.0)) == "holds"
    assert judge(rule, Interval(9.0, 11.0, 13.4)) == "open"
    assert judge(rule, Interval(7.0, 10.0, 14.0)) == "undecidable"


def test_several_seeds_decide_a_claim_by_their_own_deviation() -> None:
    """0.5, 0.6, 0.7 against 0.1, 0.2, 0.3: 0.4 with 2.776 * 0.1 * sqrt(2 / 3) = 0.227 either way."""
    cells = {"x: a": of(0.5, 0.6, 0.7), "x: b": of(0.1, 0.2, 0.3)}
    found = check(claimed(low=0.0), cells, Resolution())
    assert found.interval is not None
    assert found.interval.low == pytest.approx(0.4 - 0.22666, abs=1e-4)
    assert found.verdict == "holds"
    assert check(claimed(low=0.2), cells, Resolution()).verdict == "open"


def test_one_seed_is_judged_by_cells_of_the_same_table_with_three() -> None:
    """0.1 from the same 2 degrees of freedom, twice: 0.4 and sqrt(2) * 0.1 * 4.303 = 0.608 either way."""
    one = {"x: a": of(0.6), "x: b": of(0.2)}
    assert check(claimed(low=0.0), one, Resolution()).verdict == "one seed"
    elsewhere = {**one, "y: c": of(0.4, 0.5, 0.6)}
    assert check(claimed(low=0.0), elsewhere, Resolution()).verdict == "one seed"
    same = {**one, "x: c": of(0.4, 0.5, 0.6)}
    found = check(claimed(low=0.0), same, Resolution())
    assert found.verdict == "open"
    assert found.interval is not None
    assert found.interval.low == pytest.approx(0.4 - 4.302653 * 0.1 * math.sqrt(2))
    assert check(claimed(low=0.1), same, Resolution()).verdict == "open"


def test_without_three_seeds_in_its_table_those_of_the_same_network_and_data_count() -> None:
    cells = {"x: a": of(0.6), "x: b": of(0.2), "y: c": of(0.4, 0.5, 0.6), "z: d": of(0.0, 0.5, 1.0)}
    families = {"x: a": "cnn", "x: b": "cnn", "y: c": "cnn", "z: d": "lstm"}
    found = check(claimed(low=0.0), cells, Resolution(), families=families)
    assert found.interval is not None
    assert found.interval.low == pytest.approx(0.4 - 4.302653 * 0.1 * math.sqrt(2))
    assert (
        check(claimed(low=0.0), cells, Resolution(), families={"x: a": "cnn"}).verdict == "one seed"
    )


def test_an_order_is_known_as_its_least_step_and_a_spread_as_its_widest_pair() -> None:
    """Steps of 0.3 and 0.1; the resolution of 0.05 is wider than the seeds, who agree."""
    cells = {
        f"x: {name}": of(value, value, value)
        for name, value in zip("abc", (0.6, 0.3, 0.2), strict=True)
    }
    names = tuple(cells)
    order = Claim(text="s", where="w", measure="order", cells=names, low=0.0)
    found = check(order, cells, Resolution(0.05)).interval
    assert found is not None
    assert (found.low, found.high) == (pytest.approx(0.05), pytest.approx(0.15))
    spread = Claim(text="s", where="w", measure="spread", cells=names, high=0.5)
    found = check(spread, cells, Resolution(0.05)).interval
    assert found is not None
    assert (found.low, found.value, found.high) == (
        pytest.approx(0.35),
        pytest.approx(0.4),
        pytest.approx(0.45),
    )
