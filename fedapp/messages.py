"""The wire: what server and clients send each other, as Flower records.

One TRAIN message a node, one reply a message. Message: ``arrays`` (theta), ``config`` (round,
clients, learning rate, reply, where clients keep their state), ``extras`` (an algorithm's
broadcast). Reply ``mean``: ``arrays`` (the weighted mean update of the cohort), ``uploads``,
``metrics``, ``clients`` (the same per client, as lists), ``failures``. Reply ``each``:
``arrays.<k>`` for every client instead.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from fedapp.arrays import ReplyError, size_of, to_arrays, to_tensors
from fedapp.training.algorithm import Tensors
from fedapp.training.cohorts import ClientReport, CohortReply, TrainOrder
from fedapp.training.evaluation import Score
from fedapp.training.states import StateOrder
from fedapp.training.tensors import all_finite

EACH = "arrays."


# ---------------------------------------------------------------------- train


def encode_order(
    order: TrainOrder, theta: ArrayRecord, extras: ArrayRecord | None = None
) -> RecordDict:
    """Return the content of a TRAIN message; the records of a round's messages are the same."""
    config = ConfigRecord(
        {
            "server-round": order.round,
            "clients": list(order.clients),
            "learning-rate": order.learning_rate,
            "reply": order.reply,
            **_state_keys(order.states),
        }
    )
    content = RecordDict({"arrays": theta, "config": config})
    if extras is not None:
        content["extras"] = extras
    return content


def _state_keys(states: StateOrder | None) -> dict[str, str | list[int]]:
    if states is None:
        return {}
    return {
        "state-run": states.run_id,
        "state-folder": states.folder,
        "state-starts": list(states.starts),
        "state-checkpoints": list(states.checkpoints),
    }


def _states(config: Mapping[str, Any]) -> StateOrder | None:
    if "state-run" not in config:
        return None
    return StateOrder(
        run_id=str(config["state-run"]),
        folder=str(config["state-folder"]),
        starts=tuple(config["state-starts"]),
        checkpoints=tuple(config["state-checkpoints"]),
    )


def decode_order(content: RecordDict) -> tuple[TrainOrder, Tensors, Tensors]:
    """Return the order, theta and the extras of a TRAIN message."""
    config = cast("dict[str, Any]", content.config_records["config"])
    order = TrainOrder(
        round=int(config["server-round"]),
        clients=tuple(config["clients"]),
        learning_rate=float(config["learning-rate"]),
        reply=config["reply"],
        states=_states(config),
    )
    extras = content.array_records.get("extras")
    theta = to_tensors(content.array_records["arrays"])
    return order, theta, to_tensors(extras) if extras is not None else {}


def encode_reply(order: TrainOrder, reply: CohortReply) -> RecordDict:
    """Return the content of the reply to a TRAIN message."""
    reports = reply.reports
    content = RecordDict(
        {
            "metrics": MetricRecord(
                {
                    "server-round": order.round,
                    "weight": float(reply.weight),
                    "examples": sum(report.examples for report in reports),
                    "steps": sum(report.steps for report in reports),
                    "seconds": sum(report.seconds for report in reports),
                }
            ),
            "clients": MetricRecord(
                {
                    "client": [report.client for report in reports],
                    "examples": [report.examples for report in reports],
                    "weight": [report.weight for report in reports],
                    "steps": [report.steps for report in reports],
                    "loss": [report.loss for report in reports],
                    "seconds": [report.seconds for report in reports],
                }
            ),
            "failures": ConfigRecord(
                {
                    "client": list(reply.failures),
                    "reason": list(reply.failures.values()),
                }
            ),
        }
    )
    if reply.uploads:
        content["uploads"] = to_arrays(reply.uploads)
    if order.reply == "mean" and reports:
        content["arrays"] = to_arrays(reply.mean)
    for client, tensors in reply.each.items():
        content[f"{EACH}{client}"] = to_arrays(tensors)
    return content


def decode_reply(
    order: TrainOrder,
    message: Message,
    theta: Mapping[str, Tensor],
    upload: Mapping[str, Tensor] | None = None,
) -> CohortReply:
    """Return a reply that fits the order, theta, and what the algorithm uploads besides.

    Raises
    ------
    ReplyError
        The node failed, or its reply is malformed, not finite, of other names, shapes or types,
        of another round, or of other clients than it was sent.
    """
    if message.has_error():
        raise ReplyError(f"the node failed: {(message.error.reason or 'no reason').strip()}")
    content = message.content
    try:
        metrics = cast("dict[str, Any]", content.metric_records["metrics"])
        if metrics["server-round"] != order.round:
            raise ReplyError(f"it is a reply to round {metrics['server-round']}, not {order.round}")
        reports = tuple(_reports(content, order))
        failures = _failures(content, order, reports)
    except (KeyError, TypeError, ValueError) as error:
        raise ReplyError(f"its records are malformed: {error!r}") from error
    arrays = content.array_records
    mean, each = {}, {}
    if order.reply == "mean" and reports:
        mean = _checked("arrays", arrays, theta)
    if order.reply == "each":
        each = {r.client: _checked(f"{EACH}{r.client}", arrays, theta) for r in reports}
    uploads = _checked("uploads", arrays, upload) if upload and reports else {}
    return CohortReply(mean, uploads, each, reports, failures, size_of(content))


