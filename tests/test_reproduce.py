"""Reproducing items: at smoke scale, in parts, in limited time; costs, lists, results on disk."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from fedapp.cli.main import app
from fedapp.config.read import read_config
from fedapp.config.settings import Scalar
from fedapp.data.load import load_dataset
from fedapp.errors import CheckpointError, ConfigError
from fedapp.studies.papers import costs
from fedapp.studies.papers.catalogue import Experiment, choose
from fedapp.studies.papers.cells import make_cells
from fedapp.studies.papers.costs import Cost
from fedapp.studies.papers.options import ReproduceOptions
from fedapp.studies.papers.publish import refuse_to_overwrite
from fedapp.studies.papers.reproduce import (
    done_so_far,
    estimated_costs,
    prepare,
    publish_done,
    reproduce,
)
from fedapp.studies.papers.results import collect
from fedapp.studies.papers.schema import SCALES, ScaleName
from fedapp.studies.papers.stored import read_results, results_of, write_results
from fedapp.studies.sweep.identity import Request
from fedapp.studies.sweep.record import RunRecord
from fedapp.studies.sweep.scheduler import Schedule, SchedulerOptions
from fedapp.studies.sweep.search import Cell, replay, search
from fedapp.studies.sweep.store import Store
from fedapp.studies.sweep.table import read_records, update_table
from fedapp.training.client import TrainReply, TrainRequest
from tests.paper_results import EXPERIMENTS, TABLES, cell, run_result, setup, table_results


def test_items_are_chosen_by_name_or_by_its_start() -> None:
    assert [name for name, _ in choose(["mcmahan-table1"])] == [
        "mcmahan-table1-2nn",
        "mcmahan-table1-cnn",
    ]
    assert [name for name, _ in choose(["seo-fig1"])] == ["seo-fig1"]
    assert len(list(choose(["all"]))) == len(EXPERIMENTS)
    with pytest.raises(ConfigError, match="there is no such table or figure"):
        list(choose(["mcmahan-table9"]))


def test_a_drawing_is_reproduced_with_its_page_and_the_index(tmp_path: Path) -> None:
    options = ReproduceOptions(
        "smoke", None, tmp_path / "runs", tmp_path / "out", SchedulerOptions(jobs=1), {}
    )
    reproduce(["seo-fig11", "mcmahan-fig1"], options, Console(quiet=True))
    for name in ("seo-fig11", "mcmahan-fig1"):
        files = {path.name for path in (tmp_path / "out" / name).iterdir()}
        assert files == {"smoke.json", "smoke.png", "index.md"}
        assert "](smoke.png)" in (tmp_path / "out" / name / "index.md").read_text()
    numbers = read_results(tmp_path / "out", "mcmahan-fig1", "smoke").numbers
    middle = numbers["thetas"].index(min(numbers["thetas"], key=lambda t: abs(t - 0.5)))
    assert numbers["shared"][middle] < min(numbers["shared parents"])
    assert numbers["separate"][middle] > min(numbers["separate parents"])
    index = (tmp_path / "out" / "index.md").read_text()
    assert "(seo-fig11/index.md)" in index
    assert "| not run | not run | `seo-fig9` |" in index
    assert "| smoke alone | smoke | `seo-fig11` |" in index


@pytest.mark.process
@pytest.mark.nightly
def test_a_table_is_reproduced_at_smoke_scale(tmp_path: Path) -> None:
    options = ReproduceOptions(
        "smoke", None, tmp_path / "runs", tmp_path / "out", SchedulerOptions(jobs=2), {}
    )
    reproduce(["mcmahan-table1-2nn"], options, Console(quiet=True))
    results = read_results(tmp_path / "out", "mcmahan-table1-2nn", "smoke")
    ran = {name for name, found in results.cells.items() if found.runs}
    assert {name.split(" | ")[0] for name in ran} == {"C = 0.0", "C = 0.5"}
    assert all(len(results.cells[name].tried) >= 3 for name in ran)
    assert "B = 10" in (tmp_path / "out" / "mcmahan-table1-2nn" / "index.md").read_text()


@pytest.mark.process
@pytest.mark.usefixtures("forked_workers")
def test_chosen_cells_are_run_and_what_is_done_already_is_shown(tmp_path: Path) -> None:
    def chosen(*only: str) -> set[str]:
        folders = tmp_path / "runs", tmp_path / "out"
        options = ReproduceOptions("smoke", None, *folders, SchedulerOptions(jobs=2), {}, only=only)
        reproduce(["mcmahan-table1-2nn"], options, Console(quiet=True))
        results = read_results(tmp_path / "out", "mcmahan-table1-2nn", "smoke")
        return {name for name, found in results.cells.items() if found.runs}

    assert chosen("C = 0.0 | IID, B = 10") == {"C = 0.0 | IID, B = 10"}
    # A search begins with one run; the rates beside it are then run at the same time.
    assert {path.name for path in (tmp_path / "runs").glob("*.log")} == {
        "worker-1.log",
        "worker-2.log",
    }
    both = {"C = 0.0 | IID, B = 10", "C = 0.0 | IID, B = ∞"}
    assert chosen("C = 0.0 | IID, B = ∞") == both
    kept = (tmp_path / "out" / "mcmahan-table1-2nn" / "smoke.json").read_bytes()
    others = ReproduceOptions(
        "smoke",
        None,
        tmp_path / "other runs",
        tmp_path / "out",
        SchedulerOptions(jobs=1),
        {},
        only=("C = 0.0 | IID, B = 10",),
    )
    console = Console(file=io.StringIO(), width=400)
    problem = reproduce(["mcmahan-table1-2nn"], others, console)
    assert "has results of 1 cells whose runs are neither in" in problem
    assert (tmp_path / "out" / "mcmahan-table1-2nn" / "smoke.json").read_bytes() == kept
    damaged = tmp_path / "out" / "seo-fig11" / "smoke.json"
    damaged.parent.mkdir()
    damaged.write_text("{")
    with pytest.raises(ConfigError, match=r"seo-fig11/smoke\.json: cannot be read .* Delete it"):
        reproduce(["seo-fig11"], replace(others, only=()), console)
    assert damaged.read_text() == "{"
    options = ReproduceOptions(
        "cpu", None, tmp_path / "runs", tmp_path / "out", SchedulerOptions(jobs=1), {}, only=("x",)
    )
    with pytest.raises(ConfigError, match=r"--only x: .* choose another with --scale"):
        reproduce(["mcmahan-table3"], options, Console(quiet=True))
    with pytest.raises(ConfigError, match=r"--only C = 2: .* One of: C = 0\.0; IID, B = ∞; "):
        chosen("C = 2")


@pytest.mark.process
@pytest.mark.nightly
def test_when_the_time_is_up_what_is_done_is_shown_and_the_rest_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cells that cost least come first: those in which one client trains."""

    def left(_: Schedule) -> float:
        return 0.0 if len(list(tmp_path.glob("runs/*/record.json"))) >= 8 else 60.0

    monkeypatch.setattr(Schedule, "seconds_left", left)
    scheduler = SchedulerOptions(jobs=1, hours=1.0)
    options = ReproduceOptions("smoke", None, tmp_path / "runs", tmp_path / "out", scheduler, {})
    console = Console(file=io.StringIO())
    reproduce(["algorithms-mnist-shards", "mcmahan-table1-2nn"], options, console)
    results = read_results(tmp_path / "out", "mcmahan-table1-2nn", "smoke")
    ran = {name for name, found in results.cells.items() if found.runs}
    assert ran
    assert {name.split(" | ")[0] for name in ran} == {"C = 0.0"}
    assert not (tmp_path / "out" / "algorithms-mnist-shards").exists()  # nothing of it is done
    assert "1 hours are over" in console.file.getvalue()
    row = (tmp_path / "out" / "mcmahan-table1-2nn" / "index.md").read_text()
    assert "not run" in row


