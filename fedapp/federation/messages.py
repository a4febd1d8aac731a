"""Messages between server and nodes, as Flower records.

A node gets one TRAIN message a round and sends one reply. The request has ``arrays`` (theta), ``plan``
(the round's plan, a key a field), ``config`` (clients, location of their states), ``extras`` (an
algorithm's broadcast), and for a node with data of its own ``task`` or ``table``. A ``mean`` reply has
``arrays`` (the weighted mean update of the cohort; absent if its total weight is 0), ``uploads``,
``metrics`` (the round), ``clients`` (each client's metrics, as columns) and ``failures``. An ``each``
reply has ``arrays.<k>`` for every client k instead of ``arrays``. Messages for batches of the server's
evaluation are in ``shared_evaluation``; the answer of a node about its data is made in ``node``, and read
in ``nodes``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, cast, get_type_hints

from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    ConfigRecordValues,
    Message,
    MetricRecord,
    MetricRecordValues,
    RecordDict,
)

import fedapp
from fedapp.config.settings import kebab, snake
from fedapp.errors import RunError, one_line
from fedapp.federation.arrays import size_of, to_arrays, to_tensors
from fedapp.federation.faults import Fault, ReplyError, content_of
from fedapp.federation.validation import (
    Expected,
    check_bounds,
    check_client_metrics,
    check_norm,
    checked_score,
    checked_tensors,
    checked_update,
)
from fedapp.training.algorithm import Tensors
from fedapp.training.client import ClientMetrics, TrainReply, TrainRequest
from fedapp.training.client_state import StateLocation
from fedapp.training.evaluation import Score, is_reserved
from fedapp.training.round_plan import RoundPlan

EACH = "arrays."
"""Prefix of the records of an ``each`` reply that hold one client's update."""
CLIENT_METRICS: Mapping[str, Callable[[Any], Any]] = get_type_hints(ClientMetrics)
"""Columns of a TRAIN reply's record ``clients``, and their types."""
SCORES: Mapping[str, Callable[[Any], Any]] = {
    "client": int,
    "count": int,
    "loss": float,
    "accuracy": float,
}
"""Columns of an EVALUATE reply's record ``clients``, and their types."""
MODEL_METRICS = "further"
"""Record of an EVALUATE reply with the numbers of ``Model.metrics``, a column each."""
MAX_MODEL_METRICS, MAX_NAME_LENGTH = 1000, 100
"""Bounds on ``Model.metrics``, since each of its numbers becomes a key of the round's metrics."""
NOT_REPORTED = "its node does not mention it"

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


def decode_reply(request: TrainRequest, reply: Message | Fault, expected: Expected) -> TrainReply:
    """Return the reply to a train request, checked.

    Raises
    ------
    ReplyError
        The node failed, or its reply is malformed, not finite, too large, of other names, shapes or
        types, of another round or other clients than requested, or of more weight than they have.
    """
    content = content_of(reply)
    try:
        metrics = cast("dict[str, Any]", content.metric_records["metrics"])
        if metrics["server-round"] != request.plan.round:
            raise ReplyError(
                "round",
                f"it is a reply to round {metrics['server-round']}, not {request.plan.round}",
            )
        client_metrics = tuple(_client_metrics(content, request, expected))
        failures = _failures(content, request, client_metrics)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ReplyError(
            "malformed", f"its records are malformed: {one_line(repr(error))}"
        ) from error
    arrays = content.array_records
    mean: Tensors = {}
    uploads: Tensors = {}
    each, rejected = dict[int, Tensors](), dict[int, tuple[str, str]]()
    has_weight = any(metrics.weight > 0 for metrics in client_metrics)
    if request.plan.reply == "mean" and has_weight:
        mean = checked_update("arrays", arrays, expected)
    if request.plan.reply == "each":
        each, rejected = _checked_each(client_metrics, arrays, expected)
        client_metrics = tuple(row for row in client_metrics if row.client in each)
    if has_weight and (expected.upload or "uploads" in arrays):
        if rejected:  # their uploads are in the node's mean
            raise ReplyError(*next(iter(rejected.values())))
        uploads = checked_tensors("uploads", arrays, expected.upload)
        if uploads.keys() == expected.theta.keys():
            check_norm("uploads", uploads, expected, min(request.plan.learning_rate, 1.0))
        check_bounds(uploads, expected.largest)
    return TrainReply(mean, uploads, each, client_metrics, failures, size_of(content), rejected)


def _checked_each(
    clients: Sequence[ClientMetrics], arrays: Mapping[str, ArrayRecord], expected: Expected
) -> tuple[dict[int, Tensors], dict[int, tuple[str, str]]]:
    """Return the clients' own updates, and why others are rejected.

    One that is too large or not finite does not reject its node's others, as a damaged record does.
    """
    each, rejected = dict[int, Tensors](), dict[int, tuple[str, str]]()
    for client in (metrics.client for metrics in clients):
        try:
            each[client] = checked_update(f"{EACH}{client}", arrays, expected)
        except ReplyError as error:
            if error.fault.kind not in ("norm", "not-finite"):
                raise
            rejected[client] = error.fault
    return each, rejected


def _client_metrics(
    content: RecordDict, request: TrainRequest, expected: Expected
) -> Iterator[ClientMetrics]:
    columns = cast("dict[str, list[Any]]", content.metric_records["clients"])
    seen = set()
    for row in _rows(columns, CLIENT_METRICS):
        metrics = ClientMetrics(**row)
        if metrics.client not in request.clients or metrics.client in seen:
            raise ReplyError(
                "malformed", f"it reports client {metrics.client}, which it was not asked to train"
            )
        seen.add(metrics.client)
        check_client_metrics(metrics, expected)
        yield metrics


