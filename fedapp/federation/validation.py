"""Validation of replies: whatever a node sends is either accepted or a named fault."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import torch
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.common.constant import ErrorCode
from torch import Tensor

from fedapp.config.run_config import RunConfig
from fedapp.errors import one_line
from fedapp.federation.arrays import size_of, to_tensors
from fedapp.federation.faults import PARTIAL_REPLY, Fault, ReplyError
from fedapp.federation.messages import CLIENT_METRICS, EACH, MODEL_METRICS
from fedapp.training.algorithm import Algorithm, ClientContext, Tensors
from fedapp.training.client import ClientMetrics, TrainReply, TrainRequest
from fedapp.training.evaluation import Score
from fedapp.training.round_plan import RoundPlan
from fedapp.training.tensors import add, all_finite

ROUNDING = 1e-3
"""Relative rounding error by which a mean may exceed the largest of its numbers."""

MAX_COUNT = 2**53
"""Larger counts are impossible, and not exact as a float."""

MAX_MODEL_METRICS, MAX_NAME_LENGTH = 1000, 100
"""Bounds on ``Model.metrics``, since each of its numbers becomes a key of the round's metrics."""

NOT_REPORTED = "its node does not mention it"

SCORE_COLUMNS = ("client", "loss", "accuracy", "count")

FAULT_OF = {
    ErrorCode.MESSAGE_UNAVAILABLE: "late",
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE: "late",
    ErrorCode.NODE_UNAVAILABLE: "lost",
    ErrorCode.CLIENT_APP_CRASHED: "crashed",
}
"""Kind of fault of Flower's errors that are not an exception at the node."""

UPLOAD_BROKE_OFF = "Reply message objects are unavailable"
"""Start of Flower's reason where no part came for 180 s; its code is that of a late reply."""


def is_missing(message: Message) -> bool:
    """Return whether the message is Flower's error for a reply that is late or incomplete."""
    return message.has_error() and FAULT_OF.get(message.error.code) == "late"


@dataclass(frozen=True)
class Expected:
    """What replies of a round are checked against.

    ``sizes`` has n_k by client, ``steps`` the largest number of local steps by client (no bound for a
    client without an entry). ``upload`` has tensors of the names, shapes and types of the algorithm's
    uploads, ``largest`` upper bounds of its scalar uploads. ``update`` is "model" only if theta_k itself
    is sent. ``max_norm`` bounds an update's L2 norm in units of max(|theta|, 1); 0: no bound.
    """

    theta: Mapping[str, Tensor]
    sizes: Mapping[int, int]
    steps: Mapping[int, int] = field(default_factory=dict)
    upload: Mapping[str, Tensor] = field(default_factory=dict)
    largest: Mapping[str, float] = field(default_factory=dict)
    weighting: str = "examples"
    update: Literal["delta", "model"] = "delta"
    max_norm: float = 0.0

    @classmethod
    def of(
        cls,
        config: RunConfig,
        algorithm: Algorithm,
        plan: RoundPlan,
        theta: Mapping[str, Tensor],
        upload: Mapping[str, Tensor],
        sizes: Mapping[int, int],
    ) -> Expected:
        """Return what a round with this ``plan`` expects of clients with these ``sizes``."""
        steps = {client: plan.num_steps(size) for client, size in sizes.items()}
        most = max(steps.values(), default=0)
        context = ClientContext({}, momentum=plan.momentum, nesterov=plan.nesterov, steps=most)
        return cls(
            theta,
            sizes,
            steps,
            upload,
            algorithm.upload_bounds(context),
            config.weighting,
            "delta" if algorithm.custom_update else config.update,
            config.max_update_norm,
        )


