"""The one subclass of Flower's ``Strategy``, which runs any algorithm of this package."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from logging import INFO, WARNING
from typing import Any, cast

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedapp.arrays import ReplyError, size_of, to_arrays, to_tensors
from fedapp.config import RunConfig
from fedapp.errors import RunError
from fedapp.messages import (
    decode_reply,
    decode_scores,
    encode_order,
    exchange,
)
from fedapp.nodes import Nodes
from fedapp.training.algorithm import Algorithm, ServerStep, Tensors
from fedapp.training.cohorts import CohortReply, TrainOrder, sample_clients, spread
from fedapp.training.evaluation import Score
from fedapp.training.plan import learning_rate, updates
from fedapp.training.states import StateOrder
from strategies.agreement import describe_updates
from strategies.callbacks import Callback, Record, ServerState
from strategies.folding import Fold, in_order


class FederatedStrategy(Strategy):
    """Sample, train, aggregate, evaluate: McMahan et al. 2017, Algorithm 1, for any algorithm.

    The clients of a round are drawn statelessly and spread over the nodes as cohorts; their
    replies are checked, folded in float64 in client order, and given to the algorithm's server
    rule. ``score`` evaluates theta on the server's test set.
    """

    def __init__(
        self,
        config: RunConfig,
        algorithm: Algorithm,
        nodes: Nodes,
        score: Callable[[Tensors], Score] | None,
        callbacks: Sequence[Callback] = (),
        state: ServerState | None = None,
        client_states: Callable[[], StateOrder] | None = None,
    ) -> None:
        self.config = config
        self.algorithm = algorithm
        self.nodes = nodes
        self.score = score
        self.callbacks = callbacks
        self.state = state or ServerState(0, {})
        self.client_states = client_states
        self._orders: list[tuple[int, TrainOrder]] = []
        self._upload: Tensors = {}
        self._record: Record = {}

    # ------------------------------------------------------------------ training

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Draw S_t, spread it over the nodes, and return one TRAIN message a node."""
        present = self._present(server_round, grid)
        sampled = sample_clients(
            self.config.seed, server_round, self.nodes.clients, self.config.fraction_train
        )
        rate = learning_rate(self.config, server_round)
        states = self.client_states() if self.client_states else None
        reply = "each" if self.config.record_updates else self.algorithm.reply
        self._orders = [
            (node, TrainOrder(server_round, tuple(cohort), rate, reply, states))
            for node, cohort in self._cohorts(sampled, present)
        ]
        extras = self.algorithm.broadcast(self.state.algorithm)
        self._upload = self.algorithm.upload_like(self.state.theta, extras)
        extra_arrays = to_arrays(extras) if extras else None
        messages = [
            self._message(encode_order(order, arrays, extra_arrays), node, MessageType.TRAIN)
            for node, order in self._orders
        ]
        self._record |= {
            "learning_rate": rate,
            "clients": sampled,
            "bytes_down": sum(size_of(message.content) for message in messages),
        }
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Fold the replies as they come and apply the server rule.

        Returns (None, None), and leaves theta as it is, if fewer clients than ``min-replies``, or
        than the algorithm needs, replied well.
        """
        fold = Fold()
        failures: dict[int, str] = {}
        for reply in in_order(self._decoded(replies, failures), len(self._orders)):
            fold.add(reply)
        failures |= fold.failures
        self._note(fold, failures)
        needed = self.algorithm.min_updates
        if len(fold.reports) < self.config.min_replies or fold.usable < needed:
            self._stop_or_say(
                f"round {server_round}: {len(fold.reports)} clients replied well, {fold.usable} of them "
                f"with a weight; min-replies = {self.config.min_replies}, and algorithm = "
                f"{self.algorithm.name!r} needs {needed}; the model stays as it was"
            )
            return None, None
        if self.config.record_updates:
            self._record |= describe_updates(
                fold, self.algorithm, self.state.theta, self.config.update
            )
        mean, uploads = fold.mean(self.algorithm)
        step = self._step(fold)
        self.state.theta, self.state.algorithm = self.algorithm.apply(
            self.state.theta, mean, uploads, self.state.algorithm, step
        )
        self._record |= {"model_changed": True, **self.algorithm.report(self.state.algorithm, step)}
        return to_arrays(self.state.theta), MetricRecord({"train-loss": self._record["train_loss"]})

    def _step(self, fold: Fold) -> ServerStep:
        """Return what the server rule may know of this round."""
        return ServerStep(
            round=self.state.round + 1,
            learning_rate=self._record["learning_rate"],
            server_learning_rate=self.config.server_learning_rate,
            update=self.config.update,
            num_clients=len(self.nodes.clients),
            participants=len(fold.reports),
            share=min(fold.weight / self.nodes.total_weight, 1.0),
            sampled=len(self._record["clients"]),
            seed=self.config.seed,
        )

    def _present(self, server_round: int, grid: Grid) -> list[int]:
        present = self.nodes.present(grid)
        if not present or not len(self.nodes.clients):
            log(WARNING, "Round %d: no fit node is connected; waiting", server_round)
            present = self.nodes.wait(grid)
        return present

    def _cohorts(self, clients: Sequence[int], present: list[int]) -> list[tuple[int, list[int]]]:
        if not self.nodes.virtual:
            return [(self.nodes.node_of(client), [client]) for client in clients]
        cohorts = spread(clients, self.nodes.sizes(clients), len(present))
        return list(zip(present, cohorts, strict=False))

    def _message(self, content: RecordDict, node: int, kind: str) -> Message:
        """Return a message that lives no longer than the round."""
        return Message(
            content, node, kind, ttl=self.config.round_deadline, group_id=str(self.state.round + 1)
        )

    def _decoded(
        self, replies: Iterable[Message], failures: dict[int, str]
    ) -> Iterator[tuple[int, CohortReply | None]]:
        """Check each reply; fill in ``failures`` for the clients of those that are bad or missing."""
        index_of = {node: index for index, (node, _) in enumerate(self._orders)}
        missing = dict(self._orders)
        for message in replies:
            node = message.metadata.src_node_id
            order = missing.pop(node, None)
            if order is None:
                continue
            try:
                yield index_of[node], decode_reply(order, message, self.state.theta, self._upload)
            except ReplyError as error:
                failures |= dict.fromkeys(order.clients, str(error))
                yield index_of[node], None
        late = f"no reply within round-deadline = {self.config.round_deadline:g} s"
        for order in missing.values():
            failures |= dict.fromkeys(order.clients, late)

    def _note(self, fold: Fold, failures: dict[int, str]) -> None:
        """Write down what a round did: u and eta * u averaged as the updates are."""
        done = fold.average([updates(self.config, r.examples) for r in fold.reports])
        self._record |= {
            "replied": len(fold.reports),
            "examples": sum(r.examples for r in fold.reports),
            "steps": sum(r.steps for r in fold.reports),
            "updates": done,
            "effective_updates": done * self._record["learning_rate"],
            "train_loss": fold.average([r.loss for r in fold.reports]),
            "bytes_up": fold.bytes,
            "model_changed": False,
        }
        self._record["seconds"]["train"] = fold.train_seconds
        if failures:
            self._record["failures"] = {str(k): failures[k] for k in sorted(failures)}
            for client in sorted(failures):
                log(WARNING, "Client %d is left out of this round: %s", client, failures[client])
            if self.config.on_failure == "stop":
                raise RunError(
                    f"client {min(failures)} failed ({failures[min(failures)]}) and on-failure is 'stop'"
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
        clients = self.nodes.clients
        return [
            self._message(
                RecordDict({"arrays": arrays, "config": ConfigRecord({"clients": cohort})}),
                node,
                MessageType.EVALUATE,
            )
            for node, cohort in self._cohorts(clients, self._present(server_round, grid))
        ]

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return loss and accuracy over all clients' test examples, each example counting once."""
        scores = [score for reply in replies for score in decode_scores(reply)]
        total = sum(score.count for score in scores)
        if not total:
            return None
        return MetricRecord(
            {
                "loss": sum(s.loss * s.count for s in scores if s.count) / total,
                "accuracy": sum(s.accuracy * s.count for s in scores if s.count) / total,
                "worst-accuracy": min(s.accuracy for s in scores if s.count),
                "clients": sum(1 for s in scores if s.count),
            }
        )

    def _evaluate(self, grid: Grid, arrays: ArrayRecord) -> None:
        began = time.perf_counter()
        if self.config.evaluation != "clients" and self.score is not None:
            score = self.score(self.state.theta)
            self._record |= {"test_loss": score.loss, "test_accuracy": score.accuracy}
        messages = self.configure_evaluate(self.state.round, arrays, ConfigRecord(), grid)
        if messages:
            replies = exchange(grid, messages, self.config.round_deadline)
            self._note_client_scores(self.aggregate_evaluate(self.state.round, replies))
        self._record["seconds"]["evaluate"] = time.perf_counter() - began

    def _note_client_scores(self, metrics: MetricRecord | None) -> None:
        found = {} if metrics is None else dict(metrics)
        self._record |= {f"client_{key.replace('-', '_')}": found[key] for key in found}
        if self.config.evaluation == "clients":
            self._record["test_loss"] = found.get("loss", math.nan)
            self._record["test_accuracy"] = found.get("accuracy", math.nan)

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
        while self.state.round < num_rounds and not stop:
            arrays, stop = self._round(grid, arrays, result, num_rounds)
        for callback in self.callbacks:
            callback.on_end(self.state)
        return arrays

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
        messages = self.configure_train(current, arrays, ConfigRecord(), grid)
        replies = exchange(grid, messages, self.config.round_deadline)
        new, metrics = self.aggregate_train(current, replies)
        if new is not None and metrics is not None:
            arrays = new
            result.train_metrics_clientapp[current] = metrics
        seconds = cast("dict[str, Any]", self._record["seconds"])
        seconds["exchange"] = time.perf_counter() - began
        seconds["wait"] = max(seconds["exchange"] - seconds["train"], 0.0)
        self.state.round = current
        every = self.config.eval_every
        if current == num_rounds or (every and current % every == 0):
            self._evaluate(grid, arrays)
        seconds["round"] = time.perf_counter() - began
        return arrays, self._tell()

    def _tell(self) -> bool:
        """Give the round's record to every callback; True if any of them ends the run."""
        answers = [callback.on_round(self._record, self.state) for callback in self.callbacks]
        return any(answers)
