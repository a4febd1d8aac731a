"""Replies of nodes, checked: whatever a node sends is a good reply or a named fault."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import torch
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.common.constant import ErrorCode
from torch import Tensor

from fedapp.errors import one_line
from fedapp.federation.arrays import size_of, to_tensors
from fedapp.federation.faults import IN_PART, Fault, ReplyError
from fedapp.federation.messages import EACH, FURTHER
from fedapp.training.algorithm import Tensors
from fedapp.training.client import ClientMetrics, TrainReply, TrainRequest
from fedapp.training.evaluation import Score
from fedapp.training.tensors import add, all_finite

ROUNDING = 1e-3
"""By which part a mean of numbers may exceed the largest of them."""

LARGEST_COUNT = 2**53
"""Counts beyond it are nonsense, and are not exact as a float."""

MOST_NUMBERS, LONGEST_NAME = 1000, 100
"""A model says no more of itself, and in shorter names: each becomes a key of every round's record."""

NOT_MENTIONED = "its node does not mention it"

SCORE_COLUMNS = ("client", "loss", "accuracy", "count")

FAULT_OF = {
    ErrorCode.MESSAGE_UNAVAILABLE: "late",
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE: "late",
    ErrorCode.NODE_UNAVAILABLE: "lost",
    ErrorCode.CLIENT_APP_CRASHED: "crashed",
}
"""Flower's errors that are not an exception at the node."""

BROKEN_OFF = "Reply message objects are unavailable"
"""How Flower begins its reason where no part came for 180 s; its code is that of a late reply."""


def missing(message: Message) -> bool:
    """Return whether Flower says so in place of a reply: it did not come in time, or not whole."""
    return message.has_error() and FAULT_OF.get(message.error.code) == "late"


@dataclass(frozen=True)
class Expected:
    """What a good reply is measured against.

    ``sizes`` holds n_k of the clients, ``steps`` the most local steps that each may take (any, if it
    is not there); ``max_norm`` bounds an update's L2 norm in units of max(|theta|, 1), 0 means no
    bound. ``upload`` has what the algorithm uploads besides, ``largest`` the bounds of what of it is a
    number. ``update`` says what is sent as update: "model" only where that is theta_k itself.
    """

    theta: Mapping[str, Tensor]
    sizes: Mapping[int, int]
    steps: Mapping[int, int] = field(default_factory=dict)
    upload: Mapping[str, Tensor] = field(default_factory=dict)
    largest: Mapping[str, float] = field(default_factory=dict)
    weighting: str = "examples"
    update: Literal["delta", "model"] = "delta"
    max_norm: float = 0.0


def decode_reply(request: TrainRequest, message: Message, expected: Expected) -> TrainReply:
    """Return a reply that fits the order and what is expected.

    Raises
    ------
    ReplyError
        The node failed, or its reply is malformed, not finite, too large, of other names, shapes or
        types, of another round, of other clients than it was sent, or of more weight than they have.
    """
    content = _content(message)
    try:
        metrics = cast("dict[str, Any]", content.metric_records["metrics"])
        if metrics["server-round"] != request.round:
            raise ReplyError(
                "round", f"it is a reply to round {metrics['server-round']}, not {request.round}"
            )
        reports = tuple(_reports(content, request, expected))
        failures = _failures(content, request, reports)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ReplyError(
            "malformed", f"its records are malformed: {one_line(repr(error))}"
        ) from error
    arrays = content.array_records
    mean, each, uploads = {}, {}, {}
    weighs = any(report.weight > 0 for report in reports)
    if request.reply == "mean" and weighs:
        mean = _update("arrays", arrays, expected)
    if request.reply == "each":
        each = {r.client: _update(f"{EACH}{r.client}", arrays, expected) for r in reports}
    if expected.upload and weighs:
        uploads = _checked("uploads", arrays, expected.upload)
        if uploads.keys() == expected.theta.keys():
            _check_norm("uploads", uploads, expected, min(request.learning_rate, 1.0))
        _check_numbers(uploads, expected.largest)
    return TrainReply(mean, uploads, each, reports, failures, size_of(content))


def decode_scores(
    message: Message, clients: Sequence[int], *, graded: bool
) -> dict[int, Score | Fault]:
    """Return what a reply to an EVALUATE message says of each of ``clients``, or what is wrong.

    A client without test examples has the count 0. ``graded`` says whether there is an accuracy;
    if not, it may be nan.

    Raises
    ------
    ReplyError
        The node failed, or its reply is malformed.
    """
    content = _content(message)
    try:
        columns = cast("dict[str, list[Any]]", content.metric_records["clients"])
        rows = zip(*(columns[name] for name in SCORE_COLUMNS), strict=True)
        further = cast("dict[str, list[Any]]", content.metric_records[FURTHER]).items()
        if len(further) > MOST_NUMBERS or any(len(name) > LONGEST_NAME for name, _ in further):
            raise ValueError(f"{len(further)} numbers of a model's own, or names that are too long")
        scores = {
            k: Score(float(loss), float(acc), int(n), {name: float(of[i]) for name, of in further})
            for i, (k, loss, acc, n) in enumerate(rows)
        }
        said = _reasons(content)
    except (LookupError, TypeError, ValueError, OverflowError) as error:
        raise ReplyError(
            "malformed", f"its scores are malformed: {one_line(repr(error))}"
        ) from error
    return {
        client: _checked_score(scores[client], graded=graded)
        if client in scores
        else Fault("raised", said.get(client, NOT_MENTIONED))
        for client in clients
    }


