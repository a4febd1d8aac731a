"""What holds for every algorithm that the registry finds, in this process.

An algorithm that needs labels runs on the digits, every other on the notes' quadratic. What theory
says of it stands in ``tests/identities.py``.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID

from fedapp.client_app import app as client_app
from fedapp.config.read import read_config
from fedapp.config.registry import FAMILIES
from fedapp.data.embedded.quadratic import MATRIX, OPTIMUM, VECTOR
from fedapp.data.load import load_dataset
from fedapp.engines.grid import RUN_ID, partition_node_configs
from fedapp.engines.in_process import InlineGrid, run_inline
from fedapp.errors import ConfigError
from fedapp.runs.checkpoint import checkpoint_rounds
from fedapp.server import run as run_server
from fedapp.server_app import app as server_app
from fedapp.training.algorithm import Algorithm
from tests.conftest import largest_difference, slow_but
from tests.identities import IDENTITIES, identity_of
from tests.in_process import metrics, model

ALGORITHMS: dict[str, type[Algorithm]] = dict(
    next(family for family in FAMILIES if family.key == "algorithm").components()
)
EVERY = pytest.mark.parametrize("name", list(ALGORITHMS))
CHOSEN = ("fedavg", "fedadam", "feddyn", "fednova", "fedprox", "krum", "scaffold")
"""For the quick selection: a rule of the server, two with states, one for unequal steps, a robust one."""
TRAINER = pytest.mark.parametrize(
    "trainer",
    [
        {"trainer": "sequential"},
        pytest.param(
            {"trainer": "batched", "program": "record", "clients-together": 2},
            marks=pytest.mark.nightly,
        ),
    ],
    ids=["sequential", "batched"],
)
QUADRATIC: dict[str, Any] = {
    "dataset": "quadratic",
    "model": "quadratic",
    "partitioner": "natural",
    "quadratic.clients": 4,
    "num-clients": 4,
    "fraction-train": 1.0,
    "local-epochs": 5,
    "batch-size": 0,
    "learning-rate": 0.2,
}
DIGITS: dict[str, Any] = {
    "dataset": "digits",
    "model": "linear",
    "partitioner": "label-quantity",
    "num-clients": 4,
    "fraction-train": 1.0,
    "local-epochs": 1,
    "batch-size": 64,
    "learning-rate": 0.1,
}
QUIET = {"precision": "float64", "pictures": False, "eval-every": 0, "num-server-rounds": 3}
OWN: dict[str, dict[str, Any]] = {
    "fedadam": {"server-learning-rate": 0.05},
    "fedyogi": {"server-learning-rate": 0.05},
    "fedadagrad": {"server-learning-rate": 0.2},
    "fedavgm": {"fedavgm.momentum": 0.3},
    "moon": {"model": "2nn", "2nn.hidden": 32},
    "dp-fedavg": {"dp-fedavg.noise": 0.01, "dp-fedavg.entropy": "seed", "weighting": "uniform"},
    "local-dp": {"local-dp.noise": 0.01, "local-dp.entropy": "seed", "weighting": "uniform"},
}
"""What suits the quadratic, or what the algorithm asks for, where the default does not."""


CHOOSY = {"krum", "multikrum", "bulyan"}
"""Choose among clients; where two are equally good, as here, rounding decides."""
BOTH_OPTIONS = [n for n in ALGORITHMS if not ALGORITHMS[n].custom_update and n not in CHOOSY]


def settings(name: str, **more: Any) -> dict[str, Any]:
    base = DIGITS if ALGORITHMS[name].needs else QUADRATIC
    more = {key.replace("_", "-"): value for key, value in more.items()}
    # Robust rules need some replies a round, also where two of four nodes fall out.
    clients = {"num-clients": 4 * -(-ALGORITHMS[name]().min_updates // 2)}
    if base is QUADRATIC:
        clients["quadratic.clients"] = clients["num-clients"]
    return {**QUIET, **base, **clients, "algorithm": name, **OWN.get(name, {}), **more}


def run_to(folder: Path, values: dict[str, Any], nodes: int = 1) -> dict[str, torch.Tensor]:
    run_inline(server_app, client_app, {**values, "run-dir": str(folder)}, nodes)
    return model(folder)


def test_the_quadratic_is_the_notes_whatever_its_parameters() -> None:
    """The mean of all (A_i, b_i) is exactly (A, b); each pair of clients is centred on it."""
    for options in ({}, {"curvature": 0.9, "noise": 1.0, "size-ratio": 3, "clients": 5}):
        values = {f"quadratic.{key}": value for key, value in options.items()}
        train = load_dataset(read_config({**QUADRATIC, **values})).train
        mean = train.inputs.mean(0)
        assert (mean[:, :2] == MATRIX).all()
        assert (mean[:, 2] == VECTOR).all()
        for client in range(options.get("clients", 4)):
            own = train.inputs[train.groups["client"] == client].mean(0)
            assert torch.linalg.eigvalsh(torch.tensor(own[:, :2])).min() > 0


@TRAINER
@pytest.mark.parametrize("name", slow_but(CHOSEN, ALGORITHMS))
def test_converges_on_the_quadratic(name: str, trainer: dict[str, Any], tmp_path: Path) -> None:
    """To (1/11, 7/11) where the clients differ in b alone; near it where theory says no more.

    On the digits, which have no known optimum, the training loss falls.
    """
    values = settings(name, num_server_rounds=25, checkpoint_every=0) | trainer
    if ALGORITHMS[name].needs:
        run_to(tmp_path, {**values, "num-server-rounds": 4})
        losses = [r["train_loss"] for r in metrics(tmp_path) if "train_loss" in r]
        assert losses[-1] < 0.9 * losses[0]
        return
    found = run_to(tmp_path, values)["x"]
    error = float((found - torch.from_numpy(OPTIMUM)).abs().max())
    assert error < (1e-6 if identity_of(name).exact else 0.25)


@TRAINER
@pytest.mark.parametrize("name", slow_but(CHOSEN, ALGORITHMS))
def test_is_deterministic_and_resumes_exactly(
    name: str, trainer: dict[str, Any], tmp_path: Path
) -> None:
    """Interrupted in round 4, it goes on after round 3 and ends with the same bits.

    Two of four clients a round, so that states are of different rounds; three nodes.
    """
    values = settings(name, fraction_train=0.5, num_server_rounds=5, checkpoint_every=2) | trainer
    whole = run_to(tmp_path / "whole", values, nodes=3)
    again = tmp_path / "killed"
    given = {**values, "run-dir": str(again)}
    with pytest.raises(KeyboardInterrupt):
        run_server(
            InterruptedGrid(client_app, given, partition_node_configs(3)), read_config(given)
        )
    assert checkpoint_rounds(again / "checkpoints") == [3, 2]
    resumed = run_to(again, {**values, "resume": True}, nodes=3)
    assert largest_difference(whole, resumed) == 0.0
    assert metrics(tmp_path / "whole") == metrics(again)


@pytest.mark.parametrize("name", slow_but(CHOSEN, BOTH_OPTIONS))
def test_options_1_and_2_agree(name: str, tmp_path: Path) -> None:
    """Whether clients send updates or models, server rules see the same, up to rounding."""
    values = settings(name, num_server_rounds=2)
    one = run_to(tmp_path / "one", {**values, "server-learning-rate": 1.0})
    two = run_to(tmp_path / "two", {**values, "server-learning-rate": 1.0, "update": "model"})
    assert largest_difference(one, two) < 1e-9


class InterruptedGrid(InlineGrid):
    """Ctrl-C comes in round 4, when the first node has trained."""

    def _answer(self, message: Message) -> Message:
        reply = super()._answer(message)
        if plan_round(message) == 4:
            raise KeyboardInterrupt
        return reply


def plan_round(message: Message) -> Any:
    """Return the round of a request to train."""
    return message.content.config_records.get("plan", {}).get("round")


class BadGrid(InlineGrid):
    """In round 2 node 1 never answers and node 2 fails."""

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        wanted = {i for i in message_ids if i in self._pending and not self._lost(self._pending[i])}
        return super().pull_messages(wanted)

    def _lost(self, message: Message) -> bool:
        return plan_round(message) == 2 and message.metadata.dst_node_id == 1

    def _answer(self, message: Message) -> Message:
        if plan_round(message) == 2 and message.metadata.dst_node_id == 2:
            message.content["arrays"] = message.content["config"]
        return super()._answer(message)


@pytest.mark.parametrize("name", slow_but(("fedavg", "scaffold"), ALGORITHMS, CHOSEN))
def test_survives_a_missing_and_a_broken_client(name: str, tmp_path: Path) -> None:
    """Half of the clients drop out of round 2 and are named; the others' round counts."""
    values = settings(name, round_deadline=2.0, run_dir=str(tmp_path / "run"))
    nodes = [{"partition-id": i, "num-partitions": 4} for i in range(4)]
    bad = BadGrid(client_app, values, nodes)
    server_app(bad, Context(RUN_ID, SUPERLINK_NODE_ID, {}, RecordDict(), values))
    records = metrics(tmp_path / "run")
    half = values["num-clients"] // 2
    assert len(records[2]["failures"]) == half
    assert records[2]["replied"] == half
    assert records[2]["model_changed"]
    assert records[3]["replied"] == 2 * half
    assert all(bool(t.isfinite().all()) for t in model(tmp_path / "run").values())


