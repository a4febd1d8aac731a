"""What a user reads of wrong settings and commands, word by word: ``tests/golden/errors.json``.

Who changes a text on purpose writes them anew, ``python -m tests.golden errors``, and reads the diff.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden import mistakes
from tests.golden.driver import command

PINNED = mistakes.read()


def test_what_is_said_of_wrong_settings(tmp_path: Path) -> None:
    now = [(given, mistakes.text_of(given, tmp_path)) for given, _ in PINNED["settings"]]
    different = [(a, b) for a, b in zip(PINNED["settings"], now, strict=True) if a[1] != b[1]]
    assert different == []


def test_what_is_said_of_wrong_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    now = [(given, command(given)) for given, _ in PINNED["commands"]]
    assert now == PINNED["commands"]


def test_each_key_has_a_text() -> None:
    """Of a wrong type, which all have."""
    said = "\n".join(text for _, text in PINNED["settings"])
    missing = [key for key in mistakes.run_config() if f"{key} = " not in said]
    assert missing == []
    assert len(PINNED["commands"]) == len(mistakes.COMMANDS)
