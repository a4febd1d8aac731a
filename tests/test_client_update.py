"""ClientUpdate and averaging on one parameter, worked by hand, with every trainer."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from fedapp.config.federation import participants
from fedapp.data.dataset import IGNORE, Examples, Task
from fedapp.data.transforms.transform import Transform
from fedapp.federation.sampling import distribute, over_selected
from fedapp.models.model import Model
from fedapp.training.algorithm import Algorithm, Batch, ClientContext, ClientExtras, Need, Network
from fedapp.training.batched.chunks import ClientBatching
from fedapp.training.batched.trainer import BatchedTrainer
from fedapp.training.batches import mean_over_targets
from fedapp.training.client import TrainRequest, train_cohort
from fedapp.training.client_state import ClientStates, StateLocation
from fedapp.training.round_plan import LARGEST_BATCH, RoundPlan, passes
from fedapp.training.sequential import SequentialTrainer
from fedapp.training.trainer import CaptureError, ClientResult, ClientTask, Trainer
from tests.conftest import small_config
from tests.sampling import uniform_sample


class Scalar(nn.Module):
    """One parameter w, which is the output for every example."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.w.expand(len(inputs))


class HalfSquare(Model):
    """Loss (w - a)^2 / 2 for a target a: its gradient is w - a."""

    def build(self, task: Task) -> nn.Module:
        return Scalar()

    def loss(self, outputs: Tensor, targets: Tensor, mask: Tensor | None = None) -> Tensor:
        return mean_over_targets((outputs - targets) ** 2 / 2, Batch(outputs, targets, mask))


CLIENTS = {
    0: Examples(np.zeros((1, 1)), np.array([1.0])),
    1: Examples(np.zeros((3, 1)), np.array([3.0, 3.0, 3.0])),
    2: Examples(np.zeros((0, 1)), np.array([])),
}


Make = Callable[..., Trainer]
TRAINERS: dict[str, tuple[Callable[..., Trainer], dict[str, Any]]] = {
    "sequential": (SequentialTrainer, {}),
    "batched, one client a step": (BatchedTrainer, {"batching": ClientBatching(1)}),
    "batched, two clients a step": (BatchedTrainer, {"batching": ClientBatching(2)}),
}


@pytest.fixture(params=TRAINERS)
def make(request: pytest.FixtureRequest) -> Make:
    """Return the function that makes a trainer: a test that asks for it is of every trainer."""
    kind, more = TRAINERS[request.param]

    def trainer(algorithm: Algorithm | None = None, classes: int = 0) -> Trainer:
        given = (algorithm or Algorithm(), Transform(), torch.device("cpu"), torch.float64, classes)
        return kind(Scalar(), HalfSquare(), *given, **more)

    return trainer


def one_round(make: Make, rate: float = 0.5, epochs: int = 0, **settings: Any) -> float:
    """Return theta after one round of both clients, in which the server may order E."""
    config = small_config(**settings)
    plan = RoundPlan.of(config)
    plan = replace(plan, learning_rate=rate, reply="mean", epochs=epochs or plan.epochs)
    order = TrainRequest(plan, (0, 1))
    start = {"w": torch.zeros(1, dtype=torch.float64)}
    reply = train_cohort(make(), order, start, {}, CLIENTS.__getitem__)
    return float(reply.mean["w"])


def test_one_step_weighted(make: Make) -> None:
    """Client 0 (n = 1, a = 1): 0 - 0.5 (0 - 1) = 0.5. Client 1 (n = 3, a = 3): 1.5.

    Weighted: (1 * 0.5 + 3 * 1.5) / 4 = 1.25.
    """
    assert one_round(make, local_epochs=1, batch_size=0) == 1.25


def test_one_step_uniform(make: Make) -> None:
    """Naive: (0.5 + 1.5) / 2 = 1."""
    assert one_round(make, local_epochs=1, batch_size=0, weighting="uniform") == 1.0


