"""A small slice of ``python -m tests.fuzz``, which tries 100,000 inputs."""

import re
from pathlib import Path

import pytest

from tests import fuzz

ROOT = Path(__file__).parents[1]
UNPICKLES = re.compile(
    r"(?<!safetensors\.)\b(pickle|cPickle|dill|joblib|cloudpickle|torch\.load|allow_pickle=True)\b"
)


def test_hostile_input_is_refused_or_good():
    found = fuzz.fuzz(1500, seed=1)
    assert set(found) == {target.__name__ for target in fuzz.TARGETS}
    for name, outcomes in found.items():
        assert outcomes["refused"], name
        assert outcomes["accepted"], name  # else its inputs fail before what is tested


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_a_hundred_thousand_hostile_inputs():
    assert sum(sum(outcomes.values()) for outcomes in fuzz.fuzz(100_000).values()) >= 100_000


def test_nothing_in_the_app_unpickles():
    sources = [p for top in ("fedapp", "strategies") for p in (ROOT / top).rglob("*.py")]
    found = [
        f"{path.name}: {line.strip()}"
        for path in sources
        for line in path.read_text().splitlines()
        if UNPICKLES.search(line.partition("#")[0]) and ("import" in line or "(" in line)
    ]
    assert found == []