def test_costs_are_of_the_digits_as_they_are() -> None:
    digits = load_dataset(read_config({}))
    assert costs.SIZES["digits"] == (len(digits.train), len(digits.test))


def cost_of(experiment: Experiment, scale: ScaleName) -> Cost:
    """Return the cost of an experiment's distinct runs."""
    return costs._sum(costs._runs_of("", experiment, scale, {}, ()).values())


def test_costs_add_up() -> None:
    experiment = EXPERIMENTS["seo-fig5"]
    cost = cost_of(experiment, "smoke")
    assert (cost.runs, cost.rounds) == (4, 60)
    assert cost.seconds > 0
    tuned = cost_of(TABLES["mcmahan-table1-2nn"], "smoke")
    assert tuned.runs == 8 * 3


def test_the_cost_of_a_local_step_is_that_of_a_cohort(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 10 clients with B = 10 that take 10 ms a step: 32 of 60 steps take 0.3 s."""
    clock, steps = [0.0], list[int]()

    def train(_: object, request: TrainRequest, *rest: Any) -> TrainReply:
        *_, data_of = rest
        assert request.clients == tuple(range(10))
        steps.append(len(data_of(0)) // 10)
        clock[0] += 0.01 * steps[-1]
        return TrainReply({}, {}, {}, (), {})

    monkeypatch.setattr(costs, "train_cohort", train)
    monkeypatch.setattr(costs.time, "process_time", lambda: clock[0])
    measure = costs._example_seconds.__wrapped__
    of_model = ("2nn", (), "scale", "batched")
    assert measure("mnist", 10, 60, 10, *of_model) == pytest.approx(0.01 / (10 * 10))
    assert steps == [1, 1, 2, 4, 8, 16, 32]
    assert measure("mnist", 10, 3, 10, *of_model) == pytest.approx(0.01 / (10 * 10))
    assert steps[7:] == [1, 1, 2, 3]


@pytest.mark.parametrize("name", list(EXPERIMENTS))
def test_every_item_has_a_cost_at_every_scale(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def seconds(data: str, clients: int, steps: int, batch: int, *_: object) -> float:
        assert data in costs.TASKS
        assert min(clients, steps, batch) > 0
        return 1e-3

    monkeypatch.setattr(costs, "_example_seconds", seconds)
    for scale in SCALES:
        cost = cost_of(EXPERIMENTS[name], scale)
        assert (cost.runs == 0) == (cost.rounds == 0) == (cost.seconds == 0)


def test_a_run_that_several_cells_and_items_share_costs_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The base run of Figure 5, 60 rounds of a second each, is that of Figure 4's three lines."""
    monkeypatch.setattr(costs, "_round_seconds", lambda _: 1.0)
    items = {name: EXPERIMENTS[name] for name in ("seo-fig4", "seo-fig5")}
    four, five = (cost_of(experiment, "cpu") for experiment in items.values())
    assert (four.runs, four.rounds) == (12 * 3, 12 * 3 * 80)  # of 14 lines three are one
    assert (five.runs, five.seconds) == (4 * 3, 4 * 3 * 80.0)
    listed = costs.list_experiments(items, "cpu", 1, {})
    assert [list(column.cells)[-1] for column in listed.columns] == [
        *("total", "each run once", "45", "3,600", "60 min")
    ]


def test_runs_of_which_one_records_updates_cost_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figure 12's two lines are base runs of Figures 4 and 10 with their updates recorded."""
    monkeypatch.setattr(costs, "_round_seconds", lambda _: 1.0)
    runs = [cost_of(EXPERIMENTS[name], "cpu").runs for name in ("seo-fig12", "seo-fig4")]
    items = {name: EXPERIMENTS[name] for name in ("seo-fig12", "seo-fig4")}
    listed = costs.list_experiments(items, "cpu", 1, {})
    [*each, total] = (int(count) for count in listed.columns[2].cells)
    assert each == runs
    assert total == sum(runs) - 3  # IID with three seeds


def test_the_list_says_what_a_part_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "_example_seconds", lambda *_: 1e-3)
    for only, runs in (
        (["C = 0.0"], 12),
        (["C = 0.0", "C = 0.5"], 24),
        (["C = 0.0 | IID, B = 10"], 3),
    ):
        chosen = [part for each in only for part in ("--only", each)]
        said = (
            CliRunner().invoke(app, ["reproduce", "mcmahan-table1-2nn", "--list", *chosen]).output
        )
        assert f" {runs} " in said
    wrong = CliRunner().invoke(
        app, ["reproduce", "mcmahan-table1-2nn", "--list", "--only", "C = 7"]
    )
    assert wrong.exit_code == 1


