"""The fault matrix on real processes: devices that fail, each in its own way, in one federation."""

import json
import time
from pathlib import Path

import pytest
import torch

from deploy.federation import federation
from tests.in_process import SMALL, metrics, model

pytestmark = [pytest.mark.process, pytest.mark.nightly, pytest.mark.timeout(900)]

DEADLINE = 60.0
FAULTY = str(Path(__file__).parent / "faulty")
PLANS = [
    {},
    {"1": "raise", "2": "nan", "3": "norm", "4": "old round"},
    {"1": "sleep"},
    {"1": "sleep"},
    {"1": "upload stops"},
]
SLEEPER, KILLED, UPLOADER = 2, 3, 4
SETTINGS = {
    **SMALL,
    "num-clients": 0,
    "fraction-train": 1.0,
    "min-nodes": len(PLANS),
    "num-server-rounds": 4,
    "round-deadline": DEADLINE,
    "node-timeout": 240.0,
}


def start_device(started, name, client, plan, devices):
    variables = {
        "PYTHONPATH": FAULTY,
        "FEDAPP_FAULTS": json.dumps(plan),
        # Longer than the deadline, so that the answer comes too late.
        "FEDAPP_SLEEP": str(DEADLINE + 5),
    }
    return started.start_node(
        name, variables=variables, partition_id=client, num_partitions=devices
    )


def play(started, folder):
    """Run to the end; one SuperNode is killed while it trains, and started again."""
    nodes = [
        start_device(started, f"node-{k}", k, plan, len(PLANS)) for k, plan in enumerate(PLANS)
    ]
    process = started.begin(started.write_settings(SETTINGS, "run"), "run")
    end = time.monotonic() + 300
    while "ROUND 1" not in started.log(f"node-{KILLED}"):
        assert time.monotonic() < end, started.logs()
        time.sleep(0.2)
    started.kill(nodes[KILLED])
    start_device(started, "again", KILLED, {}, len(PLANS))
    started.wait_for(process, "run")
    return metrics(folder)[1:]


CELLS = [
    (1, 1, "raised", "no space left on device"),
    (1, SLEEPER, "late", "no reply within round-deadline = 60 s"),
    (1, UPLOADER, "lost", "its reply came only in part within round-deadline = 60 s"),
    (2, 1, "not-finite", "nan or infinite"),
    (2, SLEEPER, "busy", "still works for an earlier round"),
    (2, UPLOADER, "busy", "still works for an earlier round"),
    (3, 1, "norm", "max-update-norm"),
    (4, 1, "round", "it is a reply to round 0, not 4"),
]


def test_the_fault_matrix(tmp_path, subtests):
    """One federation for all of it, since each SuperNode costs seconds to start."""
    with federation(tmp_path) as started:
        records = play(started, tmp_path / "run")
    for round_, client, kind, reason in CELLS:
        with subtests.test(f"{kind}: left out by name, and counted"):
            record = records[round_ - 1]
            assert reason in record["failures"][str(client)]
            assert record["faults"][kind] >= 1
            assert sum(record["faults"].values()) == len(record["failures"])
    with subtests.test("a late reply is refused and never mixed into a later round"):
        assert "Message TTL has expired" in started.log("superlink")
    with subtests.test("an upload that stops costs its round the deadline, and no more"):
        first = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[1]
        assert json.loads(first)["seconds"]["exchange"] < DEADLINE + 10
        assert records[0]["replied"] == 1
    # Until Flower counts the killed one as gone, its client-id is taken.
    with subtests.test("a device that was killed and started again takes part again"):
        assert str(KILLED) in records[0]["failures"]
        assert KILLED in records[-1]["clients"]
        assert str(KILLED) not in records[-1].get("failures", {})
    with subtests.test("every round ends, and the model is finite"):
        assert len(records) == SETTINGS["num-server-rounds"]
        assert all(record["model_changed"] and record["replied"] >= 1 for record in records)
        assert all(bool(torch.isfinite(t).all()) for t in model(tmp_path / "run").values())
