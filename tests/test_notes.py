"""Numbers in notes: filled from results, or listed with what they are."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from fedapp.cli.generate import RESULTS
from fedapp.errors import ConfigError
from fedapp.studies.papers.catalogue import all_experiments
from fedapp.studies.papers.pages.markdown import NOT_RUN
from fedapp.studies.papers.pages.notes import PLACEHOLDER, fill, finder
from fedapp.studies.papers.results import Results
from fedapp.studies.sweep.table import read_records
from tests.paper_results import cell, curve, run_result, table_results

STATED = Path(__file__).parent / "golden" / "stated_numbers.json"
"""Decimal numbers that notes state by hand, by kind and experiment."""
KINDS = {"published", "setting"}
"""A paper's number; a setting, or what follows from settings."""
CODE = re.compile(r"```.*?```|`[^`]*`", re.DOTALL)
DECIMAL = re.compile(r"(?<![\w.])\d[\d,]*\.\d+(?:e-?\d+)?(?![\w.]*\d)")


RISING = [0.5, 0.9, 0.96, 0.98, 0.98]


def found(experiment: str, scale: str) -> Results | None:
    """Return results of two cells: 100 and 300 rounds over two seeds, and 50."""
    if scale != "cpu":
        return None
    runs = [
        run_result(100.0, 0.5, curve=curve([0.1, 0.25]), least_loss=1.234),
        run_result(300.0, 0.6, seed=1, curve=curve([0.1, 0.35]), least_loss=3.0),
    ]
    return table_results(
        {"a | IID": cell(*runs), "b | IID": cell(run_result(50.0, curve=curve(RISING)))}
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{{cpu needed of a | IID}} rounds", "200 rounds"),
        ("{{cpu needed of mcmahan-table4: a | IID}}", "200"),
        ("{{cpu needed#1 of a | IID}}", "300"),
        ("{{cpu lowest needed of a | IID}}", "100"),
        ("{{cpu highest final of a | IID}} %", "60.00 %"),
        ("{{cpu final of a | IID ~1}} %", "55.0 %"),
        ("{{cpu accuracy@1 of a | IID}} %", "30.00 %"),
        ("{{cpu least_loss#0 of a | IID}}", "1.23"),
        # 97 % between 96 and 98 % in rounds 2 and 3; of rounds 0, 2 and 4 between 2 and 4
        ("{{cpu needed/1 of b | IID}}", "2.5"),
        ("{{cpu needed/2 of b | IID}}", "3"),
        ("{{cpu needed/3 of a | IID}}", NOT_RUN),
        ("{{cpu needed of a | IID over needed of b | IID}} times", "2.0 times"),  # at seed 0
        ("{{cpu highest final of a | IID less lowest final of a | IID ~1}} points", "10.0 points"),
        ("{{cpu training_loss of a | IID}}", NOT_RUN),
        ("{{cpu needed of E = 1, B = 10 | IID}}", NOT_RUN),
        ("{{full needed of a | IID}}", NOT_RUN),
        ("{{cpu needed of a | IID}} and {{cpu needed of b | IID}}", "200 and 50"),
    ],
)
def test_a_placeholder_is_filled_from_the_results(text: str, said: str) -> None:
    assert fill(text, found) == said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{{cpu needed of c | IID}}", "no such number or cell"),
        ("{{cpu 1 + 1 of a | IID}}", "no such number or cell"),
        ("{{cpu neded of a | IID}}", "no such number or cell"),
        ("{{cpu acuracy@1 of a | IID}}", "no such number or cell"),
        ("{{cpu final/1 of a | IID}}", "no such number or cell"),
        ("{{needed}}", "Write it as"),
    ],
)
def test_a_placeholder_of_nothing_is_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        fill(text, found)
    with pytest.raises(ConfigError, match="no such experiment"):
        fill("{{cpu needed of table9: a | IID}}", finder(RESULTS, "seo-fig4", {}))


def notes_of(name: str) -> str:
    own = all_experiments()[name]
    return "\n".join([own.about, own.differs, *(scale.note for scale in own.scales.values())])


def test_all_placeholders_of_published_notes_are_filled() -> None:
    records, filled = read_records(RESULTS), 0
    for name in all_experiments():
        find = finder(RESULTS, name, records)
        for match in PLACEHOLDER.finditer(notes_of(name)):
            assert fill(match[0], find) != NOT_RUN, (name, match[0])
            filled += 1
    assert filled >= 60


def stated(name: str) -> list[str]:
    """Return the numbers with a decimal in a note, but for code and placeholders."""
    return sorted(set(DECIMAL.findall(CODE.sub("", PLACEHOLDER.sub("", notes_of(name))))))


def test_every_number_that_a_note_states_by_hand_is_published_or_a_setting() -> None:
    """What was measured is a placeholder."""
    listed = json.loads(STATED.read_text())
    assert listed.keys() == KINDS
    by_hand = {
        name: sorted(number for kind in listed.values() for number in kind.get(name, ()))
        for name in {name for kind in listed.values() for name in kind}
    }
    assert {name: numbers for name in all_experiments() if (numbers := stated(name))} == by_hand
