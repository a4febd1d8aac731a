"""The one subclass of Flower's ``Strategy``, which runs any algorithm of this package."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
    collect_replies,
    collect_scores,
)
from fedapp.federation.arrays import size_of, to_arrays, to_tensors
from fedapp.federation.callback import Callback, Ledger, RoundMetrics, ServerState
from fedapp.federation.delivery import Delivery, grace_period
from fedapp.federation.faults import Fault
from fedapp.federation.messages import (
    EvaluateRequest,
    encode_evaluate_request,
    encode_train_request,
)
from fedapp.federation.nodes import Cohort, Nodes
from fedapp.federation.round_metrics import client_scores, describe_updates, training_record
from fedapp.federation.sampling import sample_clients, toss_coins
from fedapp.federation.validation import Expected
from fedapp.training.algorithm import Algorithm, ClientContext, ServerStep, Tensors
from fedapp.training.client import TrainRequest
from fedapp.training.client_state import StateLocation
from fedapp.training.round_plan import LocalPlan, Work
from fedapp.training.tensors import all_finite

OF_CLIENTS = ("worst-accuracy", "clients")
"""What is said of clients alone, and not of the test as a whole."""
BUSY_SECONDS = 0.5
"""Pause before looking again whether busy nodes have become free."""

SPENT = "max-epsilon is reached: round %d would pass it, and the model is that of round %d"
WAITING = "Round %d: waiting: %d clients of %d could be asked, and min-replies = %d"

BUSY = Fault("busy", "its node still works for an earlier round, and was not asked")
GONE = Fault("lost", "its node is not connected, and was not asked")


class FederatedStrategy(Strategy):
    """Sample, train, aggregate, evaluate: McMahan et al. 2017, Algorithm 1, for any algorithm.

    The clients of a round are drawn statelessly and spread over the nodes as cohorts; their
    replies are checked, folded in float64 in client order, and given to the algorithm's server
    rule. ``score`` evaluates theta where the server can: what a round's record says of it. A private
    run has a ``ledger``, and draws by coins from the ``population`` that it began with (None: all
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
        self.population = population
        self._delivery = Delivery()
        self._requests: list[tuple[int, TrainRequest]] = []
        self._asked: list[Cohort] = []
        self._upload: Tensors | None = None
        self._record: RoundMetrics = {}

    # ------------------------------------------------------------------ training

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Draw S_t, spread it over the nodes, and return one TRAIN message a node."""
        sampled, cohorts = self._assign(server_round, grid)
        work = Work.of(self.config, server_round)
        states = self.client_states() if self.client_states else None
        reply = "each" if self.config.record_updates else self.algorithm.reply
        request = TrainRequest(
            server_round,
            (),
            work.learning_rate,
            reply,
            threads=self.config.threads,
            epochs=work.epochs,
            batch_size=work.batch_size,
        )
        self._requests = [
            (node, replace(request, clients=tuple(own), states=self._states(states, own)))
            for node, own in cohorts
        ]
        extras = self.algorithm.broadcast(self.state.algorithm)
        if self._upload is None:
            like = self.algorithm.upload_like(self.state.theta, extras)
            self._upload = {name: tensor.to("meta") for name, tensor in like.items()}
        extra_arrays = to_arrays(extras) if extras else None
        messages = [
            self._message(
                encode_train_request(request, arrays, extra_arrays), node, MessageType.TRAIN
            )
            for node, request in self._requests
        ]
        self._record |= {
            "learning_rate": work.learning_rate,
            **({} if self.config.local_steps else {"local_epochs": work.epochs}),
            "batch_size": work.batch_size,
            "clients": sampled,
            "bytes_down": sum(size_of(message.content) for message in messages),
        }
        return messages

    def _states(self, states: StateLocation | None, cohort: Sequence[int]) -> StateLocation | None:
        """Return the order with the rounds of the cohort's last turns that counted."""
        last_used_round = {client: self.state.last_used_round.get(client, 0) for client in cohort}
        return replace(states, last_used_round=last_used_round) if states else None

    def _assign(self, server_round: int, grid: Grid) -> tuple[list[int], list[Cohort]]:
        """Return S_t and its cohorts by node, without the clients of nodes that are still busy.

        Waits while fewer than ``min-replies`` clients could be asked: the round would be for nothing.
        Virtual clients are all there from the start; of nodes that are clients more may connect.

        Raises
        ------
        RunError
            No node is busy, and so few clients are connected for longer than ``node-timeout``.
        """
        end, needed = time.monotonic() + self.config.node_timeout, self.config.min_replies
        said = False
        drawn = self._toss(server_round) if self.algorithm.by_coin else None
        while True:
            available = self.nodes.available(grid)
            clients = self.nodes.clients
            sampled = self._sample(server_round) if drawn is None else drawn
            here = sampled if self.nodes.virtual else [k for k in sampled if k in clients]
            cohorts = self.nodes.cohorts(here, available, self._delivery.busy(available))
            asked = sum(len(cohort) for _, cohort in cohorts)
            fixed = drawn is None and not self.nodes.virtual
            if asked >= (needed if fixed else min(needed, len(here))):
                return sampled, cohorts
            if len(sampled) < needed and time.monotonic() > end:
                raise RunError(
                    f"min-replies = {needed}: with {len(clients)} clients connected, {len(sampled)} are "
                    f"asked in round {server_round}, and no more came within node-timeout = "
                    f"{self.config.node_timeout:g} s. Start more SuperNodes, raise fraction-train or "
                    "node-timeout, or lower min-replies."
                )
            if not said:
                log(WARNING, WAITING, server_round, asked, len(clients), needed)
            said = True
            time.sleep(BUSY_SECONDS)
            self._delivery.drop_late(grid)

    def _sample(self, server_round: int) -> list[int]:
        """Return S_t: m of the clients known now, and those asked in addition."""
        config, clients = self.config, self.nodes.clients
        extra, fraction = config.over_selection, config.fraction_train
        return sample_clients(config.seed, server_round, clients, fraction, extra=extra)

    def _toss(self, server_round: int) -> list[int]:
        """Return S_t: those of the population whose own coin fell their way."""
        coins = self.algorithm.coins(self.config.seed, server_round)
        return toss_coins(coins, self._population, self.config.fraction_train)

    @property
    def _population(self) -> Sequence[int]:
        return self.nodes.clients if self.population is None else self.population

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Aggregate replies that are known by their node, as Flower's interface has it."""
        return self.aggregate(server_round, _by_node([node for node, _ in self._requests], replies))

    def aggregate(
        self, server_round: int, replies: Iterable[tuple[int, Message | Fault]]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Fold the replies, by the index of their order, as they come; apply the server rule.

        Returns (None, None), and leaves theta as it is, if fewer clients than ``min-replies``, or
        than the algorithm needs, replied well, or if what they make is not finite.
        """
        found = self._collect(replies)
        self._note(found)
        problem = self._use(found.aggregate)
        self._ask_again(found.faults)
        if problem:
            self._stop_or_say(f"round {server_round}: {problem}; the model stays as it was")
            return None, None
        return to_arrays(self.state.theta), MetricRecord({"train-loss": self._record["train_loss"]})

    def _use(self, fold: RunningAggregate) -> str:
        """Apply the server rule to good replies; return why not if it cannot be, or makes no sense."""
        needed = self.algorithm.min_updates
        few = len(fold.reports) < self.config.min_replies or fold.usable < needed
        if few and not self.algorithm.by_coin:
            return (
                f"{len(fold.reports)} clients replied well, {fold.usable} of them with a weight; "
                f"min-replies = {self.config.min_replies}, and algorithm = {self.algorithm.name!r} "
                f"needs {needed}"
            )
        if self.config.record_updates:
            self._record |= describe_updates(
                fold, self.algorithm, self.state.theta, self.config.update
            )
        if not self._apply(fold):
            return (
                f"algorithm = {self.algorithm.name!r} makes nan or infinite values of these updates"
            )
        return ""

    def _ask_again(self, faults: Mapping[int, Fault]) -> None:
        """Ask each node anew whose n_k is not what it said; after the round, of which it is a part."""
        if not self.nodes.virtual:
            for client, fault in faults.items():
                if fault.kind == "weight":
                    self.nodes.ask_again(client)

    def _collect(self, replies: Iterable[tuple[int, Message | Fault]]) -> RoundReplies:
        """Check and fold the replies."""
        config, sampled = self.config, self._record["clients"]
        expected = self._expected()
        wanted = participants(config.fraction_train, len(self.nodes.clients))
        if self.algorithm.by_coin:
            wanted = len(sampled)
        requests = [request for _, request in self._requests]
        found = collect_replies(requests, replies, expected, wanted, config.round_deadline)
        idle = set(sampled) - {client for request in requests for client in request.clients}
        known = self.nodes.clients
        found.faults |= {client: BUSY if client in known else GONE for client in sorted(idle)}
        return found

    def _expected(self) -> Expected:
        """Return what this round's replies are measured against."""
        config, work = self.config, Work.of(self.config, self.state.round + 1)
        plan = LocalPlan.of(config, work.learning_rate, work.epochs, work.batch_size)
        sizes = self.nodes.sizes([k for _, request in self._requests for k in request.clients])
        steps = {client: plan.num_steps(size) for client, size in sizes.items()}
        most = max(steps.values(), default=0)
        context = ClientContext({}, momentum=plan.momentum, nesterov=plan.nesterov, steps=most)
        return Expected(
            self.state.theta,
            sizes,
            steps,
            self._upload or {},
            self.algorithm.largest(context),
            config.weighting,
            "delta" if self.algorithm.custom_update else config.update,
            config.max_update_norm,
        )

    def _apply(self, fold: RunningAggregate) -> bool:
        """Apply the server rule; False, and nothing has changed, if the result is not finite."""
        mean, uploads = fold.mean(self.algorithm)
        step = self._step(fold)
        theta, state = self.algorithm.apply(
            self.state.theta, mean, uploads, self.state.algorithm, step
        )
        bounded = [state[name] for name in state.keys() - self.algorithm.may_be_infinite]
        if not all_finite([*theta.values(), *bounded]):
            return False
        self.state.theta, self.state.algorithm = theta, state
        if self.algorithm.keeps_state:
            self.state.last_used_round |= {report.client: step.round for report in fold.reports}
        self._record |= {"model_changed": True, **self.algorithm.report(state, step)}
        return True

    def _step(self, fold: RunningAggregate) -> ServerStep:
        """Return what the server rule may know of this round."""
        return ServerStep(
            round=self.state.round + 1,
            learning_rate=self._record["learning_rate"],
            server_learning_rate=self.config.server_learning_rate,
            update="delta" if self.algorithm.custom_update else self.config.update,
            num_clients=len(self._population),
            participants=fold.usable,
            share=min(fold.weight / self.nodes.total_weight, 1.0),
            fraction=self.config.fraction_train,
            seed=self.config.seed,
        )

    def _message(self, content: RecordDict, node: int, kind: str) -> Message:
        """Return a message that lives as long as its reply is waited for."""
        seconds = self.config.round_deadline
        ttl = seconds + grace_period(seconds)
        return Message(content, node, kind, ttl=ttl, group_id=str(self.state.round + 1))

    def _note(self, found: RoundReplies) -> None:
        """Write down what a round did, and say who is left out of it."""
        work = Work.of(self.config, self._record["round"])
        self._record |= training_record(self.config, found, work)
        self._record["seconds"]["train"] = found.aggregate.train_seconds
        if self._delivery.late:
            self._record["late_replies"] = self._delivery.late
        for client, fault in sorted(found.faults.items()):
            log(WARNING, "Client %d is left out of this round: %s", client, fault.reason)
        if found.faults and self.config.on_failure == "stop":
            client = min(found.faults)
            raise RunError(
                f"client {client} failed ({found.faults[client].reason}) and on-failure is 'stop'"
            )

    def _stop_or_say(self, problem: str) -> None:
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
        available = self.nodes.available(grid)
        clients, busy = self.nodes.clients, self._delivery.busy(available)
        self._asked = self.nodes.cohorts(clients, available, busy)
        if left := len(clients) - sum(len(cohort) for _, cohort in self._asked):
            log(WARNING, "%d clients are left out of this evaluation: %s", left, BUSY.reason)
        apart = self.algorithm.personalised
        states = self.client_states() if self.client_states and apart else None
        messages = []
        for node, cohort in self._asked:
            own, threads = self._states(states, cohort), self.config.threads
            request = encode_evaluate_request(
                EvaluateRequest(server_round, tuple(cohort), threads, own), arrays
            )
            messages.append(self._message(request, node, MessageType.EVALUATE))
        return messages

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Aggregate replies that are known by their node, as Flower's interface has it."""
        nodes = [node for node, _ in self._asked]
        return self._client_scores(_by_node(nodes, replies))

    def _client_scores(self, replies: Iterable[tuple[int, Message | Fault]]) -> MetricRecord | None:
        """Return loss and accuracy over all clients' test examples, each example counting once."""
        graded, deadline = self.nodes.task.kind != "quadratic", self.config.round_deadline
        called = self.nodes.called
        return client_scores(
            collect_scores(self._asked, replies, deadline, graded=graded, called=called)
        )

    def _evaluate(self, grid: Grid, arrays: ArrayRecord) -> None:
        began = time.perf_counter()
        if self.config.evaluation != "clients" and self.score is not None:
            self._record |= self.score(self.state.theta)
        messages = self.configure_evaluate(self.state.round, arrays, ConfigRecord(), grid)
        if messages:
            replies = self._delivery.exchange(grid, messages, self.config.round_deadline)
            self._note_client_scores(self._client_scores(replies))
        self._record["seconds"]["evaluate"] = time.perf_counter() - began

    def _note_client_scores(self, metrics: MetricRecord | None) -> None:
        found = {} if metrics is None else dict(metrics)
        self._record |= {f"client_{key.replace('-', '_')}": found[key] for key in found}
        if self.config.evaluation == "clients":
            of_test = {"loss": math.nan, "accuracy": math.nan, **found}
            self._record |= {f"test_{k}": of_test[k] for k in of_test if k not in OF_CLIENTS}

    # ------------------------------------------------------------------ the run

    def summary(self) -> None:
        """Log what will run."""
        config = self.config
        log(
            INFO,
            "%s: %d clients, %d rounds",
            config.algorithm,
            len(self.nodes.clients),
            config.num_server_rounds,
        )

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
        while self.state.round < num_rounds and not stop and not self._is_spent():
            arrays, stop = self._round(grid, arrays, result, num_rounds)
        if self.state.round < num_rounds and not stop:
            log(INFO, SPENT, self.state.round + 1, self.state.round)
        for callback in self.callbacks:
            callback.on_end(self.state)
        return arrays

    def _is_spent(self) -> bool:
        """Return whether the next round would pass ``max-epsilon``."""
        if self.ledger is None:
            return False
        return not self.ledger.allows(lambda: self._sample(self.state.round + 1))

    def _first_evaluation(self, grid: Grid, arrays: ArrayRecord) -> bool:
        """Evaluate theta_0 as round 0."""
        self._record = {"round": 0, "seconds": {}}
        self._evaluate(grid, arrays)
        return self._tell()

    def _round(
        self, grid: Grid, arrays: ArrayRecord, result: Result, num_rounds: int
    ) -> tuple[ArrayRecord, bool]:
        """Run one round and return theta as a record, and whether to stop."""
        current = self.state.round + 1
        self._record = {"round": current, "seconds": {}}
        began = time.perf_counter()
        self._delivery.begin(grid)
        messages = self.configure_train(current, arrays, ConfigRecord(), grid)
        if self.ledger is not None:
            self.ledger.charge(
                current, [k for _, request in self._requests for k in request.clients]
            )
            self._record |= self.ledger.report()
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
        last = current == num_rounds or self._is_spent()
        if last or (every and current % every == 0):
            self._evaluate(grid, arrays)
        seconds["round"] = time.perf_counter() - began
        return arrays, self._tell()

    def _tell(self) -> bool:
        """Give the round's record to every callback; True if any of them ends the run."""
        answers = [callback.on_round(self._record, self.state) for callback in self.callbacks]
        return any(answers)


def _by_node(nodes: Sequence[int], replies: Iterable[Message]) -> Iterator[tuple[int, Message]]:
    """Yield each reply with the index of its node among ``nodes``; others' are passed over."""
    index_of = {node: index for index, node in enumerate(nodes)}
    for reply in replies:
        index = index_of.get(reply.metadata.src_node_id)
        if index is not None:
            yield index, reply
