"""What clients keep between turns: read, written, rolled back, pruned, and refused if damaged."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedapp.client_app import app as client_app
from fedapp.engines.in_process import run_inline
from fedapp.errors import CheckpointError, ConfigError
from fedapp.federation.arrays import to_arrays
from fedapp.federation.messages import decode_train_request, encode_train_request
from fedapp.server_app import app as server_app
from fedapp.training.client import TrainRequest
from fedapp.training.client_state import ClientStates, StateLocation, node_folder, shared_folder
from fedapp.training.round_plan import RoundPlan
from tests.in_process import metrics
from tests.test_algorithms import run_to, settings

LIKE = {"w": torch.zeros(2, dtype=torch.float64)}


def value(number: float) -> dict[str, torch.Tensor]:
    return {"w": torch.full((2,), number, dtype=torch.float64)}


class Timeline:
    """One client's turns under one attempt after another."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.starts, self.checkpoints = folder, [0], [0]
        self.last_used_round = 0

    def at(self, round_: int) -> ClientStates:
        order = StateLocation(
            "run",
            str(self.folder),
            tuple(self.starts),
            tuple(self.checkpoints[-2:]),
            {7: self.last_used_round},
        )
        return ClientStates(self.folder, order, round_)

    def read(self, round_: int) -> float | None:
        kept = self.at(round_).read(7, LIKE)
        return None if kept is None else float(kept["w"][0])

    def write(self, round_: int, number: float, *, used: bool = True) -> None:
        """Take a turn, of which the server uses the reply or not."""
        self.at(round_).write(7, value(number))
        self.last_used_round = round_ if used else self.last_used_round

    def files(self) -> list[str]:
        return sorted(path.name for path in (self.folder / "7").iterdir())


def test_what_a_killed_turn_left_half_written_goes_with_the_next(tmp_path: Path) -> None:
    """But not what a turn of this round is writing in another process."""
    line = Timeline(tmp_path)
    line.write(1, 1.0)
    killed, writing = (f".round-00000{n}.attempt-0.safetensors.77.tmp" for n in (2, 3))
    for name in (killed, writing):
        (tmp_path / "7" / name).write_bytes(b"half")
    line.write(3, 3.0)
    assert killed not in line.files()
    assert writing in line.files()
    assert line.read(4) == 3.0


def test_a_round_reads_the_newest_earlier_one(tmp_path: Path) -> None:
    """Nothing before the first turn; a round that is run again reads what it read before."""
    line = Timeline(tmp_path)
    assert line.read(1) is None
    line.write(2, 2.0)
    assert line.read(2) is None
    assert line.read(3) == 2.0
    line.write(5, 5.0)
    assert (line.read(5), line.read(9)) == (2.0, 5.0)


def test_a_state_that_the_server_counts_with_must_be_there(tmp_path: Path) -> None:
    """A client that began anew would no longer be the one that is in the server's mean."""
    line = Timeline(tmp_path)
    line.write(2, 2.0)
    for path in (tmp_path / "7").iterdir():
        path.unlink()
    with pytest.raises(CheckpointError, match=r"client 7: its state of round 2.*state-path"):
        line.read(3)


def test_an_older_state_is_not_that_which_the_server_counts_with(tmp_path: Path) -> None:
    """A device's folder was restored from a copy of round 2; the server used the reply of round 5."""
    line = Timeline(tmp_path)
    line.write(2, 2.0)
    line.last_used_round = 5
    with pytest.raises(CheckpointError, match=r"client 7: its state of round 5.*restore it"):
        line.read(6)


def test_a_resume_rolls_back(tmp_path: Path) -> None:
    """Checkpoints of rounds 0 and 4; turns in 3 and 6; resumed from 4, the turn of 6 is dead.

    That holds although the resumed run's own turns may skip round 6, and for the attempt after.
    """
    line = Timeline(tmp_path)
    line.write(3, 3.0)
    line.checkpoints.append(4)
    line.write(6, 6.0)
    assert line.read(7) == 6.0
    line.starts.append(4)
    line.last_used_round = 3
    assert line.read(5) == 3.0
    assert line.read(8) == 3.0
    line.checkpoints.append(8)
    line.starts.append(8)
    assert line.read(9) == 3.0
    line.write(9, 9.0)
    assert line.read(10) == 9.0


