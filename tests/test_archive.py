"""Records of runs beside published results."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedapp.errors import CheckpointError
from fedapp.sweeps.archive import Archive
from fedapp.sweeps.identity import Request
from fedapp.sweeps.record import RunRecord
from fedapp.sweeps.store import Store

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


def test_a_shorter_run_does_not_replace_a_longer_one(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    for last in (5, 3):
        archive.keep([record(last)])
    assert archive.find(record(5).run) == record(5)


def test_a_recorded_run_is_found_as_far_as_it_went(tmp_path: Path) -> None:
    Archive(tmp_path / "published").keep([record(5)])
    store = Store(tmp_path / "runs", Archive(tmp_path / "published"))
    found = store.find(Request.of(SETTINGS, 4))
    assert found is not None
    assert found.rounds == [1, 2, 3, 4]
    assert store.known == [record(5)]
    assert store.find(Request.of(SETTINGS, 6)) is None
    assert store.find(Request.of({**SETTINGS, "seed": 1}, 4)) is None


def test_the_longer_of_an_own_and_a_recorded_run_counts(tmp_path: Path) -> None:
    Archive(tmp_path / "published").keep([record(5)])
    store = Store(tmp_path / "runs", Archive(tmp_path / "published"))
    store.folder(record(2).run).mkdir(parents=True)
    store.keep(record(2))
    assert store.find(Request.of(SETTINGS, 5)) == record(5)
    assert store.find(Request.of(SETTINGS, 2)) == record(2)


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
