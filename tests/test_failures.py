"""Clients that fail: left out by name, while the round goes on."""

import json
import re

import numpy as np
import pytest
import torch
from flwr.app import Array, MessageType
from typer.testing import CliRunner

from fedapp.cli import main as cli
from fedapp.errors import RunError
from fedapp.federation.callback import ServerState
from fedapp.federation.round_result import RoundResult
from fedapp.federation.validation import upload_like
from fedapp.runs.callbacks import StopIfAllFail
from fedapp.runs.metrics import read_metrics
from fedapp.seeds import generator
from strategies.dp_fedavg import DPFedAvg
from strategies.fedavg import FedAvg
from tests.damages import DAMAGES, raises
from tests.in_process import SMALL, client_app, metrics, model, run

BROKEN = 1


def breaking(damage):
    """Return a ClientApp whose replies to TRAIN messages node BROKEN damages."""

    def call(message, context):
        reply = client_app(message, context)
        if context.node_id == BROKEN and message.metadata.message_type == MessageType.TRAIN:
            return damage(message, reply) or reply
        return reply

    return call


def cohorts(folder):
    """Return the clients of round 1 that node BROKEN and the other one trained."""
    record = metrics(folder)[1]
    lost = sorted(map(int, record.get("failures", {})))
    return lost, sorted(set(record["clients"]) - set(lost))


@pytest.mark.parametrize("case", DAMAGES)
def test_a_broken_node_is_left_out_by_name_and_the_round_goes_on(case, tmp_path):
    damage, kind, reason = DAMAGES[case]
    folder = run(tmp_path / "run", call=breaking(damage), num_server_rounds=1)
    record = metrics(folder)[1]
    lost, good = cohorts(folder)
    assert len(lost) == 3
    assert len(good) == record["replied"] == 2
    assert all(reason in text for text in record["failures"].values()), record["failures"]
    assert record["faults"] == {kind: 3}
    assert record["model_changed"]
    assert all(bool(torch.isfinite(tensor).all()) for tensor in model(folder).values())


def test_what_is_left_is_the_mean_of_the_good_clients_alone(tmp_path):
    """The other node's reply counts in full, as if the lost clients had not been sampled."""
    whole = run(tmp_path / "whole", num_server_rounds=1)
    seen = {}

    def keep(message, context):
        reply = client_app(message, context)
        if context.node_id != BROKEN and message.metadata.message_type == MessageType.TRAIN:
            seen["theta"] = message.content.array_records["arrays"]
            seen["mean"] = reply.content.array_records["arrays"]
        elif message.metadata.message_type == MessageType.TRAIN:
            raises(message, reply)
        return reply

    folder = run(tmp_path / "run", call=keep, num_server_rounds=1)
    for name, tensor in model(folder).items():
        expected = seen["theta"][name].numpy() + seen["mean"][name].numpy()
        np.testing.assert_allclose(tensor.numpy(), expected, atol=1e-7)
        assert not torch.equal(tensor, model(whole)[name])


@pytest.mark.parametrize("reply", ["mean", "each"])
def test_a_client_that_its_node_names_as_failed_is_left_out_alone(reply, tmp_path, monkeypatch):
    monkeypatch.setattr("fedapp.training.algorithm.Algorithm.reply", reply)
    from fedapp.data.node_data import NodeData

    drawn = metrics(run(tmp_path / "whole", num_server_rounds=1))[1]["clients"]
    train = NodeData.train

    def broken(self, client):
        if client == drawn[0]:
            raise ValueError("its disk is gone")
        return train(self, client)

    monkeypatch.setattr(NodeData, "train", broken)
    record = metrics(run(tmp_path / "run", num_server_rounds=1))[1]
    assert list(record["failures"]) == [str(drawn[0])]
    reason = record["failures"][str(drawn[0])]
    assert re.fullmatch(
        r"ValueError: its disk is gone \(.*test_failures.py, line \d+, in broken\)", reason
    )
    assert record["replied"] == 4


def test_a_client_that_its_node_does_not_mention_is_named(tmp_path):
    def forget(message, reply):
        columns = reply.content["clients"]
        for key in list(columns):
            columns[key] = columns[key][:2]

    record = metrics(run(tmp_path / "run", call=breaking(forget), num_server_rounds=1))[1]
    assert list(record["failures"].values()) == ["its node does not mention it"]
    assert record["replied"] == 4


def test_an_update_of_one_client_in_each_that_is_missing_fails_its_node(tmp_path, monkeypatch):
    monkeypatch.setattr("fedapp.training.algorithm.Algorithm.reply", "each")

    def lose(message, reply):
        name = next(key for key in reply.content if key.startswith("arrays."))
        del reply.content[name]

    record = metrics(run(tmp_path / "run", call=breaking(lose), num_server_rounds=1))[1]
    assert len(record["failures"]) == 3
    assert all("is missing" in text for text in record["failures"].values())