class LosingGrid(InlineGrid):
    """In round 2 node 1 trains, and its reply is lost."""

    def _answer(self, message: Message) -> Message:
        reply = super()._answer(message)
        if plan_round(message) == 2 and message.metadata.dst_node_id == 1:
            reply.content["arrays"] = reply.content["metrics"]
        return reply


TWINS = ["scaffold", "feddyn"]
"""Exact ones of which the server's state is a mean of the clients'."""


@pytest.mark.parametrize("name", TWINS)
def test_a_turn_whose_reply_is_lost_leaves_nothing_behind(name: str, tmp_path: Path) -> None:
    """The client's state and the server's stay each other's: the optimum is still found."""
    values = settings(name, num_server_rounds=40, checkpoint_every=0, run_dir=str(tmp_path))
    nodes = [{"partition-id": i, "num-partitions": 4} for i in range(4)]
    grid = LosingGrid(client_app, values, nodes)
    server_app(grid, Context(RUN_ID, SUPERLINK_NODE_ID, {}, RecordDict(), values))
    assert len(metrics(tmp_path)[2]["failures"]) == 1
    optimum = {"x": torch.from_numpy(OPTIMUM)}
    assert largest_difference(model(tmp_path), optimum) < 1e-6


class RacingGrid(InlineGrid):
    """Every node works at once, and another is quickest each time."""

    context = 0

    def push(self, message_id: str, message: Message) -> None:
        super().push(message_id, self._answer(message))

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        wanted = [key for key in message_ids if key in self._pending]
        self.context += 1
        return [self._pending.pop(wanted[self.context % len(wanted)])] if wanted else []


