"""``fedapp reproduce --queue``: the cheapest cell first, each written once done, and what is left."""

from __future__ import annotations

import io
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from fedapp.cli.main import app
from fedapp.studies.papers import cell_queue, costs
from fedapp.studies.papers.cell_queue import Waiting, run_queue, summary, waiting_cells
from fedapp.studies.papers.costs import Cost, costs_of_cells
from fedapp.studies.papers.options import ReproduceOptions
from fedapp.studies.papers.reproduce import prepare
from fedapp.studies.papers.stored import read_results
from fedapp.studies.sweep.scheduler import SchedulerOptions
from fedapp.studies.sweep.search import Cell, RateGrid, replay, search
from fedapp.studies.sweep.table import read_records, update_table
from tests.paper_results import EXPERIMENTS
from tests.test_reproduce import record_of, recorded_runs

CELLS = [f"seo-fig5: PP | {m} of 10 clients" for m in (10, 5, 2, 1)]


def options(folder: Path, *, hours: float = 0.0, **more) -> ReproduceOptions:
    scheduler = SchedulerOptions(jobs=1, hours=hours)
    return ReproduceOptions("smoke", None, folder / "runs", folder / "out", scheduler, {}, **more)


@pytest.fixture
def fewer_clients_cost_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a round of all clients take 100 s, and one of a tenth of them 1,000 s."""

    def seconds(cell: Cell) -> float:
        return 100.0 / float(cell.settings.get("fraction-train", 1.0))

    monkeypatch.setattr(costs, "_round_seconds", seconds)


def queue_of(folder: Path, names: list[str], **more) -> list[Waiting]:
    return waiting_cells(prepare(names, options(folder, **more)))


@pytest.mark.usefixtures("fewer_clients_cost_more")
def test_the_cheapest_cell_is_first(tmp_path: Path) -> None:
    """15 rounds each of 100, 200, 500 and 1,000 seconds."""
    queue = queue_of(tmp_path, ["seo-fig5"])
    assert [each.name for each in queue] == CELLS
    assert [each.seconds for each in queue] == pytest.approx([1500, 3000, 7500, 15000])
    part = queue_of(tmp_path, ["seo-fig5"], only=("1 of 10 clients", "5 of 10 clients"))
    assert [each.name for each in part] == [CELLS[1], CELLS[3]]


@pytest.mark.usefixtures("fewer_clients_cost_more")
def test_cells_that_are_done_and_cells_of_several_experiments_are_not_in_it_twice(
    tmp_path: Path,
) -> None:
    names = ["seo-fig5", "seo-claims"]
    own = [each.name for each in queue_of(tmp_path, names)]
    assert set(CELLS) <= set(own)
    assert not [name for name in own if "seo-claims: seo-fig5" in name]
    folder = tmp_path / "recorded"
    folder.mkdir()
    records = recorded_runs(1.0)
    update_table(folder / "seo.parquet", records[:3])
    left = queue_of(tmp_path, ["seo-fig5"], recorded=(folder,))
    assert len(left) == 1
    update_table(folder / "seo.parquet", records)
    assert queue_of(tmp_path, ["seo-fig5"], recorded=(folder,)) == []


@pytest.mark.usefixtures("fewer_clients_cost_more")
def test_of_equal_cells_the_one_that_records_updates_is_first(tmp_path: Path) -> None:
    queue = [each.name for each in queue_of(tmp_path, ["seo-fig9", "seo-fig12"])]
    assert queue.index("seo-fig12: Dirichlet 0.1") < queue.index("seo-fig9: alpha | α = 0.1")


def test_what_is_left_and_its_cost() -> None:
    """10 and 20 hours are 15 on two cores."""
    cells = [Waiting("a: x", 36_000.0), Waiting("a: y", 72_000.0)]
    assert summary(cells, 2) == (
        "2 cells are left, about 15.0 h with 2 runs in parallel; next a: x, about 5.0 h."
    )
    assert summary(cells[:1], 1).startswith("1 cell is left, about 10.0 h")
    assert summary([], 1) == "No cell is left."


@pytest.mark.usefixtures("fewer_clients_cost_more")
def test_the_list_shows_the_order_and_runs_nothing(tmp_path: Path) -> None:
    folders = ["--runs", str(tmp_path / "runs"), "--to", str(tmp_path / "out")]
    command = ["reproduce", "seo-fig5", "--queue", "--list", "--jobs", "1", *folders]
    said = CliRunner().invoke(app, command, env={"COLUMNS": "120"})
    assert said.exit_code == 0, said.output
    places = [said.output.index(name) for name in CELLS]
    assert places == sorted(places)
    assert "7.5 h" in said.output  # of all four together
    assert "4 cells are left" in said.output
    assert not list((tmp_path / "runs").glob("*/metrics.jsonl"))


def test_the_cost_of_a_cell_is_that_of_the_seeds_that_are_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of three seeds are left, or one; the search is over with the first."""
    cost = Cost(5, 90, 1500.0, 250.0)
    monkeypatch.setattr(
        cell_queue, "estimated_costs", lambda work: dict.fromkeys(work.chosen, cost)
    )
    work = prepare(["seo-fig5"], options(tmp_path))
    cell = replace(work.planned[CELLS[0]], seeds=(0, 1, 2))
    work = replace(work, planned={CELLS[0]: cell}, chosen=CELLS[:1])
    left = list[float]()
    for seed in cell.seeds:
        left += [each.seconds for each in waiting_cells(work)]
        request = cell.request({}, seed, cell.rounds)
        work.store.known[request.run] = record_of(request, 1.0)
    assert left == pytest.approx([1500, 500, 250])
    assert not waiting_cells(work)