def test_on_failure_stop_ends_the_run_with_the_reason(tmp_path):
    with pytest.raises(RunError, match=r"client \d failed \(.*no space left.*on-failure is 'stop'"):
        run(tmp_path / "run", call=breaking(raises), on_failure="stop")


def test_one_client_that_fails_is_enough_to_stop(tmp_path, monkeypatch):
    from fedapp.data.node_data import NodeData

    drawn = metrics(run(tmp_path / "whole", num_server_rounds=1))[1]["clients"]
    train = NodeData.train

    def broken(self, client):
        if client == drawn[2]:
            raise ValueError("its disk is gone")
        return train(self, client)

    monkeypatch.setattr(NodeData, "train", broken)
    with pytest.raises(RunError, match=f"client {drawn[2]} failed .*its disk is gone"):
        run(tmp_path / "run", on_failure="stop", num_server_rounds=1)


def everyone(damage):
    def call(message, context):
        reply = client_app(message, context)
        if message.metadata.message_type == MessageType.TRAIN:
            damage(message, reply)
        return reply

    return call


def test_who_has_no_weight_is_none_of_the_clients_that_a_mean_is_of(tmp_path, monkeypatch):
    """The sum of DP-FedAvg is of so many."""
    steps = []
    apply = DPFedAvg.apply

    def noted(self, theta, mean, upload, state, step):
        steps.append(step)
        return apply(self, theta, mean, upload, state, step)

    def call(message, context):
        reply = client_app(message, context)
        if context.node_id == 1 and message.metadata.message_type == MessageType.TRAIN:
            columns = reply.content["clients"]
            columns["weight"] = [0.0] * len(columns["weight"])
        return reply

    monkeypatch.setattr(DPFedAvg, "apply", noted)
    settings = {"algorithm": "dp-fedavg", "weighting": "uniform", "num_server_rounds": 1}
    record = metrics(run(tmp_path / "run", call=call, fraction_train=1.0, **settings))[1]
    assert record["replied"] == 10
    assert [step.participants for step in steps] == [5]


def test_a_round_without_any_good_reply_leaves_theta_as_it_was(tmp_path):
    folder = run(tmp_path / "run", call=everyone(raises), num_server_rounds=2)
    records = metrics(folder)
    assert [r.get("model_changed") for r in records] == [None, False, False]
    assert [r["test_loss"] for r in records] == [records[0]["test_loss"]] * 3
    assert records[1]["train_loss"] is None
    assert len(records[1]["failures"]) == len(records[1]["clients"]) == 5


@pytest.mark.parametrize("every", [0, 1])
def test_a_run_ends_where_all_clients_fail_with_the_same_error_three_rounds_in_a_row(
    every, tmp_path
):
    """A resume runs the three rounds again, also if checkpoints were due in them."""
    with pytest.raises(
        RunError, match=r"round 3: in each of the last 3 rounds every .* no space left"
    ):
        run(tmp_path / "run", call=everyone(raises), num_server_rounds=5, checkpoint_every=every)
    assert [record["round"] for record in metrics(tmp_path / "run")] == [0, 1, 2, 3]
    same = {"num_server_rounds": 5, "checkpoint_every": every}
    resumed = run(tmp_path / "run", resume=True, **same)
    assert metrics(resumed) == metrics(run(tmp_path / "whole", **same))


def test_failures_end_no_run_whose_privacy_comes_from_sampling(tmp_path):
    """That the clients' data end it would be seen, and has no noise."""
    private = {"algorithm": "dp-fedavg", "weighting": "uniform"}
    folder = run(tmp_path / "run", call=everyone(raises), num_server_rounds=4, **private)
    assert [record["round"] for record in metrics(folder)] == [0, 1, 2, 3, 4]
    assert all(record["faults"]["raised"] for record in metrics(folder)[1:])


def test_an_exception_in_an_algorithm_is_named_with_its_line_and_ends_the_command_badly(
    tmp_path, monkeypatch
):
    def loss(self, *arguments):
        return {}["weights"]

    monkeypatch.setattr(FedAvg, "loss", loss)
    settings = {**SMALL, "num-server-rounds": 2, "run-dir": str(tmp_path / "run")}
    result = CliRunner().invoke(cli.app, ["run", *(f"{k}={v}" for k, v in settings.items())])
    line = loss.__code__.co_firstlineno + 1
    place = f"KeyError: 'weights' (tests/test_failures.py, line {line}, in loss)"
    assert set(metrics(tmp_path / "run")[1]["failures"].values()) == {place}
    assert result.exit_code == 1
    assert str(result.exception).startswith("No round changed the model: KeyError: 'weights'")
    assert str(result.exception).endswith(f"fedapp status {tmp_path / 'run'}")


