"""The table of faults is about the code as it is; ``python -m tests.faults`` runs its tests."""

from __future__ import annotations

import ast

import pytest

from tests import faults
from tests.faults import FAULTS, ROOT, Fault


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_one_place_in_its_file_and_its_test_is_there(fault: Fault) -> None:
    source = (ROOT / fault.path).read_text()
    assert source.count(fault.old) == 1
    ast.parse(source.replace(fault.old, fault.new))
    file, _, name = fault.test.partition("::")
    assert f"\ndef {name.partition('[')[0]}(" in (ROOT / file).read_text()


def test_no_fault_is_there_twice() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 20


def test_a_fault_that_there_is_not_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(faults, "tests_fail", lambda *_: (0, ""))
    monkeypatch.setattr("sys.argv", ["faults", "no such fault"])
    with pytest.raises(SystemExit):
        faults.main()
    assert FAULTS[-1].name in capsys.readouterr().err