def test_two_epochs(make: Make) -> None:
    """Client 0: 0.5, then 0.5 + 0.5 * 0.5 = 0.75. Client 1: 1.5, then 2.25. (0.75 + 6.75) / 4."""
    assert one_round(make, local_epochs=2, batch_size=0) == 1.875


def test_the_order_says_how_many_epochs_a_round_has(make: Make) -> None:
    """Two epochs are 1.875, as above, and one 1.25, whatever E the run began with."""
    assert one_round(make, epochs=2, local_epochs=9, batch_size=0) == 1.875
    assert one_round(make, epochs=1, local_epochs=9, batch_size=0) == 1.25
    assert one_round(make, epochs=1, local_epochs=5, local_steps=2, batch_size=0) == 1.875


@pytest.mark.parametrize(
    ("decay", "epochs"),
    [
        (1.0, [5, 5, 5, 5, 5]),
        (0.5, [5, 3, 1, 1, 1]),  # 2.5 rounds up to 3, 1.25 down to 1; never less than 1
        (0.9, [5, 5, 4, 4, 3]),  # 4.5, 4.05, 3.645, 3.28
    ],
)
def test_local_epochs_fall_as_their_decay_says(decay: float, epochs: list[int]) -> None:
    config = small_config(local_epochs=5, local_epochs_decay=decay)
    assert [RoundPlan.of(config, round_).epochs for round_ in range(1, 6)] == epochs


@pytest.mark.parametrize(
    ("growth", "sizes"),
    [
        (1.0, [5, 5, 5, 5, 5]),
        (1.1, [5, 6, 6, 7, 7]),  # 5.5 rounds up; 6.05, 6.655, 7.3205
        (10.0, [5, 50, 500, 5000, 50000]),
    ],
)
def test_batches_grow_as_their_growth_says(growth: float, sizes: list[int]) -> None:
    config = small_config(batch_size=5, batch_size_growth=growth)
    assert [RoundPlan.of(config, round_).batch_size for round_ in range(1, 6)] == sizes


def test_batches_grow_up_to_all_examples_and_stay_there() -> None:
    """Of n = 12 with E = 2 and B = 5, 15, 45, ...: u = 2 * 12 / 5, then 2 for ever."""
    config = small_config(batch_size=5, batch_size_growth=3.0, local_epochs=2)
    plans = [RoundPlan.of(config, round_) for round_ in (1, 2, 3, 1000, 10**6)]
    assert [plan.batch_size for plan in plans] == [5, 15, 45, LARGEST_BATCH, LARGEST_BATCH]
    assert [plan.updates(12) for plan in plans] == [4.8, 2, 2, 2, 2]
    steps = [plan.num_steps(12) for plan in plans]
    assert steps == [2 * 3, 2, 2, 2, 2]


def test_partial_batch_is_kept(make: Make) -> None:
    """B = 2: client 1 steps on batches of 2 and 1 (0 -> 1.5 -> 2.25), client 0 once (0.5)."""
    assert one_round(make, local_epochs=1, batch_size=2) == (0.5 + 3 * 2.25) / 4


def test_local_steps_instead_of_epochs(make: Make) -> None:
    """I = 3 steps each: client 0: 0.5, 0.75, 0.875; client 1: 1.5, 2.25, 2.625."""
    assert one_round(make, local_steps=3, local_epochs=5, batch_size=2) == (0.875 + 3 * 2.625) / 4


def test_momentum_and_nesterov(make: Make) -> None:
    """Client 0, eta = 0.5, mu = 0.5, two steps from 0 towards 1.

    Heavy ball: g = -1, v = -1, w = 0.5; g = -0.5, v = -1, w = 1. Nesterov: step -(g + mu v):
    g = -1, v = -1, w = 0.75; g = -0.25, v = -0.75, w = 0.75 + 0.5 (0.25 + 0.375) = 1.0625.
    """
    assert update_of_client_0(make, momentum=0.5) == 1.0
    assert update_of_client_0(make, momentum=0.5, nesterov=True) == 1.0625


