"""What of a deployment takes too long for every push: `make test-nightly` runs it."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from deploy.federation import ROOT, environment, federation
from deploy.processes import Processes, descendants, free_port, living
from tests import killed
from tests.conftest import largest_difference
from tests.in_process import SMALL, metrics, model
from tests.test_deployment_faults import FAULTY, start_device

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


PAGE_PARTS = ("pyproject.toml", "README.md", "LICENSE", "fedapp", "strategies", "deploy")


class Page(Processes):
    """The commands of a page, in a folder and a home of their own, on free ports."""

    def __init__(self, folder, file):
        home = folder / "home"
        super().__init__(folder, {**environment(home / ".flwr"), "HOME": str(home)})
        text = (ROOT / file).read_text()
        for port in ("8000", "9094", "9095"):
            text = re.sub(rf"\b{port}\b", str(free_port()), text)
        text = text.replace("/absolute/path/to", str(folder))
        self.blocks = re.findall(r"^```(\w+)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        for part in PAGE_PARTS:
            copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy
            copy(ROOT / part, folder / part)

    def block(self, words, kind="bash"):
        """Return the one block with these words."""
        (found,) = (text for k, text in self.blocks if k == kind and words in text)
        return found

    def begin(self, name, words):
        """Start a block in a terminal of its own."""
        return self.start(name, "/bin/bash", "-ec", self.block(words))

    def do(self, name, words):
        """Run a block to its end."""
        assert self.begin(name, words).wait(600) == 0, self.logs()

    def wait_for(self, name, words):
        end = time.monotonic() + 300
        while words not in self.log(name):
            assert time.monotonic() < end, self.logs()
            time.sleep(0.2)


@contextlib.contextmanager
def page(folder, file):
    followed = Page(folder, file)
    try:
        yield followed
    finally:
        assert followed.stop() == {}


def test_the_page_on_real_devices_works_as_it_stands(tmp_path):
    with page(tmp_path, "docs/deploy.md") as followed:
        followed.do("credentials", "deploy/credentials.py")
        superlink = followed.begin("superlink", "flower-superlink")
        followed.wait_for("superlink", "Uvicorn running on https://")
        entry = tmp_path / "home" / ".flwr" / "config.toml"
        entry.parent.mkdir(parents=True, exist_ok=True)
        entry.write_text(followed.block("superlink.deployment", kind="toml"))
        followed.do("register", "flwr supernode register")
        followed.do("data", "write_devices")
        for device in ("device-0", "device-1"):
            followed.begin(device, f"credentials/{device}/key \\")
        run = followed.begin("run", "runs/first'")
        followed.wait_for("run", "round 2/5")
        followed.kill(superlink)
        run.wait(300)
        followed.begin("superlink-again", "flower-superlink")
        followed.wait_for("superlink-again", "Uvicorn running on https://")
        followed.do("resume", "runs/first/resume.toml")
        assert "Resuming after round" in followed.log("resume")
        followed.do("status", "fedapp status runs/first")
        assert "5 of 5" in followed.log("status")
        followed.do("private", "dp-fedavg")
    others = 0o007
    assert not (tmp_path / "superlink.db").stat().st_mode & others
    assert not (tmp_path / "runs" / "first").stat().st_mode & others
    assert metrics(tmp_path / "runs" / "first")[-1]["test_accuracy"] > 0.9
    assert metrics(tmp_path / "runs" / "private")[-1]["epsilon"] > 0
