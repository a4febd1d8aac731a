"""What else must stay as it is: names of runs, keys of messages, examples, folders of earlier runs.

Who changes one on purpose writes it anew, ``python -m tests.golden names`` (or ``messages``,
``datasets``), and says why in the commit. ``tests/golden/run-before`` is never written anew. That
``pyproject.toml`` holds every key with its default and meaning is a test of ``tests/test_config.py``.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.golden import before, datasets, messages, names, pinned
from tests.golden.driver import command, left_behind, numbers
from tests.golden.numbers import differences, golden, read


@pytest.mark.slow
def test_the_runs_of_every_item_have_the_names_that_they_had() -> None:
    assert names.found() == pinned("names")


def test_messages_have_the_keys_that_they_had(tmp_path: Path) -> None:
    assert messages.found(tmp_path) == pinned("messages")


def test_data_sets_have_the_examples_that_they_had(tmp_path: Path) -> None:
    found = datasets.found(tmp_path)
    assert list(differences(pinned("datasets"), found, 1e-6)) == []


def test_a_run_that_was_killed_before_goes_on(tmp_path: Path) -> None:
    """Its node 1 had trained for round 3 already, whose states no longer count."""
    copy = tmp_path / "copy"
    shutil.copytree(before.FOLDER, copy)
    assert not (copy / "model.safetensors").exists()
    assert [record["round"] for record in left_behind(copy).records] == [0, 1, 2]
    assert command(["run", "--resume", str(copy)]) == ""
    whole = read()[golden(before.RUN.name)]
    assert list(differences(whole, numbers(left_behind(copy)))) == []