def test_weight_decay_and_clipping(make: Make) -> None:
    """From w = 2 towards 1: gradient 1; decay 0.5 adds 0.5 * 2; a norm of 0.25 is a step of 0.125."""
    assert update_of_client_0(make, theta=2.0, epochs=1, weight_decay=0.5) == 2 - 0.5 * (1 + 1) - 2
    assert update_of_client_0(make, theta=2.0, epochs=1, clip_norm=0.25) == pytest.approx(-0.125)


def update_of_client_0(make: Make, theta: float = 0.0, epochs: int = 2, **plan: Any) -> float:
    settings = RoundPlan(epochs, 0, 0, "epoch", 0.5, **plan)
    (result,) = results(make(), settings, theta, 0)
    return float(result.params["w"]) - theta


def results(trainer: Trainer, plan: RoundPlan, theta: float, *clients: int) -> list[ClientResult]:
    """Return the results of clients that start from theta."""
    start = {"w": torch.tensor([theta], dtype=torch.float64)}
    context = ClientContext(start, learning_rate=plan.learning_rate)
    tasks = [ClientTask(context, CLIENTS[k], np.random.default_rng(k)) for k in clients]
    return trainer.client_updates(tasks, plan)


def test_loss_is_the_mean_over_the_steps_before_each_step(make: Make) -> None:
    """Client 1, E = 2, B = inf: losses 9/2 at w = 0 and (1.5)^2 / 2 at w = 1.5."""
    first, second = results(make(), RoundPlan(2, 0, 0, "epoch", 0.5), 0.0, 0, 1)
    assert first.loss == (0.5 + 0.125) / 2
    assert second.loss == (4.5 + 1.125) / 2
    assert (second.steps, second.examples) == (2, 3)


def test_results_are_in_the_order_of_the_tasks_and_an_empty_client_keeps_theta(make: Make) -> None:
    """B = 1: client 1 takes three steps (1.5, 2.25, 2.625), client 0 one, client 2 none."""
    plan = RoundPlan(1, 0, 1, "epoch", 0.5)
    found = results(make(), plan, 0.0, 0, 2, 1)
    assert [float(result.params["w"]) for result in found] == [0.5, 0.0, 2.625]
    assert [(result.steps, result.examples) for result in found] == [(1, 1), (0, 0), (3, 3)]
    assert [math.isnan(result.loss) for result in found] == [False, True, False]


def test_no_tasks_have_no_results(make: Make) -> None:
    assert make().client_updates([], RoundPlan(1, 0, 1, "epoch", 0.5)) == []


def test_every_trainer_is_made_from_the_same_arguments() -> None:
    """The batched one has two more, which say how it runs and not what comes out."""
    sequential, batched = (
        list(inspect.signature(kind).parameters) for kind in (SequentialTrainer, BatchedTrainer)
    )
    assert batched == [*sequential, "batching", "mode"]


def test_a_client_that_diverges_is_left_out_and_named(make: Make) -> None:
    config = small_config(local_epochs=400, batch_size=0)
    order = TrainRequest(replace(RoundPlan.of(config), learning_rate=1e30, reply="mean"), (0, 1))
    theta = {"w": torch.zeros(1, dtype=torch.float64)}
    reply = train_cohort(make(), order, theta, {}, CLIENTS.__getitem__)
    assert set(reply.failures) == {0, 1}
    assert "diverged" in reply.failures[0]
    assert reply.mean == {}


class OneBroken(SequentialTrainer):
    """Raises for clients with three examples, after it drew."""

    error: Exception = ValueError("its labels are damaged")

    def client_updates(self, tasks: Sequence[ClientTask], plan: RoundPlan) -> list[ClientResult]:
        self.draws = [*getattr(self, "draws", []), [task.rng.random() for task in tasks]]
        if any(len(task.examples) == 3 for task in tasks):
            raise self.error
        return super().client_updates(tasks, plan)


