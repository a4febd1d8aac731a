"""Every algorithm by its name alone on the digits: what `fedapp run algorithm=NAME` comes to.

    python -m benchmarks.defaults            all, three seeds each, into docs/results/defaults.md
    python -m benchmarks.defaults fedadam    some, whose rows are put beside the others

No other key is set. Ends with exit code 1 where a run failed.
"""

from __future__ import annotations

import functools
import json
import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedapp.cli.generate import ROOT
from fedapp.config.read import read_config
from fedapp.config.registry import FAMILIES
from fedapp.config.run_config import RunConfig
from fedapp.config.settings import kebab
from fedapp.config.training import ALGORITHM_DEFAULTS
from fedapp.runs.directory import RunDirectory
from fedapp.runs.metrics import read_metrics
from fedapp.studies.sweep.identity import Request
from fedapp.studies.sweep.plans import failure, run_plans
from fedapp.studies.sweep.record import RunRecord
from fedapp.studies.sweep.scheduler import SchedulerOptions
from fedapp.studies.sweep.search import Steps, fixed
from fedapp.studies.sweep.store import Store

ROUNDS = int(RunConfig.model_fields["num_server_rounds"].default)
PAGE = ROOT / "docs" / "results" / "defaults.md"
BEGIN, END = "<!-- written by benchmarks.defaults -->", "<!-- end -->"
HEAD = ("| algorithm | test accuracy, mean | least and most | |", "| --- | --- | --- | --- |")

console = Console(highlight=False)


@dataclass(frozen=True)
class Row:
    """What an algorithm's runs, one a seed, came to: test accuracies, and epsilon where it says one."""

    name: str
    accuracies: Sequence[float]
    epsilon: float | None = None

    def __str__(self) -> str:
        mean = sum(self.accuracies) / len(self.accuracies)
        least, most = min(self.accuracies), max(self.accuracies)
        numbers = f"{mean:.1%} | {least:.1%} to {most:.1%}".replace("%", " %")
        said = [*own_values(self.name)]
        if self.epsilon is not None:
            said.append(f"ε = {self.epsilon:.3g}")
        return f"| [`{self.name}`](../algorithms.md#{self.name}) | {numbers} | {', '.join(said)} |"


def algorithms() -> list[str]:
    """Return the names of all algorithms."""
    return list(next(family for family in FAMILIES if family.key == "algorithm").components())


def with_rows(page: str, rows: Sequence[Row]) -> str:
    """Put the rows into the page's table; those of other algorithms stay."""
    head, rest = page.split(BEGIN)
    table, tail = rest.split(END, 1)
    lines = {
        match[1]: match[0] for match in re.finditer(r"^\| \[`(.+?)`\].*$", table, re.MULTILINE)
    }
    lines |= {row.name: str(row) for row in rows}
    ordered = [lines[name] for name in algorithms() if name in lines]
    return "\n".join([f"{head}{BEGIN}", *HEAD, *ordered, END]) + tail


def own_values(name: str) -> list[str]:
    """Return what the algorithm's run has other than plain FedAvg's, without a key being set."""
    own, plain = read_config({"algorithm": name}), read_config({})
    keys = (*ALGORITHM_DEFAULTS, "local_epochs")
    pairs = [(key, getattr(own, key)) for key in keys if getattr(own, key) != getattr(plain, key)]
    return [f"`{kebab(key)} = {json.dumps(value)}`" for key, value in pairs]


def row_of(name: str, records: Sequence[RunRecord], store: Store) -> Row:
    """Return what the runs of an algorithm came to; epsilon is the largest of them."""
    last = [read_metrics(RunDirectory(store.folder(record.run)).metrics)[-1] for record in records]
    spent = [record["epsilon"] for record in last if "epsilon" in record]
    accuracies = [record.final_accuracy() for record in records]
    return Row(name, accuracies, max(spent, default=None))


def main(
    names: Annotated[list[str] | None, typer.Argument(metavar="[ALGORITHM]...")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of each run.")] = ROUNDS,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each algorithm.")] = 3,
    jobs: Annotated[int, typer.Option(min=0, help="Runs at a time. 0: one a core.")] = 0,
) -> None:
    """Run the algorithms at their defaults; write their rows where they have run as the page says."""
    chosen = names or algorithms()
    plans: dict[str, Callable[[], Steps]] = {}
    for name in chosen:
        wanted = [Request.of({"algorithm": name, "seed": seed}, rounds) for seed in range(seeds)]
        plans[name] = functools.partial(fixed, wanted)
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder))
        outcomes = run_plans(plans, store, SchedulerOptions(jobs), console)
        rows = [row_of(name, outcomes[name].runs, store) for name in chosen if name in outcomes]
    typer.echo("\n".join([*HEAD, *map(str, rows)]))
    missing = "" if len(rows) == len(chosen) else "not every algorithm has run"
    if problem := failure(outcomes.values(), store) or missing:
        typer.echo(problem, err=True)
        raise typer.Exit(1)
    if (rounds, seeds) == (ROUNDS, 3):
        PAGE.write_text(with_rows(PAGE.read_text(), rows))


if __name__ == "__main__":
    typer.run(main)
