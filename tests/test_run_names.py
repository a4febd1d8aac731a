"""The names of the published records: a run is found by the hash of its settings."""

import gzip
import hashlib
import json
from pathlib import Path

import pytest

from fedapp.registry import FAMILIES
from fedapp.sweeps.identity import FORMAT, Request

RECORDS = Path(__file__).parent.parent / "docs/results/records"
EMBEDDED = next(family for family in FAMILIES if family.key == "dataset").components()
SETTINGS = {
    path.name.split(".")[0]: json.loads(gzip.decompress(path.read_bytes()))["settings"]
    for path in sorted(RECORDS.glob("*.json.gz"))
}


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
            assert Request.of(asked, 1).canonical == asked, run
