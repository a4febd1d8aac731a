"""Evaluation by the clients: their requests, and their scores, collected and aggregated."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from logging import WARNING
from typing import Literal

from flwr.app import ArrayRecord, Message, MessageType, MetricRecord
from flwr.common.logger import log
from flwr.serverapp import Grid

from fedapp.config.run_config import RunConfig
from fedapp.errors import one_line
from fedapp.federation.arrays import size_of, to_arrays
from fedapp.federation.callback import RoundMetrics, ServerState
from fedapp.federation.client_sampler import assign
from fedapp.federation.delivery import Delivery, messages_to
from fedapp.federation.faults import Fault, ReplyError, late
from fedapp.federation.messages import EvaluateRequest, decode_scores, encode_evaluate_request
from fedapp.federation.nodes import Cohort, Nodes
from fedapp.training.algorithm import Algorithm
from fedapp.training.build import make_model
from fedapp.training.client import is_personalised
from fedapp.training.client_state import StateLocation
from fedapp.training.evaluation import Score, metric_names

LEFT_OUT = (
    "%d clients are left out of this evaluation: their node still works for an earlier round, or is not "
    "connected"
)
NOT_EVALUATED = "Node %s: clients %s are left out of this evaluation: %s"

CLIENT_ONLY = ("worst-accuracy", "clients", "r2")
"""Metrics of a clients' evaluation that are not those of all test examples together."""


class ClientEvaluation:
    """Evaluation of theta by the clients of the accepted nodes; ``cohorts`` are those of the last one."""

    def __init__(
        self,
        config: RunConfig,
        algorithm: Algorithm,
        nodes: Nodes,
        delivery: Delivery,
        client_states: Callable[[], StateLocation] | None,
    ) -> None:
        self.config, self.algorithm, self.nodes = config, algorithm, nodes
        self.client_states = client_states
        self.cohorts: list[Cohort] = []
        self._delivery = delivery

    @property
    def asked(self) -> list[int]:
        """The nodes that were asked in the last evaluation."""
        return [node for node, _ in self.cohorts]

    def messages(
        self,
        grid: Grid,
        clients: Sequence[int],
        state: ServerState,
        arrays: ArrayRecord,
        split: Literal["test", "train"] = "test",
    ) -> list[Message]:
        """Return the EVALUATE message of each node, for its part of ``clients``.

        Clients whose node is busy or disconnected are left out.
        """
        states, threads = None, self.config.threads
        if self.client_states and is_personalised(self.algorithm):
            states = replace(self.client_states(), last_used_round=state.last_used_round)
        available = self.nodes.available(grid)
        self.cohorts = assign(self.nodes, clients, available, self._delivery.busy(available))
        if left_out := len(clients) - sum(len(cohort) for _, cohort in self.cohorts):
            log(WARNING, LEFT_OUT, left_out)
        contents = []
        for _, cohort in self.cohorts:
            request = EvaluateRequest(state.round, tuple(cohort), threads, states, split)
            contents.append(self.nodes.add_to(encode_evaluate_request(request, arrays)))
        deadline, round_ = self.config.round_deadline, state.round + 1
        return messages_to(self.asked, contents, MessageType.EVALUATE, round_, deadline)

    def training_losses(
        self, grid: Grid, clients: Sequence[int], state: ServerState
    ) -> tuple[dict[int, float], int]:
        """Ask clients for their mean training loss; return also the bytes sent.

        It is that of theta, or of the model from which a client with its own starts.
        """
        messages = self.messages(grid, clients, state, to_arrays(state.theta), "train")
        size = sum(size_of(message.content) for message in messages)
        replies = self._delivery.exchange(grid, messages, self.config.round_deadline)
        scores = self.scores(replies).items()
        return {client: score.loss for client, score in scores if score.count}, size

    def aggregate(self, replies: Iterable[tuple[int, Message | Fault]]) -> MetricRecord | None:
        """Return loss and accuracy over all clients' test examples, each example counting once."""
        return aggregate_scores([*self.scores(replies).values()])

    def scores(self, replies: Iterable[tuple[int, Message | Fault]]) -> dict[int, Score]:
        """Return the scores of the clients that have one, in their order."""
        return collect_scores(
            self.cohorts,
            replies,
            self.config.round_deadline,
            has_accuracy=self.nodes.task.has_accuracy,
            metrics=metric_names(make_model(self.config), self.nodes.task),
            node_name=self.nodes.name_of,
        )


