"""The pinned runs give the numbers that are committed, whichever trainer carries them out.

``tests/golden/runs.py`` is the list. Who changes numbers on purpose writes them anew,
``python -m tests.golden``, in a commit of its own that says why.
"""

from __future__ import annotations

import copy
import runpy
from pathlib import Path

import pytest

from tests.conftest import slow_but
from tests.golden.driver import command
from tests.golden.numbers import differences, found, golden, read, tolerance
from tests.golden.runs import ALGORITHMS, BY_NAME

PINNED = read()


NIGHTLY = {name for name in BY_NAME if name.endswith("-batched")}
SLOW = {name for name in BY_NAME if name.endswith("-together")}
SLOW -= {"fedavg-together", "scaffold-one-together", "scaffold-together"}
SLOW |= {"cropped-cifar", "resnet18-gn"}


@pytest.mark.parametrize("name", slow_but(BY_NAME.keys() - SLOW - NIGHTLY, BY_NAME, SLOW))
def test_a_pinned_run_gives_its_numbers(name: str, tmp_path: Path) -> None:
    now = found(BY_NAME[name], tmp_path)
    assert list(differences(PINNED[golden(name)], now, tolerance(name))) == []


def test_every_algorithm_is_pinned() -> None:
    """The error on an algorithm that there is not lists those that there are."""
    said = command(["run", "algorithm=none-such"])
    assert said.split("One of: ")[1].rstrip(".").split(", ") == sorted(ALGORITHMS)


def test_what_is_pinned_is_what_is_run() -> None:
    assert set(PINNED) == {golden(name) for name in BY_NAME}
    assert all(values["error"] == "" or "Error" in values["error"] for values in PINNED.values())
    for name, values in PINNED.items():
        rounds = values["metrics"]["round"]
        assert rounds == list(range(len(rounds))), name
        assert len(rounds) > 1, name
        assert values["norm"] > 0 or values["error"], name


@pytest.mark.parametrize("change", [1e-15, 1e-8])
def test_a_change_of_a_hundred_millionth_is_seen(change: float) -> None:
    """In a loss, in the norm, and in a projection; what rounding makes is not."""
    pinned = PINNED["fedavg-sequential"]
    for path in (("metrics", "test_loss", 3), ("norm",), ("projections", 5)):
        now = copy.deepcopy(pinned)
        place = now
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] += change * pinned["norm"]
        assert len(list(differences(pinned, now))) == (change > 1e-9)


@pytest.mark.parametrize(
    ("words", "known"), [(["eror"], "errors"), (["numbers", "fedavg"], "fedavg-sequential")]
)
def test_what_is_not_pinned_is_refused(
    words: list[str],
    known: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.argv", ["golden", *words])
    with pytest.raises(SystemExit):
        runpy.run_module("tests.golden", run_name="__main__")
    assert known in capsys.readouterr().err
