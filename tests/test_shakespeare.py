"""Shakespeare's plays, role by role, from the pages of shakespeare.mit.edu."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from fedapp.errors import DataError
from fedapp.studies.papers import shakespeare
from fedapp.studies.papers.shakespeare import DIGESTS, Line, digest, lines_of, main, plays_of, split

PAGE = """<tr><td class="play" align="center">All's Well
<tr><td class="nav"><a href="/allswell/">All's Well</A></table>
<A NAME=1.0.1>Nobody speaks the prologue.</A><br>
<A NAME=speech1><b>COUNTESS</b></a>
<blockquote><A NAME=1.1.1>In delivering  my son &amp;</A><br>
<p><i>Enter BERTRAM</i></p>
<A NAME=1.1.2>[Aside]\tI bury a second husband.</A><br></blockquote>
<A NAME=speech2><b>First Lord</b></a>
<blockquote><A NAME=1.1.3>Ay.</A><br></blockquote>
<A NAME=speech3><b>COUNTESS</b></a>
<blockquote><A NAME=1.1.4>No.</A><br></blockquote>
"""


def archive(**pages: str) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as files:
        for name, page in pages.items():
            for path in (f"text-1/{name}/full.html", f"text-1/{name}/{name}.1.1.html"):
                member = tarfile.TarInfo(path)
                member.size = len(page.encode("latin-1"))
                files.addfile(member, io.BytesIO(page.encode("latin-1")))
    return content.getvalue()


def test_the_lines_of_a_page_are_those_of_its_roles() -> None:
    countess = "All's Well", "COUNTESS", "All_s_Well_COUNTESS"
    assert lines_of(PAGE) == [
        Line(*countess, 0, "In delivering my son &"),
        Line(*countess, 1, "[Aside] I bury a second husband."),
        Line(*countess, 2, "No."),
        Line("All's Well", "First Lord", "All_s_Well_First_Lord", 0, "Ay."),
    ]


def test_a_fifth_of_a_roles_lines_is_for_testing_and_small_roles_are_left_out() -> None:
    lines = [
        Line("p", role, role, i, "")
        for role, n in (("a", 2), ("b", 3), ("c", 14))
        for i in range(n)
    ]
    splits = split(lines)
    assert [(line.role, line.line_no) for line in splits["test"]] == [
        ("b", 2),
        ("c", 12),
        ("c", 13),
    ]
    assert len(splits["train"]) == 2 + 12


def test_plays_are_read_from_the_archive_by_name() -> None:
    assert list(plays_of(archive(macbeth="b", hamlet="a"))) == ["a", "b"]
    with pytest.raises(DataError, match="is no archive"):
        list(plays_of(b"<html>"))


def test_files_are_written_of_the_text_that_the_results_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text.tar.gz"
    text.write_bytes(archive(allswell=PAGE))
    monkeypatch.setattr(shakespeare, "SOURCE", text.as_uri())
    with pytest.raises(DataError, match="its train split is not that of the published results"):
        main([str(tmp_path)])
    assert not list(tmp_path.rglob("*.parquet"))
    own = split(lines_of(PAGE))
    monkeypatch.setattr(shakespeare, "DIGESTS", {name: digest(own[name]) for name in own})
    main([str(tmp_path)])
    assert "1 clients, 2 train, 1 test lines" in capsys.readouterr().out
    [file] = (tmp_path / "shakespeare").glob("test*.parquet")
    assert pq.read_table(file)["text"].to_pylist() == ["No."]
    monkeypatch.setattr(shakespeare, "SOURCE", (tmp_path / "none").as_uri())
    with pytest.raises(DataError, match="cannot be downloaded"):
        main([str(tmp_path)])


@pytest.mark.data
def test_the_data_of_the_published_results(real_data: Path) -> None:
    for name, expected in DIGESTS.items():
        [file] = (real_data / "shakespeare").glob(f"{name}*.parquet")
        assert digest(Line(**row) for row in pq.read_table(file).to_pylist()) == expected