def test_the_list_needs_no_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "_example_seconds", lambda *_: 1e-3)
    monkeypatch.delenv("FEDAPP_DATA", raising=False)
    said = CliRunner().invoke(app, ["reproduce", "seo-fig5", "--list", "--scale", "cpu"])
    assert said.exit_code == 0, said.output
    assert "seo-fig5" in said.output


@pytest.mark.parametrize(
    ("option", "folder", "said"),
    [
        ("--data", "nosuch", "there is no such folder"),
        ("--from", "nosuch", "no table of records"),
        ("--data", "~no-such-user/data", "no home folder of this user"),
        ("--from", "~no-such-user/results", "no home folder of this user"),
        ("--runs", "~no-such-user/runs", "no home folder of this user"),
    ],
)
def test_folders_that_are_not_there_are_refused(
    option: str, folder: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = ["reproduce", "seo-fig11", "--to", "to", "--runs", "runs", option, folder]
    found = CliRunner().invoke(app, run)
    assert (found.exit_code, said in str(found.exception or found.output)) == (1, True)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "key", ["num-server-rounds", "target-accuracy", "seed", "run-dir", "resume"]
)
def test_what_no_cell_would_take_over_is_refused(key: str, tmp_path: Path) -> None:
    options = ReproduceOptions(
        "smoke", None, tmp_path / "runs", tmp_path / "out", SchedulerOptions(jobs=1), {key: 1}
    )
    with pytest.raises(ConfigError, match=f"--set {key}: has no effect"):
        reproduce(["seo-fig11"], options, Console(quiet=True))


