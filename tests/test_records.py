"""The records of runs as tables, beside results: written, merged, read, also by pandas."""

from __future__ import annotations

import io
import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from fedapp.config.read import read_config
from fedapp.errors import CheckpointError
from fedapp.studies.papers.results import Results
from fedapp.studies.sweep import identity
from fedapp.studies.sweep.identity import Request, data_name
from fedapp.studies.sweep.record import RunRecord
from fedapp.studies.sweep.store import Store
from fedapp.studies.sweep.table import (
    COLUMNS,
    merge,
    read_records,
    read_table,
    table_bytes,
    update_table,
)

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "results"
PUBLISHED = read_records(RESULTS)
SETTINGS = {"model": "2nn", "num-clients": 10, "learning-rate": 0.1}


def record(last: int, seed: int = 0, **more) -> RunRecord:
    """Return a record of ``last`` rounds that uses every field."""
    request = Request.of({**SETTINGS, "seed": seed}, last)
    rounds = list(range(1, last + 1))
    values = {
        "accuracy": [0.1 * r for r in rounds],
        "loss": [1.0 / r if r > 1 else None for r in rounds],
        "train_loss": [1.0] * last,
        "training_set_loss": [0.1 + r for r in rounds],
        "gradients": [2**40 + r for r in rounds],
        "updates": last / 3,
        "bytes_down": last,
        "bytes_up": last,
        "seconds": 0.01 * last,
        "updates_until": [r / 3 for r in rounds],
        "bytes_down_until": rounds,
        "bytes_up_until": rounds,
        "seconds_until": [0.01 * r for r in rounds],
        "agreement": [{"round": 1, "similarity": {"fc1": 0.1, "fc2": None}}],
        "execution": {"device": "cpu", "torch": "2.15.0", "commit": "12ab"},
    }
    own = {"run": request.run, "settings": request.canonical, "status": "complete"}
    return RunRecord(**{**own, "rounds": rounds, **values, **more})


def test_a_table_has_a_column_for_each_field() -> None:
    assert set(COLUMNS.names) == {*RunRecord.model_fields, "device", "commit"}


@pytest.mark.parametrize(
    "execution",
    [{}, {"device": None}, {"commit": "12ab-dirty"}, {"device": "cuda:0", "gpus": 2, "x": None}],
)
def test_a_record_comes_back_whole(execution: dict, tmp_path: Path) -> None:
    whole = record(3, execution=execution, status="diverged", problem="round 3: not finite")
    update_table(tmp_path / "x.parquet", [whole])
    [found] = read_table(tmp_path / "x.parquet").values()
    known = {key: value for key, value in execution.items() if value is not None or key == "x"}
    assert found == whole.model_copy(update={"execution": known})


def test_a_record_without_the_fields_of_later_versions_comes_back_equal(tmp_path: Path) -> None:
    old = (
        '{"run":"0135d81430577703","settings":{"num-clients":100,"fraction-train":0.1,"seed":1},'
        '"status":"complete","problem":"","rounds":[0,1],"accuracy":[0.0863,null],"loss":[2.30345,1],'
        '"train_loss":[null,0.949909],"gradients":[0,600],"updates":60.0,"bytes_down":797016,'
        '"bytes_up":797136,"seconds":12.5,"agreement":[],"execution":{"device":"cpu","flwr":"1.42.0"}}'
    )
    whole = RunRecord.model_validate_json(old)
    update_table(tmp_path / "x.parquet", [whole])
    again = read_table(tmp_path / "x.parquet")[whole.run]
    assert again.model_dump_json(exclude_defaults=True) == whole.model_dump_json(
        exclude_defaults=True
    )


def test_the_same_records_give_the_same_bytes_in_any_order(tmp_path: Path) -> None:
    three = [record(2, seed) for seed in range(3)]
    update_table(tmp_path / "a.parquet", three)
    for each in reversed(three):
        update_table(tmp_path / "b.parquet", [each])
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()
    assert list(read_table(tmp_path / "a.parquet")) == sorted(each.run for each in three)
    assert pq.read_metadata(tmp_path / "a.parquet").metadata is None  # of pandas or Arrow


def test_a_table_without_changes_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    update_table(path, [record(3)])
    inode = path.stat().st_ino
    update_table(path, [record(3), record(2)])
    assert path.stat().st_ino == inode


