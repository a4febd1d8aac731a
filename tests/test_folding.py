"""A round's replies, folded in the order of its orders, whatever comes when; means by hand."""

from __future__ import annotations

import math

import pytest
import torch

from fedapp.training.cohorts import ClientReport, CohortReply
from strategies.fedavg import FedAvg
from strategies.folding import Fold, in_order


def report(
    client: int, weight: float = 1.0, loss: float = 0.0, seconds: float = 0.0
) -> ClientReport:
    return ClientReport(client, int(weight), weight, 1, loss, seconds)


def reply(*reports: ClientReport, mean: float = 0.0, upload: float | None = None) -> CohortReply:
    uploads = {} if upload is None else {"c": torch.tensor(upload)}
    return CohortReply({"w": torch.tensor(mean)}, uploads, {}, reports)


def folded(*replies: CohortReply) -> Fold:
    fold = Fold()
    for each in replies:
        fold.add(each)
    return fold


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
    found = in_order(((index, replies[index]) for index in come), 3)
    assert [each.reports[0].client for each in found] == yielded


def test_a_reply_that_is_lost_holds_up_no_other() -> None:
    replies = iter([(1, reply(report(1))), (0, None), (2, reply(report(2)))])
    found = in_order(replies, 3)
    assert next(found).reports[0].client == 1
    assert next(replies)[0] == 2  # it was not yet asked for


def test_means_are_weighted_by_what_the_nodes_clients_weigh() -> None:
    """Clients of 1 and 2 make a mean of 4, one of 5 has 12: (3 * 4 + 5 * 12) / 8; uploads alike."""
    fold = folded(
        reply(report(0, 1), report(1, 2), mean=4.0, upload=8.0),
        reply(report(2, 5), mean=12.0, upload=0.0),
    )
    mean, uploads = fold.mean(FedAvg())
    assert (float(mean["w"]), float(uploads["c"])) == (9.0, 3.0)
    assert (fold.weight, fold.usable) == (8, 3)


def test_a_mean_over_reports_leaves_out_what_is_no_number() -> None:
    """A client without examples has no loss, and a weight of 0."""
    fold = folded(reply(report(0, 1), report(1, 0)), reply(report(2, 3), report(3, 4)))
    assert fold.average([2.0, math.nan, 6.0, math.nan]) == 5.0
    assert fold.average([2.0, math.inf, 6.0, 6.0]) == 5.5
    assert math.isnan(fold.average([math.nan] * 4))
    assert fold.usable == 3


def test_nodes_train_side_by_side_and_their_clients_one_after_another() -> None:
    one = reply(report(0, seconds=1.0), report(1, seconds=2.0))
    assert folded(one, reply(report(2, seconds=2.5))).train_seconds == 3.0