def test_a_client_whose_data_raise_takes_no_others_with_it() -> None:
    """Client 0 goes to 0.5; client 2 has no example. Each begins again as it began."""
    given = (Algorithm(), Transform(), torch.device("cpu"), torch.float64, 0)
    trains = OneBroken(Scalar(), HalfSquare(), *given)
    trains.clients_together = 3
    plan = replace(RoundPlan.of(small_config(batch_size=0)), learning_rate=0.5, reply="mean")
    theta = {"w": torch.zeros(1, dtype=torch.float64)}
    reply = train_cohort(trains, TrainRequest(plan, (0, 1, 2)), theta, {}, CLIENTS.__getitem__)
    assert list(reply.failures) == [1]
    assert [metrics.client for metrics in reply.client_metrics] == [0, 2]
    assert float(reply.mean["w"]) == 0.5
    together, *alone = trains.draws
    assert alone == [[draw] for draw in together]
    trains.error = CaptureError("not captured to its end")
    reply = train_cohort(trains, TrainRequest(plan, (0, 1, 2)), theta, {}, CLIENTS.__getitem__)
    assert list(reply.failures) == [0, 1, 2]


class OneInfinity(Algorithm):
    """Client 1 has an infinity in what it sends or keeps, or in its loss; its parameters are sound."""

    where: str = ""

    def loss(
        self, network: Network, params: Mapping[str, Tensor], batch: Batch, context: ClientContext
    ) -> Tensor:
        infinite = (batch.targets > 2).any() if self.where == "loss" else torch.tensor(False)
        loss = super().loss(network, params, batch, context)
        return loss + torch.where(infinite, math.inf, 0.0)

    def finalize(
        self, params: Mapping[str, Tensor], context: ClientContext, steps: int | Tensor
    ) -> ClientExtras:
        infinite = dict.fromkeys(params, torch.tensor([math.inf], dtype=torch.float64))
        there = float(params["w"]) > 1 and self.where in ("update", "upload", "state")
        return ClientExtras(**({self.where: infinite} if there else {}))


@pytest.mark.parametrize("where", ["loss", "update", "upload", "state"])
def test_nothing_that_is_not_finite_leaves_a_client(where: str, make: Make, tmp_path: Path) -> None:
    """Client 0 goes to 0.5, client 1 to 1.5."""
    trains = make(OneInfinity(where=where))
    location = StateLocation("run", str(tmp_path), (0,), ())
    plan = replace(RoundPlan.of(small_config(batch_size=0)), learning_rate=0.5, reply="mean")
    order = TrainRequest(plan, (0, 1), location)
    states = ClientStates(tmp_path, location, 1)
    theta = {"w": torch.zeros(1, dtype=torch.float64)}
    reply = train_cohort(trains, order, theta, {}, CLIENTS.__getitem__, states)
    assert list(reply.failures) == [1]
    assert "its update is not finite" in reply.failures[1]
    assert float(reply.mean["w"]) == 0.5
    assert list(tmp_path.iterdir()) == []


class Counting(Algorithm):
    """Sends how many examples of each class a client has."""

    needs: ClassVar[frozenset[Need]] = frozenset({"classes"})

    def loss(
        self, network: Network, params: Mapping[str, Tensor], batch: Batch, context: ClientContext
    ) -> Tensor:
        return params["w"].sum()

    def finalize(
        self, params: Mapping[str, Tensor], context: ClientContext, steps: int | Tensor
    ) -> ClientExtras:
        return ClientExtras(
            upload={} if context.label_counts is None else {"counts": context.label_counts}
        )


def test_targets_that_do_not_count_are_of_no_class(make: Make) -> None:
    examples = Examples(np.zeros((2, 1)), np.array([[0, 2, IGNORE], [2, IGNORE, IGNORE]]))
    plan = replace(RoundPlan.of(small_config(batch_size=0)), learning_rate=0.5, reply="mean")
    order = TrainRequest(plan, (0,))
    theta = {"w": torch.zeros(1, dtype=torch.float64)}
    trains = make(Counting(), classes=4)
    reply = train_cohort(trains, order, theta, {}, {0: examples}.__getitem__)
    assert reply.uploads["counts"].tolist() == [1, 0, 2, 0]


