"""Messages between server and nodes, as Flower records.

A node gets one TRAIN message a round and sends one reply. The request has ``arrays`` (theta), ``plan``
(the round's plan, a key a field), ``config`` (clients, location of their states) and ``extras`` (an
algorithm's broadcast). A ``mean`` reply has ``arrays`` (the weighted mean update of the cohort; absent
if its total weight is 0), ``uploads``, ``metrics`` (the round), ``clients`` (each client's metrics, as
columns) and ``failures``. An ``each`` reply has ``arrays.<k>`` for every client k instead of ``arrays``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, cast, get_type_hints

from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    ConfigRecordValues,
    MetricRecord,
    MetricRecordValues,
    RecordDict,
)

import fedapp
from fedapp.config.run_config import kebab, snake
from fedapp.errors import RunError
from fedapp.federation.arrays import to_arrays, to_tensors
from fedapp.training.algorithm import Tensors
from fedapp.training.client import ClientMetrics, TrainReply, TrainRequest
from fedapp.training.client_state import StateLocation
from fedapp.training.evaluation import Score
from fedapp.training.round_plan import RoundPlan

EACH = "arrays."
"""Prefix of the records of an ``each`` reply that hold one client's update."""
CLIENT_METRICS: Mapping[str, Callable[[Any], Any]] = get_type_hints(ClientMetrics)
"""Columns of a TRAIN reply's record ``clients``, and their types."""
MODEL_METRICS = "further"
"""Record of an EVALUATE reply with the numbers of ``Model.metrics``, a column each."""

# ---------------------------------------------------------------------- train


def encode_train_request(
    request: TrainRequest, theta: ArrayRecord, extras: ArrayRecord | None = None
) -> RecordDict:
    """Return the content of a TRAIN message; a round's messages share ``theta`` and ``extras``."""
    clients: dict[str, ConfigRecordValues] = {
        "clients": list(request.clients),
        **_state_keys(request.states, request.clients),
    }
    content = RecordDict(
        {"arrays": theta, "plan": _encode_plan(request.plan), "config": ConfigRecord(clients)}
    )
    if extras is not None:
        content["extras"] = extras
    return content


def _encode_plan(plan: RoundPlan) -> ConfigRecord:
    return ConfigRecord({kebab(name): value for name, value in vars(plan).items()})


def _decode_plan(record: ConfigRecord) -> RoundPlan:
    """Return the plan of a round.

    Raises
    ------
    RunError
        The server's plan has other keys than this version's.
    """
    values = {snake(name): value for name, value in record.items()}
    if odd := values.keys() ^ {field.name for field in fields(RoundPlan)}:
        raise RunError(
            f"plan: the server's fedapp and this node's {fedapp.__version__} differ in "
            f"{', '.join(sorted(odd))}; install the same version"
        )
    return RoundPlan(**cast("dict[str, Any]", values))


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
    """Return the request, theta and the extras of a TRAIN message."""
    config = cast("dict[str, Any]", content.config_records["config"])
    plan = _decode_plan(content.config_records["plan"])
    request = TrainRequest(plan, tuple(config["clients"]), _states(config))
    extras = content.array_records.get("extras")
    theta = to_tensors(content.array_records["arrays"])
    return request, theta, to_tensors(extras) if extras is not None else {}


def encode_reply(request: TrainRequest, reply: TrainReply) -> RecordDict:
    """Return the content of the reply to a TRAIN message."""
    clients = reply.client_metrics
    content = RecordDict(
        {
            "metrics": MetricRecord({"server-round": request.plan.round}),
            "clients": MetricRecord(
                {name: [getattr(client, name) for client in clients] for name in CLIENT_METRICS}
            ),
            "failures": _failures_record(reply.failures),
        }
    )
    if reply.uploads:
        content["uploads"] = to_arrays(reply.uploads)
    if request.plan.reply == "mean" and reply.weight > 0:
        content["arrays"] = to_arrays(reply.mean)
    for client, tensors in reply.each.items():
        content[f"{EACH}{client}"] = to_arrays(tensors)
    return content


def _failures_record(failures: Mapping[int, str]) -> ConfigRecord:
    return ConfigRecord({"client": list(failures), "reason": list(failures.values())})


# ---------------------------------------------------------------------- evaluate


@dataclass(frozen=True)
class EvaluateRequest:
    """The clients that a node evaluates after a round; ``states`` if their own parameters are tested."""

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
    """Return the request and theta of an EVALUATE message."""
    config = cast("dict[str, Any]", content.config_records["config"])
    clients, threads = tuple(config["clients"]), int(config["threads"])
    request = EvaluateRequest(int(config["server-round"]), clients, threads, _states(config))
    return request, to_tensors(content.array_records["arrays"])


def encode_scores(scores: Mapping[int, Score], failures: Mapping[int, str]) -> RecordDict:
    """Return the content of the reply to an EVALUATE message: scores and failures by client."""
    values = scores.values()
    names = sorted({name for score in values for name in score.further})
    further: dict[str, MetricRecordValues] = {
        name: [float(score.further.get(name, math.nan)) for score in values] for name in names
    }
    columns = MetricRecord(
        {
            "client": list(scores),
            "count": [score.count for score in values],
            "loss": [score.loss for score in values],
            "accuracy": [score.accuracy for score in values],
        }
    )
    return RecordDict(
        {
            "clients": columns,
            MODEL_METRICS: MetricRecord(further),
            "failures": _failures_record(failures),
        }
    )