def decode_reply(request: TrainRequest, message: Message, expected: Expected) -> TrainReply:
    """Return the reply to a train request, checked.

    Raises
    ------
    ReplyError
        The node failed, or its reply is malformed, not finite, too large, of other names, shapes or
        types, of another round or other clients than requested, or of more weight than they have.
    """
    content = _content(message)
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
    mean, each, uploads = {}, {}, {}
    has_weight = any(metrics.weight > 0 for metrics in client_metrics)
    if request.plan.reply == "mean" and has_weight:
        mean = _checked_update("arrays", arrays, expected)
    if request.plan.reply == "each":
        each = {
            r.client: _checked_update(f"{EACH}{r.client}", arrays, expected) for r in client_metrics
        }
    if expected.upload and has_weight:
        uploads = _checked_tensors("uploads", arrays, expected.upload)
        if uploads.keys() == expected.theta.keys():
            _check_norm("uploads", uploads, expected, min(request.plan.learning_rate, 1.0))
        _check_bounds(uploads, expected.largest)
    return TrainReply(mean, uploads, each, client_metrics, failures, size_of(content))


def decode_scores(
    message: Message, clients: Sequence[int], *, has_accuracy: bool
) -> dict[int, Score | Fault]:
    """Return each client's score in a reply to an EVALUATE message, or its fault.

    A client without test examples has the count 0. Without ``has_accuracy`` an accuracy may be nan.

    Raises
    ------
    ReplyError
        The node failed, or its reply is malformed.
    """
    content = _content(message)
    try:
        columns = cast("dict[str, list[Any]]", content.metric_records["clients"])
        rows = zip(*(columns[name] for name in SCORE_COLUMNS), strict=True)
        further = cast("dict[str, list[Any]]", content.metric_records[MODEL_METRICS]).items()
        if len(further) > MAX_MODEL_METRICS or any(
            len(name) > MAX_NAME_LENGTH for name, _ in further
        ):
            raise ValueError(f"{len(further)} model metrics, or names that are too long")
        scores = {
            k: Score(float(loss), float(acc), int(n), {name: float(of[i]) for name, of in further})
            for i, (k, loss, acc, n) in enumerate(rows)
        }
        failures = _reasons(content)
    except (LookupError, TypeError, ValueError, OverflowError) as error:
        raise ReplyError(
            "malformed", f"its scores are malformed: {one_line(repr(error))}"
        ) from error
    return {
        client: _checked_score(scores[client], has_accuracy=has_accuracy)
        if client in scores
        else Fault("raised", failures.get(client, NOT_REPORTED))
        for client in clients
    }


def _checked_score(score: Score, *, has_accuracy: bool) -> Score | Fault:
    possible = 0 <= score.accuracy <= 1 or (not has_accuracy and math.isnan(score.accuracy))
    if score.count and not (0 < score.count < MAX_COUNT and possible):
        return Fault("malformed", f"it has {one_line(score)}")
    if score.count and not math.isfinite(score.loss):
        return Fault("not-finite", f"its loss is {score.loss}")
    return score


def _content(message: Message) -> RecordDict:
    """Return a reply's content, or raise ReplyError for an error message."""
    if message.has_error():
        kind, reason = (
            FAULT_OF.get(message.error.code, "raised"),
            one_line(message.error.reason or ""),
        )
        if kind == "late" and reason.startswith(UPLOAD_BROKE_OFF):
            raise ReplyError("lost", f"{PARTIAL_REPLY}, and its upload broke off")
        raise ReplyError(kind, f"the node failed: {reason}")
    return message.content


def _client_metrics(
    content: RecordDict, request: TrainRequest, expected: Expected
) -> Iterator[ClientMetrics]:
    columns = cast("dict[str, list[Any]]", content.metric_records["clients"])
    seen = set()
    for row in zip(*(columns[name] for name in CLIENT_METRICS), strict=True):
        if row[0] not in request.clients or row[0] in seen:
            raise ReplyError(
                "malformed", f"it reports client {row[0]}, which it was not asked to train"
            )
        seen.add(row[0])
        values = zip(CLIENT_METRICS.items(), row, strict=True)
        metrics = ClientMetrics(**{name: kind(value) for (name, kind), value in values})
        _check_client_metrics(metrics, expected)
        yield metrics