def test_a_turn_that_did_not_count_is_as_if_it_had_not_been(tmp_path: Path) -> None:
    """The server used the replies of rounds 1 and 4, and not those of 2, 3 and 5."""
    line = Timeline(tmp_path)
    line.write(1, 1.0)
    for round_ in (2, 3):
        line.write(round_, round_, used=False)
        assert line.read(round_ + 1) == 1.0
    assert [name[:12] for name in line.files()] == ["round-000001", "round-000003"]
    line.write(4, 4.0)
    line.write(5, 5.0, used=False)
    assert line.read(6) == 4.0


def test_only_what_a_resume_can_read_stays(tmp_path: Path) -> None:
    """The newest two, and the newest up to each kept checkpoint; what a dead attempt wrote goes."""
    line = Timeline(tmp_path)
    for round_ in (1, 2, 3):
        line.write(round_, round_)
    assert [name[:12] for name in line.files()] == ["round-000002", "round-000003"]
    line.checkpoints.append(3)
    for round_ in (4, 5, 6):
        line.write(round_, round_)
    assert [name[:12] for name in line.files()] == ["round-000003", "round-000005", "round-000006"]
    line.starts.append(3)
    line.last_used_round = 3
    line.write(4, 4.5)
    assert line.files() == [
        "round-000003.attempt-0.safetensors",
        "round-000004.attempt-1.safetensors",
    ]
    assert line.read(5) == 4.5


@pytest.mark.parametrize("restarted", [False, True])
def test_a_late_turn_takes_nothing_away(tmp_path: Path, *, restarted: bool) -> None:
    """Round 2's node is still at work when another node takes the client's turn in round 3.

    With the server started again in between, round 2 is run again: its first try is the late one.
    """
    line = Timeline(tmp_path)
    line.checkpoints.append(1)
    line.write(1, 1.0)
    late = line.at(2)
    if restarted:
        line.starts.append(1)
        line.write(2, 2.0)
    line.write(3, 3.0)
    before = line.files()
    late.write(7, value(-1.0))
    assert line.files() == before
    assert line.read(4) == 3.0


def test_what_each_kept_checkpoint_can_read_stays(tmp_path: Path) -> None:
    """A damaged last checkpoint gives way to the one before, which needs the states of its round."""
    line = Timeline(tmp_path)
    line.checkpoints += [2, 4]
    for round_ in (1, 2, 3, 4, 5, 6, 7):
        line.write(round_, round_)
    assert [int(name[6:12]) for name in line.files()] == [2, 4, 6, 7]


