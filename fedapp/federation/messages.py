"""The wire: what server and clients send each other, as Flower records.

One TRAIN message a node, one reply a message. Message: ``arrays`` (theta), ``config`` (round,
clients, learning rate, E, B, reply, where clients keep their state), ``extras`` (an algorithm's
broadcast). Reply ``mean``: ``arrays`` (the weighted mean update of the cohort), ``uploads``,
``metrics`` (the round), ``clients`` (what each did, as lists), ``failures``; a cohort of no weight (of
clients without examples) has no mean to send. Reply ``each``: ``arrays.<k>`` for every client instead.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, MetricRecordValues, RecordDict

from fedapp.federation.arrays import to_arrays, to_tensors
from fedapp.training.algorithm import Tensors
from fedapp.training.client import TrainReply, TrainRequest
from fedapp.training.client_state import StateLocation
from fedapp.training.evaluation import Score

EACH = "arrays."
FURTHER = "further"
"""The record of an EVALUATE reply that holds the numbers of ``Model.metrics``, a column each."""

# ---------------------------------------------------------------------- train


def encode_train_request(
    request: TrainRequest, theta: ArrayRecord, extras: ArrayRecord | None = None
) -> RecordDict:
    """Return the content of a TRAIN message; the records of a round's messages are the same."""
    config = ConfigRecord(
        {
            "server-round": request.round,
            "clients": list(request.clients),
            "learning-rate": request.learning_rate,
            "local-epochs": request.epochs,
            "batch-size": request.batch_size,
            "reply": request.reply,
            "threads": request.threads,
            **_state_keys(request.states, request.clients),
        }
    )
    content = RecordDict({"arrays": theta, "config": config})
    if extras is not None:
        content["extras"] = extras
    return content


def _state_keys(states: StateLocation | None, clients: Sequence[int]) -> dict[str, str | list[int]]:
    if states is None:
        return {}
    return {
        "state-run": states.run_id,
        "state-folder": states.folder,
        "state-starts": list(states.starts),
        "state-checkpoints": list(states.checkpoints),
        "state-counted": [states.last_used_round.get(client, 0) for client in clients],
    }


def _states(config: Mapping[str, Any]) -> StateLocation | None:
    if "state-run" not in config:
        return None
    return StateLocation(
        run_id=str(config["state-run"]),
        folder=str(config["state-folder"]),
        starts=tuple(config["state-starts"]),
        checkpoints=tuple(config["state-checkpoints"]),
        last_used_round=dict(zip(config["clients"], config["state-counted"], strict=True)),
    )


def decode_train_request(content: RecordDict) -> tuple[TrainRequest, Tensors, Tensors]:
    """Return the order, theta and the extras of a TRAIN message."""
    config = cast("dict[str, Any]", content.config_records["config"])
    request = TrainRequest(
        round=int(config["server-round"]),
        clients=tuple(config["clients"]),
        learning_rate=float(config["learning-rate"]),
        reply=config["reply"],
        states=_states(config),
        threads=int(config["threads"]),
        epochs=int(config["local-epochs"]),
        batch_size=int(config["batch-size"]),
    )
    extras = content.array_records.get("extras")
    theta = to_tensors(content.array_records["arrays"])
    return request, theta, to_tensors(extras) if extras is not None else {}


def encode_reply(request: TrainRequest, reply: TrainReply) -> RecordDict:
    """Return the content of the reply to a TRAIN message."""
    reports = reply.reports
    content = RecordDict(
        {
            "metrics": MetricRecord({"server-round": request.round}),
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
            "failures": _why(reply.failures),
        }
    )
    if reply.uploads:
        content["uploads"] = to_arrays(reply.uploads)
    if request.reply == "mean" and reply.weight > 0:
        content["arrays"] = to_arrays(reply.mean)
    for client, tensors in reply.each.items():
        content[f"{EACH}{client}"] = to_arrays(tensors)
    return content


def _why(failures: Mapping[int, str]) -> ConfigRecord:
    return ConfigRecord({"client": list(failures), "reason": list(failures.values())})


# ---------------------------------------------------------------------- evaluate


@dataclass(frozen=True)
class EvaluateRequest:
    """Whom a node is asked to score after a round, and where they keep their states, if it matters."""

    round: int
    clients: tuple[int, ...]
    threads: int
    states: StateLocation | None = None


def encode_evaluate_request(request: EvaluateRequest, theta: ArrayRecord) -> RecordDict:
    """Return the content of an EVALUATE message."""
    config = ConfigRecord(
        {
            "server-round": request.round,
            "clients": list(request.clients),
            "threads": request.threads,
            **_state_keys(request.states, request.clients),
        }
    )
    return RecordDict({"arrays": theta, "config": config})


def decode_evaluate_request(content: RecordDict) -> tuple[EvaluateRequest, Tensors]:
    """Return what an EVALUATE message asks for, and theta."""
    config = cast("dict[str, Any]", content.config_records["config"])
    clients, threads = tuple(config["clients"]), int(config["threads"])
    request = EvaluateRequest(int(config["server-round"]), clients, threads, _states(config))
    return request, to_tensors(content.array_records["arrays"])


def encode_scores(scores: Mapping[int, Score], failures: Mapping[int, str]) -> RecordDict:
    """Return the content of the reply to an EVALUATE message, by client: scores, and why others fail."""
    found = scores.values()
    names = sorted({name for score in found for name in score.further})
    further: dict[str, MetricRecordValues] = {
        name: [float(score.further.get(name, math.nan)) for score in found] for name in names
    }
    columns = MetricRecord(
        {
            "client": list(scores),
            "count": [score.count for score in found],
            "loss": [score.loss for score in found],
            "accuracy": [score.accuracy for score in found],
        }
    )
    return RecordDict(
        {"clients": columns, FURTHER: MetricRecord(further), "failures": _why(failures)}
    )