def test_the_longer_record_counts_and_of_equally_long_ones_the_last(tmp_path: Path) -> None:
    slow, quick = (record(3, seconds=seconds) for seconds in (2.0, 1.0))
    assert merge({}, [slow, quick, record(2)]) == {slow.run: quick}
    assert merge({}, [quick, slow]) == {slow.run: slow}
    update_table(tmp_path / "a" / "x.parquet", [slow, record(5, seed=1)])
    update_table(tmp_path / "b" / "y.parquet", [quick, record(4, seed=1), record(1, seed=2)])
    found = read_records(tmp_path / "a", tmp_path / "b")
    wanted = [quick, record(5, seed=1), record(1, seed=2)]
    assert found == {each.run: each for each in wanted}


def test_a_run_that_failed_is_not_published_nor_taken(tmp_path: Path) -> None:
    """Where it was published, retrying it would give the old failure for ever."""
    failed = record(3, status="failed")
    update_table(tmp_path / "x.parquet", [failed, record(2)])
    assert read_records(tmp_path) == {failed.run: record(2)}


def test_digests_of_code_are_not_published(tmp_path: Path) -> None:
    execution = {"device": "cpu", "sources": {"algorithm": "1234"}}
    update_table(tmp_path / "x.parquet", [record(3, execution=execution)])
    [found] = read_records(tmp_path).values()
    assert found.execution == {"device": "cpu"}


def test_a_write_that_is_interrupted_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.parquet"
    update_table(path, [record(3)])

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            update_table(path, [record(3, seed=1)])
    assert [each.name for each in tmp_path.glob("*x*")] == ["x.parquet"]
    update_table(path, [record(3, seed=2)])
    assert set(read_table(path)) == {record(3).run, record(3, seed=2).run}


def test_commands_that_write_at_the_same_time_lose_no_row(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda seed: update_table(path, [record(2, seed)]), range(16)))
    assert len(read_table(path)) == 16


@pytest.mark.parametrize("content", [b"", b"not Parquet", b"PAR1" + bytes(40) + b"PAR1"])
def test_a_damaged_table_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.parquet"
    path.write_bytes(content)
    for use in (lambda: read_records(tmp_path), lambda: update_table(path, [record(1)])):
        with pytest.raises(CheckpointError, match=r"x\.parquet is damaged"):
            use()
    assert path.read_bytes() == content


def test_a_table_of_something_else_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    update_table(path, [record(1)])
    pq.write_table(pq.read_table(path).drop_columns(["settings"]), path)
    with pytest.raises(CheckpointError, match=r"x\.parquet is damaged or no table of records: "):
        read_records(tmp_path)


# ---------------------------------------------------------------- runs and records


