"""The interval of a number from its seeds, and the verdict on a claim by it, worked out by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedapp.studies.papers.claims import Claim
from fedapp.studies.papers.noise import Interval, Numbers, contrast
from fedapp.studies.papers.results import CellResult
from fedapp.studies.papers.verdicts import check, judge
from fedapp.studies.sweep.search import Cell
from tests.paper_results import cell, run_result


def of(*finals: float) -> CellResult:
    """Return a cell whose seeds end at these accuracies."""
    runs = (
        run_result(run=f"{finals} {seed}", final=final, seed=seed)
        for seed, final in enumerate(finals)
    )
    return cell(*runs)


def seeds(*values: float) -> Numbers:
    return dict(enumerate(values))


COMPARED = {0: 1, 1: -1}


def test_a_mean_of_three_seeds_is_known_to_t_s_over_the_root_of_three() -> None:
    """s = 1, t = 4.303 with 2 degrees of freedom; of two seeds s = 1.414 and t = 12.7."""
    assert contrast([seeds(1, 2, 3)], {0: 1}) == (2.0, pytest.approx(4.302653 / math.sqrt(3)))
    assert contrast([seeds(1, 3)], {0: 1}) == (2.0, pytest.approx(12.706205))
    assert contrast([seeds(1)], {0: 1}) == (1.0, None)


def test_a_difference_is_taken_at_each_seed() -> None:
    """What a seed does to both cells cancels: 4 - 1, 6 - 2 and 8 - 3 are 3, 4 and 5."""
    both = [seeds(4, 6, 8), seeds(1, 2, 3)]
    assert contrast(both, COMPARED) == (4.0, pytest.approx(4.302653 / math.sqrt(3)))
    assert contrast([seeds(5, 6, 7), seeds(1, 2, 3)], COMPARED) == (4.0, 0.0)
    opposed = [seeds(4, 6, 8), seeds(3, 2, 1)]  # 1, 4 and 7
    assert contrast(opposed, COMPARED) == (4.0, pytest.approx(3 * 4.302653 / math.sqrt(3)))


def test_of_other_seeds_nothing_is_taken() -> None:
    """Seeds 0 to 2 of four in another order, and not the fourth, which the other has not."""
    one = {3: 100.0, 2: 8.0, 1: 6.0, 0: 4.0}
    assert contrast([one, seeds(1, 2, 3)], COMPARED) == contrast(
        [seeds(4, 6, 8), seeds(1, 2, 3)], COMPARED
    )


def test_one_seed_has_the_pooled_deviation_of_comparable_cells_with_three() -> None:
    """Variances 1 and 4 of 2 degrees of freedom each: 2.5 of 4; two seeds do not count."""
    comparable = [seeds(1, 2, 3), seeds(0, 2, 4), seeds(0, 100), seeds(9)]
    t = 4.302653  # of 2 degrees of freedom all the same
    assert contrast([seeds(7)], {0: 1}, comparable) == (7.0, pytest.approx(t * math.sqrt(2.5)))
    assert contrast([seeds(7)], {0: 1}, comparable[2:]) == (7.0, None)
    assert contrast([seeds(7)], {0: 1}, [seeds(5, 5, 5)]) == (7.0, None)  # says nothing of others


def test_two_seeds_count_beside_comparable_cells() -> None:
    """Squares of 2, 8 and, of 5 and 9 themselves, 8, with 5 degrees of freedom: a variance of 3.6.

    Of t there are 2 degrees all the same.
    """
    comparable = [seeds(1, 2, 3), seeds(0, 2, 4)]
    half = pytest.approx(4.302653 * math.sqrt(3.6 / 2))
    assert contrast([seeds(5, 9)], {0: 1}, comparable) == (7.0, half)
    both = [seeds(5, 9), seeds(0, 0)]  # 5 and 9; of a difference the others' variance of 0.5 is 1
    of_differences = pytest.approx(4.302653 * math.sqrt((1 * 2 + 8) / 3 / 2))
    comparable = [seeds(5.5, 7, 8.5), seeds(1.5, 2, 2.5)]
    assert contrast(both, COMPARED, comparable) == (7.0, of_differences)


def test_two_equal_seeds_say_nothing_of_the_noise() -> None:
    assert contrast([seeds(5, 5)], {0: 1}) == (5.0, None)
    assert contrast([seeds(35, 35), seeds(40, 40)], COMPARED) == (-5.0, None)
    assert contrast([seeds(5, 5, 5)], {0: 1}) == (5.0, 0.0)


def test_a_difference_at_one_seed_has_what_the_seeds_leave_of_it() -> None:
    """Less the seeds' means, (-1.5, 0, 1.5) and (-.5, 0, .5) are (-.5, 0, .5) and (.5, 0, -.5).

    These are squares of 1 with 2 degrees of freedom: a variance of 0.5, of a difference 1.
    """
    comparable = [seeds(5.5, 7, 8.5), seeds(1.5, 2, 2.5)]
    expected = (2.0, pytest.approx(4.302653))
    assert contrast([seeds(9), seeds(7)], COMPARED, comparable) == expected
    four = [seeds(9), seeds(7), seeds(1), seeds(1)]
    gain = {0: 1, 1: -1, 2: -1, 3: 1}
    assert contrast(four, gain, comparable) == (2.0, pytest.approx(4.302653 * math.sqrt(2)))
    alone = contrast([seeds(9), seeds(7)], COMPARED, [seeds(1, 2, 3)])  # as if seeds had no effect
    assert alone == (2.0, pytest.approx(4.302653 * math.sqrt(2)))
    alike = [seeds(0.1, 0.2, 0.3), seeds(0.4, 0.5, 0.6)]
    assert contrast([seeds(9), seeds(7)], COMPARED, alike) == (2.0, None)


THREE = st.tuples(*[st.integers(-9, 9)] * 3)


@given(numbers=st.tuples(THREE, THREE, THREE, THREE), shifts=THREE)
def test_what_seeds_do_to_all_cells_changes_no_difference(numbers, shifts) -> None:
    """Neither of three seeds, nor of one with the deviation of the other two cells."""
    cells = [seeds(*own) for own in numbers]
    moved = [{seed: own[seed] + shifts[seed] for seed in own} for own in cells]
    for count in (3, 1):
        before, after = (
            contrast([seeds(*list(own.values())[:count]) for own in each[:2]], COMPARED, each[2:])
            for each in (cells, moved)
        )
        assert after == (
            pytest.approx(before[0], abs=1e-9),
            before[1] and pytest.approx(before[1], abs=1e-5),
        )


def test_ratios_have_the_interval_of_their_logarithms() -> None:
    e = math.e
    one = contrast([seeds(e, e**2, e**3)], {0: 1}, logarithm=True)
    assert one == (
        pytest.approx(math.log((e + e**2 + e**3) / 3)),
        pytest.approx(4.302653 / math.sqrt(3)),
    )
    twice = [seeds(2, 20, 200), seeds(1, 10, 100)]
    assert contrast(twice, COMPARED, logarithm=True) == (
        pytest.approx(math.log(2)),
        pytest.approx(0.0, abs=1e-12),
    )


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
        ((3.0, 7.0), {"low": -2.0, "high": 2.0}, "fails"),  # which wide intervals can show, too
    ],
)
@pytest.mark.parametrize("noise", [0.0, 2.5])
def test_a_claim_holds_fails_or_is_open_by_its_interval(interval, bounds, verdict, noise) -> None:
    """With a noise of 2.5, which no interval within 2 of 0 has room for, it is not open."""
    low, high = interval
    unsure = "undecidable" if noise and "high" in bounds else "open"
    expected = unsure if verdict == "open" else verdict
    assert judge(claimed(**bounds), Interval(low, (low + high) / 2, high), noise) == expected


@pytest.mark.parametrize(("noise", "verdict"), [(1.9, "open"), (2.0, "undecidable")])
def test_a_spread_below_the_noise_is_undecidable(noise: float, verdict: str) -> None:
    """At most 2 is 2 above the least that a spread can be, 0."""
    assert judge(claimed("spread", high=2.0), Interval(0.0, 0.5, 2.5), noise) == verdict


@pytest.mark.parametrize(("noise", "verdict"), [(0.04, "open"), (0.06, "undecidable")])
def test_a_share_is_at_most_one(noise: float, verdict: str) -> None:
    """At least 0.95 is 0.05 below the greatest share: one known to 0.06 cannot be known to hold."""
    rule = claimed("consistency", low=0.95)
    assert judge(rule, Interval(0.92, 0.96, 1.0), noise) == verdict


def test_a_ratio_is_judged_as_a_logarithm() -> None:
    """Within 25 %, 8 to 12.5: a factor of 1.25 both ways from the middle, 10."""
    rule = claimed("ratio", low=8.0, high=12.5)
    assert judge(rule, Interval(9.0, 10.0, 11.0), math.log(1.1)) == "holds"
    assert judge(rule, Interval(9.0, 11.0, 13.4), math.log(1.22)) == "open"
    assert judge(rule, Interval(7.0, 10.0, 14.0), math.log(1.26)) == "undecidable"


def test_only_three_seeds_of_their_own_show_that_a_claim_is_undecidable() -> None:
    """Differences of -0.1, 0 and 0.1, known to 0.248; two of them might with a third be known to less."""
    rule = claimed(low=-0.2, high=0.2)
    three = {"x: a": of(0.4, 0.5, 0.6), "x: b": of(0.5, 0.5, 0.5)}
    assert check(rule, three, 0.0).verdict == "undecidable"
    assert check(rule, {**three, "x: b": of(0.5, 0.5)}, 0.0).verdict == "open"
    assert check(claimed(low=-0.3, high=0.2), three, 0.0).verdict == "open"


def test_several_seeds_decide_a_claim_by_their_own_deviation() -> None:
    """Differences of 0.3, 0.5 and 0.4: 0.4 with 4.303 * 0.1 / sqrt(3) = 0.248 either way."""
    cells = {"x: a": of(0.5, 0.6, 0.7), "x: b": of(0.2, 0.1, 0.3)}
    found = check(claimed(low=0.0), cells, 0.0)
    assert found.interval is not None
    assert found.interval.low == pytest.approx(0.4 - 0.24841, abs=1e-4)
    assert found.verdict == "holds"
    assert check(claimed(low=0.2), cells, 0.0).verdict == "open"


def test_one_seed_is_judged_by_cells_of_the_same_table_with_three() -> None:
    """Squares of 2 * 0.05^2 twice, 2 degrees: 0.005, of the difference 0.01: 4.303 * 0.1 either way."""
    one = {"x: a": of(0.6), "x: b": of(0.2)}
    assert check(claimed(low=0.0), one, 0.0).verdict == "one seed"
    three = {"c": of(0.4, 0.5, 0.6), "d": of(0.7, 0.7, 0.7)}
    elsewhere = {f"y: {name}": own for name, own in three.items()}
    assert check(claimed(low=0.0), {**one, **elsewhere}, 0.0).verdict == "one seed"
    same = {f"x: {name}": own for name, own in three.items()}
    found = check(claimed(low=0.0), {**one, **same}, 0.0)
    assert found.verdict == "open"
    assert found.interval is not None
    assert found.interval.low == pytest.approx(0.4 - 0.4302653)
    family = {"x: a", "x: b", "x: d", "x: e"}  # of them d alone has three seeds
    near = {n: Cell({"model": "cnn" if n in family else "2nn"}, 9) for n in (*one, *same)}
    of_d = {**one, **same, "x: d": of(0.69, 0.7, 0.71)}
    alone = check(claimed(low=0.0), of_d, 0.0, ran=near).interval
    assert alone is not None
    assert alone.low == pytest.approx(0.4 - 4.302653 * 0.01 * math.sqrt(2))
    plain = Cell({"model": "cnn"}, 9)
    recording = Cell({"model": "cnn", "record-updates": True}, 9)
    again = {**one, **same, "x: e": of(0.4, 0.5, 0.6)}
    ran = {"x: c": plain, "x: d": Cell({"model": "2nn"}, 9), "x: e": recording}
    assert check(claimed(low=0.0), again, 0.0, ran=ran) == found  # c and e are the same but in name


def test_without_three_seeds_in_its_table_those_of_the_same_network_data_and_partition_count() -> (
    None
):
    cells = {
        "x: a": of(0.6),
        "x: b": of(0.2),
        "y: c": of(0.4, 0.5, 0.6),
        "y: d": of(0.7, 0.7, 0.7),
        "y: e": of(0.0, 0.5, 1.0),
        "z: f": of(0.1, 0.5, 0.9),
    }
    near, far = (
        {"model": "cnn", "partitioner": "dirichlet", "dirichlet.alpha": alpha} for alpha in (9, 1)
    )
    settings = [near, near, near, {**near, "batch-size": 5}, far, {**near, "model": "lstm"}]
    ran = {name: Cell(own, 9) for name, own in zip(cells, settings, strict=True)}
    found = check(claimed(low=0.0), cells, 0.0, ran=ran)
    assert found.interval is not None
    assert found.interval.low == pytest.approx(0.4 - 0.4302653)
    assert check(claimed(low=0.0), cells, 0.0).verdict == "one seed"


def test_an_order_is_known_as_its_least_step_and_a_spread_as_its_widest_pair() -> None:
    """Steps of 0.3 and 0.1; the resolution of 0.05 is wider than the seeds, who agree."""
    cells = {
        f"x: {name}": of(value, value, value)
        for name, value in zip("abc", (0.6, 0.3, 0.2), strict=True)
    }
    names = tuple(cells)
    order = Claim(text="s", where="w", measure="order", cells=names, low=0.0)
    found = check(order, cells, 0.05).interval
    assert found is not None
    assert (found.low, found.high) == (pytest.approx(0.05), pytest.approx(0.15))
    spread = Claim(text="s", where="w", measure="spread", cells=names, high=0.5)
    found = check(spread, cells, 0.05).interval
    assert found is not None
    assert (found.low, found.value, found.high) == (
        pytest.approx(0.35),
        pytest.approx(0.4),
        pytest.approx(0.45),
    )


@pytest.mark.parametrize(("margin", "verdict"), [(0.17, "undecidable"), (0.18, "open")])
def test_an_order_is_undecidable_by_the_noise_of_all_its_steps(margin: float, verdict: str) -> None:
    """Steps of 0.2, known to 0.248, and of 0.1, known exactly: their root mean square is 0.176."""
    cells = {"x: a": of(0.6, 0.7, 0.8), "x: b": of(0.5, 0.5, 0.5), "x: c": of(0.4, 0.4, 0.4)}
    bounds = {"low": 0.0, "high": 2 * margin}
    order = Claim(text="s", where="w", measure="order", cells=tuple(cells), **bounds)
    assert check(order, cells, 0.0).verdict == verdict


def test_the_end_that_speaks_against_an_order_or_a_spread_is_at_95_percent_for_all() -> None:
    """Steps of 0 +- 0.0248; of two at once t is 6.205, with 1 - 0.05 / 2, and of three pairs 7.649."""
    a, b, c = (seeds(0.5, 0.5, 0.5), seeds(0.5, 0.51, 0.49), seeds(0.5, 0.5, 0.5))
    cells = {f"x: {name}": of(*own.values()) for name, own in zip("abc", (a, b, c), strict=True)}
    root = 0.01 / math.sqrt(3)
    order = Claim(text="s", where="w", measure="order", cells=tuple(cells), low=0.1)
    found = check(order, cells, 0.0).interval
    assert found is not None
    assert found.low == pytest.approx(-4.302653 * root, abs=1e-8)
    assert found.high == pytest.approx(6.205347 * root, abs=1e-8)
    apart = {**cells, "x: a": of(0.7, 0.7, 0.7)}  # 0.2 from b, known to 0.01 / sqrt(3), and from c
    spread = Claim(text="s", where="w", measure="spread", cells=("x: a", "x: b"), high=0.1)
    found = check(spread, apart, 0.0).interval  # a pair is compared once
    assert found is not None
    assert (found.low, found.high) == (
        pytest.approx(0.2 - 4.302653 * root),
        pytest.approx(0.2 + 4.302653 * root),
    )
    three = {**apart, "x: c": of(0.69, 0.7, 0.71)}
    spread = Claim(text="s", where="w", measure="spread", cells=tuple(three), high=0.1)
    found = check(spread, three, 0.0).interval
    assert found is not None
    halves = [root, root, math.sqrt(3) * root]  # of a and b, a and c, b and c
    assert found.low == pytest.approx(0.2 - 7.648841 * halves[0], abs=1e-6)
    assert found.high == pytest.approx(0.2 + 4.302653 * halves[2], abs=1e-6)


def test_an_accuracy_is_between_nothing_and_all() -> None:
    share = Claim(text="s", where="w", measure="value", cells=("x: a",), low=0.5)
    found = check(share, {"x: a": of(0.98, 0.99, 0.93)}, 0.0).interval
    assert found is not None
    assert found.high == 1.0
    found = check(share, {"x: a": of(0.1, 0.01, 0.2)}, 0.0).interval
    assert found is not None
    assert found.low == 0.0


def test_an_interval_may_touch_the_bounds() -> None:
    assert judge(claimed(low=1.0, high=3.0), Interval(1.0, 2.0, 3.0)) == "holds"
    assert judge(claimed(low=3.0), Interval(1.0, 2.0, 3.0)) == "open"
    assert judge(claimed(high=1.0), Interval(1.0, 2.0, 3.0)) == "open"


def test_noise_is_of_cells_with_as_many_clients_a_round() -> None:
    cells = {"x: a": of(0.6), "x: b": of(0.2), "y: c": of(0.4, 0.5, 0.6)}
    few, all_ = ({"model": "cnn", "partitioner": "iid", "fraction-train": c} for c in (0.1, 1.0))
    for others, verdict in ((few, "open"), (all_, "one seed")):
        ran = {"x: a": Cell(few, 9), "x: b": Cell(few, 9), "y: c": Cell(others, 9)}
        assert check(claimed(low=0.0), cells, 0.0, ran=ran).verdict == verdict


def test_a_spread_is_at_least_nothing() -> None:
    """Finals 0.01 apart with a resolution of 0.05: 0 to 0.06, since no spread is negative."""
    cells = {"x: a": of(0.5, 0.5, 0.5), "x: b": of(0.51, 0.51, 0.51)}
    found = check(claimed("spread", high=0.1), cells, 0.05).interval
    assert found is not None
    assert (found.low, found.high) == (0.0, pytest.approx(0.06))


def test_a_cell_with_a_number_of_nothing_says_nothing_of_ratios() -> None:
    three = [seeds(1, 2, 3)]
    alone = contrast([seeds(7)], {0: 1}, three, logarithm=True)
    assert contrast([seeds(7)], {0: 1}, [*three, seeds(0, 1, 2)], logarithm=True) == alone
