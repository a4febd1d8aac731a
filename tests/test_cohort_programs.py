"""Few programs for cohorts of many sizes: rows are filled up, and who is done is let out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedapp.data.dataset import Examples, Task
from fedapp.data.transforms.transform import Scale
from fedapp.models.mlp import Linear
from fedapp.models.model import initialise
from fedapp.training.algorithm import Algorithm, ClientContext
from fedapp.training.batched.batch_loader import (
    BatchLoader,
    batch_size_buckets,
    rounded_up,
    rows_of_steps,
)
from fedapp.training.batched.chunks import WHOLE_COHORT, ClientBatching
from fedapp.training.batched.compiled_step import GraphPool
from fedapp.training.batched.trainer import BatchedTrainer
from fedapp.training.round_plan import RoundPlan
from fedapp.training.sequential import SequentialTrainer
from fedapp.training.trainer import ClientTask
from strategies.fedavg import FedAvg
from strategies.scaffold import Scaffold
from tests.test_trainers import check_equal, drawn, pretended_graph

CPU = torch.device("cpu")
TASK = Task("image", (1, 2, 2), 3)
PLAN = RoundPlan(1, 0, 2, "epoch", 0.1, momentum=0.5)


@pytest.fixture(autouse=True)
def _pretended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedapp.training.batched.compiled_step.cuda_graph", pretended_graph)


def trainers(algorithm: Algorithm) -> tuple[BatchedTrainer, SequentialTrainer]:
    given = (Linear(), algorithm, Scale(), CPU, torch.float64)
    modules = [initialise(Linear(), TASK, 0) for _ in range(2)]
    whole = ClientBatching(WHOLE_COHORT)
    batched = BatchedTrainer(modules[0], *given, batching=whole, mode="capture")
    return batched, SequentialTrainer(modules[1], *given)


def check(
    batched: BatchedTrainer, sequential: SequentialTrainer, sizes: Sequence[int], seed: int = 0
) -> None:
    """Hold a turn of clients of these sizes to the reference, to 1e-12."""
    module, algorithm = initialise(Linear(), TASK, seed), batched.algorithm
    theta = {name: t.detach().double() for name, t in module.named_parameters()}
    context = ClientContext(
        theta, algorithm.broadcast(algorithm.start(theta)), {}, PLAN.learning_rate
    )
    context = replace(context, momentum=PLAN.momentum)
    context = replace(context, state=algorithm.initial_client_state(context))

    def tasks() -> list[ClientTask]:
        return [
            ClientTask(context, drawn(TASK, size), np.random.default_rng(client))
            for client, size in enumerate(sizes)
        ]

    wanted = sequential.client_updates(tasks(), PLAN)
    check_equal(batched.client_updates(tasks(), PLAN), wanted, tolerance=1e-12)


@pytest.mark.parametrize(
    "algorithm",
    [pytest.param(FedAvg(), marks=pytest.mark.slow), Scaffold(option="I")],
    ids=["fedavg", "memory"],
)
def test_who_is_done_is_let_out_and_rows_are_filled_up(algorithm: Algorithm) -> None:
    """33 clients, on 34 rows: of 1 to 33 examples, one of 60 and one of none, in no order."""
    sizes = [int(n) for n in np.random.default_rng(0).permutation(32)] + [33, 60]
    batched, sequential = trainers(algorithm)
    for seed in range(2):
        check(batched, sequential, sizes, seed)
    assert batched._buffers.rows == 34


def test_cohorts_that_grow_and_shrink() -> None:
    """The rows of few are the first ones of many; a captured program reads no others."""
    batched, sequential = trainers(FedAvg())
    for sizes in ([3, 2], [3, 2, 5, 1], [4, 1], [5], [3, 2, 5, 1], [9, 2, 5, 1, 1]):
        check(batched, sequential, sizes)


@pytest.mark.slow
def test_graphs_are_forgotten_before_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedapp.training.batched.trainer.MAX_GRAPHS", 6)
    batched, sequential = trainers(FedAvg())
    kept, pools = list[int](), set[GraphPool]()
    for count in 2 * (8, 7, 6, 5, 4):
        check(batched, sequential, [2] * (count - 1) + [3])
        kept.append(sum(step.num_traced for step in batched._steps.values()))
        pools |= {step.pool for step in batched._steps.values()}
    assert kept == 2 * [2, 3, 4, 5, 6]  # one more each: the second step is of one client
    assert len(pools) == 2


def test_all_graphs_of_a_trainer_have_one_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    pools = set[GraphPool]()

    def graph(*given: object) -> object:
        pools.add(given[2])  # type: ignore[arg-type]
        return pretended_graph(*given)  # type: ignore[arg-type]

    monkeypatch.setattr("fedapp.training.batched.compiled_step.cuda_graph", graph)
    batched, sequential = trainers(FedAvg())
    for sizes in ([4, 4, 4, 4, 9], [3], [4, 4, 4]):
        check(batched, sequential, sizes)
    assert len(pools) == 1


@pytest.mark.parametrize(("sigma", "before", "now"), [(0, 1, 1), (0.9, 3.5, 2), (2, 9, 2)])
def test_few_steps_are_taken_for_nothing(sigma: float, before: float, now: float) -> None:
    """100 clients of log-normal sizes: client-steps over those that are needed.

    As many as for the longest client each, and with those let out that are done. Roles of plays are
    as unequal as the last.
    """
    sizes = np.random.default_rng(0).lognormal(4, sigma, 100).astype(int) + 1
    tasks = [
        ClientTask(
            ClientContext({}),
            Examples(np.zeros((n, 1)), np.zeros(n, int)),
            np.random.default_rng(0),
        )
        for n in sorted(sizes, reverse=True)
    ]
    plan = RoundPlan(1, 0, 10, "epoch", 0.1)
    steps, buckets = (
        [plan.num_steps(len(t.examples)) for t in tasks],
        batch_size_buckets(len(tasks)),
    )
    rows, needed = rows_of_steps(steps, buckets), sum(steps)
    assert len(rows) * len(tasks) / needed >= before
    assert rows.sum() / needed <= now
    batches = list(BatchLoader(Scale(), CPU, torch.float32).batches(tasks, plan, buckets))
    assert [len(batch.sizes) for batch in batches] == rows.tolist()
    assert int(sum(batch.sizes.sum() for batch in batches)) == sizes.sum()


def test_sizes_of_cohorts_that_are_captured_are_few() -> None:
    assert [rounded_up(count, 16) for count in (1, 7, 32, 33, 65, 100, 1000)] == [
        *(1, 7, 32, 34, 68, 100, 1024)
    ]
    assert len({rounded_up(count, 16) for count in range(64, 129)}) == 17
    assert batch_size_buckets(100) == [100, 25, 7, 2, 1]


def test_clients_that_end_within_a_window_of_steps_stay_as_they_are() -> None:
    """6, 5, 3, 3 and twelve times 2 steps: of four clients two end within the second window."""
    check(*trainers(FedAvg()), [12, 10, 6, 6] + [4] * 12)
