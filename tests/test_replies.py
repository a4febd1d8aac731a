"""Replies of nodes, each against what its order and the run expect: refused by kind, or taken whole."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace

import pytest
import torch
from flwr.app import Error, Message, MessageType, MetricRecord, RecordDict
from flwr.common.constant import ErrorCode

from fedapp.config.read import read_config
from fedapp.data.dataset import Task
from fedapp.federation.faults import Fault, ReplyError
from fedapp.federation.messages import decode_reply, decode_scores, encode_reply, encode_scores
from fedapp.federation.validation import MAX_COUNT, Expected
from fedapp.training.algorithm import ClientContext
from fedapp.training.build import make_model
from fedapp.training.client import ClientMetrics, TrainReply, TrainRequest
from fedapp.training.evaluation import Score, metric_names
from fedapp.training.round_plan import RoundPlan
from strategies.fednova import MAX_STEPS, FedNova

pytestmark = pytest.mark.usefixtures("server_identity")

PLAN = RoundPlan(round=3, learning_rate=0.1)
ORDER = TrainRequest(PLAN, (0, 1))
REPORT = ClientMetrics(0, 5, 5.0, 2, 0.5, 1.0)
EXPECTED = Expected({"w": torch.tensor([3.0, 4.0])}, {0: 5, 1: 2})


def reply(*reports: ClientMetrics, update: tuple[float, ...] = (0.0, 0.0)) -> Message:
    found = TrainReply({"w": torch.tensor(update)}, {}, {}, reports, {})
    return Message(encode_reply(ORDER, found), 1, MessageType.TRAIN)


def fault(message: Message, expected: Expected = EXPECTED) -> str:
    """Return the kind of what is wrong with a reply; empty if it is taken."""
    try:
        decode_reply(ORDER, message, expected)
    except ReplyError as error:
        return error.fault.kind
    return ""


def test_a_sound_reply_is_taken_as_it_is() -> None:
    other = replace(REPORT, client=1, examples=2, weight=2.0)
    found = decode_reply(ORDER, reply(REPORT, other, update=(1.0, 2.0)), EXPECTED)
    assert found.client_metrics == (REPORT, other)
    assert found.mean["w"].tolist() == [1.0, 2.0]
    assert (found.weight, found.failures) == (7.0, {})


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({}, ""),
        ({"client": 2}, "malformed"),
        ({"weight": 5.5}, "weight"),
        ({"weight": -1.0}, "weight"),
        ({"weight": math.nan}, "weight"),
        ({"weight": 0.0, "examples": 0, "steps": 0, "loss": math.nan}, ""),
        ({"loss": math.nan}, "not-finite"),
        ({"loss": math.inf}, "not-finite"),
        ({"examples": 0, "steps": 0, "loss": math.inf}, "not-finite"),
        ({"examples": 6}, "weight"),
        ({"examples": -1}, "weight"),
        ({"steps": -1}, "malformed"),
        ({"steps": MAX_COUNT + 1}, "malformed"),
        ({"seconds": -1.0}, "malformed"),
        ({"seconds": math.inf}, "malformed"),
        ({"seconds": math.nan}, "malformed"),
    ],
    ids=str,
)
def test_what_a_client_reports_must_be_possible(change: dict[str, float], kind: str) -> None:
    assert fault(reply(replace(REPORT, **change))) == kind


@pytest.mark.parametrize("weight", [4.0, 0.0, 6.0])
def test_where_a_mean_on_the_server_counts_a_client_its_weight_is_its_n_k(weight: float) -> None:
    fewer = replace(REPORT, weight=weight, examples=min(int(weight), 5))
    assert fault(reply(fewer), replace(EXPECTED, exact=True)) == "weight"
    assert fault(reply(REPORT), replace(EXPECTED, exact=True)) == ""


@pytest.mark.parametrize(
    ("name", "value"), [("client", 0.5), ("examples", 4.5), ("steps", 1.5), ("client", 1e300)]
)
def test_counts_that_are_no_whole_numbers_are_not_rounded(name: str, value: float) -> None:
    """0.5 would be client 0."""
    message = reply(REPORT, replace(REPORT, client=1, examples=2, weight=2.0))
    columns = dict(message.content["clients"])
    columns[name] = [value, float(columns[name][1])]
    message.content["clients"] = MetricRecord(columns)
    assert fault(message) == "malformed"


def test_a_client_takes_no_more_steps_than_its_plan_has() -> None:
    """E, B and n_k say how many there are: with FedNova they are what its update counts for."""
    for steps, kind in ((10, ""), (11, "malformed")):
        planned = replace(EXPECTED, steps={0: 10, 1: 4})
        assert fault(reply(replace(REPORT, steps=steps)), planned) == kind


@pytest.mark.parametrize(
    ("sent", "kind"), [(0.0, ""), (19.0, ""), (19.1, "norm"), (-0.1, "norm"), (1e30, "norm")]
)
def test_a_number_that_multiplies_all_updates_is_one_that_a_client_can_have(
    sent: float, kind: str
) -> None:
    """FedNova's ||a_k||_1: for rho = 0.5 and K = 10 (10 - 0.999) / 0.5 = 18.002."""
    context = ClientContext({}, momentum=0.5, steps=10)
    assert FedNova().upload_bounds(context)["weight"] == pytest.approx(18.001953125)
    expected = replace(EXPECTED, upload={"weight": torch.tensor(0.0)}, largest={"weight": 19.0})
    content = TrainReply(
        {"w": torch.zeros(2)}, {"weight": torch.tensor(sent)}, {}, (replace(REPORT, steps=2),), {}
    )
    assert fault(Message(encode_reply(ORDER, content), 1, MessageType.TRAIN), expected) == kind