def test_the_list_names_every_item() -> None:
    said = CliRunner().invoke(app, ["reproduce", "seo-fig1", "seo-fig5", "--list"]).output
    assert "seo-fig1" in said
    assert "seo-fig5" in said
    assert "Estimated from steps measured on" in " ".join(said.split())


def test_results_survive_a_round_trip(tmp_path: Path) -> None:
    results = table_results({"E = 1, B = 10 | IID": cell(run_result(50.0))})
    write_results(tmp_path, results)
    again = read_results(tmp_path, "mcmahan-table4", "full")
    assert again == results
    (tmp_path / "mcmahan-table4" / "full.json").write_text("{}")
    with pytest.raises(ConfigError, match="Delete it and make it again"):
        read_results(tmp_path, "mcmahan-table4", "full")


def test_the_time_of_a_run_is_counted_once_and_whole() -> None:
    """One run, of which a cell shows the start and another the whole."""
    whole = RunRecord(run="r", settings={}, status="complete", rounds=[0, 8], accuracy=[0, 1])
    cut = whole.model_copy(update={"rounds": [0], "accuracy": [0], "seconds": 1.0})
    for records in ([whole, cut], [cut, whole]):
        records[records.index(whole)] = whole.model_copy(update={"seconds": 9.0})
        assert collect("x", "cpu", "", {}, records, {}).seconds == 9.0


def test_an_item_that_is_misspelt_is_guessed() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'mcmahan-table4'"):
        list(choose(["mcmahan-tabel4"]))


def recorded_runs(seconds: float, rounds: int = 60) -> list[RunRecord]:
    """Return a record of each run of seo-fig5 at smoke scale."""
    experiment = EXPERIMENTS["seo-fig5"]
    cells = make_cells(experiment, setup(experiment, "smoke")).values()
    requests = [request for each in cells for request in replay(search(each), no_record).missing]
    return [record_of(request, seconds, rounds) for request in requests]


def record_of(request: Request, seconds: float, rounds: int = 60) -> RunRecord:
    """Return a record of a run, evaluated in every round."""
    done = list(range(rounds + 1))
    curve = [0.001 * r for r in done]
    return RunRecord(
        run=request.run,
        settings=request.canonical,
        status="complete",
        rounds=done,
        gradients=done,
        seconds=seconds,
        **dict.fromkeys(("accuracy", "loss", "train_loss"), curve),
    )


