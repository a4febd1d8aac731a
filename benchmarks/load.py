"""The server's side of a round, by the number of nodes that are clients: seconds, bytes and memory.

    python -m benchmarks.load                       # 10, 1,000 and 10,000 nodes, 2NN and MNIST CNN
    python -m benchmarks.load --nodes 1000 --model 2nn

Nodes answer the server's query as SuperNodes do. Their replies to a round are made up: theta_k - theta is
the same number everywhere, in memory of its own for every reply, as a network delivers it. In the rows
with faults a tenth of the nodes answers with rubbish (values that are not finite, other shapes, another
round), with an error, or not before the deadline. Every row runs in a process of its own, and
fails if an update is not counted that should be, or the model is not the mean of the good ones.

Seconds are those of the server's process, without the making up of replies and without waiting.
"""

from __future__ import annotations

import itertools
import logging
import math
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import torch
import typer
from flwr.app import Message, MessageType, RecordDict
from flwr.common.constant import ErrorCode

from benchmarks.processes import peak_memory, result_of
from benchmarks.stand_in import write_mnist
from fedapp.client_app import app as client_app
from fedapp.config.read import read_config
from fedapp.data.load import load_dataset
from fedapp.engines.grid import error_reply, partition_node_configs
from fedapp.engines.in_process import InlineGrid
from fedapp.federation.callback import RoundMetrics
from fedapp.federation.messages import decode_train_request, encode_reply
from fedapp.runs.checkpoint import load_checkpoint
from fedapp.runs.directory import RunDirectory, read_stored
from fedapp.runs.metrics import read_metrics
from fedapp.server import run
from fedapp.training.build import initial_parameters
from fedapp.training.client import ClientMetrics, TrainReply

NODES = (10, 1_000, 10_000)
MODELS = ("2nn", "mnist-cnn")
ROUNDS = 2
VALUE = 2.0**-10
"""Every entry of every good update."""
AT_ONCE = 16
"""Replies that have arrived when the server looks."""
FAULTS = ("not-finite", "tensors", "round", "raised", "late")
MEGABYTE = 2**20


class Cell(NamedTuple):
    """One row: a model, the nodes, and the round's deadline in seconds; 0: no faults, and no need."""

    model: str
    nodes: int
    deadline: float = 0.0


class Measured(NamedTuple):
    """Seconds to accept the nodes and of a round, received megabytes, and peak memory in megabytes."""

    accept: float
    round: float
    received: float
    memory: float