@pytest.mark.parametrize(
    ("momentum", "nesterov", "bound"),
    [
        (0.0, False, 2.0**50),
        (0.5, False, 2.0**51),
        (0.5, True, 2.0**51),
        (1 - 2**-53, False, 2.0**99),
    ],
)
def test_the_bound_of_as_many_steps_as_a_node_claims_needs_no_memory_for_each(
    momentum: float, nesterov: bool, bound: float
) -> None:
    """K gradients count 1 / (1 - rho) each at most, and 1 + 2 + ... + K together at most."""
    context = ClientContext({}, momentum=momentum, nesterov=nesterov, steps=2**50)
    assert FedNova().upload_bounds(context)["weight"] == pytest.approx(bound)
    longest, longer = (replace(context, steps=MAX_STEPS + i) for i in (0, 1))
    exact = FedNova().upload_bounds(longest)["weight"]
    assert exact <= FedNova().upload_bounds(longer)["weight"] <= exact * 1.00001


def test_a_client_that_is_reported_twice_would_count_twice() -> None:
    assert fault(reply(REPORT, REPORT)) == "malformed"


def test_weighted_uniformly_a_client_weighs_one_or_nothing() -> None:
    """A part would make the others weigh more than the noise of DP-FedAvg is for."""
    uniform = replace(EXPECTED, weighting="uniform")
    for weight, kind in ((1.0, ""), (0.0, ""), (2.0, "weight"), (0.5, "weight")):
        assert fault(reply(replace(REPORT, weight=weight)), uniform) == kind


def test_a_reply_is_to_the_round_in_which_it_was_asked_for() -> None:
    for round_ in (2, 4):
        with pytest.raises(ReplyError, match=f"a reply to round 3, not {round_}"):
            decode_reply(replace(ORDER, plan=replace(PLAN, round=round_)), reply(REPORT), EXPECTED)


@pytest.mark.parametrize(
    ("theta", "update", "kind"),
    [
        ((3.0, 4.0), (0.0, 10.0), ""),  # |theta| = 5: up to 10
        ((3.0, 4.0), (0.0, 10.1), "norm"),
        ((0.0, 0.0), (0.0, 2.0), ""),  # at least 1: up to 2
        ((0.0, 0.0), (0.0, 2.1), "norm"),
    ],
)
def test_the_bound_of_a_norm_is_in_units_of_the_models(
    theta: tuple[float, ...], update: tuple[float, ...], kind: str
) -> None:
    expected = Expected({"w": torch.tensor(theta)}, {0: 5, 1: 2}, max_norm=2.0)
    assert fault(reply(REPORT, update=update), expected) == kind
    model = replace(expected, update="model")
    moved = tuple(a + b for a, b in zip(theta, update, strict=True))
    assert fault(reply(REPORT, update=moved), model) == kind


