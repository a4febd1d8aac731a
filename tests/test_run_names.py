"""The names of the published records: a run is found by the hash of its settings."""

import hashlib
import json
from pathlib import Path

import pytest

from fedapp.config.registry import FAMILIES
from fedapp.studies.sweep.identity import FORMAT, Request
from fedapp.studies.sweep.table import read_records

RESULTS = Path(__file__).parent.parent / "docs/results"
EMBEDDED = next(family for family in FAMILIES if family.key == "dataset").components()
SETTINGS = {run: record.settings for run, record in read_records(RESULTS).items()}
AS_FEDAVG = {"weighting": "examples", "server-learning-rate": 1.0}
"""What a record that does not have these keys was made with, whatever its algorithm."""


def test_every_record_is_named_by_its_settings():
    def name(settings):
        content = json.dumps([FORMAT, settings], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:16]

    assert {run: name(settings) for run, settings in SETTINGS.items()} == {
        run: run for run in SETTINGS
    }


@pytest.mark.parametrize("first", "0123456789abcdef")
def test_the_settings_of_every_record_are_what_a_request_for_them_is_named_by(first):
    """A setting that is left out stands for its default: the defaults of the names never change."""
    for run, settings in SETTINGS.items():
        if run.startswith(first):
            asked = {k: v for k, v in settings.items() if not k.startswith("text-")}
            if settings["dataset"] not in EMBEDDED:  # named by its content, which may not be here
                asked["dataset"] = "digits"
            assert Request.of({**AS_FEDAVG, **asked}, 1).canonical == asked, run


def canonical(**settings):
    """Return what a run on the digits is named by."""
    asked = {key.replace("_", "-"): value for key, value in settings.items()}
    found = Request.of({"dataset": "digits", **asked}, 1).canonical
    assert found.pop("dataset") == "digits"
    return found


def test_a_run_that_leaves_keys_to_its_algorithm_is_the_run_that_says_the_same():
    assert canonical() == canonical(weighting="auto", server_learning_rate=0) == {}
    assert canonical(**{k.replace("-", "_"): v for k, v in AS_FEDAVG.items()}) == {}
    assert canonical(algorithm="fedprox", weighting="examples") == {"algorithm": "fedprox"}
    assert canonical(algorithm="multikrum") == {"algorithm": "multikrum", "weighting": "uniform"}


@pytest.mark.parametrize(
    ("name", "own"), [("fedadam", 0.01), ("fedyogi", 0.01), ("fedadagrad", 0.03)]
)
def test_a_name_is_of_the_server_learning_rate_that_the_run_has(name, own):
    """A record that was made with 1.0, when that was the default, is asked for by 1.0 alone."""
    assert canonical(algorithm=name, server_learning_rate=1.0) == {"algorithm": name}
    with_own = {"algorithm": name, "server-learning-rate": own}
    assert (
        canonical(algorithm=name) == canonical(algorithm=name, server_learning_rate=own) == with_own
    )