def test_a_cell_has_the_first_of_its_seeds_that_are_done(tmp_path: Path) -> None:
    own = Cell({"num-clients": 2}, 3, seeds=(0, 1, 2))
    runs = [own.request({}, seed, 3).run for seed in own.seeds]
    records = {
        run: RunRecord(run=run, settings={}, status="complete", rounds=[3], accuracy=[None])
        for run in runs
    }

    def found(*done: int) -> tuple[int, ...]:
        known = {runs[seed]: records[runs[seed]] for seed in done}
        part, outcome = done_so_far(own, Store(tmp_path, known))
        return part.seeds[: len(outcome.runs)] if outcome else ()

    assert found(0, 1, 2) == (0, 1, 2)
    assert found(0, 1) == (0, 1)
    assert found(0) == found(0, 2) == (0,)
    assert found(1, 2) == found() == ()


@pytest.mark.parametrize(("before", "now", "refused"), [(3, 2, True), (2, 2, False), (1, 2, False)])
def test_results_of_a_cell_are_not_replaced_by_those_of_fewer_seeds(
    before: int, now: int, refused: bool, tmp_path: Path
) -> None:
    options = ReproduceOptions("cpu", None, tmp_path, tmp_path, SchedulerOptions(), {})
    earlier, later = (table_results({"a": cell(*[run_result()] * n)}) for n in (before, now))
    said = refuse_to_overwrite(later, earlier, options)
    assert (
        "results of 1 cells whose runs are neither in --runs nor in --from (a)" in said
    ) == refused


@pytest.mark.parametrize(
    ("before", "now", "refused"),
    [
        ("", " --set momentum=0.9", True),
        (" --set momentum=0.9", "", True),
        (" --set momentum=0.9", " --set momentum=0.90 --set trainer=batched", False),
        ("", " --set trainer=batched --set device=cpu", False),
    ],
)
def test_results_are_not_replaced_by_those_of_other_settings(
    before: str, now: str, refused: bool, tmp_path: Path
) -> None:
    options = ReproduceOptions("cpu", None, tmp_path, tmp_path, SchedulerOptions(), {})
    command, results = "fedapp reproduce x --scale cpu", table_results({"a": cell(run_result())})
    earlier, later = (
        results.model_copy(update={"command": command + given}) for given in (before, now)
    )
    said = refuse_to_overwrite(later, earlier, options)
    assert (f"it is from `{command}{before}`, whose runs had other settings" in said) == refused


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"dataset": "imgs"}, "--set dataset=imgs: what a run costs is known of digits, mnist, "),
        ({"num-clients": 0}, "--set num-clients=0: the clients of an experiment are simulated"),
    ],
)
def test_runs_whose_cost_is_not_known_are_refused(
    given: dict[str, Scalar], said: str, tmp_path: Path
) -> None:
    options = ReproduceOptions("smoke", None, tmp_path, tmp_path, SchedulerOptions(), given)
    with pytest.raises(ConfigError, match=re.escape(said)):
        estimated_costs(prepare(["seo-fig5"], options))


def test_the_first_seed_of_every_cell_is_run_before_the_second(tmp_path: Path) -> None:
    cells = {eta: Cell({"learning-rate": eta}, 3, seeds=(0, 1)) for eta in (0.1, 0.2)}
    plans = {f"{eta}": (lambda own=own: search(own)) for eta, own in cells.items()}
    schedule = Schedule(plans, Store(tmp_path), SchedulerOptions(), Console(quiet=True))
    assert [(name, request.seed) for name, request in schedule._missing_runs()] == [
        *(("0.1", 0), ("0.2", 0), ("0.1", 1), ("0.2", 1))
    ]


def no_record(_: Request) -> None:
    return None


def merged(tmp_path: Path, *recorded: Path) -> dict[str, RunRecord]:
    """Return the records after a command that takes runs from folders, and runs nothing."""
    folders = [part for each in recorded for part in ("--from", str(each))]
    command = ["reproduce", "seo-fig5", "--hours", "0.0005", "--jobs", "1", *folders]
    command += ["--runs", str(tmp_path / "runs"), "--to", str(tmp_path / "to")]
    said = CliRunner().invoke(app, command)
    assert said.exit_code == 0, said.output
    assert not list((tmp_path / "runs").glob("*/metrics.jsonl"))
    return read_records(tmp_path / "to")


