"""The subclass of Flower's ``Strategy`` that runs any algorithm of this package."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from logging import INFO, WARNING
from typing import Any, cast

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedapp.config.run_config import RunConfig, participants
from fedapp.errors import RunError
from fedapp.federation.aggregation import (
    RoundReplies,
    RunningAggregate,
    apply_server_rule,
    collect_replies,
    log_faults,
    similarity_metrics,
    training_metrics,
)
from fedapp.federation.arrays import size_of, to_arrays, to_tensors
from fedapp.federation.callback import Callback, Ledger, RoundMetrics, ServerState
from fedapp.federation.client_sampler import ClientSampler
from fedapp.federation.delivery import Delivery, expiring, match_by_node
from fedapp.federation.evaluation import ClientEvaluation, evaluation_metrics
from fedapp.federation.faults import Fault
from fedapp.federation.messages import (
    EvaluateRequest,
    encode_evaluate_request,
    encode_train_request,
)
from fedapp.federation.nodes import Nodes
from fedapp.federation.validation import Expected
from fedapp.training.algorithm import Algorithm, ServerStep, Tensors
from fedapp.training.client import TrainRequest, is_personalised, upload_like
from fedapp.training.client_state import StateLocation
from fedapp.training.round_plan import RoundPlan

EPSILON_SPENT = "max-epsilon is reached: round %d would pass it, and the model is that of round %d"


class FederatedStrategy(Strategy):
    """Sample, train, aggregate, evaluate: McMahan et al. 2017, Algorithm 1, for any algorithm.

    The clients of a round are sampled statelessly and distributed over the nodes as cohorts. Their
    replies are checked, averaged in float64 in client order, and given to the algorithm's server
    rule. ``score`` evaluates theta on the server and returns entries of the round's metrics. A private
    run has a ``ledger``, and samples by coin from the ``population`` with which it began (None: all
    clients).
    """

    def __init__(
        self,
        config: RunConfig,
        algorithm: Algorithm,
        nodes: Nodes,
        score: Callable[[Tensors], RoundMetrics] | None,
        callbacks: Sequence[Callback] = (),
        state: ServerState | None = None,
        client_states: Callable[[], StateLocation] | None = None,
        ledger: Ledger | None = None,
        population: Sequence[int] | None = None,
    ) -> None:
        self.config = config
        self.algorithm = algorithm
        self.nodes = nodes
        self.score = score
        self.callbacks = callbacks
        self.state = state or ServerState(0, {})
        self.client_states = client_states
        self.ledger = ledger
        self._delivery = Delivery()
        self._sampler = ClientSampler(config, algorithm, nodes, self._delivery, population)
        self._evaluation = ClientEvaluation(config, nodes, self._delivery)
        self._requests: list[tuple[int, TrainRequest]] = []
        self._upload: Tensors | None = None
        self._plan = RoundPlan()
        self._record: RoundMetrics = {}

    # ------------------------------------------------------------------ training

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Sample S_t, distribute it over the nodes, and return one TRAIN message a node."""
        sampled, cohorts = self._sampler.assign_round(server_round, grid)
        plan = self._plan = RoundPlan.of(self.config, server_round)
        states = self.client_states() if self.client_states else None
        self._requests = [
            (node, TrainRequest(plan, tuple(cohort), self._states(states, cohort)))
            for node, cohort in cohorts
        ]
        extras = self.algorithm.broadcast(self.state.algorithm)
        if self._upload is None:
            like = upload_like(self.algorithm, self.state.theta, extras)
            self._upload = {name: tensor.to("meta") for name, tensor in like.items()}
        extra_arrays = to_arrays(extras) if extras else None
        contents = [
            (node, encode_train_request(request, arrays, extra_arrays))
            for node, request in self._requests
        ]
        self._record |= {
            "learning_rate": plan.learning_rate,
            **({} if self.config.local_steps else {"local_epochs": plan.epochs}),
            "batch_size": plan.batch_size,
            "clients": sampled,
            "bytes_down": sum(size_of(content) for _, content in contents),
        }
        return self._messages(MessageType.TRAIN, contents)

    def _states(self, states: StateLocation | None, cohort: Sequence[int]) -> StateLocation | None:
        """Return the location of the client states, with the cohort's last used rounds."""
        last_used_round = {client: self.state.last_used_round.get(client, 0) for client in cohort}
        return replace(states, last_used_round=last_used_round) if states else None

    def _messages(self, kind: str, contents: Sequence[tuple[int, RecordDict]]) -> list[Message]:
        """Return one message a node, which expires when its reply is no longer waited for."""
        group, seconds = str(self.state.round + 1), self.config.round_deadline
        return [expiring(content, node, kind, group, seconds) for node, content in contents]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Aggregate replies, which are matched to their requests by node, as in Flower's interface."""
        return self.aggregate(
            server_round, match_by_node([node for node, _ in self._requests], replies)
        )

    def aggregate(
        self, server_round: int, replies: Iterable[tuple[int, Message | Fault]]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Aggregate replies, given by the index of their request, and apply the server rule.

        Returns (None, None) and leaves theta unchanged if fewer clients than ``min-replies``, or than
        the algorithm needs, are accepted, or if the result is not finite.
        """
        round_replies = self._collect(replies)
        self._record |= training_metrics(round_replies, self._plan)
        self._record["seconds"]["train"] = round_replies.aggregate.train_seconds
        if self._delivery.late:
            self._record["late_replies"] = self._delivery.late
        log_faults(round_replies.faults, self.config.on_failure)
        problem = self._update_model(round_replies.aggregate)
        self.nodes.query_again_after(round_replies.faults)
        if problem:
            self._stop_or_warn(f"round {server_round}: {problem}; the model stays as it was")
            return None, None
        return to_arrays(self.state.theta), MetricRecord({"train-loss": self._record["train_loss"]})

    def _collect(self, replies: Iterable[tuple[int, Message | Fault]]) -> RoundReplies:
        """Check and average the replies; name the sampled clients that got no request."""
        config, sampled = self.config, self._record["clients"]
        requests = [request for _, request in self._requests]
        requested = [client for request in requests for client in request.clients]
        theta, upload, sizes = self.state.theta, self._upload or {}, self.nodes.sizes(requested)
        expected = Expected.of(config, self.algorithm, self._plan, theta, upload, sizes)
        wanted = participants(config.fraction_train, len(self.nodes.clients))
        if self.algorithm.poisson_sampling:
            wanted = len(sampled)
        result = collect_replies(requests, replies, expected, wanted, config.round_deadline)
        result.faults |= self._sampler.unassigned(sampled, requested)
        return result

    def _update_model(self, aggregate: RunningAggregate) -> str:
        """Apply the server rule, or return why it cannot be applied."""
        needed, accepted = self.algorithm.min_updates, len(aggregate.client_metrics)
        few = accepted < self.config.min_replies or aggregate.num_weighted < needed
        if few and not self.algorithm.poisson_sampling:
            return (
                f"{accepted} clients replied well, {aggregate.num_weighted} of them with a weight; "
                f"min-replies = {self.config.min_replies}, and algorithm = {self.algorithm.name!r} "
                f"needs {needed}"
            )
        if self.config.record_updates:
            self._record |= similarity_metrics(
                aggregate, self.algorithm, self.state.theta, self.config.update
            )
        step = self._server_step(aggregate)
        if not apply_server_rule(self.algorithm, aggregate, self.state, step):
            return (
                f"algorithm = {self.algorithm.name!r} makes nan or infinite values of these updates"
            )
        own_metrics = self.algorithm.report(self.state.algorithm, step)
        self._record |= {"model_changed": True, **own_metrics}
        return ""

    def _server_step(self, aggregate: RunningAggregate) -> ServerStep:
        """Return what the server rule is given of this round."""
        return ServerStep(
            round=self.state.round + 1,
            learning_rate=self._plan.learning_rate,
            server_learning_rate=self.config.server_learning_rate,
            update="delta" if self.algorithm.custom_update else self.config.update,
            num_clients=len(self._sampler.population),
            participants=aggregate.num_weighted,
            share=min(aggregate.weight / self.nodes.total_weight, 1.0),
            fraction=self.config.fraction_train,
            seed=self.config.seed,
        )

    def _stop_or_warn(self, problem: str) -> None:
        if self.config.on_failure == "stop":
            raise RunError(f"{problem}; on-failure is 'stop'")
        log(WARNING, "%s", problem)

    # ------------------------------------------------------------------ evaluation

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Return one EVALUATE message a node, or none if only the server evaluates."""
        if self.config.evaluation == "server":
            return []
        personalised = is_personalised(self.algorithm)
        states = self.client_states() if self.client_states and personalised else None
        contents = []
        for node, cohort in self._evaluation.assign(grid):
            own, threads = self._states(states, cohort), self.config.threads
            request = EvaluateRequest(server_round, tuple(cohort), threads, own)
            contents.append((node, encode_evaluate_request(request, arrays)))
        return self._messages(MessageType.EVALUATE, contents)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Aggregate replies, which are matched to their requests by node, as in Flower's interface."""
        nodes = [node for node, _ in self._evaluation.cohorts]
        return self._evaluation.aggregate(match_by_node(nodes, replies))

    def _evaluate(self, grid: Grid, arrays: ArrayRecord) -> None:
        """Evaluate theta where ``evaluation`` says, and add the scores to the round's metrics."""
        began = time.perf_counter()
        if self.config.evaluation != "clients" and self.score is not None:
            self._record |= self.score(self.state.theta)
        messages = self.configure_evaluate(self.state.round, arrays, ConfigRecord(), grid)
        if messages:
            replies = self._delivery.exchange(grid, messages, self.config.round_deadline)
            self._record |= evaluation_metrics(self.config, self._evaluation.aggregate(replies))
        self._record["seconds"]["evaluate"] = time.perf_counter() - began

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

        Deadlines, evaluation and settings come from the configuration, not from the arguments
        that this method inherits.
        """
        result = Result()
        if not self.state.theta:
            theta = to_tensors(initial_arrays)
            self.state = ServerState(0, theta, self.algorithm.start(theta))
        try:
            result.arrays = self._run(grid, result, num_rounds)
        finally:
            for callback in self.callbacks:
                callback.close()
        return result

    def _run(self, grid: Grid, result: Result, num_rounds: int) -> ArrayRecord:
        """Run the rounds between the callbacks' start and end; return the last theta."""
        for callback in self.callbacks:
            callback.on_start(self.state)
        arrays = to_arrays(self.state.theta)
        stop = self.state.round == 0 and self._first_evaluation(grid, arrays)
        while self.state.round < num_rounds and not stop and not self._is_epsilon_spent():
            arrays, stop = self._round(grid, arrays, result, num_rounds)
        if self.state.round < num_rounds and not stop:
            log(INFO, EPSILON_SPENT, self.state.round + 1, self.state.round)
        for callback in self.callbacks:
            callback.on_end(self.state)
        return arrays

    def _is_epsilon_spent(self) -> bool:
        """Return whether the next round would exceed ``max-epsilon``."""
        if self.ledger is None:
            return False
        return not self.ledger.allows(lambda: self._sampler.sample(self.state.round + 1))

    def _first_evaluation(self, grid: Grid, arrays: ArrayRecord) -> bool:
        """Evaluate theta_0 as round 0; return whether to stop."""
        self._record = {"round": 0, "seconds": {}}
        self._evaluate(grid, arrays)
        return self._run_callbacks()

    def _round(
        self, grid: Grid, arrays: ArrayRecord, result: Result, num_rounds: int
    ) -> tuple[ArrayRecord, bool]:
        """Run one round; return theta as a record, and whether to stop."""
        current = self.state.round + 1
        self._record = {"round": current, "seconds": {}}
        began = time.perf_counter()
        self._delivery.begin_round(grid)
        messages = self.configure_train(current, arrays, ConfigRecord(), grid)
        if self.ledger is not None:
            requested = [client for _, request in self._requests for client in request.clients]
            self.ledger.charge(current, requested)
            self._record |= self.ledger.round_metrics()
        exchange = self._delivery.exchange(grid, messages, self.config.round_deadline)
        with closing(exchange) as replies:
            new, metrics = self.aggregate(current, replies)
        if new is not None and metrics is not None:
            arrays = new
            result.train_metrics_clientapp[current] = metrics
        seconds = cast("dict[str, Any]", self._record["seconds"])
        seconds["exchange"] = time.perf_counter() - began
        seconds["transfer"] = self._delivery.transfer
        busy = seconds["train"] + seconds["transfer"]
        seconds["wait"] = max(seconds["exchange"] - busy, 0.0)
        self.state.round = current
        every = self.config.eval_every
        last = current == num_rounds or self._is_epsilon_spent()
        if last or (every and current % every == 0):
            self._evaluate(grid, arrays)
        seconds["round"] = time.perf_counter() - began
        return arrays, self._run_callbacks()

    def _run_callbacks(self) -> bool:
        """Give the round's metrics to every callback; True if any of them ends the run."""
        stops = [callback.on_round(self._record, self.state) for callback in self.callbacks]
        return any(stops)
