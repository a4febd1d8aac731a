"""The server's evaluation of theta, shared among nodes that all have the server's data.

Each node evaluates some of the batches and replies with their sums, which the server adds in the order of
the batches: the scores are those of the server alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from logging import WARNING
from typing import Any, cast

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid
from torch import Tensor

from fedapp.config.run_config import RunConfig
from fedapp.errors import ConfigError, one_line
from fedapp.federation.arrays import to_tensors
from fedapp.federation.callback import RoundMetrics, ServerState
from fedapp.federation.delivery import Delivery, messages_to
from fedapp.federation.faults import Fault, ReplyError, content_of
from fedapp.federation.nodes import Nodes
from fedapp.training.evaluation import ServerScore
from fedapp.training.tensors import Tensors

PART = "batches"
"""The record of the batches that a node evaluates, and of their sums in its reply."""
COLUMNS = ("loss", "correct", "count")


@dataclass(frozen=True)
class Part:
    """The ``batches``, of the ``total`` of the server's evaluation, that a node evaluates."""

    batches: Sequence[int]
    total: int
    threads: int


def encode_part(theta: ArrayRecord, part: Part) -> RecordDict:
    """Return the content of an EVALUATE message for batches of the server's evaluation."""
    config = ConfigRecord({"batches": list(part.batches)})
    config["total"], config["threads"] = part.total, part.threads
    return RecordDict({"arrays": theta, PART: config})


def is_part(content: RecordDict) -> bool:
    """Return whether an EVALUATE message is for batches of the server's evaluation."""
    return PART in content.config_records


def decode_part(content: RecordDict) -> tuple[Tensors, Part]:
    """Return theta and what to evaluate."""
    config = cast("dict[str, Any]", content.config_records[PART])
    part = Part(config["batches"], config["total"], config["threads"])
    return to_tensors(content.array_records["arrays"]), part


def part_sums(score: ServerScore, theta: Mapping[str, Tensor], part: Part) -> Tensor:
    """Return the sums of the batches that a node evaluates [b, 3].

    Raises
    ------
    ConfigError
        The node divides the examples into other batches than the server, as a CPU and a GPU do.
    """
    if score.num_batches != part.total:
        raise ConfigError(
            f"this node has {score.num_batches} batches of the server's {part.total}: its device is of "
            "another kind. Give all nodes a GPU or none (--gpus-per-worker, device)."
        )
    return score.batch_sums(theta, part.batches)


def encode_sums(sums: Tensor) -> RecordDict:
    """Return the content of the reply: the sums of batches [b, 3], by column."""
    columns = sums.T.tolist()
    return RecordDict({PART: MetricRecord(dict(zip(COLUMNS, columns, strict=True)))})


def _decode_sums(reply: Message | Fault, size: int) -> Tensor:
    record = content_of(reply).metric_records.get(PART, MetricRecord())
    try:
        sums = torch.tensor([record[name] for name in COLUMNS], dtype=torch.float64)
    except (LookupError, TypeError, ValueError) as error:
        problem = f"its sums are malformed: {one_line(repr(error))}"
        raise ReplyError("malformed", problem) from error
    if sums.shape != (len(COLUMNS), size):
        raise ReplyError("malformed", f"its sums have the shape {tuple(sums.shape)}")
    return sums.T


def server_scores(
    config: RunConfig,
    score: ServerScore,
    nodes: Nodes,
    grid: Grid,
    delivery: Delivery,
    state: ServerState,
    arrays: ArrayRecord,
) -> RoundMetrics:
    """Return theta's scores on the server's examples; several nodes that can share the batches do.

    They can where the grid's ``shares_evaluation`` is true: its nodes have the server's data, and work at
    the same time. The server evaluates what a node does not.
    """
    if not getattr(grid, "shares_evaluation", False) or score.num_batches < 2:
        return score(state.theta)
    connected = nodes.connected(grid, 0.0)
    busy = delivery.busy(connected)
    asked = [node for node in connected if node not in busy][: score.num_batches]
    if len(asked) < 2:
        return score(state.theta)
    parts = [range(first, score.num_batches, len(asked)) for first in range(len(asked))]
    contents = [
        nodes.add_to(encode_part(arrays, Part(part, score.num_batches, config.threads)))
        for part in parts
    ]
    deadline, round_ = config.round_deadline, state.round + 1
    messages = messages_to(asked, contents, MessageType.EVALUATE, round_, deadline)
    sums = torch.full((score.num_batches, len(COLUMNS)), torch.nan, dtype=torch.float64)
    missing = dict(enumerate(parts))
    for index, reply in delivery.exchange(grid, messages, deadline):
        try:
            sums[index :: len(asked)] = _decode_sums(reply, len(parts[index]))
            del missing[index]
        except ReplyError as error:
            reason = error.fault.reason
            log(WARNING, "The server evaluates the part of node %d: %s", asked[index], reason)
    for index, part in missing.items():
        sums[index :: len(asked)] = score.batch_sums(state.theta, part).cpu()
    return score.from_sums(sums)
