"""SuperLink and SuperNodes on hosts of their own: the same numbers, a slow cable, and a pulled one."""

import json
import signal
import subprocess
import sys
import time

import pytest

from deploy.demo import write_devices
from deploy.hosts import SERVER, hosts, missing
from deploy.processes import descendants, living
from fedapp.client_app import app as client_app
from fedapp.config.read import read_config
from fedapp.engines.in_process import InlineGrid
from fedapp.server import run as run_server
from tests.conftest import largest_difference
from tests.in_process import SMALL, metrics, model

pytestmark = [
    pytest.mark.process,
    pytest.mark.nightly,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(missing() != "", reason=f"needs {missing()}"),
]

DEVICES = ("device-0", "device-1")
DEADLINE = 40.0
SETTINGS = {
    **SMALL,
    "2nn.hidden": 200,
    "num-clients": 0,
    "fraction-train": 1.0,
    "min-nodes": 2,
    "num-server-rounds": 2,
    "node-timeout": 240.0,
}


def start_devices(started, folder):
    """Start a SuperNode on each device's host and return what its node-config says."""
    write_devices(folder, devices=DEVICES)
    configs = []
    for client, name in enumerate(DEVICES):
        started.register(name)
        data = str(folder / name / "data")
        started.start_node(name, data_path=data, client_id=client)
        configs.append({"data-path": data, "client-id": client})
    return configs


def in_process(folder, node_configs):
    values = {**SETTINGS, "run-dir": str(folder)}
    run_server(InlineGrid(client_app, values, node_configs), read_config(values))
    return folder


def losses(folder):
    records = metrics(folder)
    return [record["test_loss"] for record in records] + [r["train_loss"] for r in records[1:]]


def seconds(folder):
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [round(json.loads(line)["seconds"]["round"], 1) for line in lines[1:]]


def wait_until(condition, started):
    end = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < end, started.logs()
        time.sleep(0.2)


def pull_cable_in_round_2(started, folder):
    """Return the records of a run whose client 1 is away until the SuperLink has noticed."""
    settings = {**SETTINGS, "num-server-rounds": 100, "round-deadline": DEADLINE}
    already = started.log("device-1").count("Received successfully")
    started.begin(started.write_settings(settings, folder.name), folder.name)
    received = already + 3  # the query, and the messages of rounds 1 and 2
    wait_until(lambda: started.log("device-1").count("Received successfully") == received, started)
    started.pull_cable("device-1")
    wait_until(lambda: "is no longer connected" in started.log(folder.name), started)
    started.plug_in("device-1")
    away = len(metrics(folder))
    wait_until(lambda: any(r["replied"] == 2 for r in metrics(folder)[away:]), started)
    return metrics(folder)


def test_two_devices_on_hosts_of_their_own(tmp_path, subtests):
    """One federation for all of it, since each SuperNode costs seconds to start."""
    with hosts(tmp_path, DEVICES) as started:
        for name in started.names:
            with subtests.test(f"{name} sees no other host's folder"):
                assert started.start(name, "/bin/ls", str(tmp_path)).wait(60) == 0
                assert started.log(name).split() == [name]
        node_configs = start_devices(started, tmp_path)
        plain = started.run(SETTINGS, "plain")
        with subtests.test("the numbers are those of one process"):
            alone = in_process(tmp_path / "in-process", node_configs)
            assert losses(plain) == pytest.approx(losses(alone), abs=1e-6)
            assert largest_difference(model(plain), model(alone)) <= 1e-5
        way = started.slow_down("device-1")
        slow = started.run(SETTINGS, "slow")
        print(f"seconds a round: {seconds(plain)}; device-1 behind {way}: {seconds(slow)}")
        with subtests.test("a slow cable changes no number"):
            assert metrics(slow) == metrics(plain)
            assert largest_difference(model(slow), model(plain)) == 0
        records = pull_cable_in_round_2(started, tmp_path / SERVER / "pulled")
    log = started.log("pulled")
    with subtests.test("a pulled cable costs its client the round, by name, and ends nothing"):
        reason = f"no reply within round-deadline = {DEADLINE:g} s"
        assert records[2]["failures"] == {"1": reason}
        assert records[2]["faults"] == {"late": 1}
        assert f"Client 1 is left out of this round: {reason}" in log
        assert log.count("(device-1) is no longer connected") == 1
        assert all(0 in r["clients"] and r["model_changed"] for r in records[1:])
    with subtests.test("with the cable plugged in again it takes part again"):
        assert log.count("(device-1) is accepted") == 2
        assert records[-1]["clients"] == [0, 1]
        assert "failures" not in records[-1]


CODE = """
import signal, sys
from pathlib import Path
from deploy.hosts import hosts
with hosts(Path(sys.argv[1]), ["device"]):
    print("started", flush=True)
    signal.pause()
"""


def test_hosts_are_removed_after_a_signal(tmp_path):
    command = [sys.executable, "-c", CODE, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "started\n"
        started = descendants(process.pid)
        name = f"fedapp-{process.pid}-device"
        assert name in namespaces()
        process.send_signal(signal.SIGTERM)
        process.wait(60)
    assert name not in namespaces()
    assert living(started) == {}


def namespaces():
    return subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True).stdout