def _check_client_metrics(metrics: ClientMetrics, expected: Expected) -> None:
    """Reject impossible counts: a client's weight is at most n_k, or with uniform weighting 0 or 1."""
    size = expected.sizes[metrics.client]
    uniform = expected.weighting == "uniform"
    possible = metrics.weight in (0, 1) if uniform else 0 <= metrics.weight <= size
    if not (possible and 0 <= metrics.examples <= size):
        raise ReplyError(
            "weight",
            f"client {metrics.client} has weight {metrics.weight} and examples {metrics.examples}, "
            f"but holds {size}",
        )
    most = expected.steps.get(metrics.client, MAX_COUNT)
    if not (0 <= metrics.steps <= most and 0 <= metrics.seconds < math.inf):
        raise ReplyError(
            "malformed",
            f"client {metrics.client} has steps {metrics.steps} (at most {most}) "
            f"and seconds {metrics.seconds}",
        )


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


def _checked_update(name: str, arrays: Mapping[str, ArrayRecord], expected: Expected) -> Tensors:
    """Return the update of a record, checked also for its norm."""
    tensors = _checked_tensors(name, arrays, expected.theta)
    step = tensors if expected.update == "delta" else add(tensors, expected.theta, -1.0)
    _check_norm(name, step, expected)
    return tensors


def _check_norm(
    name: str, step: Mapping[str, Tensor], expected: Expected, rate: float = 1.0
) -> None:
    """Reject an update whose norm is too large; ``rate`` scales what has the units of a gradient."""
    if not expected.max_norm:
        return
    largest = expected.max_norm * max(_norm(expected.theta), 1.0)
    if not (size := rate * _norm(step)) <= largest:
        quantity = "an update of norm" if rate == 1 else "learning-rate * norm ="
        raise ReplyError(
            "norm",
            f"{name}: {quantity} {size:.3g}, above {largest:.3g} = max-update-norm * max(|theta|, 1)",
        )


def _check_bounds(uploads: Mapping[str, Tensor], largest: Mapping[str, float]) -> None:
    """Reject a scalar upload beyond its bound."""
    for name, bound in largest.items():
        if not 0 <= (value := float(uploads[name])) <= bound * (1 + ROUNDING):
            raise ReplyError("norm", f"uploads: {name!r} is {value:.3g}, not in 0 .. {bound:.3g}")


def _norm(tensors: Mapping[str, Tensor]) -> float:
    """Return the L2 norm over all tensors; infinite if its square overflows."""
    norms = [torch.linalg.vector_norm(tensor) for tensor in tensors.values()]
    return float(torch.linalg.vector_norm(torch.stack(norms).double()))


def _checked_tensors(
    name: str, arrays: Mapping[str, ArrayRecord], theta: Mapping[str, Tensor]
) -> Tensors:
    """Return a record's tensors, with the names, shapes and types of ``theta``, and finite."""
    if name not in arrays:
        raise ReplyError("malformed", f"the record {name!r} is missing")
    if arrays[name].keys() != theta.keys():
        names = sorted(arrays[name].keys() ^ theta.keys())
        owner = "the algorithm's" if name == "uploads" else "the model's"
        raise ReplyError("tensors", f"{name}: other arrays than {owner}: {one_line(names[:4])}")
    tensors = to_tensors(arrays[name])
    for key, tensor in tensors.items():
        if tensor.shape != theta[key].shape:
            raise ReplyError(
                "tensors",
                f"{name}: {key!r} has shape {tuple(tensor.shape)}, not {tuple(theta[key].shape)}",
            )
        if tensor.dtype != theta[key].dtype:
            raise ReplyError(
                "tensors", f"{name}: {key!r} has type {tensor.dtype}, not {theta[key].dtype}"
            )
    if not all_finite(tensors.values()):
        names = sorted(key for key, tensor in tensors.items() if not all_finite([tensor]))
        raise ReplyError("not-finite", f"{name}: {names[0]!r} holds nan or infinite values")
    return {key: tensors[key] for key in theta}