@pytest.mark.parametrize(
    ("long", "kind"), [(0.5, ""), (0.50001, ""), (0.51, "norm"), (3e38, "norm")]
)
def test_the_bound_of_an_algorithm_is_a_norm_itself(long: float, kind: str) -> None:
    expected = replace(EXPECTED, bound=0.5)
    assert fault(reply(REPORT, update=(0.0, long)), expected) == kind
    model = replace(expected, update="model")
    assert fault(reply(REPORT, update=(3.0, 4.0 + long)), model) == kind
    huge = replace(EXPECTED, bound=1e30)
    assert fault(reply(REPORT, update=(1e30, 0.0)), huge) == ""


def test_a_norm_that_is_too_large_for_a_number_is_too_large_for_any_bound() -> None:
    bounded = replace(EXPECTED, max_norm=1e38)
    assert fault(reply(REPORT, update=(1e18, 0.0)), bounded) == ""
    assert fault(reply(REPORT, update=(3e38, 3e38)), bounded) == "norm"


def test_what_an_algorithm_uploads_must_be_there_where_a_client_has_a_weight() -> None:
    uploading = replace(EXPECTED, upload={"c": torch.zeros(1)})
    assert fault(reply(REPORT), uploading) == "malformed"
    idle = replace(REPORT, examples=0, weight=0.0, steps=0, loss=math.nan)
    assert fault(reply(idle), uploading) == ""


@pytest.mark.parametrize(("long", "kind"), [(100.0, ""), (101.0, "norm")])
def test_the_bound_holds_for_what_is_sent_besides_as_gradients(long: float, kind: str) -> None:
    """Of SCAFFOLD's variates in units of the rate: |theta| = 5, max-update-norm = 2, eta = 0.1."""
    theta = EXPECTED.theta
    content = TrainReply({"w": torch.zeros(2)}, {"w": torch.tensor([long, 0])}, {}, (REPORT,), {})
    message = Message(encode_reply(ORDER, content), 1, MessageType.TRAIN)
    assert fault(message, replace(EXPECTED, upload=theta, max_norm=2.0)) == kind
    assert fault(message, replace(EXPECTED, upload=theta)) == ""
    stopped = replace(ORDER, plan=replace(PLAN, learning_rate=0.0))
    decode_reply(stopped, message, replace(EXPECTED, upload=theta, max_norm=2.0))


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (ErrorCode.MESSAGE_UNAVAILABLE, "late"),
        (ErrorCode.REPLY_MESSAGE_UNAVAILABLE, "late"),
        (ErrorCode.NODE_UNAVAILABLE, "lost"),
        (ErrorCode.CLIENT_APP_CRASHED, "crashed"),
        (ErrorCode.UNKNOWN, "raised"),
    ],
)
def test_an_error_of_flower_says_what_became_of_the_node(code: int, kind: str) -> None:
    order = Message(RecordDict(), 1, MessageType.TRAIN)
    assert fault(Message(Error(code, "why"), reply_to=order)) == kind


def test_arrays_are_of_the_models_shapes_and_types_and_come_in_its_order() -> None:
    expected = Expected({"b": torch.zeros(2), "a": torch.zeros(1, 2)}, {0: 5})

    def sent(**tensors: torch.Tensor) -> Message:
        found = TrainReply(tensors, {}, {}, (REPORT,))
        return Message(encode_reply(ORDER, found), 1, MessageType.TRAIN)

    fine = decode_reply(ORDER, sent(a=torch.ones(1, 2), b=torch.ones(2)), expected)
    assert list(fine.mean) == ["b", "a"]
    for wrong in (
        {"a": torch.ones(2), "b": torch.ones(2)},
        {"a": torch.ones(1, 2), "b": torch.ones(2, dtype=torch.float64)},
        {"a": torch.ones(1, 2)},
    ):
        assert fault(sent(**wrong), expected) == "tensors"


def test_scores_carry_the_numbers_of_a_models_own() -> None:
    """A client without test examples has none; a column that is too short is no reply."""
    scores = {4: Score(0.5, 1.0, 3, {"ece": 0.25}), 5: Score(math.nan, math.nan, 0)}
    message = Message(encode_scores(scores, {}), 1, MessageType.EVALUATE)
    found = decode_scores(message, [4, 5], has_accuracy=True)
    assert isinstance(found[4], Score)
    assert found[4].further == {"ece": 0.25}
    message.content["further"]["ece"] = [0.25]
    with pytest.raises(ReplyError, match="malformed"):
        decode_scores(message, [4, 5], has_accuracy=True)


