"""Every algorithm by its name alone: a configuration that is valid and learns the digits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from benchmarks.defaults import (
    BEGIN,
    END,
    PAGE,
    Row,
    algorithms,
    own_values,
    row_of,
    with_rows,
)
from fedapp.config.read import defaults
from fedapp.studies.sweep.execute import execute_run
from fedapp.studies.sweep.identity import Request
from fedapp.studies.sweep.record import RunRecord
from fedapp.studies.sweep.store import Store
from tests.conftest import slow_but

PRIVATE = {"dp-fedavg", "local-dp"}
"""With noise that protects somebody among 20 clients they need not learn."""
AFTER_FIVE_ROUNDS: Mapping[str, float] = {"fedsgd": 0.25, "krum": 0.7, "fedadagrad": 0.7}
AFTER_FIFTY: Mapping[str, float] = {"fedsgd": 0.8}


def record_of(name: str, rounds: int, folder: Path) -> RunRecord:
    """Return what `fedapp run algorithm=NAME num-server-rounds=ROUNDS` comes to."""
    request = Request.of({"algorithm": name}, rounds)
    record = execute_run(request, Store(folder), lambda *_: False)
    assert record is not None
    return record


@pytest.mark.parametrize("name", slow_but(("fedavg",), algorithms(), ("fedadam", "krum")))
def test_the_defaults_of_every_algorithm_are_valid_and_learn(name: str, tmp_path: Path) -> None:
    record = record_of(name, 5, tmp_path)
    assert (record.status, record.problem, record.last_round) == ("complete", "", 5)
    if name not in PRIVATE:
        assert record.final_accuracy() >= AFTER_FIVE_ROUNDS.get(name, 0.8)


@pytest.mark.nightly
@pytest.mark.parametrize("name", sorted(set(algorithms()) - PRIVATE))
def test_every_algorithm_learns_the_digits_in_fifty_rounds(name: str, tmp_path: Path) -> None:
    assert record_of(name, 50, tmp_path).final_accuracy() >= AFTER_FIFTY.get(name, 0.9)


@pytest.mark.parametrize("name", ["fedadam", "multikrum", "fedsgd"])
def test_every_key_at_its_default_is_the_run_without_them(name: str) -> None:
    """`flwr run` sends all keys, as pyproject.toml has them."""
    every = {**defaults(), "algorithm": name}
    assert Request.of(every, 1).run == Request.of({"algorithm": name}, 1).run


def test_a_row_of_the_table() -> None:
    row = Row("fedadam", [0.97, 0.96, 0.98])
    link = "[`fedadam`](../algorithms.md#fedadam)"
    own = "`server-learning-rate = 0.01`"
    assert str(row) == f"| {link} | 97.0 % | 96.0 % to 98.0 % | {own} |"
    assert str(Row("fedavg", [0.5], epsilon=3.14159)).endswith("| 50.0 % to 50.0 % | ε = 3.14 |")
    assert own_values("fedsgd") == ["`local-epochs = 1`"]


def test_a_row_is_of_the_runs_last_rounds(tmp_path: Path) -> None:
    record = record_of("fedavg", 1, tmp_path)
    assert row_of("fedavg", [record], Store(tmp_path)) == Row("fedavg", [record.accuracy[-1]])


def test_the_table_alone_is_written_anew() -> None:
    page = PAGE.read_text()
    table = page.split(BEGIN)[1].split(END)[0].strip("\n")
    assert with_rows(page, []) == page
    changed = with_rows(page, [Row("krum", [0.5, 0.7])])
    [line] = [line for line in table.splitlines() if "`krum`" in line]
    assert changed == page.replace(line, str(Row("krum", [0.5, 0.7])))
    assert with_rows(page.replace(f"{line}\n", ""), [Row("krum", [0.5, 0.7])]) == changed


def test_the_table_has_every_algorithm() -> None:
    table = PAGE.read_text().split(BEGIN)[1].split(END)[0]
    named = [line.split("`")[1] for line in table.splitlines() if line.startswith("| [")]
    assert named == algorithms()