@given(st.integers(1, 40), st.integers(0, 12), st.integers(1, 4), st.integers(0, 9), st.booleans())
def test_passes(n: int, batch: int, epochs: int, steps: int, uniform: bool) -> None:
    """Every epoch visits every example once; the number of steps is as planned."""
    plan = RoundPlan(epochs, steps, batch, "uniform" if uniform else "epoch", 0.1)
    orders = list(passes(plan, n, np.random.default_rng(1)))
    size = plan.batch(n)
    assert sum(-(-len(order) // size) for order in orders) == plan.num_steps(n)
    for order in orders:
        assert len(set(order.tolist())) == len(order)
        assert set(order.tolist()) <= set(range(n))
    if not steps and not uniform:
        assert [sorted(order.tolist()) for order in orders] == [list(range(n))] * epochs


def test_an_empty_client_takes_no_step() -> None:
    assert list(passes(RoundPlan(3, 0, 4, "epoch", 0.1), 0, np.random.default_rng(0))) == []


@pytest.mark.parametrize(
    ("fraction", "clients", "m"),
    [(0.29, 100, 29), (0.0, 100, 1), (1.0, 7, 7), (0.1, 5, 1), (0.57, 100, 57), (0.999, 10, 9)],
)
def test_m(fraction: float, clients: int, m: int) -> None:
    """m = max(floor(C K + 1e-9), 1): 0.29 * 100 is 28.999... in floating point."""
    assert participants(fraction, clients) == m


def test_sampling_is_stateless_and_does_not_look_at_all_clients() -> None:
    everyone = range(1_000_000_000)
    drawn = uniform_sample(7, 3, everyone, 1e-8)
    assert drawn == uniform_sample(7, 3, everyone, 1e-8)
    assert len(set(drawn)) == 10
    assert drawn != uniform_sample(7, 4, everyone, 1e-8)
    assert drawn != uniform_sample(8, 3, everyone, 1e-8)


def test_every_client_is_drawn_equally_often() -> None:
    counts = np.zeros(10)
    for round_ in range(2000):
        counts[uniform_sample(0, round_, range(10), 0.3)] += 1
    assert counts.sum() == 6000
    assert np.abs(counts - 600).max() < 5 * np.sqrt(2000 * 0.3 * 0.7)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=30), st.integers(1, 8))
def test_spread(sizes: list[int], nodes: int) -> None:
    """Every client is in one cohort; no cohort exceeds the least loaded by more than one client."""
    cohorts = distribute(range(len(sizes)), dict(enumerate(sizes)), nodes)
    assert sorted(k for cohort in cohorts for k in cohort) == list(range(len(sizes)))
    assert all(cohort == sorted(cohort) and cohort for cohort in cohorts)
    loads = [sum(max(sizes[k], 1) for k in cohort) for cohort in cohorts]
    assert max(loads) - min(loads) <= max(max(sizes), 1)


@pytest.mark.parametrize(
    ("fraction", "extra", "drawn"),
    [(0.01, 0.0, 10), (0.01, 0.25, 13), (0.1, 0.07, 107), (0.5, 0.9, 950), (0.6, 0.9, 1000)],
)
def test_clients_asked_in_addition_are_rounded_up(
    fraction: float, extra: float, drawn: int
) -> None:
    """0.25 * 10 are 3 clients; 0.07 * 100 are 7, also where it comes out as 7.000000000000001."""
    sampled = uniform_sample(0, 1, range(1000), fraction, extra)
    assert len(set(sampled)) == drawn
    assert sampled == sorted(sampled)


def test_clients_without_examples_are_spread_as_well() -> None:
    assert distribute(range(5), dict.fromkeys(range(5), 0), 2) == [[0, 2, 4], [1, 3]]


def test_the_largest_client_is_placed_first() -> None:
    assert distribute(range(4), {0: 1, 1: 1, 2: 1, 3: 3}, 2) == [[0, 1, 2], [3]]


def test_the_over_selection_is_exact_in_floats() -> None:
    """0.07 * 100 is 7.000000000000001 in floats."""
    assert over_selected(1.0, 100, 0.07) == 107
    assert over_selected(0.1, 100, 0.25) == 13