@pytest.mark.parametrize(
    ("name", "metrics", "good"),
    [
        ("ece", None, True),
        ("rmse", {"rmse", "r2"}, True),
        ("rmse", (), False),  # of a classification, whose curve would be that of an RMSE
        ("ece", (), False),
        ("train_loss", None, False),  # client_train_loss are the clients' training losses
        ("train-loss", None, False),  # and so it is called in a record
        ("<b>\n", None, False),
    ],
)
def test_a_node_gives_the_numbers_that_the_model_has(
    name: str, metrics: Collection[str] | None, good: bool
) -> None:
    content = encode_scores({4: Score(0.5, 0.75, 8, {name: 1.0})}, {})
    message = Message(content, 1, MessageType.EVALUATE)
    if good:
        found = decode_scores(message, [4], has_accuracy=True, metrics=metrics)[4]
        assert isinstance(found, Score)
        assert found.further == {name: 1.0}
    else:
        with pytest.raises(ReplyError, match="no number of this model"):
            decode_scores(message, [4], has_accuracy=True, metrics=metrics)


def test_the_names_of_a_models_numbers() -> None:
    classes, number = Task("vector", (3,), 2), Task("vector", (3,), 1, regression=True)
    assert metric_names(make_model(read_config({})), classes) == set()
    assert metric_names(make_model(read_config({})), number) == {"rmse", "r2"}


def test_numbers_of_a_models_own_are_few_and_have_short_names() -> None:
    """Each becomes a key of every record: no node can fill the server's disk with them."""
    for names, good in (
        (["x" * 60], True),
        (["x" * 5000], False),
        ([f"n{i}" for i in range(50)], True),
        ([f"n{i}" for i in range(5000)], False),
    ):
        scores = encode_scores({4: Score(0.5, 0.75, 8, dict.fromkeys(names, 1.0))}, {})
        message = Message(scores, 1, MessageType.EVALUATE)
        if good:
            found = decode_scores(message, [4], has_accuracy=True)[4]
            assert isinstance(found, Score)
            assert found.further.keys() == set(names)
        else:
            with pytest.raises(ReplyError, match="malformed") as raised:
                decode_scores(message, [4], has_accuracy=True)
            assert len(str(raised.value)) < 1000


@pytest.mark.parametrize(
    ("score", "graded", "kind"),
    [
        (Score(0.5, 1.0, 3), True, ""),
        (Score(0.5, 1.1, 3), True, "malformed"),
        (Score(0.5, math.nan, 3), True, "malformed"),
        (Score(0.5, math.nan, 3), False, ""),
        (Score(0.5, 1.0, -3), True, "malformed"),
        (Score(math.inf, 1.0, 3), True, "not-finite"),
        (Score(math.nan, math.nan, 0), True, ""),
    ],
)
def test_scores_must_be_possible(score: Score, graded: bool, kind: str) -> None:
    message = Message(encode_scores({4: score}, {}), 1, MessageType.EVALUATE)
    found = decode_scores(message, [4, 5], has_accuracy=graded)
    assert getattr(found[4], "kind", "") == kind
    assert found[5] == Fault("raised", "its node does not mention it")


def test_variates_are_bounded_in_units_of_eta_up_to_1() -> None:
    """|theta| = 5 and max-update-norm = 2: variates of up to 10, with eta = 4 as with eta = 1."""
    found = TrainReply({"w": torch.zeros(2)}, {"w": torch.tensor([10.0, 0.0])}, {}, (REPORT,), {})
    fast = replace(ORDER, plan=replace(PLAN, learning_rate=4.0))
    message = Message(encode_reply(fast, found), 1, MessageType.TRAIN)
    expected = replace(EXPECTED, upload=EXPECTED.theta, max_norm=2.0)
    assert decode_reply(fast, message, expected).uploads["w"].tolist() == [10.0, 0.0]


def test_each_client_has_its_own_bound_of_steps() -> None:
    planned = replace(EXPECTED, steps={0: 10, 1: 4})
    other = replace(REPORT, client=1, examples=2, weight=2.0, steps=5)
    assert fault(reply(other), planned) == "malformed"
    assert fault(reply(replace(other, steps=4)), planned) == ""


def test_an_upload_that_the_algorithm_has_not_is_refused() -> None:
    unasked = TrainReply({"w": torch.zeros(2)}, {"extra": torch.zeros(1)}, {}, (REPORT,))
    assert fault(Message(encode_reply(ORDER, unasked), 1, MessageType.TRAIN)) == "tensors"
