"""Published results, and results made by hand, for tests of pages, pictures and claims."""

from __future__ import annotations

from fedapp.cli.generate import RESULTS
from fedapp.studies.papers.catalogue import all_experiments
from fedapp.studies.papers.cells import Setup
from fedapp.studies.papers.results import CellResult, Curve, Results, RunResult
from fedapp.studies.papers.schema import SCALES, Scale, Table
from fedapp.studies.papers.stored import read_results
from fedapp.studies.sweep.table import read_records

EXPERIMENTS = all_experiments()
RECORDS = read_records(RESULTS)
PUBLISHED = [
    results
    for name in EXPERIMENTS
    for scale in SCALES
    if (results := read_results(RESULTS, name, scale)) and results.cells
]

TABLES = {
    name: experiment for name, experiment in EXPERIMENTS.items() if isinstance(experiment, Table)
}


def setup(experiment, scale) -> Setup:
    return Setup(
        experiment, scale, experiment.scales.get(scale) or Scale(), {}, lambda name, cut: name
    )


def run_result(needed=None, final=0.5, seed=0, **more) -> RunResult:
    values = {
        "run": "r",
        "seed": seed,
        "rounds": 100,
        "needed": needed,
        "final": final,
        "best": final,
        "least_loss": 1.0,
        "least_loss_round": 5,
        "updates": 1.0,
        "bytes_down": 1000,
        "bytes_up": 1000,
        "seconds": 1.0,
        "problem": "",
    }
    return RunResult(**{**values, **more})


def cell(*runs: RunResult, **more) -> CellResult:
    return CellResult(
        **{"target": 0.97, "participants": 10, "chosen": {"learning-rate": 0.1}, **more},
        runs=list(runs),
    )


def table_results(cells: dict[str, CellResult], name: str = "mcmahan-table4") -> Results:
    experiment = TABLES[name]
    everything = {
        f"{r.label} | {c.label}": CellResult() for r in experiment.rows for c in experiment.columns
    }
    return Results(experiment=name, scale="full", command="c", cells=everything | cells)


def curve(ys) -> Curve:
    count = len(ys)
    return Curve(
        rounds=list(range(count)),
        gradients=[10 * t for t in range(count)],
        accuracy=ys,
        loss=[1 - y for y in ys],
        train_loss=[None, *([0.5] * (count - 1))],
    )


def recorded(seed: int, losses: dict, similarity: dict) -> RunResult:
    row = {"round": 1, "client_train_loss": losses, "similarity": similarity}
    return run_result(seed=seed, agreement=[row])