def test_the_cost_of_a_search_is_without_the_rounds_so_far(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """80 rounds of 10 s: 12 are recorded, 3 have a checkpoint; and at least the next runs' rounds.

    The middle rate reaches the target in round 12, so the two trials are of ceil(1.5 * 12 / 4) = 5.
    """
    cost = Cost(3, 80, 800.0, 200.0)
    monkeypatch.setattr(
        cell_queue, "estimated_costs", lambda work: dict.fromkeys(work.chosen, cost)
    )
    work = prepare(["seo-fig5"], options(tmp_path))
    own = {"rounds": 30, "target": 0.5, "rates": RateGrid(start=0.1), "measure": "rounds"}
    cell = replace(work.planned[CELLS[0]], **own)
    work = replace(work, planned={CELLS[0]: cell}, chosen=CELLS[:1])

    def seconds_left() -> float:
        return waiting_cells(work)[0].seconds

    assert seconds_left() == pytest.approx(800)
    [middle] = replay(search(cell), work.store.find).missing
    reached = record_of(middle, 1.0, 12).model_copy(update={"accuracy": [0.1] * 12 + [0.6]})
    work.store.known[middle.run] = reached
    trials = replay(search(cell), work.store.find).missing
    assert [each.rounds for each in trials] == [5, 5]
    assert seconds_left() == pytest.approx(680)
    checkpoints = work.store.folder(trials[0].run) / "checkpoints"
    checkpoints.mkdir(parents=True)
    (checkpoints / "round-000003.json").touch()
    assert seconds_left() == pytest.approx(650)
    cost = replace(cost, rounds=10, seconds=100.0)
    assert seconds_left() == pytest.approx(10 * (5 + 5 - 3))


@pytest.mark.usefixtures("fewer_clients_cost_more")
def test_a_further_seed_costs_no_search() -> None:
    """Three seeds, and two other rates that run 1.5 times as long: 6 units."""
    cost = costs_of_cells(EXPERIMENTS["mcmahan-table4"], "cpu", {})["E = 1, B = 10 | IID"]
    assert cost.seconds / cost.seed_seconds == pytest.approx(6)


@pytest.mark.usefixtures("fewer_clients_cost_more")
def test_a_cell_of_which_further_seeds_are_left_comes_after_the_others(tmp_path: Path) -> None:
    """Though they are the cheapest: runs go by their seeds."""
    work = prepare(["seo-fig5"], options(tmp_path))
    planned = {name: replace(work.planned[name], seeds=(0, 1)) for name in CELLS}
    work = replace(work, planned=planned)
    request = planned[CELLS[0]].request({}, 0, planned[CELLS[0]].rounds)
    work.store.known[request.run] = record_of(request, 1.0)
    assert [each.name for each in waiting_cells(work)] == [*CELLS[1:], CELLS[0]]


def test_a_cell_without_a_result_keeps_the_records_of_its_runs(tmp_path: Path) -> None:
    """As a search of which one rate has been tried: here a cell without its first seed."""
    work = prepare(["seo-fig5"], options(tmp_path))
    cell = replace(work.planned[CELLS[0]], seeds=(0, 1))
    work = replace(work, planned={CELLS[0]: cell}, plans={CELLS[0]: partial(search, cell)})
    request = cell.request({}, 1, cell.rounds)
    work.store.known[request.run] = record_of(request, 1.0)
    cell_queue._Writer(work, Console(file=io.StringIO())).write()
    assert list(read_records(tmp_path / "out")) == [request.run]
    assert read_results(tmp_path / "out", "seo-fig5", "smoke") is None


def test_a_cell_whose_runs_failed_is_written_once(tmp_path: Path) -> None:
    work = prepare(["seo-fig5"], options(tmp_path))
    cell = work.planned[CELLS[0]]
    for seed in cell.seeds:
        request = cell.request({}, seed, cell.rounds)
        ends = {"status": "failed", "problem": "OSError: no space left on device"}
        work.store.known[request.run] = record_of(request, 1.0, 9).model_copy(update=ends)
    console = Console(file=io.StringIO())
    cell_queue._Writer(work, console).write()
    again = prepare(["seo-fig5"], options(tmp_path))
    written = cell_queue._Writer(again, console).written
    assert written[CELLS[0]] == cell_queue.seeds_done(work, CELLS[0]) == len(cell.seeds)


def test_failed_runs_of_a_queue_are_said_and_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of cells that no run is missing of, whose results are published."""
    console = Console(file=io.StringIO())
    own = options(tmp_path, only=("10 of 10 clients",))
    work = prepare(["seo-fig5"], own)
    cell = work.planned[CELLS[0]]
    folders = []
    for seed in cell.seeds:
        request = cell.request({}, seed, cell.rounds)
        ends = {"status": "failed", "problem": "OSError: no space left on device"}
        record = record_of(request, 1.0, 9).model_copy(update=ends)
        folders.append(own.runs / request.run)
        folders[-1].mkdir(parents=True)
        (folders[-1] / "record.json").write_text(record.model_dump_json())
    ran: list[list[str]] = []
    monkeypatch.setattr(
        cell_queue, "run_plans", lambda plans, *_, **__: ran.append(list(plans)) or {}
    )
    said = run_queue(["seo-fig5"], own, console)
    assert "no space left on device. Failed runs are not repeated without --retry" in said
    retrying = replace(own, scheduler=replace(own.scheduler, retry=True))
    assert run_queue(["seo-fig5"], retrying, console) == ""
    assert ran == [[], [CELLS[0]]]
    assert not any((folder / "record.json").exists() for folder in folders)


@pytest.mark.process
@pytest.mark.usefixtures("fewer_clients_cost_more", "forked_workers")
def test_an_interrupted_queue_keeps_what_is_done_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted while the second cell is written; the next command, without time to run, writes it."""
    real, written = cell_queue.publish_done, list[set[str]]()

    def done() -> set[str]:
        found = read_results(tmp_path / "out", "seo-fig5", "smoke")
        assert found is not None
        return {f"seo-fig5: {name}" for name, cell in found.cells.items() if cell.runs}

    def interrupted(*others):
        if written:
            raise KeyboardInterrupt
        problem = real(*others)
        written.append(done())
        return problem

    monkeypatch.setattr(cell_queue, "publish_done", interrupted)
    console = Console(file=io.StringIO(), width=300)
    with pytest.raises(KeyboardInterrupt):
        run_queue(["seo-fig5"], options(tmp_path), console)
    assert written == [set(CELLS[:1])]
    assert "4 cells are left, about 7.5 h" in console.file.getvalue()  # type: ignore[attr-defined]
    assert done() == set(CELLS[:1])
    left = f"2 cells are left, about 6.2 h with 1 runs in parallel; next {CELLS[2]}"
    assert left in console.file.getvalue()  # type: ignore[attr-defined]

    monkeypatch.setattr(cell_queue, "publish_done", real)
    console = Console(file=io.StringIO(), width=300)
    assert run_queue(["seo-fig5"], options(tmp_path, hours=1e-9), console) == ""
    assert done() == set(CELLS[:2])
    assert left in console.file.getvalue()  # type: ignore[attr-defined]
    assert run_queue(["seo-fig5"], options(tmp_path), console) == ""
    assert done() == set(CELLS)
    assert "No cell is left." in console.file.getvalue()  # type: ignore[attr-defined]
