"""A deployment with TLS and node authentication: who is let in, and a SuperLink that is killed."""

import contextlib
import re
import time
from pathlib import Path

import pytest

from deploy.credentials import make_credentials
from deploy.federation import federation
from tests import killed
from tests.conftest import largest_difference
from tests.in_process import SMALL, metrics, model

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]

SETTINGS = {
    **SMALL,
    "min-nodes": 2,
    "num-server-rounds": 4,
    "checkpoint-every": 1,
    "node-timeout": 240.0,
}
SECONDS = 300


def wait_until(condition):
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.2)


@contextlib.contextmanager
def secured(folder):
    """Return a federation after this: uninvited nodes knock, the SuperLink is killed, a resume."""
    names = ["node-a", "node-b", "stranger", "early"]
    # Named as devices elsewhere would call it; the SuperLink's own processes call it 127.0.0.1.
    credentials = make_credentials(folder / "credentials", ["superlink.example.org"], names)
    others = make_credentials(folder / "others", ["127.0.0.1"], [])
    with federation(folder, credentials=credentials) as started:
        for name in ("node-a", "node-b"):
            started.register(name)
            started.start_node(name)
        started.register("early")
        process = started.begin(started.write_settings(SETTINGS, "run"), "run")
        started.uninvited = knock(started, credentials, others)
        wait_until(lambda: lines(folder) >= 2)
        exiting = [p for name, p in started.uninvited.items() if name != "plain"]
        wait_until(lambda: all(process.poll() is not None for process in exiting))
        started.superlink.kill()
        started.superlink.wait()
        process.wait(SECONDS)
        started.lines_when_killed = lines(folder)
        started.start_superlink()
        started.wait_for(started.begin(folder / "run" / "resume.toml", "resumed"), "run")
        yield started


def lines(folder):
    path = folder / "run" / "metrics.jsonl"
    return path.read_text().count("\n") if path.exists() else 0


def knock(started, credentials, others):
    """Start SuperNodes that nobody invited, by their row of the table in docs/deploy-reference.md."""
    trust = ["--root-certificates", str(credentials.ca)]
    distrust = ["--root-certificates", str(others.ca)]

    def key(name):
        return ["--auth-supernode-private-key", str(credentials.node_key(name))]

    rows = {
        "no-key": trust,
        "unknown-key": [*trust, *key("stranger")],
        "wrong-ca": [*distrust, *key("stranger")],
        "plain": ["--insecure"],
        "second": [*trust, *key("node-a")],
    }
    ahead = {"PYTHONPATH": str(Path(__file__).parent / "faulty"), "FEDAPP_CLOCK": "20"}
    return {
        **{name: started.start_supernode(name, *options) for name, options in rows.items()},
        "early": started.start_supernode("early", *trust, *key("early"), variables=ahead),
    }


REFUSED = {
    "no-key": "All SuperNodes must be registered via the CLI",
    "unknown-key": "Failed to activate SuperNode",
    "wrong-ca": "CERTIFICATE_VERIFY_FAILED",
    "second": "Failed to activate SuperNode",
}


@pytest.mark.nightly
def test_only_those_invited_take_part_and_a_killed_superlink_costs_nothing(tmp_path, subtests):
    """One federation for all rows of the table, since each SuperNode costs seconds to start."""
    with secured(tmp_path) as started:
        for name, reason in REFUSED.items():
            with subtests.test(f"{name} is refused and exits"):
                assert started.uninvited[name].returncode == 1
                assert reason in started.log(name)
                assert "Receiving:" not in started.log(name)
        with subtests.test("a clock that is ahead is refused without a word"):
            assert started.uninvited["early"].returncode == 0
            assert "SuperNode terminated gracefully" in started.log("early")
            assert "SuperNode ID" not in started.log("early")
            assert '/v1/fleet/activate-node HTTP/1.1" 401' in started.log("superlink")
        # Flower goes on trying: it cannot tell a SuperLink that is away from one that speaks TLS.
        with subtests.test("plain text never gets in"):
            assert "retrying" in started.log("plain")
            assert "SuperNode ID" not in started.log("plain")
            assert "Receiving:" not in started.log("plain")
        with subtests.test("only the two invited were ever active"):
            assert started.log("superlink").count("Activated node_id") == 2
        with subtests.test("the run names them as they were registered"):
            named = re.findall(r"Node \d+ \((.*?)\) is accepted", started.log("run"))
            assert sorted(named) == ["node-a", "node-b"]
        with subtests.test("the run went on after the SuperLink was killed"):
            assert 2 <= started.lines_when_killed <= SETTINGS["num-server-rounds"]
            assert "Resuming after round" in started.log("resumed")
        with subtests.test("it equals the undisturbed run"):
            check_equal_to_undisturbed(tmp_path / "run", tmp_path / "undisturbed")


def check_equal_to_undisturbed(folder, other):
    """Check that nobody who knocked, and nothing that was killed, left a trace in the result."""
    assert killed.run({**SETTINGS, "run-dir": other}, nodes=2) == 0
    assert [r.get("clients") for r in metrics(folder)] == [r.get("clients") for r in metrics(other)]
    assert not any("failures" in record for record in metrics(folder))
    assert largest_difference(model(folder), model(other)) <= 1e-5
