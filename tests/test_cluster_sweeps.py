"""A sweep on a Ray cluster: the records of one machine, whatever is killed meanwhile."""

import json
import signal
import subprocess
import time

import pytest

from deploy.processes import BIN
from fedapp.studies.sweep.record import RunRecord
from tests.raylets import raylets

pytestmark = [pytest.mark.cluster, pytest.mark.process, pytest.mark.timeout(500)]

GRID = ["seed=[0,1,2,3]", "num-clients=10", "2nn.hidden=16", "device=cpu"]
GRID += ["num-server-rounds=30", "checkpoint-every=5", "eval-every=5", "local-epochs=1"]
SECONDS = 200


def sweep(folder, *options):
    """Start `fedapp sweep` of the grid in a process of its own; its runs are in a folder."""
    command = [BIN / "fedapp", "sweep", *GRID, "--runs", folder, "--to", folder, *options]
    return subprocess.Popen(command, cwd=folder.parent, stdout=subprocess.PIPE, text=True)


def events(folder):
    """Return the events of the journal, as (event, run, round)."""
    path = folder / "journal.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [(e["event"], e["run"], e["round"]) for e in map(json.loads, lines)]


def wait_until(condition):
    """Wait until the condition is true."""
    until = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.1)


def records(folder):
    """Return the records by run: their rounds, accuracies and losses."""
    found = [RunRecord.model_validate_json(p.read_bytes()) for p in folder.glob("*/record.json")]
    return {each.run: (each.status, each.rounds, each.accuracy, each.loss) for each in found}


def is_underway(folder):
    """Return whether a run is done, and another one has a checkpoint."""
    done = {run for event, run, _ in events(folder) if event == "complete"}
    begun = {run for event, run, _ in events(folder) if event == "begun"} - done
    saved = (p.stem for run in begun for p in (folder / run / "checkpoints").glob("round-*.json"))
    return bool(done) and any(stem > "round-000004" for stem in saved)


@pytest.mark.nightly
def test_a_sweep_loses_a_node_is_killed_and_ends_with_the_records_of_one_machine(tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    with raylets(tmp_path / "cache") as cluster:
        on_cluster = ("--ray-address", cluster.address)
        first = sweep(there, *on_cluster)
        wait_until(lambda: is_underway(there))
        first.send_signal(signal.SIGKILL)
        first.wait()
        done = sum(event == "complete" for event, _, _ in events(there))

        before = len(events(there))
        second = sweep(there, *on_cluster)
        wait_until(lambda: any(e in ("begun", "continued") for e, _, _ in events(there)[before:]))
        (lost,) = (node for node in cluster.list_all_nodes() if not node.is_head())
        lost.kill_raylet()
        output, _ = second.communicate(timeout=SECONDS)
        assert second.returncode == 0
        assert "2 workers in the Ray cluster" in output
        assert "1 on" in output
    one = sweep(here, "--jobs", "2")
    one.communicate(timeout=SECONDS)
    assert one.returncode == 0
    assert done < len(records(there)) == 4
    assert records(there) == records(here)
    ends = [run for event, run, _ in events(there) if event == "complete"]
    assert len(ends) == len(set(ends)) == 4