def _reports(content: RecordDict, order: TrainOrder) -> Iterator[ClientReport]:
    columns = cast("dict[str, list[Any]]", content.metric_records["clients"])
    names = ("client", "examples", "weight", "steps", "loss", "seconds")
    seen = set()
    for client, examples, weight, steps, loss, seconds in zip(
        *(columns[name] for name in names), strict=True
    ):
        if client not in order.clients or client in seen:
            raise ReplyError(f"it reports client {client}, which it was not asked to train")
        if not (np.isfinite(weight) and weight >= 0 and examples >= 0 and steps >= 0):
            raise ReplyError(
                f"client {client} has weight {weight}, examples {examples}, steps {steps}"
            )
        seen.add(client)
        yield ClientReport(
            client, int(examples), float(weight), int(steps), float(loss), float(seconds)
        )


def _failures(
    content: RecordDict, order: TrainOrder, reports: Sequence[ClientReport]
) -> dict[int, str]:
    """Return why each client of the order is without a report."""
    record = cast("dict[str, Sequence[Any]]", content.config_records["failures"])
    said = dict(zip(map(int, record["client"]), map(str, record["reason"]), strict=True))
    missing = set(order.clients) - {report.client for report in reports}
    return {client: said.get(client, "its node does not mention it") for client in sorted(missing)}


def _checked(name: str, arrays: Mapping[str, ArrayRecord], theta: Mapping[str, Tensor]) -> Tensors:
    if name not in arrays:
        raise ReplyError(f"the record {name!r} is missing")
    tensors = to_tensors(arrays[name])
    if tensors.keys() != theta.keys():
        odd = sorted(tensors.keys() ^ theta.keys())
        owner = "the algorithm's" if name == "uploads" else "the model's"
        raise ReplyError(f"{name}: other arrays than {owner}: {', '.join(odd[:4])}")
    for key, tensor in tensors.items():
        if tensor.shape != theta[key].shape:
            raise ReplyError(
                f"{name}: {key!r} has shape {tuple(tensor.shape)}, not {tuple(theta[key].shape)}"
            )
        if tensor.dtype != theta[key].dtype:
            raise ReplyError(f"{name}: {key!r} has type {tensor.dtype}, not {theta[key].dtype}")
    if not all_finite(tensors.values()):
        odd = sorted(key for key, tensor in tensors.items() if not all_finite([tensor]))
        raise ReplyError(f"{name}: {odd[0]!r} holds nan or infinite values")
    return {key: tensors[key] for key in theta}


# ---------------------------------------------------------------------- evaluate


def decode_clients(content: RecordDict) -> list[int]:
    """Return the clients that an EVALUATE message asks for."""
    config = cast("dict[str, Any]", content.config_records["config"])
    return [int(client) for client in config["clients"]]


def encode_scores(clients: Sequence[int], scores: Sequence[Score]) -> RecordDict:
    """Return the content of the reply to an EVALUATE message."""
    columns = MetricRecord(
        {
            "client": list(clients),
            "count": [score.count for score in scores],
            "loss": [score.loss for score in scores],
            "accuracy": [score.accuracy for score in scores],
        }
    )
    return RecordDict({"clients": columns})


def decode_scores(message: Message) -> list[Score]:
    """Return the scores of a reply that make sense; none if the node failed."""
    if message.has_error() or "clients" not in message.content.metric_records:
        return []
    columns = cast("dict[str, list[Any]]", message.content.metric_records["clients"])
    rows = zip(*(columns.get(name, []) for name in ("loss", "accuracy", "count")), strict=False)
    scores = [Score(float(loss), float(accuracy), int(count)) for loss, accuracy, count in rows]
    return [s for s in scores if s.count > 0 and np.isfinite(s.loss) and 0 <= s.accuracy <= 1]


# ---------------------------------------------------------------------- exchange


@runtime_checkable
class Waits(Protocol):
    """A grid that knows when a reply is there, so that nobody has to poll it."""

    def wait_for_replies(self, message_ids: Collection[str], seconds: float) -> None:
        """Return when one of the messages has its reply, or after ``seconds``."""


def exchange(grid: Grid, messages: Sequence[Message], seconds: float) -> Iterator[Message]:
    """Push the messages and yield the replies as they come, for at most ``seconds``.

    Polls Flower's own grids, and so finds a reply late by 5 % of the time that it took, but by at
    least 0.01 and at most 0.5 s: a quick engine waits for little, a slow device has little traffic.
    """
    pending = set(grid.push_messages(messages))
    began = time.monotonic()
    while pending and (spent := time.monotonic() - began) < seconds:
        if isinstance(grid, Waits):
            grid.wait_for_replies(pending, seconds - spent)
        replies = list(grid.pull_messages(pending))
        for reply in replies:
            pending.discard(reply.metadata.reply_to_message_id)
            yield reply
        if not replies and not isinstance(grid, Waits):
            time.sleep(min(max(0.05 * spent, 0.01), 0.5, seconds - spent))
