"""A round's replies, folded in the order of its orders, whatever comes when; means by hand."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from flwr.app import Message, MessageType
from hypothesis import given
from hypothesis import strategies as st

from fedapp.config.read import read_config
from fedapp.federation.aggregation import RunningAggregate, collect_replies, in_order
from fedapp.federation.evaluation import aggregate_scores, evaluation_metrics
from fedapp.federation.messages import encode_reply
from fedapp.federation.validation import Expected
from fedapp.training.client import ClientMetrics, TrainReply, TrainRequest
from fedapp.training.evaluation import Score
from fedapp.training.round_plan import RoundPlan
from strategies.fedavg import FedAvg


def report(
    client: int, weight: float = 1.0, loss: float = 0.0, seconds: float = 0.0
) -> ClientMetrics:
    return ClientMetrics(client, int(weight), weight, 1, loss, seconds)


def reply(*reports: ClientMetrics, mean: float = 0.0, upload: float | None = None) -> TrainReply:
    uploads = {} if upload is None else {"c": torch.tensor(upload)}
    return TrainReply({"w": torch.tensor(mean)}, uploads, {}, reports)


def aggregated(*replies: TrainReply) -> RunningAggregate:
    aggregate = RunningAggregate()
    for each in replies:
        aggregate.add(each)
    return aggregate


@pytest.mark.parametrize(
    ("come", "yielded"),
    [
        ([0, 1, 2], [0, 1, 2]),
        ([2, 0, 1], [0, 1, 2]),
        ([2, 1], [1, 2]),  # the first never comes
        ([0, 2], [0, 2]),
        ([], []),
    ],
)
def test_replies_are_given_in_the_order_of_the_orders(come: list[int], yielded: list[int]) -> None:
    replies = [reply(report(client)) for client in range(3)]
    found = in_order((index, replies[index]) for index in come)
    assert [each.client_metrics[0].client for each in found] == yielded


def test_single_updates_that_all_have_weight_0_have_no_mean() -> None:
    """A Poisson round is applied also then, with the noise alone."""
    each = {0: {"w": torch.tensor(1.0)}}
    aggregate = aggregated(TrainReply({}, {}, each, (report(0, weight=0.0),)))
    assert aggregate.mean(FedAvg()) == ({}, {})


def test_a_reply_that_is_lost_holds_up_no_other() -> None:
    replies = iter([(1, reply(report(1))), (0, None), (2, reply(report(2)))])
    found = in_order(replies)
    assert next(found).client_metrics[0].client == 1
    assert next(replies)[0] == 2  # it was not yet asked for


@given(st.data())
def test_few_replies_are_held_and_none_is_lost(data: st.DataObject) -> None:
    """In any order of arrival, with rejected and missing ones; in index order if none is far behind."""
    count = data.draw(st.integers(1, 40))
    held = data.draw(st.integers(1, 8))
    come = data.draw(st.permutations(range(count)))[: data.draw(st.integers(0, count))]
    rejected = {index for index in come if data.draw(st.booleans())}
    taken: list[int] = []
    given_out: list[int] = []

    def arriving() -> Iterator[tuple[int, TrainReply | None]]:
        for index in come:
            taken.append(index)
            yield index, None if index in rejected else reply(report(index))
            waiting = len({*taken} - rejected) - len(given_out)
            assert waiting <= held

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedapp.federation.aggregation.MAX_HELD", held)
        for each in in_order(arriving()):
            (metrics,) = each.client_metrics
            given_out.append(metrics.client)
    assert sorted(given_out) == sorted({*come} - rejected)
    behind = [sum(other > index for other in come[: come.index(index)]) for index in come]
    missing_or_late = count > len(come) or max(behind, default=0) > held
    if not missing_or_late:
        assert given_out == sorted(given_out)


def test_means_are_weighted_by_what_the_nodes_clients_weigh() -> None:
    """Clients of 1 and 2 make a mean of 4, one of 5 has 12: (3 * 4 + 5 * 12) / 8; uploads alike."""
    aggregate = aggregated(
        reply(report(0, 1), report(1, 2), mean=4.0, upload=8.0),
        reply(report(2, 5), mean=12.0, upload=0.0),
    )
    mean, uploads = aggregate.mean(FedAvg())
    assert (float(mean["w"]), float(uploads["c"])) == (9.0, 3.0)
    assert (aggregate.weight, aggregate.num_weighted) == (8, 3)


def test_a_mean_over_reports_leaves_out_what_is_no_number() -> None:
    """A client without examples has no loss, and a weight of 0."""
    aggregate = aggregated(reply(report(0, 1), report(1, 0)), reply(report(2, 3), report(3, 4)))
    assert aggregate.average([2.0, math.nan, 6.0, math.nan]) == 5.0
    assert aggregate.average([2.0, math.inf, 6.0, 6.0]) == 5.5
    assert math.isnan(aggregate.average([math.nan] * 4))
    assert aggregate.num_weighted == 3


def test_nodes_train_side_by_side_and_their_clients_one_after_another() -> None:
    one = reply(report(0, seconds=1.0), report(1, seconds=2.0))
    assert aggregated(one, reply(report(2, seconds=2.5))).train_seconds == 3.0


@pytest.mark.usefixtures("server_identity")
def test_a_round_waits_for_clients_and_not_for_nodes() -> None:
    """Of the first node's two clients one failed: with the second node there are three."""
    orders = [TrainRequest(RoundPlan(), clients) for clients in ((0, 1), (2, 3), (4, 5))]
    failed = TrainReply({"w": torch.tensor(1.0)}, {}, {}, (report(0),), {1: "no disk"})
    replies = [failed, reply(report(2), report(3), mean=4.0), reply(report(4), report(5), mean=9.0)]
    messages = [
        (index, Message(encode_reply(orders[index], each), index + 1, MessageType.TRAIN))
        for index, each in enumerate(replies)
    ]
    expected = Expected({"w": torch.tensor(0.0)}, dict.fromkeys(range(6), 1))
    found = collect_replies(orders, messages, expected, wanted=2, deadline=9.0)
    assert [each.client for each in found.aggregate.client_metrics] == [0, 2, 3]
    assert {client: fault.kind for client, fault in found.faults.items()} == {1: "raised"}
    assert found.unused == [4, 5]
    assert float(found.aggregate.mean(FedAvg())[0]["w"]) == 3.0