@pytest.mark.parametrize(
    "rounds",
    [
        ["same", "same", "one replies", "same", "same"],
        ["same", "same", "another", "another"],
        ["same", "same", "several", "same", "same"],
        ["late"] * 5,
        ["whole"] * 5,
    ],
)
def test_clients_that_fail_otherwise_do_not_end_a_run(rounds):
    """One replies; the error changes; there are several; the network is slow."""
    failures = {
        "same": {"failures": {"3": "disk", "7": "disk"}, "faults": {"raised": 2}},
        "another": {"failures": {"3": "memory", "7": "memory"}, "faults": {"raised": 2}},
        "several": {"failures": {"3": "disk", "7": "memory"}, "faults": {"raised": 2}},
        "one replies": {"failures": {"3": "disk"}, "faults": {"raised": 1}},
        "late": {"failures": {"3": "no reply", "7": "no reply"}, "faults": {"late": 2}},
        "whole": {},
    }
    callback = StopIfAllFail()
    for number, kind in enumerate(rounds, 1):
        result = RoundResult(number, scores={"clients": [3, 7], **failures[kind]})
        assert not callback.on_round(result, ServerState(number, {}))


def test_a_round_with_fewer_than_min_replies_leaves_theta_as_it_was_and_says_so(tmp_path, caplog):
    lost = run(tmp_path / "lost", call=breaking(raises), num_server_rounds=1, min_replies=3)
    record = metrics(lost)[1]
    assert (record["replied"], record["model_changed"]) == (2, False)
    assert "round 1: 2 clients replied well, " in caplog.text
    assert record["test_loss"] == metrics(lost)[0]["test_loss"]
    enough = run(tmp_path / "enough", call=breaking(raises), num_server_rounds=1, min_replies=2)
    assert metrics(enough)[1]["model_changed"]


def test_too_few_replies_and_on_failure_stop_end_the_run(tmp_path):
    """Clients without examples reply well but weigh nothing."""

    def weightless(message, reply):
        clients = reply.content["clients"]
        clients["weight"] = [0.0] * len(clients["client"])

    with pytest.raises(
        RunError, match=r"5 clients .* 0 of them with a weight.* stays as it was; on-failure"
    ):
        run(tmp_path / "run", call=everyone(weightless), on_failure="stop")


def test_all_of_twenty_clients_are_trained_by_two_nodes(tmp_path):
    """K is the run's own setting, whatever the number of nodes."""
    trained = []

    def watch(message, context):
        if message.metadata.message_type == MessageType.TRAIN:
            cohort = message.content.config_records["config"]["clients"]
            trained.append((context.node_id, list(cohort)))
        return client_app(message, context)

    folder = run(tmp_path / "run", call=watch, num_clients=20, num_server_rounds=8)
    drawn = [record["clients"] for record in metrics(folder)[1:]]
    expected = [
        sorted(map(int, generator(0, "sample", t).choice(20, 10, replace=False, shuffle=False)))
        for t in range(1, 9)
    ]
    assert drawn == expected
    assert set().union(*map(set, drawn)) == set(range(20))
    for t, clients in enumerate(drawn):
        (one, left), (two, right) = trained[2 * t : 2 * t + 2]
        assert {one, two} == {1, 2}
        assert sorted(left + right) == clients
        assert abs(len(left) - len(right)) <= 1


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold", "fedmedian"])
def test_a_cohort_of_clients_without_examples_is_no_fault(algorithm, tmp_path):
    """Each node trains one client; what those without examples send has no weight, and no mean."""
    folder = run(
        tmp_path / "run",
        nodes=10,
        algorithm=algorithm,
        fraction_train=1.0,
        num_server_rounds=2,
        partitioner="dirichlet",
        **{"dirichlet.alpha": 0.01, "dirichlet.min-size": 0},
    )
    partition = json.loads((folder / "partition.json").read_text())
    assert partition["sizes"]["min"] == 0
    for record in metrics(folder)[1:]:
        assert "faults" not in record
        assert record["replied"] == 10
        assert record["examples"] == partition["num_examples"]
        assert record["model_changed"]


OWN_UPDATES = ("fednova", "fedsgd", "fedpa", "local-dp")


@pytest.mark.parametrize("name", OWN_UPDATES)
def test_the_norm_of_an_algorithms_own_update_is_not_taken_from_the_model(name, tmp_path):
    """What it sends is no model: theta must not be subtracted from it."""
    quiet = {f"{name}.noise": 0.0} if "dp" in name.split("-") else {}
    folder = run(
        tmp_path / "run",
        algorithm=name,
        weighting="uniform",
        learning_rate=0.001,
        max_update_norm=0.5,
        num_server_rounds=1,
        fraction_train=1.0,
        **quiet,
    )
    record = metrics(folder)[1]
    assert "faults" not in record, record["failures"]
    assert record["replied"] == len(record["clients"]) > 0


