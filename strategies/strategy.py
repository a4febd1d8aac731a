"""The subclass of Flower's ``Strategy`` that runs any algorithm of this package."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from logging import INFO, WARNING
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedapp.config.registry import calling
from fedapp.config.run_config import RunConfig
from fedapp.errors import RunError
from fedapp.federation.aggregation import (
    RoundReplies,
    RunningAggregate,
    apply_server_rule,
    collect_replies,
    log_faults,
    similarity_metrics,
    too_few,
)
from fedapp.federation.arrays import size_of, to_arrays
from fedapp.federation.callback import Callback, Ledger, RoundMetrics, ServerState
from fedapp.federation.client_sampler import ClientSampler
from fedapp.federation.delivery import Delivery, match_by_node, messages_to
from fedapp.federation.evaluation import ClientEvaluation, evaluation_metrics
from fedapp.federation.faults import Fault
from fedapp.federation.messages import encode_train_request
from fedapp.federation.nodes import Nodes
from fedapp.federation.queries import connections
from fedapp.federation.round_result import UNCHANGED, RoundRequests, RoundResult, TrainingResult
from fedapp.federation.shared_evaluation import server_scores
from fedapp.federation.validation import Expected
from fedapp.training.algorithm import Algorithm, ServerStep, Tensors
from fedapp.training.client import TrainRequest
from fedapp.training.client_state import StateLocation
from fedapp.training.evaluation import ServerScore, as_floats
from fedapp.training.round_plan import RoundPlan
from fedapp.training.tensors import scaled

Replies = Iterable[tuple[int, Message | Fault]]
"""Replies, or why there is none, each with the index of its request, in any order."""

EPSILON_SPENT = "max-epsilon is reached: round %d would pass it, and the model is that of round %d"


class FederatedStrategy(Strategy):
    """Sample, train, aggregate, evaluate: McMahan et al. 2017, Algorithm 1, for any algorithm.

    The clients of a round are sampled statelessly and distributed over the nodes as cohorts. Their
    replies are checked, averaged in float64 in client order, and given to the algorithm's server
    rule. ``score`` evaluates theta on the server and returns entries of the round's metrics. ``upload``
    has tensors of the names, shapes and types that clients upload besides their updates. A private
    run has a ``ledger``, and samples by coin from the ``population`` with which it began (None: all
    clients).
    """

    def __init__(
        self,
        config: RunConfig,
        algorithm: Algorithm,
        nodes: Nodes,
        score: ServerScore,
        state: ServerState,
        upload: Tensors,
        client_states: Callable[[], StateLocation] | None = None,
        ledger: Ledger | None = None,
        population: Sequence[int] | None = None,
    ) -> None:
        self.config = config
        self.algorithm = algorithm
        self.nodes = nodes
        self.score = score
        self.callbacks: Sequence[Callback] = ()
        self.state = state
        self.upload = upload
        self.client_states = client_states
        self.ledger = ledger or Ledger()
        self._delivery = Delivery(repeat_seconds=config.node_timeout, connections=connections)
        nodes.forget_messages = self._delivery.forget
        self._evaluation = ClientEvaluation(config, algorithm, nodes, self._delivery, client_states)
        self._sampler = ClientSampler(
            config, algorithm, nodes, self._delivery, population, self._evaluation.training_losses
        )
        self._requests = RoundRequests()  # from configure_train to aggregate_train
        self._encoded: tuple[Tensors, ArrayRecord] | None = None

    # ------------------------------------------------------------------ the run

    def summary(self) -> None:
        """Log the algorithm, the number of clients and the number of rounds."""
        config, clients = self.config, len(self.nodes.clients)
        log(INFO, "%s: %d clients, %d rounds", config.algorithm, clients, config.num_server_rounds)

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run rounds until ``num_rounds`` are done or a callback stops; then run ``on_end``.

        Deadlines, evaluation and settings come from the configuration, and theta from ``state``, not
        from the arguments that this method inherits.
        """
        result = Result()
        with ExitStack() as stack:
            for callback in reversed(self.callbacks):
                stack.callback(callback.close)
            self._run(grid, result, num_rounds)
        result.arrays = self._arrays()
        return result

    def _run(self, grid: Grid, result: Result, num_rounds: int) -> None:
        """Run the rounds between the callbacks' start and end."""
        for callback in self.callbacks:
            callback.on_start(self.state)
        stop = self.state.round == 0 and self._give_to_callbacks(self._initial_evaluation(grid))
        while self.state.round < num_rounds and not stop and not self._is_epsilon_spent():
            round_result = self._round(grid, num_rounds)
            if round_result is None:
                break
            if round_result.training and not round_result.training.problem:
                loss = MetricRecord({"train-loss": round_result.metrics["train_loss"]})
                result.train_metrics_clientapp[self.state.round] = loss
            stop = self._give_to_callbacks(round_result)
        if self.state.round < num_rounds and not stop:
            log(INFO, EPSILON_SPENT, self.state.round + 1, self.state.round)
        for callback in self.callbacks:
            callback.on_end(self.state)

    def _give_to_callbacks(self, result: RoundResult) -> bool:
        """Give a round's result to every callback; True if any of them ends the run."""
        stops = [callback.on_round(result, self.state) for callback in self.callbacks]
        return any(stops)

    def _initial_evaluation(self, grid: Grid) -> RoundResult:
        """Evaluate theta_0, as round 0."""
        scores, seconds = self._evaluate(grid)
        return RoundResult(0, scores=scores, seconds={"evaluate": seconds})

    def _round(self, grid: Grid, last: int) -> RoundResult | None:
        """Sample, train, aggregate, apply and evaluate: one round.

        None, and nothing is sent, if it would exceed ``max-epsilon``.
        """
        began, current = time.perf_counter(), self.state.round + 1
        self._delivery.begin_round(grid)
        messages = self.configure_train(current, self._arrays(), ConfigRecord(), grid)
        bytes_down = sum(size_of(message.content) for message in messages)
        bytes_down += self._requests.bytes_asked
        if not self.ledger.allows(lambda: self._requests.clients):
            return None
        self.ledger.charge(current, self._requests.clients)
        exchange = self._delivery.exchange(grid, messages, self.config.round_deadline)
        with closing(exchange) as replies:
            training = self._train(replies)
        seconds = self._seconds(training, time.perf_counter() - began)
        scores: RoundMetrics = {}
        if self._is_evaluated(current, last):
            scores, seconds["evaluate"] = self._evaluate(grid)
        seconds["round"] = time.perf_counter() - began
        return RoundResult(
            current, training, bytes_down, self.ledger.round_metrics(), scores, seconds
        )

    def _seconds(self, training: TrainingResult, exchange: float) -> dict[str, float]:
        """Return the seconds of the exchange, and of its parts: training, transfer, waiting.

        A node states its own seconds of training, and none are longer than the exchange.
        """
        train = min(training.replies.aggregate.train_seconds, exchange)
        transfer = self._delivery.transfer
        wait = max(exchange - train - transfer, 0.0)
        return {"train": train, "exchange": exchange, "transfer": transfer, "wait": wait}

    def _is_epsilon_spent(self) -> bool:
        """Return whether the next round would exceed ``max-epsilon``, as far as it is known before."""
        return not self.ledger.allows(lambda: self._sampler.sample(self.state.round + 1))

    # ------------------------------------------------------------------ training

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Sample S_t, distribute it over the nodes, and return one TRAIN message a node."""
        plan = RoundPlan.of(self.config, server_round)
        sampled, cohorts = self._sampler.assign_round(server_round, grid, self.state)
        states = None
        if self.client_states:
            states = replace(self.client_states(), last_used_round=self.state.last_used_round)
        requests = [TrainRequest(plan, tuple(clients), states) for _, clients in cohorts]
        nodes = [node for node, _ in cohorts]
        asked = self._sampler.bytes_asked
        self._requests = RoundRequests(plan, sampled, nodes, requests, asked)
        self._count_joined()
        extras = self._broadcast()
        extra_arrays = to_arrays(extras) if extras else None
        contents = [
            self.nodes.add_to(encode_train_request(request, arrays, extra_arrays))
            for request in requests
        ]
        deadline = self.config.round_deadline
        return messages_to(nodes, contents, MessageType.TRAIN, server_round, deadline)

    def _count_joined(self) -> None:
        """Count clients that have joined since, with 0, in a server's state that is a mean over all."""
        state, nodes = self.state, self.nodes
        if not (self.algorithm.keeps_mean and state.sizes):
            return
        share = nodes.weight_of(state.sizes) / nodes.total_weight
        if share != 1:
            state.algorithm = scaled(state.algorithm, share)
            state.sizes = nodes.state_sizes = nodes.known

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Aggregate replies, which are matched to their requests by node, as in Flower's interface.

        Returns (None, None) where theta stays as it was.
        """
        training = self._train(match_by_node(self._requests.nodes, replies))
        if training.problem:
            return None, None
        loss = MetricRecord({"train-loss": training.metrics["train_loss"]})
        return to_arrays(self.state.theta), loss

    def _train(self, replies: Replies) -> TrainingResult:
        """Collect the replies, which are averaged as they come, and apply the server rule.

        Theta stays as it was if fewer clients than ``min-replies``, or than the algorithm needs, are
        accepted, or if the result is not finite.
        """
        collected = self._collect(replies)
        log_faults(collected.faults, self.config.on_failure)
        self._encoded = None
        problem, further = self._apply(collected.aggregate)
        self.nodes.query_again_after(collected.faults)
        if problem:
            self._stop_or_warn(problem)
        self.state.round = self._requests.plan.round
        return TrainingResult(self._requests, collected, problem, self._delivery.late, further)

    def _collect(self, replies: Replies) -> RoundReplies:
        """Check and average the replies; name the sampled clients that got no request."""
        config, requests, state = self.config, self._requests, self.state
        sizes = self.nodes.sizes(requests.clients)
        expected = Expected.of(config, self.algorithm, requests.plan, state, self.upload, sizes)
        wanted = self._sampler.wanted(requests.sampled)
        result = collect_replies(requests.by_node, replies, expected, wanted, config.round_deadline)
        result.faults |= self._sampler.unassigned(requests.sampled, requests.clients)
        return result

    def _broadcast(self) -> Tensors:
        """Return the tensors that clients are sent besides theta."""
        with calling(self.algorithm, "broadcast"):
            return self.algorithm.broadcast(self.state.algorithm)

    def _apply(self, aggregate: RunningAggregate) -> tuple[str, RoundMetrics]:
        """Apply the server rule; return why theta stays as it was, or "", and further metrics."""
        if problem := too_few(aggregate, self.config.min_replies, self.algorithm):
            return problem, {}
        plan, further = self._requests.plan, dict[str, Any]()
        total = self.nodes.total_weight
        if self.config.record_updates and aggregate.num_weighted:
            further |= similarity_metrics(aggregate, self.state.theta, plan.update)
        step = ServerStep(
            plan=plan,
            server_learning_rate=self.config.server_learning_rate,
            num_clients=len(self._sampler.population),
            participants=aggregate.num_weighted,
            share=min(aggregate.weight / total, 1.0),
            fraction=self.config.fraction_train,
        )
        with calling(self.algorithm, "its server rule"):
            problem = apply_server_rule(self.algorithm, aggregate, self.state, step)
        if problem:
            return problem, further
        if self.algorithm.keeps_state:
            self.state.sizes = self.nodes.state_sizes = self.nodes.known
        with calling(self.algorithm, "report"):
            reported = self.algorithm.report(self.state.algorithm)
        return "", further | as_floats(self.algorithm, "report", reported)

    def _stop_or_warn(self, problem: str) -> None:
        round_ = self._requests.plan.round
        text = f"round {round_}: {problem}; {UNCHANGED}"
        if self.config.on_failure == "stop":
            raise RunError(f"{text}; on-failure is 'stop'")
        log(WARNING, "%s", text)

    # ------------------------------------------------------------------ evaluation

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Return one EVALUATE message a node, or none if only the server evaluates."""
        if self.config.evaluation == "server":
            return []
        population = set(self._sampler.population)
        clients = [client for client in self.nodes.clients if client in population]
        return self._evaluation.messages(grid, clients, self.state, arrays)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Aggregate replies, which are matched to their requests by node, as in Flower's interface."""
        return self._evaluation.aggregate(match_by_node(self._evaluation.asked, replies))

    def _is_evaluated(self, round_: int, last: int) -> bool:
        """Return whether theta is evaluated after round ``round_``."""
        every = self.config.eval_every
        due = every > 0 and round_ % every == 0
        return due or round_ == last or self._is_epsilon_spent()

    def _evaluate(self, grid: Grid) -> tuple[RoundMetrics, float]:
        """Return theta's scores, by the server, the clients or both, and the seconds that they took."""
        began, scores = time.perf_counter(), dict[str, Any]()
        if self.config.evaluation != "clients":
            scores |= server_scores(
                self.config,
                self.score,
                self.nodes,
                grid,
                self._delivery,
                self.state,
                self._arrays(),
            )
        if self.config.evaluation != "server":
            messages = self.configure_evaluate(
                self.state.round, self._arrays(), ConfigRecord(), grid
            )
            replies = self._delivery.exchange(grid, messages, self.config.round_deadline)
            scores |= evaluation_metrics(self.config, self._evaluation.aggregate(replies))
        return scores, time.perf_counter() - began

    def _arrays(self) -> ArrayRecord:
        """Return theta as one record, which the engines store once for all messages with it."""
        if self._encoded is None or self._encoded[0] is not self.state.theta:
            self._encoded = (self.state.theta, to_arrays(self.state.theta))
        return self._encoded[1]
