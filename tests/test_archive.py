"""Records of runs beside published results."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from fedapp.config.read import read_config
from fedapp.errors import CheckpointError
from fedapp.studies.papers.results import Results
from fedapp.studies.sweep import identity
from fedapp.studies.sweep.identity import Request, data_name
from fedapp.studies.sweep.record import RunRecord
from fedapp.studies.sweep.store import Archive, Store

SETTINGS = {"model": "2nn", "num-clients": 10, "learning-rate": 0.1}


def record(last: int) -> RunRecord:
    request = Request.of(SETTINGS, last)
    rounds = list(range(1, last + 1))
    return RunRecord(
        run=request.run,
        settings=request.canonical,
        status="complete",
        rounds=rounds,
        accuracy=[0.1 * r for r in rounds],
        loss=[1.0] * last,
        train_loss=[1.0] * last,
        gradients=rounds,
    )


def test_a_record_comes_back_whole_and_is_written_with_the_same_bytes(tmp_path: Path) -> None:
    archive, again = Archive(tmp_path / "a"), Archive(tmp_path / "b")
    archive.keep([record(3)])
    again.keep([record(3)])
    assert archive.find(record(3).run) == record(3)
    first, second = (next(each.root.iterdir()) for each in (archive, again))
    assert first.read_bytes() == second.read_bytes()
    assert first.read_bytes()[4:8] == bytes(4)  # no time, whenever it was written


def test_a_shorter_run_does_not_replace_a_longer_one(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    for last in (5, 3):
        archive.keep([record(last)])
    assert archive.find(record(5).run) == record(5)


def test_a_run_that_went_no_further_does_not_replace_the_one_that_is_there(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    for seconds in (1.0, 2.0):
        archive.keep([record(3).model_copy(update={"seconds": seconds})])
    assert archive.find(record(3).run) == record(3).model_copy(update={"seconds": 1.0})


def test_a_run_that_failed_is_not_published_nor_taken(tmp_path: Path) -> None:
    """Where it was published, trying it again would give the old failure for ever."""
    archive, failed = Archive(tmp_path), record(3).model_copy(update={"status": "failed"})
    archive.keep([failed])
    assert not archive.root.exists()
    archive.keep([record(2)])
    path = archive.root / f"{failed.run}.json.gz"
    path.write_bytes(gzip.compress(failed.model_dump_json().encode()))  # as earlier versions did
    assert Store(tmp_path / "runs", archive).find(Request.of(SETTINGS, 3)) is None
    archive.keep([record(2)])
    assert archive.find(failed.run) == record(2)


def test_digests_of_code_are_not_published(tmp_path: Path) -> None:
    archive, execution = Archive(tmp_path), {"device": "cpu", "sources": {"algorithm": "1234"}}
    archive.keep([record(3).model_copy(update={"execution": execution})])
    found = archive.find(record(3).run)
    assert found is not None
    assert found.execution == {"device": "cpu"}


def test_a_recorded_run_is_found_as_far_as_it_went(tmp_path: Path) -> None:
    Archive(tmp_path / "published").keep([record(5)])
    store = Store(tmp_path / "runs", Archive(tmp_path / "published"))
    found = store.find(Request.of(SETTINGS, 4))
    assert found is not None
    assert found.rounds == [1, 2, 3, 4]
    assert store.known == [record(5)]
    assert store.find(Request.of(SETTINGS, 6)) is None
    assert store.find(Request.of({**SETTINGS, "seed": 1}, 4)) is None


RESULTS = Path(__file__).resolve().parent.parent / "docs" / "results"
PUBLISHED = sorted((RESULTS / "records").glob("*.json.gz"))


def test_published_runs_still_have_the_names_that_their_settings_give(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A new key or another default must not make them runs that nobody asks for any more."""
    monkeypatch.setattr(identity, "data_name", lambda config: config.dataset)
    archive = Archive(RESULTS)
    for path in PUBLISHED:
        found = archive.find(path.name.removesuffix(".json.gz"))
        assert found is not None
        settings = {"weighting": "examples", "server-learning-rate": 1.0, **found.settings}
        assert Request.of(settings, 1).run == found.run
    assert len(PUBLISHED) > 100


def test_published_results_are_what_the_records_beside_them_give() -> None:
    """A record that went further replaces a shorter one, and may come from other code."""
    archive, stale, same = Archive(RESULTS), [], 0
    for path in [*RESULTS.glob("*/cpu.json"), *RESULTS.glob("*/full.json")]:
        results = Results.model_validate_json(path.read_bytes())
        runs = [(name, run) for name, cell in results.cells.items() for run in cell.runs]
        for name, run in runs:
            record = archive.find(run.run)
            if record is None:
                continue
            if record.until(Request.of({}, run.rounds)).best_accuracy == run.best:
                same += 1
            else:
                stale.append(f"{results.experiment} --scale {results.scale}: {name} ({run.run})")
    assert not stale, "make again, with --from docs/results --to docs/results: " + "; ".join(stale)
    assert same > 100


@pytest.mark.data
def test_published_runs_are_of_the_data_as_they_are_read_now(real_data: Path) -> None:
    archive = Archive(RESULTS)
    records = [archive.find(path.name.removesuffix(".json.gz")) for path in PUBLISHED]
    named = {str(record.settings["dataset"]) for record in records if record}
    now = data_name(read_config({"dataset": str(real_data / "mnist"), "partitioner": "iid"}))
    assert now in named


def test_the_longer_of_an_own_and_a_recorded_run_counts(tmp_path: Path) -> None:
    Archive(tmp_path / "published").keep([record(5)])
    store = Store(tmp_path / "runs", Archive(tmp_path / "published"))
    store.folder(record(2).run).mkdir(parents=True)
    store.keep(record(2))
    assert store.find(Request.of(SETTINGS, 5)) == record(5)
    assert store.find(Request.of(SETTINGS, 2)) == record(2)


def test_of_an_own_and_a_recorded_run_that_went_far_enough_the_own_one_counts(
    tmp_path: Path,
) -> None:
    """It says with which code it was made, and so whether it is old."""
    Archive(tmp_path / "published").keep([record(5)])
    store = Store(tmp_path / "runs", Archive(tmp_path / "published"))
    mine = record(3).model_copy(update={"execution": {"sources": {"algorithm": "1234"}}})
    store.folder(mine.run).mkdir(parents=True)
    store.keep(mine)
    assert store.find(Request.of(SETTINGS, 3)) == mine


def test_without_an_archive_nothing_is_taken_from_one(tmp_path: Path) -> None:
    Archive(tmp_path / "published").keep([record(5)])
    assert Store(tmp_path / "runs").find(Request.of(SETTINGS, 5)) is None


@pytest.mark.parametrize("content", [b"", b"not gzip", b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\xff"])
def test_a_damaged_record_is_named(tmp_path: Path, content: bytes) -> None:
    archive = Archive(tmp_path)
    archive.keep([record(1)])
    path = next(archive.root.iterdir())
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=path.name):
        archive.find(record(1).run)