def test_the_norm_of_a_model_is_that_of_its_step(tmp_path):
    settings = {"update": "model", "learning_rate": 0.001, "num_server_rounds": 1}
    kept = metrics(run(tmp_path / "kept", max_update_norm=0.5, **settings))[1]
    assert "faults" not in kept
    refused = metrics(run(tmp_path / "refused", max_update_norm=1e-6, **settings))[1]
    assert refused["faults"] == {"norm": 5}


UNEQUAL = {
    "partitioner": "dirichlet",
    "dirichlet.alpha": 0.3,
    "momentum": 0.9,
    "nesterov": True,
    "batch_size": 4,
    "batch_size_growth": 2.0,
    "local_epochs": 3,
    "local_epochs_decay": 0.5,
    "num_server_rounds": 3,
}


def test_what_honest_clients_send_besides_is_within_its_bound_in_every_round(tmp_path):
    """Clients of unequal sizes whose momentum, B and E count in ||a_k||_1."""
    for record in metrics(run(tmp_path / "run", algorithm="fednova", **UNEQUAL))[1:]:
        assert "faults" not in record, record["failures"]


@pytest.mark.parametrize("reported", [{}, {"steps": 10**6}])
def test_a_node_that_says_it_took_more_steps_does_not_pull_harder(reported, tmp_path):
    def boast(message, reply):
        weight = reply.content.array_records["uploads"]
        weight["weight"] = Array(np.asarray(1e6, dtype=np.float32))
        for name, value in reported.items():
            columns = reply.content["clients"]
            columns[name] = [value] * len(columns[name])

    settings = {"algorithm": "fednova", "num_server_rounds": 1}
    record = metrics(run(tmp_path / "run", call=breaking(boast), **settings))[1]
    assert record["faults"] == {"malformed" if reported else "norm": 3}
    assert record["replied"] == 2


def test_a_node_trains_no_longer_than_its_round_takes(tmp_path):
    def boast(message, reply):
        columns = reply.content["clients"]
        columns["seconds"] = [1e9] * len(columns["seconds"])

    folder = run(tmp_path / "run", call=breaking(boast), num_server_rounds=1)
    record = read_metrics(folder / "metrics.jsonl")[1]
    assert "faults" not in record
    assert record["seconds"]["train"] == record["seconds"]["exchange"]


def test_clients_evaluate_a_function_that_has_no_accuracy(tmp_path):
    """Each client scores the one test example, which is the function itself: as the server does."""
    settings = {"dataset": "quadratic", "model": "quadratic", "2nn.hidden": 200}
    own = metrics(run(tmp_path / "own", evaluation="clients", **settings))
    servers = metrics(run(tmp_path / "server", evaluation="server", **settings))
    assert [r["test_loss"] for r in own] == pytest.approx([r["test_loss"] for r in servers])
    assert own[-1]["test_accuracy"] is None  # as nan is written


def test_who_is_left_out_of_an_evaluation_is_named(tmp_path, caplog):
    """Node 1 raises, node 2 gives one client an accuracy that cannot be; the others' scores count."""
    spoilt = []

    def call(message, context):
        reply = client_app(message, context)
        if message.metadata.message_type != MessageType.EVALUATE:
            return reply
        if context.node_id == 1:
            raise OSError("no space left on device")
        if context.node_id == 2:
            columns = reply.content["clients"]
            columns["accuracy"] = [2.0, *columns["accuracy"][1:]]
            spoilt.append(columns["client"][0])
        return reply

    folder = run(tmp_path / "run", nodes=3, call=call, evaluation="clients", num_server_rounds=1)
    left_out = [r.getMessage() for r in caplog.records if "evaluation" in r.getMessage()]
    assert len(left_out) == 4  # two nodes, before and after the round
    for line in (
        r"Node 1: clients \[.*, .*\] are left out of this evaluation: the node failed: OSError: no",
        rf"Node 2: clients \[{spoilt[0]}\] are left out of this evaluation: it has Score\(.*2\.0",
    ):
        assert any(re.match(line, said) for said in left_out), left_out
    record = metrics(folder)[1]
    assert record["client_clients"] in (5, 6)
    assert 0 < record["test_accuracy"] <= 1


@pytest.mark.parametrize("name", ["scaffold", "local-dp"])
def test_what_is_uploaded_is_worked_out_once(name, tmp_path, monkeypatch):
    """It is the same in every round, and local-dp draws a model's worth of noise to find out."""
    calls = []

    def counted(algorithm, context):
        calls.append(algorithm.name)
        return upload_like(algorithm, context)

    monkeypatch.setattr("fedapp.server.upload_like", counted)
    records = metrics(run(tmp_path / "run", algorithm=name, weighting="uniform"))
    assert [record["replied"] for record in records[1:]] == [5, 5, 5]
    assert calls == [name]