def _rows(
    columns: Mapping[str, Sequence[Any]], types: Mapping[str, Callable[[Any], Any]]
) -> Iterator[dict[str, Any]]:
    """Yield the rows of a record of columns, each value of its type.

    Raises
    ------
    ValueError
        The columns differ in length, or a whole number is not one.
    """
    for row in zip(*(columns[name] for name in types), strict=True):
        pairs = list(zip(types.items(), row, strict=True))
        if odd := [name for (name, kind), value in pairs if kind is int and int(value) != value]:
            raise ValueError(f"{odd[0]} is not a whole number")
        yield {name: kind(value) for (name, kind), value in pairs}


def _failures_record(failures: Mapping[int, str]) -> ConfigRecord:
    return ConfigRecord({"client": list(failures), "reason": list(failures.values())})


def _failures(
    content: RecordDict, request: TrainRequest, client_metrics: Sequence[ClientMetrics]
) -> dict[int, str]:
    """Return why each client of the request that has no metrics failed."""
    reasons = _reasons(content)
    failed = set(request.clients) - {metrics.client for metrics in client_metrics}
    return {client: reasons.get(client, NOT_REPORTED) for client in sorted(failed)}


def _reasons(content: RecordDict) -> dict[int, str]:
    record = cast("dict[str, Sequence[Any]]", content.config_records["failures"])
    return dict(zip(map(int, record["client"]), map(one_line, record["reason"]), strict=True))


# ---------------------------------------------------------------------- evaluate


@dataclass(frozen=True)
class EvaluateRequest:
    """The clients that a node evaluates after a round; ``states`` if their own parameters are tested.

    ``split``: their test examples, or the training examples, for a sampler.
    """

    round: int
    clients: tuple[int, ...]
    threads: int
    states: StateLocation | None = None
    split: Literal["test", "train"] = "test"


def encode_evaluate_request(request: EvaluateRequest, theta: ArrayRecord) -> RecordDict:
    """Return the content of an EVALUATE message."""
    config = ConfigRecord(
        {
            "server-round": request.round,
            "clients": list(request.clients),
            "threads": request.threads,
            "split": request.split,
            **_state_keys(request.states, request.clients),
        }
    )
    return RecordDict({"arrays": theta, "config": config})


def decode_evaluate_request(content: RecordDict) -> tuple[EvaluateRequest, Tensors]:
    """Return the request and theta of an EVALUATE message."""
    config = cast("dict[str, Any]", content.config_records["config"])
    request = EvaluateRequest(
        int(config["server-round"]),
        tuple(config["clients"]),
        int(config["threads"]),
        _states(config),
        "train" if config["split"] == "train" else "test",
    )
    return request, to_tensors(content.array_records["arrays"])


def encode_scores(scores: Mapping[int, Score], failures: Mapping[int, str]) -> RecordDict:
    """Return the content of the reply to an EVALUATE message: scores and failures by client."""
    values = scores.values()
    names = sorted({name for score in values for name in score.further})
    further: dict[str, MetricRecordValues] = {
        name: [float(score.further.get(name, math.nan)) for score in values] for name in names
    }
    columns: dict[str, MetricRecordValues] = {
        name: list(scores) if name == "client" else [getattr(score, name) for score in values]
        for name in SCORES
    }
    return RecordDict(
        {
            "clients": MetricRecord(columns),
            MODEL_METRICS: MetricRecord(further),
            "failures": _failures_record(failures),
        }
    )


def decode_scores(
    reply: Message | Fault,
    clients: Sequence[int],
    *,
    has_accuracy: bool,
    metrics: Collection[str] | None = None,
) -> dict[int, Score | Fault]:
    """Return each client's score in a reply to an EVALUATE message, or its fault.

    A client without test examples has the count 0. Without ``has_accuracy`` an accuracy may be nan.
    ``metrics`` are the names that the model's own numbers may have; None if the model chooses them.

    Raises
    ------
    ReplyError
        The node failed, or its reply is malformed.
    """
    content = content_of(reply)
    try:
        columns = cast("dict[str, list[Any]]", content.metric_records["clients"])
        further = cast("dict[str, list[Any]]", content.metric_records[MODEL_METRICS])
        if len(further) > MAX_MODEL_METRICS or max(map(len, further), default=0) > MAX_NAME_LENGTH:
            raise ValueError(f"{len(further)} model metrics, or names that are too long")
        for name in further:
            unknown = metrics is not None and name not in metrics
            if unknown or is_reserved(name) or not name.isprintable():
                raise ValueError(f"{name!r} is no number of this model")
        scores: dict[int, Score] = {}
        for index, row in enumerate(_rows(columns, SCORES)):
            own = {name: float(column[index]) for name, column in further.items()}
            client = row.pop("client")
            scores[client] = Score(**row, further=own)
        failures = _reasons(content)
    except (LookupError, TypeError, ValueError, OverflowError) as error:
        raise ReplyError(
            "malformed", f"its scores are malformed: {one_line(repr(error))}"
        ) from error
    return {
        client: checked_score(scores[client], has_accuracy=has_accuracy)
        if client in scores
        else Fault("raised", failures.get(client, NOT_REPORTED))
        for client in clients
    }