def test_records_of_another_folder_become_rows_and_results(tmp_path: Path) -> None:
    runs = recorded_runs(1.0)
    assert len(runs) == 4
    update_table(tmp_path / "old" / "seo.parquet", runs)
    assert merged(tmp_path, tmp_path / "old") == {each.run: each for each in runs}
    assert [path.name for path in (tmp_path / "to").glob("*.parquet")] == ["seo.parquet"]
    [stored] = [read_results(tmp_path / "to", "seo-fig5", "smoke")]
    assert stored is not None
    assert all(run.curve is None for each in stored.cells.values() for run in each.runs)
    records = {each.run: each for each in runs}
    [whole] = results_of(tmp_path / "to", "seo-fig5", records)
    for run in (run for each in whole.cells.values() for run in each.runs):
        assert run.curve is not None
        assert run.curve.rounds == list(range(run.rounds + 1))
        assert run.curve.accuracy == pytest.approx(records[run.run].accuracy[: run.rounds + 1])


def test_results_that_another_command_wrote_meanwhile_are_not_replaced(tmp_path: Path) -> None:
    """Each of the two has runs that the other does not have."""
    works = []
    for name, runs in (("a", recorded_runs(1.0)[:2]), ("b", recorded_runs(1.0)[2:])):
        update_table(tmp_path / name / "seo.parquet", runs)
        folders = (tmp_path / name, tmp_path / "to", SchedulerOptions(), {}, (tmp_path / name,))
        works.append(prepare(["seo-fig5"], ReproduceOptions("smoke", None, *folders)))
    said = [publish_done(work, ["seo-fig5"], Console(quiet=True)) for work in works]
    assert said[0] == ""
    assert "seo-fig5/smoke.json is not overwritten: it has results of 2 cells" in said[1]
    results = read_results(tmp_path / "to", "seo-fig5", "smoke")
    assert results is not None
    assert [len(each.runs) for each in results.cells.values()] == [1, 1, 0, 0]


def test_two_peoples_folders_are_merged_by_row(tmp_path: Path) -> None:
    """One has two runs, and another before; the other has longer runs, and one not asked for."""
    first, second, third, fourth = recorded_runs(1.0)
    longer, again = recorded_runs(2.0, 70)[0], recorded_runs(2.0)[1]
    other = third.model_copy(update={"run": "0" * 16})
    update_table(tmp_path / "a" / "seo.parquet", [first, second, third])
    update_table(tmp_path / "b" / "algorithms.parquet", [longer, again, fourth, other])
    update_table(tmp_path / "to" / "seo.parquet", [other.model_copy(update={"run": "1" * 16})])
    found = merged(tmp_path, tmp_path / "a", tmp_path / "b")
    assert found.pop("1" * 16)  # of another experiment: it stays
    assert found == {each.run: each for each in (longer, again, third, fourth)}
    # Equally long ones in --to are replaced, and longer ones are not.
    update_table(tmp_path / "c" / "seo.parquet", [first, second, third, fourth])
    found = merged(tmp_path, tmp_path / "c")
    assert [found[each.run].seconds for each in (first, second)] == [2.0, 1.0]


def test_a_damaged_table_of_results_is_named_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "to").mkdir()
    (tmp_path / "to" / "seo.parquet").write_text("damaged")
    command = ["reproduce", "seo-fig5", "--to", str(tmp_path / "to"), "--runs", str(tmp_path / "r")]
    said = CliRunner().invoke(app, command)
    assert isinstance(said.exception, CheckpointError)
    assert not (tmp_path / "r").exists()


def test_a_round_costs_its_clients_examples_and_its_evaluation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """5 of 10 clients with 144 digits each, E = 2; a third of 357, every 7 rounds."""
    monkeypatch.setattr(costs, "_example_seconds", lambda *_: 1.0)
    settings = {"num-clients": 10, "fraction-train": 0.5, "local-epochs": 2, "eval-every": 7}
    cell = Cell({"dataset": "digits", **settings}, rounds=1)
    assert costs._round_seconds(cell) == pytest.approx(5 * 2 * 144 + 357 / 3 / 7)