def test_scores_of_clients_count_each_example_once() -> None:
    """(2 * 1 + 6 * 4) / 8 and (2 * 0.5 + 6 * 1) / 8; a client without test examples has no score."""
    nothing = Score(math.nan, math.nan, 0)
    found = aggregate_scores([Score(1.0, 0.5, 2), nothing, Score(4.0, 1.0, 6)])
    assert found is not None
    assert dict(found) == {"loss": 3.25, "accuracy": 0.875, "worst-accuracy": 0.5, "clients": 2}
    assert aggregate_scores([nothing]) is None


def test_the_clients_rmse_is_that_of_their_examples_and_their_r2_is_not_the_tests() -> None:
    """Errors of 0.2 and 0.4 on two examples each: the root of (0.04 + 0.16) / 2, not 0.3."""
    numbers = ({"rmse": 0.2, "r2": -1.0}, {"rmse": 0.4, "r2": 0.5})
    found = aggregate_scores([Score(each["rmse"] ** 2, 0.0, 2, each) for each in numbers])
    metrics = evaluation_metrics(read_config({"evaluation": "clients"}), found)
    assert metrics["test_rmse"] == metrics["client_rmse"] == pytest.approx(math.sqrt(0.1))
    assert metrics["test_loss"] == pytest.approx(0.1)
    assert metrics["client_r2"] == -0.25
    assert "test_r2" not in metrics


def test_numbers_of_a_models_own_are_means_by_examples_where_they_are_finite() -> None:
    """(2 * 0.1 + 6 * 0.5) / 8; "rare" of the one client that has it; a client without examples: none."""
    one, two = {"ece": 0.1, "rare": math.nan}, {"ece": 0.5, "rare": 0.25}
    nothing = Score(math.nan, math.nan, 0)
    found = aggregate_scores([Score(1.0, 0.5, 2, one), nothing, Score(4.0, 1.0, 6, two)])
    assert found is not None
    assert (found["ece"], found["rare"]) == (pytest.approx(0.4), 0.25)
    [alone] = [aggregate_scores([Score(1.0, 0.5, 2, one)])]
    assert alone is not None
    assert math.isnan(float(str(alone["rare"])))


@pytest.mark.parametrize(
    ("come", "yielded"), [([1, 2, 0], [0, 1, 2]), ([1, 2, 3, 0], [1, 2, 3, 0])]
)
def test_replies_are_held_until_there_are_too_many(
    come: list[int], yielded: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedapp.federation.aggregation.MAX_HELD", 2)
    found = in_order((index, reply(report(index))) for index in come)
    assert [each.client_metrics[0].client for each in found] == yielded