def test_a_recorded_run_is_found_as_far_as_it_went(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs", {record(5).run: record(5)})
    found = store.find(Request.of(SETTINGS, 4))
    assert found is not None
    assert found.rounds == [1, 2, 3, 4]
    assert store.known == {record(5).run: record(5)}
    assert store.find(Request.of(SETTINGS, 6)) is None
    assert store.find(Request.of({**SETTINGS, "seed": 1}, 4)) is None


def test_the_longer_of_an_own_and_a_recorded_run_counts(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs", {record(5).run: record(5)})
    store.folder(record(2).run).mkdir(parents=True)
    store.keep(record(2))
    assert store.find(Request.of(SETTINGS, 5)) == record(5)
    assert store.find(Request.of(SETTINGS, 2)) == record(2)


def test_of_an_own_and_a_recorded_run_that_went_far_enough_the_own_one_counts(
    tmp_path: Path,
) -> None:
    """It says with which code it was made, and so whether it is old."""
    store = Store(tmp_path / "runs", {record(5).run: record(5)})
    mine = record(3, execution={"sources": {"algorithm": "1234"}})
    store.folder(mine.run).mkdir(parents=True)
    store.keep(mine)
    assert store.find(Request.of(SETTINGS, 3)) == mine


def test_an_own_run_that_failed_counts_where_no_other_went_far_enough(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs", {record(5).run: record(5)})
    failed = record(2, status="failed", problem="round 3: OSError: gone")
    store.folder(failed.run).mkdir(parents=True)
    store.keep(failed)
    assert store.find(Request.of(SETTINGS, 6)) == failed
    assert store.find(Request.of(SETTINGS, 5)) == record(5)
    assert store.known == {failed.run: record(5)}
    assert store.find(Request.of(SETTINGS, 2)).status == "complete"
    assert Store(tmp_path / "runs").find(Request.of(SETTINGS, 5)) == failed


def test_a_run_that_recorded_its_updates_counts_where_that_without_failed(tmp_path: Path) -> None:
    with_updates = Request.of({**SETTINGS, "record-updates": True}, 5).run
    complete = record(5, run=with_updates)
    store = Store(tmp_path / "runs", {with_updates: complete})
    failed = record(2, status="failed", problem="round 3: OSError: gone")
    store.folder(failed.run).mkdir(parents=True)
    store.keep(failed)
    assert store.find(Request.of(SETTINGS, 5)) == complete


def test_without_recorded_runs_nothing_is_found(tmp_path: Path) -> None:
    assert Store(tmp_path / "runs").find(Request.of(SETTINGS, 5)) is None


# ---------------------------------------------------------------- what is published


def test_published_tables_are_sorted_and_without_duplicates() -> None:
    tables = {path.stem: path for path in RESULTS.glob("*.parquet")}
    assert set(tables) == {"algorithms", "mcmahan", "seo"}
    for path in tables.values():
        runs = pq.read_table(path, columns=["run"])["run"].to_pylist()
        assert runs == sorted(set(runs))
    assert len(PUBLISHED) >= 803


@pytest.mark.slow
def test_published_tables_are_written_again_with_the_same_bytes() -> None:
    """By the version of pyarrow that wrote them; others may compress otherwise."""
    for path in RESULTS.glob("*.parquet"):
        again = table_bytes(read_table(path).values())
        written_by, now = (pq.read_metadata(f).created_by for f in (path, io.BytesIO(again)))
        assert written_by != now or path.read_bytes() == again


def test_published_runs_still_have_the_names_that_their_settings_give(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A new key or another default must not make them runs that nobody asks for any more."""
    monkeypatch.setattr(identity, "data_name", lambda config: config.dataset)
    for run, found in PUBLISHED.items():
        settings = {"weighting": "examples", "server-learning-rate": 1.0, **found.settings}
        assert Request.of(settings, 1).run == run


def test_published_results_are_what_the_records_beside_them_give() -> None:
    """A record that went further replaces a shorter one, and may come from other code."""
    stale, same = [], 0
    for path in [
        *RESULTS.glob("*/cpu.json"),
        *RESULTS.glob("*/narrow.json"),
        *RESULTS.glob("*/full.json"),
    ]:
        results = Results.model_validate_json(path.read_bytes())
        runs = [(name, run) for name, cell in results.cells.items() for run in cell.runs]
        for name, run in runs:
            found = PUBLISHED[run.run]
            assert run.curve is None
            if found.until(Request.of({}, run.rounds)).best_accuracy == run.best:
                same += 1
            else:
                stale.append(f"{results.experiment} --scale {results.scale}: {name} ({run.run})")
    assert not stale, "make again, with --from docs/results --to docs/results: " + "; ".join(stale)
    assert same > 100


def test_the_documentation_reads_a_table_with_pandas(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = re.findall(
        r"```python\n(.*?)```", (ROOT / "docs" / "results" / "method.md").read_text(), re.S
    )
    [snippet] = [block for block in blocks if "read_parquet" in block]
    monkeypatch.chdir(ROOT)
    exec(compile(snippet, "method.md", "exec"), {})
    said = capsys.readouterr().out
    best = max(
        each.best_accuracy
        for each in PUBLISHED.values()
        if each.settings.get("algorithm") == "scaffold" and "mnist" in str(each.settings["dataset"])
    )
    assert re.search(rf"scaffold +{best:.4f}", said)


@pytest.mark.data
@pytest.mark.slow
def test_published_runs_are_of_the_data_as_they_are_read_now(real_data: Path) -> None:
    named = {str(each.settings["dataset"]) for each in PUBLISHED.values()}
    now = data_name(read_config({"dataset": str(real_data / "mnist"), "partitioner": "iid"}))
    assert now in named