class MadeUpGrid(InlineGrid):
    """Nodes with made-up replies, a tenth of them faulty if ``faulty``."""

    def __init__(
        self, values: dict[str, bool | int | float | str], nodes: int, faulty: bool
    ) -> None:
        super().__init__(client_app, values, partition_node_configs(nodes))
        self.faulty = faulty
        self.spent = 0.0
        """Seconds in which replies were made up, or waited for."""
        self.accepted_at = math.inf

    def fault_of(self, node: int) -> str:
        """Return the fault of a node, or nothing."""
        return FAULTS[node // 10 % len(FAULTS)] if self.faulty and node % 10 == 0 else ""

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return the next replies."""
        first = list(itertools.islice(self._pending, AT_ONCE))
        answers = [self._answer(self._pending.pop(key)) for key in first]
        return [reply for reply in answers if reply is not None]

    def wait_for_replies(self, message_ids: Collection[str], seconds: float) -> None:
        """Wait for nothing if there are replies, else until the time is over."""
        if not self._pending:
            time.sleep(seconds)
            self.spent += seconds

    def cancel_messages(self, message_ids: Collection[str]) -> list[str]:
        """Cancel nothing: these nodes begin at once."""
        return []

    def _answer(self, message: Message) -> Message | None:  # type: ignore[override]
        if message.metadata.message_type == MessageType.QUERY:
            return super()._answer(message)
        began = time.perf_counter()
        self.accepted_at = min(self.accepted_at, began)
        try:
            return self._reply(message, self.fault_of(message.metadata.dst_node_id))
        finally:
            self.spent += time.perf_counter() - began

    def _reply(self, message: Message, fault: str) -> Message | None:
        if fault == "raised":
            return error_reply(
                message, "ValueError: made up", ErrorCode.CLIENT_APP_RAISED_EXCEPTION
            )
        if fault == "late":
            return None
        return Message(self._made_up(message, fault), reply_to=message)

    def _made_up(self, message: Message, fault: str) -> RecordDict:
        """Return the content of a reply, whose bytes are its own."""
        request, theta, _ = decode_train_request(message.content)
        (client,) = request.clients
        update = {name: torch.full_like(tensor, VALUE) for name, tensor in theta.items()}
        last = next(reversed(update))
        if fault == "not-finite":
            update[last].fill_(math.nan)
        elif fault == "tensors":
            update[last] = update[last][:-1]
        metrics = ClientMetrics(client, examples=1, weight=1.0, steps=1, loss=1.0, seconds=0.0)
        content = encode_reply(request, TrainReply(update, {}, {}, (metrics,), {}))
        if fault == "round":
            content.metric_records["metrics"]["server-round"] = request.plan.round + 7
        return content


def measure(cell: Cell, folder: str) -> Measured:
    """Run a cell in this process, and return what was measured."""
    logging.disable(logging.WARNING)
    values: dict[str, bool | int | float | str] = {
        "dataset": f"{folder}/data",
        "data-cache": f"{folder}/cache",
        "model": cell.model,
        "num-clients": 0,
        "weighting": "uniform",
        "fraction-train": 1.0,
        "num-server-rounds": ROUNDS,
        "eval-every": 0,
        "round-deadline": cell.deadline or 86_400.0,
        "min-nodes": cell.nodes,
        "node-timeout": 86_400.0,
        "device": "cpu",
        "run-dir": f"{folder}/run-{cell.model}-{cell.nodes}-{bool(cell.deadline)}",
    }
    grid = MadeUpGrid(values, cell.nodes, faulty=bool(cell.deadline))
    began = time.perf_counter()
    directory = run(grid, read_config(values))
    records = read_metrics(directory.metrics)[1:]
    check(grid, directory, records)
    busy = sum(record["seconds"]["exchange"] for record in records) - grid.spent
    received = records[-1]["bytes_up"] / MEGABYTE
    return Measured(grid.accepted_at - began, busy / ROUNDS, received, peak_memory())


def check(grid: MadeUpGrid, directory: RunDirectory, records: Sequence[RoundMetrics]) -> None:
    """Raise AssertionError if an update or a fault was not counted, or the model is not their mean."""
    faults = Counter(fault for node in grid.contexts if (fault := grid.fault_of(node)))
    good = len(grid.contexts) - faults.total()
    assert [record["replied"] for record in records] == [good] * len(records)
    assert records[0].get("faults", {}) == dict(faults)
    # A node that did not answer is not asked until its message has expired.
    faults["busy"] = faults.pop("late", 0)
    assert records[1].get("faults", {}) == dict(+faults)
    config, _ = read_stored(directory.path)
    before = initial_parameters(config, load_dataset(config).task)
    after = load_checkpoint(directory.checkpoints, len(records)).theta
    for name, tensor in before.items():
        torch.testing.assert_close(after[name], tensor + len(records) * VALUE)


def main(
    nodes: Annotated[list[int] | None, typer.Option(help="Nodes that are clients.")] = None,
    model: Annotated[list[str] | None, typer.Option(help="Models.")] = None,
) -> None:
    """Print a row for every model and number of nodes, without faults and with."""
    print(f"{'model':>10}{'nodes':>8}{'faulty':>8}{'accept, s':>11}{'round, s':>10}", end="")
    print(f"{'ms a reply':>12}{'received, MiB':>14}{'peak, MiB':>10}")
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "data").mkdir()
        write_mnist(Path(folder) / "data")
        for name, count in itertools.product(model or MODELS, nodes or NODES):
            cell = Cell(name, count)
            found = result_of(measure, cell, folder)
            _print(cell, found)
            if count >= 10 * len(FAULTS):
                # Long enough for all that come, however busy the machine.
                faulty = cell._replace(deadline=5 + 5 * found.round)
                _print(faulty, result_of(measure, faulty, folder))


def _print(cell: Cell, found: Measured) -> None:
    share = "1 in 10" if cell.deadline else "none"
    print(
        f"{cell.model:>10}{cell.nodes:8,}{share:>8}{found.accept:11.2f}{found.round:10.2f}", end=""
    )
    print(
        f"{1000 * found.round / cell.nodes:12.2f}{found.received:14,.0f}{found.memory:10,.0f}",
        flush=True,
    )


if __name__ == "__main__":
    typer.run(main)