@given(st.lists(st.sampled_from(["turn", "lost", "checkpoint", "kill"]), max_size=25))
def test_any_history_reads_as_if_it_had_never_been_killed(events: list[str]) -> None:
    """Files, pruned and rolled back, always give what a plain list of the turns that counted gives."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        line, turns, round_ = Timeline(Path(folder)), {}, 0
        for number, event in enumerate(events):
            if event in ("turn", "lost"):
                round_ += 1
                assert line.read(round_) == turns.get(max(turns, default=0))
                line.write(round_, number, used=event == "turn")
                turns |= {round_: number} if event == "turn" else {}
            elif event == "checkpoint":
                round_ += 1
                line.checkpoints.append(round_)
            else:
                round_ = line.checkpoints[-1]
                line.starts.append(round_)
                turns = {r: n for r, n in turns.items() if r <= round_}
                line.last_used_round = max(turns, default=0)
        assert line.read(round_ + 1) == turns.get(max(turns, default=0))


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty"])
def test_a_damaged_file_is_named(tmp_path: Path, damage: str) -> None:
    line = Timeline(tmp_path)
    line.write(1, 1.0)
    path = tmp_path / "7" / line.files()[0]
    content = bytearray(path.read_bytes())
    content[-3] ^= 255
    path.write_bytes({"truncated": content[:-4], "flipped": content, "empty": b""}[damage])
    with pytest.raises(CheckpointError, match=rf"state file {path}.*[Rr]esume the run"):
        line.read(2)


def test_a_state_of_another_model_is_named(tmp_path: Path) -> None:
    line = Timeline(tmp_path)
    line.at(1).write(7, {"w": torch.zeros(3)})
    line.last_used_round = 1
    with pytest.raises(CheckpointError, match="holds other tensors"):
        line.read(2)


def test_a_client_with_a_damaged_state_is_left_out_and_named(tmp_path: Path) -> None:
    """The run goes on with the others; the message says which file and how to mend it."""
    values = settings("scaffold", num_server_rounds=2, checkpoint_every=1)
    run_to(tmp_path, values)
    for path in (tmp_path / "client-states" / "2").iterdir():
        path.write_bytes(b"nonsense")
    run_to(tmp_path, {**values, "num-server-rounds": 3, "resume": True})
    failures = metrics(tmp_path)[-1]["failures"]
    assert list(failures) == ["2"]
    assert str(tmp_path / "client-states" / "2") in failures["2"]


def test_an_algorithm_without_state_costs_nothing(tmp_path: Path) -> None:
    """No folder, and no word of it in the messages."""
    run_to(tmp_path, settings("fedavg", num_server_rounds=1))
    assert not (tmp_path / "client-states").exists()
    order = TrainRequest(RoundPlan(), (0,))
    content = encode_train_request(order, to_arrays(LIKE))
    assert not [k for k in content.config_records["config"] if k.startswith("state")]


def test_the_order_survives_the_wire() -> None:
    states = StateLocation("abc", "/runs/a", (0, 2), (2, 0), {1: 0, 2: 1})
    order = TrainRequest(RoundPlan(round=3, learning_rate=0.1, epochs=4), (1, 2), states)
    decoded, _, _ = decode_train_request(encode_train_request(order, to_arrays(LIKE)))
    assert decoded == order


def test_a_device_keeps_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """state-path of the node-config, else $FEDAPP_STATE; one folder a run, none in the run's."""
    monkeypatch.setenv("FEDAPP_STATE", str(tmp_path / "default"))
    values: dict[str, Any] = settings("scaffold", num_clients=0, num_server_rounds=3)
    values |= {"run-dir": str(tmp_path / "run"), "checkpoint-every": 1}
    nodes = [
        {
            "partition-id": i,
            "num-partitions": 4,
            **({"state-path": str(tmp_path / "own")} if i else {}),
        }
        for i in range(4)
    ]
    run_inline(server_app, client_app, values, node_configs=nodes)
    run_id = next((tmp_path / "own").iterdir()).name
    assert sorted(p.name for p in (tmp_path / "own" / run_id).iterdir()) == ["1", "2", "3"]
    assert [p.name for p in (tmp_path / "default" / run_id).iterdir()] == ["0"]
    assert [p.name for p in (tmp_path / "run" / "client-states").iterdir()] == ["attempts.json"]


def test_a_run_name_that_is_a_path_is_refused(tmp_path: Path) -> None:
    """It comes over the network."""
    with pytest.raises(ConfigError, match="state-run = "):
        node_folder(StateLocation("../../x", "", (0,), ()), str(tmp_path))


def test_a_node_that_does_not_see_the_run_directory_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not see"):
        shared_folder(StateLocation("a", str(tmp_path / "nowhere"), (0,), ()))


def test_the_states_of_a_device_are_for_its_user_alone(tmp_path: Path) -> None:
    """They are made of its data: a SCAFFOLD variate is a mean of gradients."""
    before = os.umask(0o022)
    try:
        folder = node_folder(StateLocation("a1", "", (0,), ()), str(tmp_path / "states"))
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="state-path"):
        node_folder(StateLocation("a", "", (0,), ()), str(tmp_path / "file"))


def test_resuming_without_the_list_of_attempts_is_refused(tmp_path: Path) -> None:
    values = settings("scaffold", num_server_rounds=1)
    run_to(tmp_path, values)
    (tmp_path / "client-states" / "attempts.json").unlink()
    with pytest.raises(CheckpointError, match=r"attempts\.json cannot be read"):
        run_to(tmp_path, {**values, "resume": True, "num-server-rounds": 2})


def test_states_of_an_earlier_format_are_not_resumed(tmp_path: Path) -> None:
    """Its checkpoints have no last used rounds, so that every client would begin anew."""
    values = settings("scaffold", num_server_rounds=1)
    run_to(tmp_path, values)
    file = tmp_path / "client-states" / "attempts.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "format": 1}))
    with pytest.raises(
        CheckpointError, match=r"attempts\.json cannot be read .*its format is 1, not"
    ):
        run_to(tmp_path, {**values, "resume": True, "num-server-rounds": 2})


def test_a_state_of_another_type_is_refused(tmp_path: Path) -> None:
    line = Timeline(tmp_path)
    line.at(1).write(7, {"w": torch.zeros(2)})
    line.last_used_round = 1
    with pytest.raises(CheckpointError, match="holds other tensors"):
        line.read(2)