def collect_scores(
    cohorts: Sequence[Cohort],
    replies: Iterable[tuple[int, Message | Fault]],
    deadline: float,
    *,
    has_accuracy: bool,
    metrics: Collection[str] | None = None,
    node_name: Callable[[int], str],
) -> dict[int, Score]:
    """Return the clients' scores of replies, given as (index of the cohort, reply) in any order.

    Clients without a score are logged with the reason and the ``node_name``.
    """
    scores: dict[int, Score] = {}
    unanswered = dict(enumerate(cohorts))
    for index, message in replies:
        node, clients = unanswered.pop(index)
        try:
            decoded = decode_scores(message, clients, has_accuracy=has_accuracy, metrics=metrics)
            scores |= {k: score for k, score in decoded.items() if isinstance(score, Score)}
            reasons = {k: fault.reason for k, fault in decoded.items() if isinstance(fault, Fault)}
            for reason in dict.fromkeys(reasons.values()):
                affected = [client for client, why in reasons.items() if why == reason]
                log(WARNING, NOT_EVALUATED, node_name(node), one_line(affected), reason)
        except ReplyError as error:
            log(WARNING, NOT_EVALUATED, node_name(node), one_line(clients), error.fault.reason)
    for node, clients in unanswered.values():
        log(WARNING, NOT_EVALUATED, node_name(node), one_line(clients), late(deadline).reason)
    return {client: scores[client] for client in sorted(scores)}


def aggregate_scores(scores: Sequence[Score]) -> MetricRecord | None:
    """Return loss and accuracy over all clients' test examples, each example counting once.

    So does the RMSE. The other further numbers of ``Model.metrics`` are means over the clients where
    they are finite, weighted by their examples. None without a test example.
    """
    scores = [score for score in scores if score.count]
    total = sum(score.count for score in scores)
    if not total:
        return None
    names = sorted({name for score in scores for name in score.further})
    return MetricRecord(
        {
            **{name: _finite_mean(scores, name) for name in names},
            "loss": sum(s.loss * s.count for s in scores) / total,
            "accuracy": sum(s.accuracy * s.count for s in scores) / total,
            "worst-accuracy": min(s.accuracy for s in scores),
            "clients": len(scores),
        }
    )


def _finite_mean(scores: Sequence[Score], name: str) -> float:
    """Return the mean over the clients where it is finite; of an RMSE, that of the squares."""
    finite = [s for s in scores if math.isfinite(s.further.get(name, math.nan))]
    total = sum(s.count for s in finite)
    if not total:
        return math.nan
    shares = [(s.further[name], s.count / total) for s in finite]
    if name == "rmse":
        return math.sqrt(sum(value * value * share for value, share in shares))
    return sum(value * share for value, share in shares)


def evaluation_metrics(config: RunConfig, scores: MetricRecord | None) -> RoundMetrics:
    """Return the clients' aggregated scores; with ``evaluation = "clients"`` also as the test's."""
    clients = {"clients": 0} if scores is None else dict(scores)
    metrics: RoundMetrics = {f"client_{key.replace('-', '_')}": clients[key] for key in clients}
    if config.evaluation == "clients":
        test = {"loss": math.nan, "accuracy": math.nan, **clients}
        metrics |= {f"test_{key}": test[key] for key in test if key not in CLIENT_ONLY}
    return metrics