@pytest.mark.slow
def test_turns_of_clients_that_were_not_needed_leave_nothing_behind(tmp_path: Path) -> None:
    """Half of the clients a round, and each time one more is asked than is waited for."""
    values = settings("scaffold", num_server_rounds=150, checkpoint_every=0, fraction_train=0.5)
    values |= {"quadratic.clients": 8, "num-clients": 8, "over-selection": 0.25}
    values |= {"run-dir": str(tmp_path)}
    nodes = [{"partition-id": i, "num-partitions": 8} for i in range(8)]
    grid = RacingGrid(client_app, values, nodes)
    server_app(grid, Context(RUN_ID, SUPERLINK_NODE_ID, {}, RecordDict(), values))
    found = model(tmp_path)
    unused = {client for r in metrics(tmp_path)[1:] for client in r.get("surplus", [])}
    assert len(unused) > 5
    assert largest_difference(found, {"x": torch.from_numpy(OPTIMUM)}) < 1e-5


class TamperingGrid(InlineGrid):
    """Node 2 uploads a variate of another shape."""

    def _answer(self, message: Message) -> Message:
        reply = super()._answer(message)
        if message.metadata.dst_node_id == 2 and reply.content.array_records:
            reply.content["uploads"] = ArrayRecord({"x": Array(np.zeros(3))})
        return reply


def test_a_wrong_upload_is_dropped_and_named(tmp_path: Path) -> None:
    values = settings("scaffold", run_dir=str(tmp_path / "run"))
    nodes = [{"partition-id": i, "num-partitions": 4} for i in range(4)]
    bad = TamperingGrid(client_app, values, nodes)
    server_app(bad, Context(RUN_ID, SUPERLINK_NODE_ID, {}, RecordDict(), values))
    for record in metrics(tmp_path / "run")[1:]:
        assert record["replied"] == 3
        (reason,) = record["failures"].values()
        assert "uploads: 'x' has shape (3,), not (2,)" in reason


