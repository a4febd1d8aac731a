"""Devices that disconnect while a run goes on, where the nodes are the clients: others continue."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, Message, MessageType, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID

from fedapp.analysis.privacy import epsilon
from fedapp.client_app import app as client_app
from fedapp.engines.grid import RUN_ID
from fedapp.engines.in_process import InlineGrid
from fedapp.federation import client_sampler
from fedapp.server_app import app as server_app
from strategies.dp_fedavg import DPFedAvg
from tests.in_process import SMALL, metrics


class LeavingGrid(InlineGrid):
    """From the training of ``leave_in`` on, only the first ``stay`` nodes are connected."""

    leave_in, stay, is_over = 1, 2, False

    def get_node_ids(self) -> list[int]:
        nodes = [*super().get_node_ids()]
        return nodes[: self.stay] if self.is_over else nodes

    def _answer(self, message: Message) -> Message:
        reply = super()._answer(message)
        metadata = message.metadata
        if metadata.message_type == MessageType.TRAIN and metadata.group_id == str(self.leave_in):
            self.is_over = True
        return reply


class GrownGrid(InlineGrid):
    """In round 2 every device has one example more than it said at the start."""

    def _answer(self, message: Message) -> Message:
        reply = super()._answer(message)
        metadata = message.metadata
        if metadata.message_type == MessageType.TRAIN and metadata.group_id == "2":
            record = reply.content["clients"]
            record["examples"] = [int(examples) + 1 for examples in record["examples"]]
        return reply


def run(grid: type[InlineGrid], folder: Path, devices: int, **settings: Any) -> list[dict]:
    """Run on devices that are one client each, and return the metrics."""
    values = {
        **SMALL,
        "num-clients": 0,
        "fraction-train": 1.0,
        "min-nodes": devices,
        "num-server-rounds": 3,
        "node-timeout": 0.2,
        "threads": 1,
        "trainer": "sequential",
        "run-dir": str(folder),
        **settings,
    }
    own = [{"partition-id": i, "num-partitions": devices} for i in range(devices)]
    context = Context(RUN_ID, SUPERLINK_NODE_ID, {}, RecordDict(), values)
    server_app(grid(client_app, values, own), context)
    return metrics(folder)


@pytest.fixture(autouse=True)
def looks_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_sampler, "BUSY_SECONDS", 0.01)


@pytest.mark.parametrize(
    "settings",
    [
        {"evaluation": "both"},
        {"evaluation": "clients"},
        {"sampler": "power-of-choice", "weighting": "uniform"},
    ],
    ids=lambda settings: next(iter(settings.values())),
)
def test_a_device_that_leaves_between_two_questions_is_left_out(settings, tmp_path, caplog) -> None:
    rows = run(LeavingGrid, tmp_path / "run", 3, **settings)
    assert [row["clients"] for row in rows[1:]] == [[0, 1, 2], [0, 1], [0, 1]]
    assert ("is not connected" in caplog.text) == ("evaluation" in settings)


@pytest.mark.parametrize("sampler", ["uniform", "by-size"])
def test_a_private_run_goes_on_without_devices_of_its_population(sampler, tmp_path) -> None:
    """One of three a round; the one that left is drawn, and after node-timeout others are."""
    rows = run(
        LeavingGrid,
        tmp_path / "run",
        3,
        **{"algorithm": "local-dp", "fraction-train": 0.34, "sampler": sampler},
        **{"weighting": "uniform", "num-server-rounds": 6, "seed": 1},
    )
    lost = [row["round"] for row in rows[1:] if row.get("faults")]
    assert len(rows) == 7
    assert (lost != []) == (sampler == "uniform")  # by size none is drawn that is not there
    assert not any(row.get("surplus") for row in rows[1:])


def test_of_a_private_population_no_good_reply_is_surplus(tmp_path) -> None:
    """Of six, three a round, three leave: those that were drawn and are there all count."""
    settings = {"algorithm": "local-dp", "fraction-train": 0.5, "seed": 2, "num-server-rounds": 2}
    grid = type("ThreeStay", (LeavingGrid,), {"stay": 3})
    last = run(grid, tmp_path / "run", 6, **settings)[-1]
    assert (last["clients"], last["replied"]) == ([0, 1, 4], 2)
    assert last.get("faults") == {"lost": 1}
    assert not last.get("surplus")


def test_a_private_mean_is_divided_by_the_k_of_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Q K is that of epsilon: with the K of those who are left one client could move more than S."""
    steps, apply = [], DPFedAvg.apply

    def watched(self: DPFedAvg, *given: Any) -> Any:
        steps.append((given[-1].num_clients, given[-1].participants))
        return apply(self, *given)

    monkeypatch.setattr(DPFedAvg, "apply", watched)
    rows = run(LeavingGrid, tmp_path / "run", 3, algorithm="dp-fedavg", weighting="uniform")
    assert [row["replied"] for row in rows[1:]] == [3, 2, 2]
    assert steps == [(3, 3), (3, 2), (3, 2)]


@pytest.mark.parametrize("algorithm", ["fedavg", "dp-fedavg"])
def test_a_round_in_which_all_devices_have_grown_is_left_out(algorithm: str, tmp_path) -> None:
    settings = {"algorithm": algorithm, "weighting": "uniform"}
    rows = run(GrownGrid, tmp_path / "run", 2, **settings)
    assert [row.get("faults") for row in rows[1:]] == [None, {"weight": 2}, None]


@pytest.mark.parametrize("seed", [1, 5, 7])
def test_a_device_that_leaves_before_the_sample_does_not_cost_more_than_the_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Device 1 would be asked twice: while three are connected, another is drawn."""
    monkeypatch.setattr(client_sampler, "BUSY_SECONDS", 0.01)
    once, twice = (epsilon(0.5, 1.0, requests, 3**-1.1) for requests in (1, 2))
    settings: dict[str, Any] = {"algorithm": "local-dp", "local-dp.max-epsilon": (once + twice) / 2}
    settings |= {"fraction-train": 0.34, "sampler": "by-size", "weighting": "uniform", "seed": seed}
    rows = run(LeavingGrid, tmp_path / "run", 3, **settings, **{"num-server-rounds": 4})
    assert max(row.get("epsilon", 0.0) for row in rows) == pytest.approx(once)
