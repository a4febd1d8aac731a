"""What of a deployment takes too long for every push: `make test-all` runs it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import killed
import pytest
import torch
from conftest import largest_difference
from in_process import SMALL, metrics, model
from test_deployment_faults import FAULTY, start_device

from deploy.federation import ROOT, federation
from deploy.processes import descendants, living

pytestmark = [pytest.mark.process, pytest.mark.nightly, pytest.mark.timeout(1800)]

VIRTUAL = {**SMALL, "min-nodes": 2, "checkpoint-every": 1, "node-timeout": 240.0}


def test_a_killed_server_app_resumes_to_the_undisturbed_result(tmp_path):
    settings = {**VIRTUAL, "num-server-rounds": 4}
    with federation(tmp_path) as started:
        for name in ("node-a", "node-b"):
            started.start_node(name)
        process = started.begin(started.write_settings(settings, "run"), "run")
        path = tmp_path / "run" / "metrics.jsonl"
        end = time.monotonic() + 300
        while not path.exists() or path.read_text().count("\n") < 2:
            assert time.monotonic() < end, started.logs()
            time.sleep(0.2)
        started.kill_server_app()
        process.terminate()
        started.wait_for(started.begin(tmp_path / "run" / "resume.toml", "again"), "run")
    assert "Resuming after round" in started.log("again")
    assert killed.run({**settings, "run-dir": tmp_path / "whole"}, nodes=2) == 0
    assert largest_difference(model(tmp_path / "run"), model(tmp_path / "whole")) <= 1e-5


RUBBISH = ["raise", "nan", "norm", "shape", "type", "weight", "old round", "empty"]
KINDS = ["raised", "not-finite", "norm", "tensors", "tensors", "weight", "round", "malformed"]


def test_each_kind_of_rubbish_and_a_node_that_never_answers(tmp_path):
    plans = [{}, {str(t): fault for t, fault in enumerate(RUBBISH, start=1)}, {"1": "sleep"}]
    settings = {
        **SMALL,
        "num-clients": 0,
        "fraction-train": 1.0,
        "min-nodes": 3,
        "num-server-rounds": len(RUBBISH),
        "round-deadline": 90.0,
        "node-timeout": 240.0,
    }
    with federation(tmp_path) as started:
        for client, plan in enumerate(plans):
            variables = {
                "PYTHONPATH": FAULTY,
                "FEDAPP_FAULTS": json.dumps(plan),
                "FEDAPP_SLEEP": "100000",
            }
            started.start_node(
                f"node-{client}", variables=variables, partition_id=client, num_partitions=3
            )
        records = metrics(started.run(settings, "run"))[1:]
    for record, kind in zip(records, KINDS, strict=True):
        assert record["faults"].get(kind, 0) >= 1
        assert "1" in record["failures"]
        assert record["replied"] >= 1
    assert records[0]["faults"]["late"] == 1
    assert all(bool(torch.isfinite(t).all()) for t in model(tmp_path / "run").values())


def test_twenty_rounds_in_which_devices_fail(tmp_path):
    """The soak of test_soak.py as a deployment: the last of four devices is always sound."""
    plans = [
        {str(t): "raise" for t in range(1, 21) if t % 3 == 0},
        {str(t): "nan" for t in range(1, 21) if t % 5 == 0},
        {str(t): "empty" for t in range(1, 21) if t % 4 == 1},
        {},
    ]
    settings = {
        **SMALL,
        "num-clients": 0,
        "fraction-train": 1.0,
        "min-nodes": 4,
        "num-server-rounds": 20,
        "round-deadline": 120.0,
        "node-timeout": 240.0,
    }
    with federation(tmp_path) as started:
        for client, plan in enumerate(plans):
            start_device(started, f"node-{client}", client, plan, len(plans))
        records = metrics(started.run(settings, "run"))[1:]
    for record in records:
        lost = {str(k) for k, plan in enumerate(plans) if str(record["round"]) in plan}
        assert set(record.get("failures", {})) == lost
    assert records[-1]["test_accuracy"] > 0.85


def demo(tmp_path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "deploy.demo"],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path), "FEDAPP_DATA": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_the_demonstration_ends_well_and_leaves_nothing(tmp_path):
    with demo(tmp_path) as process:
        said = process.communicate(timeout=900)[0]
    assert process.returncode == 0, said
    assert "every process has ended" in said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demonstration_leaves_nothing(number, tmp_path):
    with demo(tmp_path) as process:
        for line in process.stdout:
            if "flwr run" in line:
                break
        time.sleep(5)
        started = descendants(process.pid)
        assert len(started) > 5
        process.send_signal(number)
        process.wait(120)
    assert process.returncode == 130
    assert living(started) == {}