EQUIVALENT = [name for name, own in IDENTITIES.items() if own.fedavg_at is not None]
ROUNDED = {"fednova": 1e-12, "fedpa": 1e-12, "fedavgm": 1e-12, "fedsmoo": 1e-12, "bulyan": 1e-12}
"""Reduce to federated averaging up to rounding in float64; the others bit for bit.

Bulyan adds values in the order in which NumPy sorts equal ones, which is the processor's.
"""


@EVERY
def test_every_algorithm_has_a_line_in_the_table_of_identities(name: str) -> None:
    assert identity_of(name)


def test_a_missing_line_of_the_table_says_what_to_add() -> None:
    with pytest.raises(pytest.fail.Exception, match=r"Add one, 'own': Identity\(\{'own\.KEY'"):
        identity_of("own")


def test_the_table_of_identities_has_no_other_line() -> None:
    assert set(IDENTITIES) <= set(ALGORITHMS)


@TRAINER
@pytest.mark.parametrize("name", EQUIVALENT)
def test_it_is_federated_averaging_where_the_table_says_so(
    name: str, trainer: dict[str, Any], tmp_path: Path
) -> None:
    values = settings(name) | dict(IDENTITIES[name].fedavg_at or {}) | trainer
    found = run_to(tmp_path / "own", values)
    kept = {k: v for k, v in values.items() if not k.startswith(f"{name}.")}
    fedavg = run_to(tmp_path / "fedavg", kept | {"algorithm": "fedavg"})
    assert largest_difference(found, fedavg) <= ROUNDED.get(name, 0.0)


def test_scaffold_with_zero_variates_is_fedavg(tmp_path: Path) -> None:
    """In round 1 all variates are zero."""
    values = settings("scaffold", num_server_rounds=1)
    found = run_to(tmp_path / "own", values)
    assert largest_difference(found, run_to(tmp_path / "a", values | {"algorithm": "fedavg"})) == 0


@pytest.mark.parametrize("name", ["scaffold", "feddyn"])
def test_drift_is_corrected_where_curvatures_differ(name: str, tmp_path: Path) -> None:
    """FedAvg with five local steps stops at another point; SCAFFOLD and FedDyn at the optimum."""
    values = settings(name, num_server_rounds=20, checkpoint_every=0)
    values |= {"quadratic.curvature": 0.5, "quadratic.heterogeneity": 2.0}
    own = {"feddyn.alpha": 1.0} if name == "feddyn" else {}
    optimum = {"x": torch.from_numpy(OPTIMUM)}
    assert largest_difference(run_to(tmp_path / "own", values | own), optimum) < 1e-3
    fedavg = run_to(tmp_path / "fedavg", values | {"algorithm": "fedavg"})
    assert largest_difference(fedavg, optimum) > 1e-2


class JoiningGrid(InlineGrid):
    """Two of four devices connect after a training message of round 2."""

    joined, join_after = False, 2

    def push(self, message_id: str, message: Message) -> None:
        content = message.content
        if plan := content.config_records.get("plan"):
            self.joined = self.joined or plan["round"] == self.join_after
            self.extras = content.array_records.get("extras")
        super().push(message_id, message)

    def get_node_ids(self) -> list[int]:
        nodes = super().get_node_ids()
        return nodes if self.joined else nodes[:2]