def _checked_score(score: Score, *, graded: bool) -> Score | Fault:
    right = 0 <= score.accuracy <= 1 or (not graded and math.isnan(score.accuracy))
    if score.count and not (0 < score.count < LARGEST_COUNT and right):
        return Fault("malformed", f"it has {one_line(score)}")
    if score.count and not math.isfinite(score.loss):
        return Fault("not-finite", f"its loss is {score.loss}")
    return score


def _content(message: Message) -> RecordDict:
    """Return a reply's content; an error that stands for it becomes a fault."""
    if message.has_error():
        kind, reason = (
            FAULT_OF.get(message.error.code, "raised"),
            one_line(message.error.reason or ""),
        )
        if kind == "late" and reason.startswith(BROKEN_OFF):
            raise ReplyError("lost", f"{IN_PART}, and its upload broke off")
        raise ReplyError(kind, f"the node failed: {reason}")
    return message.content


def _reports(
    content: RecordDict, request: TrainRequest, expected: Expected
) -> Iterator[ClientMetrics]:
    columns = cast("dict[str, list[Any]]", content.metric_records["clients"])
    names = ("client", "examples", "weight", "steps", "loss", "seconds")
    seen = set()
    for row in zip(*(columns[name] for name in names), strict=True):
        client, examples, weight, steps, loss, seconds = row
        if client not in request.clients or client in seen:
            raise ReplyError(
                "malformed", f"it reports client {client}, which it was not asked to train"
            )
        seen.add(client)
        report = ClientMetrics(
            int(client), int(examples), float(weight), int(steps), float(loss), float(seconds)
        )
        _check_report(report, expected)
        yield report


def _check_report(report: ClientMetrics, expected: Expected) -> None:
    """Refuse counts that cannot be: a client may weigh less than it holds, but never more.

    Weighted uniformly it weighs 1, or has no say.
    """
    size = expected.sizes[report.client]
    uniform = expected.weighting == "uniform"
    possible = report.weight in (0, 1) if uniform else 0 <= report.weight <= size
    if not (possible and 0 <= report.examples <= size):
        raise ReplyError(
            "weight",
            f"client {report.client} has weight {report.weight} and examples {report.examples}, "
            f"but holds {size}",
        )
    most = expected.steps.get(report.client, LARGEST_COUNT)
    if not (0 <= report.steps <= most and 0 <= report.seconds < math.inf):
        raise ReplyError(
            "malformed",
            f"client {report.client} has steps {report.steps} (at most {most}) "
            f"and seconds {report.seconds}",
        )


def _failures(
    content: RecordDict, request: TrainRequest, reports: Sequence[ClientMetrics]
) -> dict[int, str]:
    """Return why each client of the order is without a report."""
    said = _reasons(content)
    missing = set(request.clients) - {report.client for report in reports}
    return {client: said.get(client, NOT_MENTIONED) for client in sorted(missing)}


def _reasons(content: RecordDict) -> dict[int, str]:
    record = cast("dict[str, Sequence[Any]]", content.config_records["failures"])
    return dict(zip(map(int, record["client"]), map(one_line, record["reason"]), strict=True))


def _update(name: str, arrays: Mapping[str, ArrayRecord], expected: Expected) -> Tensors:
    """Return the checked update, no larger than allowed."""
    tensors = _checked(name, arrays, expected.theta)
    step = tensors if expected.update == "delta" else add(tensors, expected.theta, -1.0)
    _check_norm(name, step, expected)
    return tensors


def _check_norm(
    name: str, step: Mapping[str, Tensor], expected: Expected, rate: float = 1.0
) -> None:
    """Refuse what is longer than an update may be; what is in units of gradients, times its rate."""
    if not expected.max_norm:
        return
    largest = expected.max_norm * max(_norm(expected.theta), 1.0)
    if not (size := rate * _norm(step)) <= largest:
        said = "an update of norm" if rate == 1 else "learning-rate * norm ="
        raise ReplyError(
            "norm",
            f"{name}: {said} {size:.3g}, above {largest:.3g} = max-update-norm * max(|theta|, 1)",
        )


def _check_numbers(uploads: Mapping[str, Tensor], largest: Mapping[str, float]) -> None:
    """Refuse a number that no client of this round can have."""
    for name, bound in largest.items():
        if not 0 <= (sent := float(uploads[name])) <= bound * (1 + ROUNDING):
            raise ReplyError("norm", f"uploads: {name!r} is {sent:.3g}, not in 0 .. {bound:.3g}")


def _norm(tensors: Mapping[str, Tensor]) -> float:
    """Return the L2 norm over all tensors; infinite where its square is."""
    norms = [torch.linalg.vector_norm(tensor) for tensor in tensors.values()]
    return float(torch.linalg.vector_norm(torch.stack(norms).double()))


def _checked(name: str, arrays: Mapping[str, ArrayRecord], theta: Mapping[str, Tensor]) -> Tensors:
    """Return the record's tensors, which have the names, shapes and types of ``theta``."""
    if name not in arrays:
        raise ReplyError("malformed", f"the record {name!r} is missing")
    if arrays[name].keys() != theta.keys():
        odd = sorted(arrays[name].keys() ^ theta.keys())
        owner = "the algorithm's" if name == "uploads" else "the model's"
        raise ReplyError("tensors", f"{name}: other arrays than {owner}: {one_line(odd[:4])}")
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
        odd = sorted(key for key, tensor in tensors.items() if not all_finite([tensor]))
        raise ReplyError("not-finite", f"{name}: {odd[0]!r} holds nan or infinite values")
    return {key: tensors[key] for key in theta}