@pytest.mark.parametrize("name", ["scaffold", pytest.param("feddyn", marks=pytest.mark.slow)])
def test_drift_is_corrected_for_devices_that_join_later(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what it held before they came, c would sum to another mean for good."""
    monkeypatch.setenv("FEDAPP_STATE", str(tmp_path / "state"))
    more = {"quadratic.curvature": 0.5, "learning-rate": 0.1, "min-nodes": 2}
    more |= {"feddyn.alpha": 1.0} if name == "feddyn" else {}
    values = settings(name, num_server_rounds=60, checkpoint_every=0) | more
    values |= {"num-clients": 0, "run-dir": str(tmp_path / "run")}
    nodes = partition_node_configs(4)
    # The first two are not a pair, whose mean is the optimum.
    grid = JoiningGrid(client_app, values, [nodes[i] for i in (0, 2, 1, 3)])
    run_server(grid, read_config(values))
    error = float((model(tmp_path / "run")["x"] - torch.from_numpy(OPTIMUM)).abs().max())
    assert grid.joined
    assert error < 1e-6


def test_clients_correct_with_a_mean_that_counts_those_who_have_joined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With twice as many clients of one size c is half of what it would be without them."""
    monkeypatch.setenv("FEDAPP_STATE", str(tmp_path / "state"))
    values = settings("scaffold", num_server_rounds=3, learning_rate=0.1, min_nodes=2)
    sent = []
    for folder, after in (("joined", 2), ("alone", 99)):
        values |= {"num-clients": 0, "run-dir": str(tmp_path / folder)}
        grid = JoiningGrid(client_app, values, partition_node_configs(4))
        grid.join_after = after
        run_server(grid, read_config(values))
        assert grid.extras is not None
        sent.append(grid.extras.to_torch_state_dict())
    joined, alone = sent
    assert float(sum(c.abs().sum() for c in alone.values())) > 0
    for name, c in alone.items():
        torch.testing.assert_close(joined[name], c / 2, rtol=0, atol=0)


@pytest.mark.parametrize("after", [2, 99])
def test_the_perturbation_of_fedsmoo_has_its_length_when_devices_join(
    after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mean over all clients is shorter with them, but s is scaled to length r."""
    monkeypatch.setenv("FEDAPP_STATE", str(tmp_path / "state"))
    values = settings("fedsmoo", num_server_rounds=3, learning_rate=0.1, min_nodes=2)
    values |= {"num-clients": 0, "run-dir": str(tmp_path / "run"), "fedsmoo.rho": 0.25}
    grid = JoiningGrid(client_app, values, partition_node_configs(4))
    grid.join_after = after
    run_server(grid, read_config(values))
    assert grid.extras is not None
    sent = grid.extras.to_torch_state_dict().values()
    assert float(torch.cat([s.flatten() for s in sent]).norm()) == pytest.approx(0.25)


class ChangingGrid(InlineGrid):
    """Node 1 has ``factor`` times its examples in rounds 5 to 10."""

    factor, changed = 1.0, False

    def _answer(self, message: Message) -> Message:
        plan = message.content.config_records.get("plan")
        if plan is not None:
            self.changed = plan["round"] in range(5, 11)
        reply = super()._answer(message)
        if message.metadata.dst_node_id == 1 and self.changed:
            content: Any = reply.content
            if plan is None:
                content["node-data"]["examples"] = int(
                    self.factor * content["node-data"]["examples"]
                )
            else:
                for key in ("examples", "weight"):
                    content["clients"][key] = [self.factor * content["clients"][key][0]]
        return reply


@pytest.mark.parametrize("factor", [0.5, 3.0])
@pytest.mark.parametrize("name", ["scaffold", pytest.param("feddyn", marks=pytest.mark.slow)])
def test_a_device_of_another_size_is_refused_while_it_would_bias_the_mean(
    name: str, factor: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its n_k exchanged, c would be no mean of the c_k any more, and never become one again."""
    monkeypatch.setenv("FEDAPP_STATE", str(tmp_path / "state"))
    monkeypatch.setattr("fedapp.federation.nodes.REJECTED_PAUSE", 0.0)
    monkeypatch.setattr(ChangingGrid, "factor", factor)
    more = {"quadratic.curvature": 0.5, "learning-rate": 0.1}
    more |= {"feddyn.alpha": 1.0} if name == "feddyn" else {}
    values = settings(name, num_server_rounds=70, checkpoint_every=0) | more
    values |= {"num-clients": 0, "run-dir": str(tmp_path / "run")}
    grid = ChangingGrid(client_app, values, partition_node_configs(4))
    run_server(grid, read_config(values))
    records = metrics(tmp_path / "run")
    # It is asked before round 11 begins, and taken back when it is asked again.
    assert [r["round"] for r in records[1:] if r["replied"] < 4] == list(range(5, 12))
    assert records[5]["faults"] == {"weight": 1}
    error = float((model(tmp_path / "run")["x"] - torch.from_numpy(OPTIMUM)).abs().max())
    assert error < 1e-6


@TRAINER
@pytest.mark.parametrize("nesterov", slow_but((False,), (False, True)))
@pytest.mark.parametrize("option", ["I", "II"])
def test_scaffold_corrects_drift_with_client_momentum(
    option: str, nesterov: bool, trainer: dict[str, Any], tmp_path: Path
) -> None:
    """x - y_k over eta sums the gradients as momentum does, K of them for more than K steps.

    Taken for the sum of K plain steps, the variates grow round by round and the run diverges.
    """
    values = settings("scaffold", num_server_rounds=40, checkpoint_every=0, momentum=0.9) | trainer
    values |= {"quadratic.curvature": 0.5, "quadratic.heterogeneity": 2.0, "learning-rate": 0.02}
    found = run_to(tmp_path, values | {"scaffold.option": option, "nesterov": nesterov})
    assert largest_difference(found, {"x": torch.from_numpy(OPTIMUM)}) < 1e-9


def with_weight_decay(weight_decay: float) -> dict[str, torch.Tensor]:
    """Return the optimum of the quadratic and weight_decay |x|^2 / 2."""
    return {"x": torch.from_numpy(np.linalg.solve(MATRIX + weight_decay * np.eye(2), VECTOR))}


@pytest.mark.parametrize("option", ["I", "II"])
def test_weight_decay_is_a_term_of_the_loss_to_scaffold(option: str, tmp_path: Path) -> None:
    values = settings("scaffold", num_server_rounds=40, checkpoint_every=0, weight_decay=0.3)
    values |= {"quadratic.curvature": 0.5, "quadratic.heterogeneity": 2.0, "learning-rate": 0.1}
    found = run_to(tmp_path, values | {"scaffold.option": option})
    assert largest_difference(found, with_weight_decay(0.3)) < 1e-9


def test_weight_decay_is_a_term_of_the_loss_to_fednova(tmp_path: Path) -> None:
    """As below: the error is of the order of the rate, FedAvg's is not."""
    values = settings("fednova", num_server_rounds=50, batch_size=4, local_epochs=1)
    values |= {"quadratic.size-ratio": 3, "learning-rate": 0.02, "checkpoint-every": 0}
    values |= {"quadratic.clients": 2, "num-clients": 2, "weight-decay": 0.3}
    nova = largest_difference(run_to(tmp_path / "nova", values), with_weight_decay(0.3))
    plain = run_to(tmp_path / "fedavg", values | {"algorithm": "fedavg"})
    assert nova < 0.2 * largest_difference(plain, with_weight_decay(0.3))


def test_fednova_corrects_unequal_steps(tmp_path: Path) -> None:
    """Clients of 4 and 12 examples take 1 and 3 steps of B = 4 an epoch, E = 1.

    FedAvg weighs the larger client's optimum too much, FedNova less so: for small rates its fixed
    point is the optimum, with an error of the order of the rate.
    """
    values = settings("fednova", num_server_rounds=50, batch_size=4, local_epochs=1)
    values |= {"quadratic.size-ratio": 3, "learning-rate": 0.02, "checkpoint-every": 0}
    values |= {"quadratic.clients": 2, "num-clients": 2}
    optimum = {"x": torch.from_numpy(OPTIMUM)}
    nova = largest_difference(run_to(tmp_path / "nova", values), optimum)
    plain = run_to(tmp_path / "fedavg", values | {"algorithm": "fedavg"})
    assert nova < 0.2 * largest_difference(plain, optimum)


@TRAINER
@pytest.mark.parametrize("adaptive", [True, False])
def test_fedsols_first_step_is_a_plain_one(
    adaptive: bool, trainer: dict[str, Any], tmp_path: Path
) -> None:
    """At theta rounding alone moves the proximal gradient of a network in float32 from zero."""
    values = settings("fedsol", num_server_rounds=1, batch_size=0, precision="float32") | trainer
    values |= {"model": "2nn", "2nn.hidden": 50}
    found = run_to(tmp_path / "own", values | {"fedsol.adaptive": adaptive})
    fedavg = run_to(tmp_path / "fedavg", values | {"algorithm": "fedavg"})
    assert largest_difference(found, fedavg) == 0


@pytest.mark.parametrize("name", [n for n, a in ALGORITHMS.items() if a.needs])
def test_what_a_task_lacks_is_said(name: str, tmp_path: Path) -> None:
    values = {**QUIET, **QUADRATIC, "algorithm": name}
    with pytest.raises(ConfigError, match=f"algorithm = '{name}': needs"):
        run_to(tmp_path / "run", values)
